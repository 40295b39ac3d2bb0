"""A reader of little-endian fields that never reads outside its bytes."""

from __future__ import annotations

import struct

from ...errors import FormatError

__all__ = ["Cursor", "check_range"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def check_range(offset: int, byte_length: int, limit: int, *, what: str, place: int, where: str) -> None:
    """Make sure ``[offset, offset + byte_length)`` lies within ``[0, limit)``.

    ``place`` is the file offset of the field that claims the range.

    Raises:
        FormatError: It does not.
    """
    if offset > limit or byte_length > limit - offset:
        raise FormatError(
            f"{what} spans bytes {offset} to {offset + byte_length} of {limit}", offset=place, where=where
        )


class Cursor:
    """A position in a file. ``offset`` counts from the start of the file."""

    __slots__ = ("data", "offset", "where")

    def __init__(self, data: memoryview, *, where: str, offset: int = 0) -> None:
        self.data = data
        self.offset = offset
        self.where = where

    @property
    def remaining(self) -> int:
        """Bytes from the position to the end."""
        return len(self.data) - self.offset

    def fail(self, message: str, *, offset: int | None = None) -> FormatError:
        """The error of this file at the position (or at ``offset``)."""
        return FormatError(message, offset=self.offset if offset is None else offset, where=self.where)

    def take(self, byte_length: int, what: str) -> memoryview:
        """The next bytes, as a view.

        Raises:
            FormatError: The file ends before.
        """
        if byte_length > self.remaining:
            raise self.fail(f"{what} needs {byte_length} bytes and {self.remaining} are left")
        begin = self.offset
        self.offset = begin + byte_length
        return self.data[begin : self.offset]

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit integer."""
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit integer."""
        return int(_U64.unpack(self.take(8, what))[0])

    def text(self, byte_length: int, what: str) -> str:
        """The next bytes as UTF-8.

        Raises:
            FormatError: They are not UTF-8, or not there.
        """
        begin = self.offset
        raw = self.take(byte_length, what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8", offset=begin + error.start) from error
