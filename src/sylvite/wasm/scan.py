"""Finding instructions in function bodies by regular expressions built from the instruction table.

A decoder in Python takes a microsecond an instruction, and a module has millions. One match of such a
pattern passes over hundreds of instructions of no interest; what a pattern does not cover (a memory index, a
block type that is a type index) is for the caller to decode.
"""

from __future__ import annotations

from collections.abc import Iterable

from .instructions import InstructionInfo

__all__ = ["RUN", "alternatives"]

_LEB = rb"[\x80-\xff]*[\x00-\x7f]"
_ANY = rb"[\x00-\xff]"
_INTEGERS = ("label", "function", "type", "table", "local", "global", "data", "element", "tag", "i32", "i64")
_PATTERNS = {
    **dict.fromkeys(_INTEGERS, _LEB),
    "f32": _ANY + b"{4}",
    "f64": _ANY + b"{8}",
    "v128": _ANY + b"{16}",
    "shuffle": _ANY + b"{16}",
    "lane": _ANY,
    "zero": _ANY,
    "heaptype": _ANY,
    "valtypes": rb"\x01" + _ANY,
    # Memory 0 only (bit 6 of the flags announces an index), and no type index (multi-value): the rest
    # takes the slow path.
    "memory": rb"\x00",
    "memarg": rb"[\x00-\x3f]" + _LEB,
    "blocktype": rb"[\x40-\x7f]",
}
"""Immediates as regular expressions; an instruction with any other is read by the decoder."""

RUN = 200
"""Most instructions in one match: bounds what the matcher remembers."""


def alternatives(group: Iterable[InstructionInfo]) -> bytes:
    """A pattern for any of a group of instructions with their immediates; equal immediates are merged."""
    by_rest: dict[tuple[bytes, bytes], bytes] = {}
    for info in group:
        if all(operand.kind in _PATTERNS for operand in info.operands):
            *head, last = info.opcode_bytes
            key = (bytes(head), b"".join(_PATTERNS[operand.kind] for operand in info.operands))
            by_rest[key] = by_rest.get(key, b"") + b"\\x%02x" % last
    return b"|".join(
        b"".join(b"\\x%02x" % byte for byte in head) + b"[" + codes + b"]" + rest
        for (head, rest), codes in by_rest.items()
    )
