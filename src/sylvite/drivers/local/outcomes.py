"""What a run of a program came to: its failure, told by the name of what failed, or its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import DeadlineExceededError, InvalidArgumentError, KernelError, SylviteError, TrapError
from .sequencer import Control, Failure

if TYPE_CHECKING:
    from ...trace import Counters
    from .program import Program

__all__ = ["count_run", "named", "told_failure", "with_kernel_name"]

_WORD: Final = 4


def named(error: SylviteError, program: Program, record: int) -> SylviteError:
    """The same failure with the name of what the record at a guest address does."""
    unit = program.unit_at(record)
    return error if unit is None else with_kernel_name(error, unit.name)


def told_failure(words: memoryview, program: Program, failure: int) -> SylviteError:
    """What a run stopped at without a trap, by its control block."""
    record, code = words[Control.RECORD // _WORD], words[Control.CODE // _WORD]
    if failure == Failure.WORKGROUP_COUNT:
        return InvalidArgumentError(f"{code} workgroups along z are not in 0..65535")
    unit = program.unit_at(record)
    signed = code - (1 << 32) if code >> 31 else code
    return KernelError(
        f"the kernel returned {signed}", code=signed, kernel=unit.name if unit is not None else "?"
    )


def count_run(words: memoryview, program: Program, counters: Counters) -> None:
    """Count a run that has ended well, by its control block."""
    indirect = 0
    if program.has_indirect:
        first = Control.WORKGROUPS // _WORD
        indirect = words[first] | words[first + 1] << 32
    program.count(counters, indirect)


def with_kernel_name(error: SylviteError, kernel: str) -> SylviteError:
    """The same failure with the name of the kernel that ran."""
    if isinstance(error, TrapError):
        return TrapError(error.message, code=error.code, frames=error.frames, kernel=kernel)
    if isinstance(error, DeadlineExceededError):
        return DeadlineExceededError(error.message, kernel=kernel)
    return error
