"""What native modules do with their arguments: check references, read strings, turn numbers unsigned."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from ...errors import InvalidArgumentError
from ...hal.element_types import ElementType, element_type_from_value
from ..refs import VmBuffer

__all__ = ["bytes_of", "element_type", "expect", "expect_or_none", "span_of", "text_of", "u32", "u64"]

_T = TypeVar("_T")


def expect(value: Any, kind: type[_T], what: str) -> _T:
    """The value, which must be a ``kind``; ``what`` is the argument's name in the import.

    Raises:
        InvalidArgumentError: It is null or something else.
    """
    if isinstance(value, kind):
        return value
    found = "null" if value is None else f"a {type(value).__name__}"
    raise InvalidArgumentError(f"argument {what} must be a {kind.__name__} and is {found}")


def expect_or_none(value: Any, kind: type[_T], what: str) -> _T | None:
    """The value, which must be a ``kind`` or null.

    Raises:
        InvalidArgumentError: It is something else.
    """
    return None if value is None else expect(value, kind, what)


def bytes_of(value: Any, what: str) -> memoryview:
    """The bytes of a ``!vm.buffer``, without a copy."""
    return expect(value, VmBuffer, what).data


def text_of(value: Any, what: str) -> str:
    """The text of a ``!vm.buffer``.

    Raises:
        InvalidArgumentError: It is null or not UTF-8.
    """
    try:
        return str(bytes_of(value, what), "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"argument {what} is not UTF-8 text") from error


def span_of(value: Any, offset: int, length: int, what: str) -> memoryview:
    """A range of a ``!vm.buffer``, without a copy; a length of -1 means up to the end.

    Raises:
        InvalidArgumentError: The range is not inside.
    """
    data = bytes_of(value, what)
    if length == -1:
        length = len(data) - offset
    if offset < 0 or length < 0 or offset + length > len(data):
        raise InvalidArgumentError(
            f"bytes {offset} to {offset + length} of {what} are not within its {len(data)} bytes"
        )
    return data[offset : offset + length]


def u32(value: int) -> int:
    """An i32 read as unsigned."""
    return value & 0xFFFFFFFF


def u64(value: int) -> int:
    """An i64 read as unsigned."""
    return value & 0xFFFFFFFFFFFFFFFF


@functools.lru_cache(maxsize=256)
def element_type(value: int) -> ElementType:
    """The element type with this encoding (an i32 of either sign)."""
    return element_type_from_value(value)
