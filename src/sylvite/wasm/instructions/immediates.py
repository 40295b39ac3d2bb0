"""Kinds of immediate operands: how each is read from and written to the binary format.

Values: indices and labels are ints; floating-point and vector constants are their raw little-endian
bytes (a Python float would lose NaN payloads); block types are ``None``, a `ValueType` or a type index.

Source: core specification, 5.4; 5.3.6 for block types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ..leb import MalformedError, encode_signed, encode_unsigned, read_signed, read_unsigned
from ..types import BlockType, ValueType

__all__ = ["KINDS", "Catch", "ImmediateKind", "MemoryArgument", "read_value_type"]

MAXIMUM_BRANCH_TARGETS = 65_520
"""Most targets of one br_table. Source: WebAssembly JavaScript interface, implementation limits."""


class MemoryArgument(NamedTuple):
    """Alignment (log2 of bytes), constant offset in bytes and memory index of a memory access."""

    align: int
    offset: int = 0
    memory: int = 0


class Catch(NamedTuple):
    """One clause of a try_table: ``tag`` is None for catch-all; ``reference`` also pushes the exnref."""

    tag: int | None
    label: int
    reference: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImmediateKind:
    """How one kind of immediate is coded. ``read(data, position)`` returns value and next position and
    raises `MalformedError` or IndexError (end of data); ``write(value)`` returns the shortest bytes."""

    name: str
    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


_VALUE_TYPES = {int(member): member for member in ValueType}
_TYPED_REFERENCES = frozenset((0x63, 0x64, 0x65, *range(0x68, 0x70), *range(0x71, 0x79)))


def read_value_type(data: bytes, position: int) -> tuple[ValueType, int]:
    """Read one value type.

    Raises:
        MalformedError: not a value type, or one of the garbage-collection proposal (not supported).
    """
    byte = data[position]
    value_type = _VALUE_TYPES.get(byte)
    if value_type is None:
        known = byte in _TYPED_REFERENCES
        text = "is of the typed-reference proposals, which are not supported" if known else "is unknown"
        raise MalformedError(f"value type {byte:#04x} {text}", position, unsupported=known)
    return value_type, position + 1


def _read_heap_type(data: bytes, position: int) -> tuple[ValueType, int]:
    byte = data[position]
    if not 0x40 <= byte < 0x80 and read_signed(data, position, 33)[0] >= 0:
        raise MalformedError("typed function references are not supported", position, unsupported=True)
    value_type, after = read_value_type(data, position)
    if not value_type.is_reference:
        raise MalformedError(f"{value_type.text} is not a reference type", position)
    return value_type, after


def _read_u32(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    return read_unsigned(data, position, 32)


def _read_s32(data: bytes, position: int) -> tuple[int, int]:
    return read_signed(data, position, 32)


def _read_s64(data: bytes, position: int) -> tuple[int, int]:
    return read_signed(data, position, 64)


def _fixed(length: int) -> Callable[[bytes, int], tuple[bytes, int]]:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        after = position + length
        raw = data[position:after]
        if len(raw) != length:
            raise IndexError(after)
        return raw, after

    return read


def _read_byte(data: bytes, position: int) -> tuple[int, int]:
    return data[position], position + 1


def _read_shuffle(data: bytes, position: int) -> tuple[bytes, int]:
    lanes, after = _fixed(16)(data, position)
    if max(lanes) >= 32:
        raise MalformedError(f"shuffle lane {max(lanes)} is above 31", position)
    return lanes, after


def _read_zero(data: bytes, position: int) -> tuple[int, int]:
    if data[position]:
        raise MalformedError("zero byte expected", position)
    return 0, position + 1


def _read_block_type(data: bytes, position: int) -> tuple[BlockType, int]:
    byte = data[position]
    if byte == 0x40:
        return None, position + 1
    if 0x40 < byte < 0x80:
        return read_value_type(data, position)
    index, after = read_signed(data, position, 33)
    if index < 0:
        raise MalformedError("block type is neither a value type nor a type index", position)
    return index, after


def _write_block_type(value: BlockType) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, ValueType):
        return bytes((value,))
    return encode_signed(value)


def _read_memory_argument(data: bytes, position: int) -> tuple[MemoryArgument, int]:
    flags, after = _read_u32(data, position)
    memory = 0
    if flags & 0x40:
        memory, after = _read_u32(data, after)
        flags ^= 0x40
    if flags >= 0x40:
        raise MalformedError(f"alignment 2**{flags} of a memory access is impossible", position)
    # u64 also for 32-bit memories: the validator compares it with the memory's address type.
    offset, after = read_unsigned(data, after, 64)
    return MemoryArgument(flags, offset, memory), after


def _write_memory_argument(value: MemoryArgument) -> bytes:
    if value.memory:
        flags = encode_unsigned(value.align | 0x40) + encode_unsigned(value.memory)
    else:
        flags = encode_unsigned(value.align)
    return flags + encode_unsigned(value.offset)


def _read_count(data: bytes, position: int, what: str, limit: int) -> tuple[int, int]:
    count, after = _read_u32(data, position)
    if count > limit or count > len(data) - after:
        raise MalformedError(f"count of {what} is {count}, more than fit here", position)
    return count, after


def _read_labels(data: bytes, position: int) -> tuple[tuple[int, ...], int]:
    count, position = _read_count(data, position, "branch targets", MAXIMUM_BRANCH_TARGETS)
    labels = []
    for _ in range(count + 1):
        label, position = _read_u32(data, position)
        labels.append(label)
    return tuple(labels), position


def _write_labels(value: tuple[int, ...]) -> bytes:
    return encode_unsigned(len(value) - 1) + b"".join(map(encode_unsigned, value))


def _read_value_types(data: bytes, position: int) -> tuple[tuple[ValueType, ...], int]:
    count, position = _read_count(data, position, "types", 1000)
    types = []
    for _ in range(count):
        value_type, position = read_value_type(data, position)
        types.append(value_type)
    return tuple(types), position


def _write_value_types(value: tuple[ValueType, ...]) -> bytes:
    return encode_unsigned(len(value)) + bytes(value)


def _read_catches(data: bytes, position: int) -> tuple[tuple[Catch, ...], int]:
    count, position = _read_count(data, position, "catch clauses", 10_000)
    catches = []
    for _ in range(count):
        kind = data[position]
        if kind > 3:
            raise MalformedError(f"catch clause kind {kind} is unknown", position)
        position += 1
        tag: int | None = None
        if kind < 2:
            tag, position = _read_u32(data, position)
        label, position = _read_u32(data, position)
        catches.append(Catch(tag, label, bool(kind & 1)))
    return tuple(catches), position


def _write_catch(value: Catch) -> bytes:
    kind = (0 if value.tag is not None else 2) | value.reference
    tag = b"" if value.tag is None else encode_unsigned(value.tag)
    return bytes((kind,)) + tag + encode_unsigned(value.label)


def _write_catches(value: tuple[Catch, ...]) -> bytes:
    return encode_unsigned(len(value)) + b"".join(map(_write_catch, value))


def _write_byte(value: int) -> bytes:
    return bytes((value,))


_INDICES = ["label", "function", "type", "table", "local", "global", "memory", "data", "element", "tag"]

KINDS: dict[str, ImmediateKind] = {
    kind.name: kind
    for kind in (
        *(ImmediateKind(name=name, read=_read_u32, write=encode_unsigned) for name in _INDICES),
        ImmediateKind(name="i32", read=_read_s32, write=encode_signed),
        ImmediateKind(name="i64", read=_read_s64, write=encode_signed),
        ImmediateKind(name="f32", read=_fixed(4), write=bytes),
        ImmediateKind(name="f64", read=_fixed(8), write=bytes),
        ImmediateKind(name="v128", read=_fixed(16), write=bytes),
        ImmediateKind(name="shuffle", read=_read_shuffle, write=bytes),
        ImmediateKind(name="lane", read=_read_byte, write=_write_byte),
        ImmediateKind(name="zero", read=_read_zero, write=_write_byte),
        ImmediateKind(name="memarg", read=_read_memory_argument, write=_write_memory_argument),
        ImmediateKind(name="blocktype", read=_read_block_type, write=_write_block_type),
        ImmediateKind(name="labels", read=_read_labels, write=_write_labels),
        ImmediateKind(name="valtypes", read=_read_value_types, write=_write_value_types),
        ImmediateKind(name="heaptype", read=_read_heap_type, write=_write_byte),
        ImmediateKind(name="catches", read=_read_catches, write=_write_catches),
    )
}
"""Every kind of immediate by the name the instruction tables use."""
