"""Shadow stacks: what compiled C keeps in linear memory because it needs an address."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from ..errors import TrapError

if TYPE_CHECKING:
    from ..engines.base import Global

__all__ = ["StackRegion"]

_Error = TypeVar("_Error", bound=BaseException)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StackRegion:
    """``byte_length`` bytes from ``address``, growing down from ``top``.

    The first one of a memory lies at its bottom, so that overflowing it runs below address 0 and traps; for
    others modules are given checks, see `sylvite.wasm.stack_check`.
    """

    address: int
    byte_length: int
    pointer: Global

    @property
    def top(self) -> int:
        """The stack pointer of an empty stack."""
        return self.address + self.byte_length

    def explained(self, error: _Error) -> _Error | TrapError:
        """What stopped guest code on this stack, with the reason where that is the stack's length."""
        if (
            not isinstance(error, TrapError)
            or self.address <= int(self.pointer.value) & 0xFFFFFFFF <= self.top
        ):
            return error
        message = (
            f"{error.message}: it needs more than the {self.byte_length} bytes of the shadow stack; "
            "pass a larger stack_bytes to the device"
        )
        explained = TrapError(message, code=error.code, frames=error.frames, kernel=error.kernel)
        explained.__cause__ = error
        return explained
