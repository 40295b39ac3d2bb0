"""The one exception tree of Sylvite.

Errors are designed by whose fault they are, because that decides what the reader does next::

    SylviteError
    ├── InvalidArgumentError        the caller: wrong dtype, shape, count, option (also a ValueError)
    │   └── ClosedError             the caller: used after close()
    ├── FormatError                 the file: malformed at an offset
    │   ├── UnsupportedVersionError the file: well formed, of another version
    │   └── UnsupportedFeatureError the file: asks for something we (or the engine) do not have
    ├── NotFoundError               the caller or the file: a name that does not exist (also a LookupError)
    ├── LinkError                   the link: symbols or imports that do not resolve or do not match
    ├── CompileError                the model or pipeline: the compiler refused it; the full log is in a file
    ├── GuestError                  the guest program failed while running
    │   ├── TrapError               a WebAssembly trap, with frames and the kernel's name
    │   ├── DeadlineExceededError   the guest ran longer than it was allowed
    │   ├── KernelError             a kernel returned a failure code
    │   ├── PipelineError           a Halide pipeline refused its arguments or failed
    │   └── ProgramError            the program failed by itself (vm.fail, vm.cond_fail, failed checks)
    ├── MachineError                the machine under us
    │   ├── OutOfMemoryError        memory ran out or a cap was reached (also a MemoryError)
    │   ├── DeviceLostError         the device is gone
    │   ├── VerificationError       a device gave other results than the one it was held against
    │   └── UnavailableError        something is not installed; names the extra to install
    └── InternalError               us: a bug, please report

Every class maps to exactly one status code of IREE's status model (``StatusCode``), except
`ProgramError`, which carries the code the program chose.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model.verify import Verification


class StatusCode(enum.IntEnum):
    """IREE's canonical status codes. Source: ``iree/base/status.h``."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    DEFERRED = 17
    INCOMPATIBLE = 18


class SylviteError(Exception):
    """Base of every error Sylvite raises on purpose. ``status`` is its IREE status code."""

    status: StatusCode = StatusCode.UNKNOWN


class InvalidArgumentError(SylviteError, ValueError):
    """The caller passed something that cannot be accepted."""

    status = StatusCode.INVALID_ARGUMENT


class ClosedError(InvalidArgumentError):
    """An object was used after it had been closed."""

    status = StatusCode.FAILED_PRECONDITION


class FormatError(SylviteError):
    """A file (or a byte string standing for one) is malformed.

    ``offset`` counts bytes from the start of what ``where`` names; ``where`` is a file, section or
    structure in the words of the format's specification.
    """

    status = StatusCode.DATA_LOSS

    def __init__(self, message: str, *, offset: int | None = None, where: str | None = None) -> None:
        self.message = message
        self.offset = offset
        self.where = where
        place = ""
        if where is not None:
            place += f" in {where}"
        if offset is not None:
            place += f" at offset {offset:#x}"
        super().__init__(f"{message}{place}")


class UnsupportedVersionError(FormatError):
    """A well-formed file of a version this release does not read."""

    status = StatusCode.INCOMPATIBLE


class UnsupportedFeatureError(FormatError):
    """A well-formed file that needs a feature which is not there."""

    status = StatusCode.UNIMPLEMENTED


class NotFoundError(SylviteError, LookupError):
    """A name (function, parameter, device, driver, file) does not exist."""

    status = StatusCode.NOT_FOUND


class LinkError(SylviteError):
    """Symbols did not resolve or did not match. ``symbols`` holds every offending name."""

    status = StatusCode.FAILED_PRECONDITION

    def __init__(self, message: str, *, module: str | None = None, symbols: Sequence[str] = ()) -> None:
        self.module = module
        self.symbols = tuple(symbols)
        super().__init__(message)


class CompileError(SylviteError):
    """A compiler refused its input. ``log_path`` is a file with everything it said."""

    status = StatusCode.FAILED_PRECONDITION

    def __init__(self, message: str, *, log_path: str | None = None) -> None:
        self.log_path = log_path
        super().__init__(message if log_path is None else f"{message}\nfull log: {log_path}")


class GuestError(SylviteError):
    """The guest program failed while it ran. The process and other programs go on.

    ``kernel`` is the name of the executable export that ran, when one did.
    """

    status = StatusCode.ABORTED

    def __init__(self, message: str, *, kernel: str | None = None) -> None:
        self.message = message
        self.kernel = kernel
        super().__init__(message if kernel is None else f"{message} (in kernel {kernel})")


class TrapError(GuestError):
    """A WebAssembly trap. ``code`` is the trap's name (``integer_divide_by_zero``, ``unreachable``,
    ``memory_out_of_bounds``, ``stack_overflow``, ...); ``frames`` are wasm function names, innermost
    first."""

    status = StatusCode.ABORTED

    def __init__(
        self, message: str, *, code: str, frames: Sequence[str] = (), kernel: str | None = None
    ) -> None:
        self.code = code
        self.frames = tuple(frames)
        super().__init__(message, kernel=kernel)


class DeadlineExceededError(GuestError):
    """The guest, or a wait for it, took longer than its deadline."""

    status = StatusCode.DEADLINE_EXCEEDED


class KernelError(GuestError):
    """A kernel returned the non-zero ``code``."""

    status = StatusCode.INTERNAL

    def __init__(self, message: str, *, code: int, kernel: str | None = None) -> None:
        self.code = code
        super().__init__(message, kernel=kernel)


class PipelineError(GuestError):
    """A Halide pipeline refused its arguments or failed while it ran.

    Args:
        message: what happened, in words.
        reason: Halide's name of the failure: ``access_out_of_bounds``, ``constraint_violated``, ...
        code: Halide's error code, negative.
        buffer: the buffer or parameter concerned, when there is one.
        dimension: the dimension concerned, in Halide's order (0 is innermost).
        details: the failure's numbers and names: ``min_touched``, ``max_valid``, ...
        kernel: the pipeline.
    """

    status = StatusCode.INVALID_ARGUMENT

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        code: int,
        buffer: str | None = None,
        dimension: int | None = None,
        details: Mapping[str, int | float | str] | None = None,
        kernel: str | None = None,
    ) -> None:
        self.reason = reason
        self.code = code
        self.buffer = buffer
        self.dimension = dimension
        self.details = dict(details or {})
        super().__init__(message, kernel=kernel)


class ProgramError(GuestError):
    """The program itself reported failure with a status code. ``location`` is its source location."""

    def __init__(self, message: str, *, status: StatusCode, location: str | None = None) -> None:
        self.location = location
        super().__init__(message if location is None else f"{message}\n  at {location}")
        self.status = status


class MachineError(SylviteError):
    """The machine under us gave out."""

    status = StatusCode.UNAVAILABLE


class OutOfMemoryError(MachineError, MemoryError):
    """Memory ran out, or a cap set by the user was reached. Sizes are in bytes."""

    status = StatusCode.RESOURCE_EXHAUSTED

    def __init__(
        self, message: str, *, requested_bytes: int | None = None, limit_bytes: int | None = None
    ) -> None:
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes
        super().__init__(message)


class DeviceLostError(MachineError):
    """The device is gone and its contents with it."""


class VerificationError(MachineError):
    """A device gave other results than the one it was held against. ``verification`` has the numbers."""

    status = StatusCode.DATA_LOSS

    def __init__(self, message: str, *, verification: Verification) -> None:
        self.verification = verification
        super().__init__(message)


class UnavailableError(MachineError):
    """An optional part is not installed or not usable here. ``extra`` names what to install."""

    def __init__(self, message: str, *, extra: str | None = None) -> None:
        self.extra = extra
        hint = f"; install it with: pip install 'sylvite[{extra}]'" if extra else ""
        super().__init__(message + hint)


class InternalError(SylviteError):
    """A bug in Sylvite. Please report it with the message."""

    status = StatusCode.INTERNAL


__all__: list[str] = [
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and (issubclass(value, SylviteError) or value is StatusCode)
]
