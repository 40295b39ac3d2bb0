"""Reading and writing instruction sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...errors import FormatError
from ..leb import MalformedError, read_unsigned
from .immediates import KINDS
from .table import INSTRUCTIONS, OPCODES, PREFIXES, InstructionInfo

__all__ = [
    "Instruction",
    "decode_body",
    "decode_expression",
    "decode_instruction",
    "encode_body",
    "encode_instruction",
]


# A named tuple, not a dataclass: bodies hold millions of these and it is built three times faster.
class Instruction(NamedTuple):
    """One instruction: its name in `INSTRUCTIONS`, its immediates in binary order (see `immediates`)
    and the offset of its first byte from the start of the expression."""

    name: str
    immediates: tuple[Any, ...] = ()
    offset: int = 0


_Readers = tuple[Callable[[bytes, int], tuple[Any, int]], ...]


class _Row(NamedTuple):
    """What the decoding loop needs of an `InstructionInfo`."""

    name: str
    readers: _Readers
    opens: bool


_OPENING = frozenset(("block", "loop", "if", "try_table"))


def _lane_reader(limit: int) -> Callable[[bytes, int], tuple[int, int]]:
    def read(data: bytes, position: int) -> tuple[int, int]:
        lane = data[position]
        if lane >= limit:
            raise MalformedError(f"lane {lane} of a vector with {limit} lanes", position)
        return lane, position + 1

    return read


def _row(info: InstructionInfo) -> _Row:
    readers = tuple(
        _lane_reader(operand.limit) if operand.kind == "lane" else KINDS[operand.kind].read
        for operand in info.operands
    )
    return _Row(info.name, readers, info.name in _OPENING)


_PLAIN: list[_Row | None] = [None] * 256
_PREFIXED: dict[int, dict[int, _Row]] = {prefix: {} for prefix in PREFIXES}
for _info in INSTRUCTIONS.values():
    if _info.prefix:
        _PREFIXED[_info.prefix][_info.code] = _row(_info)
    else:
        _PLAIN[_info.code] = _row(_info)

_UNSUPPORTED = {
    **dict.fromkeys((0x06, 0x07, 0x09, 0x18, 0x19), "legacy exception handling"),
    **dict.fromkeys((0x14, 0x15, 0xD3, 0xD4, 0xD5, 0xD6), "typed function references"),
    0xFB: "garbage collection",
    **dict.fromkeys((0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6), "stack switching"),
}


def _find_row(data: bytes, position: int) -> tuple[_Row, int]:
    """The row of an opcode that is not a plain known byte, and the position after the opcode."""
    byte = data[position]
    rows = _PREFIXED.get(byte)
    if rows is not None:
        code, after = read_unsigned(data, position + 1, 32)
        row = rows.get(code)
        if row is None:
            raise MalformedError(f"unknown opcode {byte:#04x} {code:#04x}", position)
        return row, after
    proposal = _UNSUPPORTED.get(byte)
    if proposal is not None:
        raise MalformedError(
            f"opcode {byte:#04x} is of the {proposal} proposal, which is not supported",
            position,
            unsupported=True,
        )
    raise MalformedError(f"unknown opcode {byte:#04x}", position)


def _leave(name: str, position: int, open_blocks: list[str]) -> None:
    """Account for an ``end`` or ``else``."""
    if name == "end":
        open_blocks.pop()
    elif open_blocks[-1] == "if":
        open_blocks[-1] = "else"
    else:
        raise MalformedError("else without if", position)


def decode_instruction(
    data: bytes, position: int, *, base: int = 0, where: str = "function body"
) -> tuple[Instruction, int]:
    """Decode one instruction without regard to nesting; return it and the position after it.

    Raises:
        FormatError, UnsupportedFeatureError
    """
    start = position
    try:
        row = _PLAIN[data[position]]
        if row is None:
            row, position = _find_row(data, position)
        else:
            position += 1
        values = []
        for reader in row.readers:
            value, position = reader(data, position)
            values.append(value)
    except MalformedError as error:
        raise error.translate(base=base, where=where) from None
    except IndexError:
        raise FormatError("unexpected end", offset=base + len(data), where=where) from None
    return Instruction(row.name, tuple(values), start), position


def _decode(data: bytes, position: int) -> tuple[list[Instruction], int]:
    instructions: list[Instruction] = []
    append = instructions.append
    plain = _PLAIN
    open_blocks = ["function"]
    while open_blocks:
        start = position
        row = plain[data[position]]
        if row is None:
            row, position = _find_row(data, position)
        else:
            position += 1
        name, readers, opens = row
        if not readers:
            if name == "end" or name == "else":
                _leave(name, start, open_blocks)
            append(Instruction(name, (), start))
        elif len(readers) == 1:
            value, position = readers[0](data, position)
            append(Instruction(name, (value,), start))
        else:
            values = []
            for reader in readers:
                value, position = reader(data, position)
                values.append(value)
            append(Instruction(name, tuple(values), start))
        if opens:
            open_blocks.append(name)
    return instructions, position


def decode_expression(
    data: bytes, position: int = 0, *, base: int = 0, where: str = "expression"
) -> tuple[list[Instruction], int]:
    """Decode from ``position`` to the ``end`` that closes the expression.

    Args:
        data: bytes that hold the expression and perhaps more.
        position: where it starts in ``data``.
        base: offset of ``data[0]`` in the module, for errors.
        where: what ``data`` is, for errors.

    Returns:
        The instructions, with offsets into ``data``, and the position after the last.

    Raises:
        FormatError: malformed, or ``data`` ends first.
        UnsupportedFeatureError: an instruction of a proposal that is not supported.
    """
    try:
        return _decode(data, position)
    except MalformedError as error:
        raise error.translate(base=base, where=where) from None
    except IndexError:
        raise FormatError("unexpected end", offset=base + len(data), where=where) from None


def decode_body(data: bytes, *, base: int = 0, where: str = "function body") -> list[Instruction]:
    """Decode the instructions of a whole function body (without its local declarations).

    Args:
        data: exactly one expression, with its final ``end``.
        base: offset of ``data[0]`` in the module, for errors.
        where: what ``data`` is, for errors.

    Raises:
        FormatError: malformed, or bytes are left over.
        UnsupportedFeatureError: an instruction of a proposal that is not supported.
    """
    instructions, position = decode_expression(data, base=base, where=where)
    if position != len(data):
        raise FormatError(
            f"{len(data) - position} bytes after the final end", offset=base + position, where=where
        )
    return instructions


_WRITERS: dict[str, tuple[bytes, tuple[Callable[[Any], bytes], ...]]] = {
    info.name: (info.opcode_bytes, tuple(KINDS[operand.kind].write for operand in info.operands))
    for info in OPCODES.values()
}


def encode_instruction(name: str, immediates: tuple[Any, ...] = ()) -> bytes:
    """The shortest bytes of one instruction. ``immediates`` must be as `decode_body` gives them."""
    opcode, writers = _WRITERS[name]
    if not writers:
        return opcode
    if len(writers) == 1:
        return opcode + writers[0](immediates[0])
    return opcode + b"".join(write(value) for write, value in zip(writers, immediates, strict=True))


def encode_body(instructions: Iterable[Instruction]) -> bytes:
    """The shortest bytes of a sequence of instructions, which must include its final ``end``."""
    return b"".join(encode_instruction(i.name, i.immediates) for i in instructions)
