"""Reading and writing the primitive values of the binary format: bytes, LEB128 integers, names, counts.

Every read is checked: a `Reader` never reads past its end, refuses integers that are longer or larger
than their type allows, and refuses counts that the remaining bytes cannot hold before anything is
allocated. Errors are `FormatError` with the offset in the whole module.

Source: WebAssembly core specification, 5.2 (values).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import FormatError, UnsupportedFeatureError

__all__ = [
    "MalformedError",
    "Reader",
    "encode_name",
    "encode_signed",
    "encode_unsigned",
    "read_signed",
    "read_unsigned",
]


T = TypeVar("T")


class MalformedError(Exception):
    """Internal: malformed bytes at a position relative to the buffer; callers add base and place.

    ``unsupported`` marks well-formed bytes of a proposal that is not supported.
    """

    def __init__(self, message: str, position: int, *, unsupported: bool = False) -> None:
        self.message = message
        self.position = position
        self.unsupported = unsupported
        super().__init__(message)

    def translate(self, *, base: int, where: str) -> FormatError:
        """The public error for it."""
        kind = UnsupportedFeatureError if self.unsupported else FormatError
        return kind(self.message, offset=base + self.position, where=where)


def read_unsigned(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Read an unsigned LEB128 of at most ``bits`` bits; return the value and the next position.

    Raises:
        MalformedError: longer than ``ceil(bits / 7)`` bytes, or the value does not fit.
        IndexError: the data ends first (callers translate).
    """
    byte = data[position]
    if byte < 0x80:
        # One byte: fits all the widths in use (8 bits and more).
        return byte, position + 1
    start = position
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        if shift >= bits:
            raise MalformedError(f"integer is longer than a u{bits} may be", start)
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if value >> bits:
        raise MalformedError(f"integer is too large for a u{bits}", start)
    return value, position + 1


def read_signed(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Read a signed LEB128 of at most ``bits`` bits; return the value and the next position.

    Raises:
        MalformedError: longer than ``ceil(bits / 7)`` bytes, or the value does not fit.
        IndexError: the data ends first (callers translate).
    """
    byte = data[position]
    if byte < 0x80:
        return byte - ((byte & 0x40) << 1), position + 1
    start = position
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        if shift >= bits:
            raise MalformedError(f"integer is longer than an s{bits} may be", start)
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if byte & 0x40:
        value -= 1 << shift
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise MalformedError(f"integer is too large for an s{bits}", start)
    return value, position + 1


def encode_unsigned(value: int) -> bytes:
    """Shortest unsigned LEB128 of a non-negative integer."""
    if 0 <= value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_signed(value: int) -> bytes:
    """Shortest signed LEB128 of an integer."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def encode_name(name: str) -> bytes:
    """A name: its UTF-8 byte length and bytes."""
    raw = name.encode("utf-8")
    return encode_unsigned(len(raw)) + raw


class Reader:
    """A cursor over ``data``.

    Args:
        data: the bytes to read, from the first to the last.
        where: what the bytes are, for errors.
        base: offset of ``data[0]`` in the whole module, for errors.
    """

    __slots__ = ("base", "data", "position", "where")

    def __init__(self, data: bytes, *, where: str, base: int = 0) -> None:
        self.data = data
        self.where = where
        self.base = base
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes left."""
        return len(self.data) - self.position

    @property
    def offset(self) -> int:
        """Offset of the cursor in the whole module."""
        return self.base + self.position

    def error(self, message: str, position: int | None = None) -> FormatError:
        """A `FormatError` at ``position`` (the cursor when left out) for the caller to raise."""
        return FormatError(
            message, offset=self.base + (self.position if position is None else position), where=self.where
        )

    def u8(self) -> int:
        """One byte."""
        if self.position >= len(self.data):
            raise self.error("unexpected end")
        byte = self.data[self.position]
        self.position += 1
        return byte

    def read(self, function: Callable[..., tuple[T, int]], *args: object) -> T:
        """Read with ``function(data, position, *args)``, translating its errors."""
        try:
            value, self.position = function(self.data, self.position, *args)
        except MalformedError as error:
            raise error.translate(base=self.base, where=self.where) from None
        except IndexError:
            raise self.error("unexpected end", len(self.data)) from None
        return value

    def u32(self) -> int:
        """An unsigned 32-bit LEB128."""
        return self.read(read_unsigned, 32)

    def u64(self) -> int:
        """An unsigned 64-bit LEB128."""
        return self.read(read_unsigned, 64)

    def bytes(self, length: int) -> bytes:
        """Exactly ``length`` bytes."""
        if length > self.remaining:
            raise self.error(f"{length} bytes wanted, {self.remaining} left")
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def nested(self, length: int) -> Reader:
        """A reader of the next ``length`` bytes, which this one skips."""
        base = self.offset
        return Reader(self.bytes(length), where=self.where, base=base)

    def name(self, limit: int = 100_000) -> str:
        """A name in UTF-8 of at most ``limit`` bytes."""
        start = self.position
        length = self.u32()
        if length > limit:
            raise self.error(f"name of {length} bytes is longer than {limit}", start)
        raw = self.bytes(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error("name is not valid UTF-8", self.position - length + error.start) from None

    def count(self, what: str, *, limit: int, minimum_bytes: int = 1) -> int:
        """A count of things that take at least ``minimum_bytes`` each, at most ``limit`` of them."""
        start = self.position
        count = self.u32()
        if count > limit:
            raise self.error(f"count of {what} is {count}, more than {limit}", start)
        if count * minimum_bytes > self.remaining:
            raise self.error(f"count of {what} is {count}, but only {self.remaining} bytes follow", start)
        return count

    def finish(self) -> None:
        """Refuse bytes that are left over."""
        if self.remaining:
            raise self.error(f"{self.remaining} trailing bytes")
