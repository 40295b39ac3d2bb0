"""Enumerations of the hardware abstraction layer, with IREE's numbers.

Numbers are part of compiled programs (they arrive as i32/i64 arguments of ``hal.*`` imports), so they
may not change. `parse_flags` and `parse_enum` turn such a number into its type and refuse unknown bits.

Source: ``iree/hal/buffer.h``, ``iree/hal/buffer_view.h``, ``iree/hal/command_buffer.h``.
"""

from __future__ import annotations

import enum
import sys
from typing import Final, TypeVar

from ..errors import InvalidArgumentError

__all__ = [
    "QUEUE_AFFINITY_ANY",
    "WHOLE_BUFFER",
    "AccessScope",
    "BufferUsage",
    "CommandBufferMode",
    "CommandCategory",
    "DispatchFlags",
    "EncodingType",
    "ExecutionBarrierFlags",
    "ExecutionStage",
    "MemoryAccess",
    "MemoryType",
    "has_any",
    "lacks",
    "parse_enum",
    "parse_flags",
]

WHOLE_BUFFER: Final = -1
"""As a length: everything from the offset to the end."""

QUEUE_AFFINITY_ANY: Final = -1
"""As a queue affinity: any queue of the device. Devices here have one queue."""


if sys.version_info >= (3, 11):

    class _StrictFlag(enum.IntFlag, boundary=enum.STRICT):
        """Flags that refuse bits they do not define."""

else:

    class _StrictFlag(enum.IntFlag):
        """Flags that refuse bits they do not define: Python 3.10 has no boundaries."""

        @classmethod
        def _known(cls) -> int:
            mask = 0
            for member in cls.__members__.values():
                mask |= member.value
            return mask

        @classmethod
        def _missing_(cls, value: object) -> enum.Enum:
            if not isinstance(value, int) or value & ~cls._known():
                raise ValueError(f"{value!r} is not a valid {cls.__name__}")
            combined: enum.Enum = super()._missing_(value)
            return combined

        def __invert__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            return type(self)(self._known() & ~self._value_)


class MemoryType(_StrictFlag):
    """Where memory lives and who sees it."""

    NONE = 0
    OPTIMAL = 1 << 0
    HOST_VISIBLE = 1 << 1
    HOST_COHERENT = 1 << 2
    HOST_CACHED = 1 << 3
    DEVICE_VISIBLE = 1 << 4
    _DEVICE = 1 << 5
    _HOST = 1 << 6
    HOST_LOCAL = HOST_VISIBLE | HOST_COHERENT | _HOST
    DEVICE_LOCAL = DEVICE_VISIBLE | _DEVICE
    OPTIMAL_FOR_HOST = OPTIMAL | HOST_LOCAL
    OPTIMAL_FOR_DEVICE = OPTIMAL | DEVICE_LOCAL


class MemoryAccess(_StrictFlag):
    """How memory may be, or is going to be, accessed."""

    NONE = 0
    READ = 1 << 0
    WRITE = 1 << 1
    DISCARD = 1 << 2
    MAY_ALIAS = 1 << 3
    UNALIGNED = 1 << 4
    ANY = 1 << 5
    DISCARD_WRITE = WRITE | DISCARD
    ALL = READ | WRITE | DISCARD


class BufferUsage(_StrictFlag):
    """What a buffer may be used for."""

    NONE = 0
    TRANSFER_SOURCE = 1 << 0
    TRANSFER_TARGET = 1 << 1
    TRANSFER = TRANSFER_SOURCE | TRANSFER_TARGET
    DISPATCH_INDIRECT_PARAMETERS = 1 << 8
    DISPATCH_UNIFORM_READ = 1 << 9
    DISPATCH_STORAGE_READ = 1 << 10
    DISPATCH_STORAGE_WRITE = 1 << 11
    DISPATCH_STORAGE = DISPATCH_STORAGE_READ | DISPATCH_STORAGE_WRITE
    DISPATCH_IMAGE_READ = 1 << 12
    DISPATCH_IMAGE_WRITE = 1 << 13
    DISPATCH_IMAGE = DISPATCH_IMAGE_READ | DISPATCH_IMAGE_WRITE
    DISPATCH = DISPATCH_INDIRECT_PARAMETERS | DISPATCH_UNIFORM_READ | DISPATCH_STORAGE | DISPATCH_IMAGE
    SHARING_EXPORT = 1 << 16
    SHARING_REPLICATE = 1 << 17
    SHARING_CONCURRENT = 1 << 18
    SHARING_IMMUTABLE = 1 << 19
    MAPPING_SCOPED = 1 << 24
    MAPPING_PERSISTENT = 1 << 25
    MAPPING_OPTIONAL = 1 << 26
    MAPPING_ACCESS_RANDOM = 1 << 27
    MAPPING_ACCESS_SEQUENTIAL_WRITE = 1 << 28
    MAPPING = MAPPING_SCOPED | MAPPING_ACCESS_RANDOM
    DEFAULT = TRANSFER | DISPATCH_STORAGE


class EncodingType(enum.IntEnum):
    """How the elements of a buffer view lie in its buffer."""

    OPAQUE = 0
    DENSE_ROW_MAJOR = 1


class CommandBufferMode(_StrictFlag):
    """How a command buffer is going to be used."""

    DEFAULT = 0
    ONE_SHOT = 1 << 0
    ALLOW_INLINE_EXECUTION = 1 << 4
    UNVALIDATED = 1 << 5
    UNRETAINED = 1 << 6
    RETAIN_PROFILE_METADATA = 1 << 7
    RETAIN_DISPATCH_METADATA = 1 << 8


class CommandCategory(_StrictFlag):
    """Which kinds of commands a command buffer may hold."""

    NONE = 0
    TRANSFER = 1 << 0
    DISPATCH = 1 << 1
    ANY = TRANSFER | DISPATCH


class ExecutionStage(_StrictFlag):
    """Stages of execution a barrier orders."""

    NONE = 0
    COMMAND_ISSUE = 1 << 0
    COMMAND_PROCESS = 1 << 1
    DISPATCH = 1 << 2
    TRANSFER = 1 << 3
    COMMAND_RETIRE = 1 << 4
    HOST = 1 << 5


class ExecutionBarrierFlags(_StrictFlag):
    """Options of an execution barrier: none are defined yet."""

    NONE = 0


class AccessScope(_StrictFlag):
    """Who accesses memory on a side of a memory barrier."""

    NONE = 0
    INDIRECT_COMMAND_READ = 1 << 0
    CONSTANT_READ = 1 << 1
    DISPATCH_READ = 1 << 2
    DISPATCH_WRITE = 1 << 3
    TRANSFER_READ = 1 << 4
    TRANSFER_WRITE = 1 << 5
    HOST_READ = 1 << 6
    HOST_WRITE = 1 << 7
    MEMORY_READ = 1 << 8
    MEMORY_WRITE = 1 << 9


class DispatchFlags(_StrictFlag):
    """Options of a dispatch."""

    NONE = 0
    DYNAMIC_INDIRECT_PARAMETERS = 1 << 0
    STATIC_INDIRECT_PARAMETERS = 1 << 1
    CUSTOM_DIRECT_ARGUMENTS = 1 << 2
    DYNAMIC_INDIRECT_ARGUMENTS = 1 << 3
    STATIC_INDIRECT_ARGUMENTS = 1 << 4
    ALLOW_INLINE_EXECUTION = 1 << 5
    BORROW_RESOURCE_LIFETIMES = 1 << 6


# The operators of IntFlag make a new member each time, which costs as much as a whole dispatch; what is
# tested on every call goes through int's own.
_and = int.__and__


def has_any(flags: int, wanted: int) -> bool:
    """Whether one of the wanted bits is set."""
    return _and(flags, wanted) != 0


def lacks(flags: int, wanted: int, mask: int) -> bool:
    """Whether one of the wanted bits that are in ``mask`` is not set."""
    asked = _and(wanted, mask)
    return _and(flags, asked) != asked


_Flags = TypeVar("_Flags", bound=enum.IntFlag)
_Enum = TypeVar("_Enum", bound=enum.IntEnum)


# Programs pass the same few numbers in every call, and making a member anew costs microseconds.
_PARSED: dict[tuple[type[enum.IntFlag], int], enum.IntFlag] = {}
_MOST_PARSED = 1024


def parse_flags(flag_type: type[_Flags], value: int, *, what: str) -> _Flags:
    """Turn a number into flags; ``what`` names the argument in the error.

    Raises:
        InvalidArgumentError: a bit is set that the flags do not define.
    """
    known = _PARSED.get((flag_type, value))
    if known is not None:
        return known  # type: ignore[return-value]  # keyed by its type
    try:
        parsed = flag_type(value)
    except ValueError as error:
        message = f"{what} {value:#x} has bits that {flag_type.__name__} does not define"
        raise InvalidArgumentError(message) from error
    if len(_PARSED) < _MOST_PARSED:
        _PARSED[flag_type, value] = parsed
    return parsed


def parse_enum(enum_type: type[_Enum], value: int, *, what: str) -> _Enum:
    """Turn a number into an enumerator; ``what`` names the argument in the error.

    Raises:
        InvalidArgumentError: the number is not one of the enumerators.
    """
    try:
        return enum_type(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} {value} is not a {enum_type.__name__}") from error
