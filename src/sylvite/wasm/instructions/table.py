"""`INSTRUCTIONS`: every instruction by name, parsed from the declarative tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..leb import encode_unsigned
from ..types import Feature, ValueType
from .atomic_table import ATOMIC
from .core_table import CORE
from .immediates import KINDS
from .vector_table import VECTOR

__all__ = ["INSTRUCTIONS", "OPCODES", "PREFIXES", "InstructionInfo", "Operand", "Signature"]

PREFIXES = (0xFC, 0xFD, 0xFE)
"""First bytes of two-part opcodes; the second part is a u32."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One immediate. ``limit`` is the natural alignment (log2) of a memory argument, or the number of
    lanes a lane index may name; 0 elsewhere."""

    kind: str
    limit: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What an instruction pops and pushes; ``None`` stands for the address type of the memory used."""

    pops: tuple[ValueType | None, ...]
    pushes: tuple[ValueType | None, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstructionInfo:
    """One row of the table.

    Args:
        name: text-format name (``select_t`` is the typed select, which the text format writes ``select``).
        prefix: first opcode byte of two-part opcodes, otherwise 0.
        code: the opcode, or its second part.
        operands: the immediates in binary order.
        signature: what it pops and pushes, or ``None`` where that depends on context.
        feature: the proposal it belongs to, or ``None``.
    """

    name: str
    prefix: int
    code: int
    operands: tuple[Operand, ...]
    signature: Signature | None
    feature: Feature | None

    @property
    def opcode_bytes(self) -> bytes:
        """The opcode as it is written."""
        if self.prefix:
            return bytes((self.prefix,)) + encode_unsigned(self.code)
        return bytes((self.code,))

    @property
    def natural_alignment(self) -> int | None:
        """Log2 of the bytes a memory access touches; ``None`` when it is not a memory access."""
        return next((o.limit for o in self.operands if o.kind == "memarg"), None)


def _parse_signature(text: str) -> Signature | None:
    if text == "*":
        return None
    sides = []
    for side in text.split("->"):
        sides.append(tuple(None if w == "address" else ValueType[w.upper()] for w in side.split()))
    return Signature(pops=sides[0], pushes=sides[1])


def _parse_operands(text: str) -> tuple[Operand, ...]:
    operands = []
    for word in text.split() if text != "-" else ():
        kind, _, limit = word.partition(":")
        operands.append(Operand(kind=KINDS[kind].name, limit=int(limit or 0)))
    return tuple(operands)


def _parse_tables() -> Iterator[InstructionInfo]:
    for table in (CORE, VECTOR, ATOMIC):
        feature: Feature | None = None
        for line in table.splitlines():
            if "|" not in line:
                feature = None if line == "MVP" else Feature[line]
                continue
            opcode, name, operands, signature = (column.strip() for column in line.split("|"))
            parts = [int(part, 16) for part in opcode.split()]
            yield InstructionInfo(
                name=name,
                prefix=parts[0] if len(parts) > 1 else 0,
                code=parts[-1],
                operands=_parse_operands(operands),
                signature=_parse_signature(signature),
                feature=feature,
            )


INSTRUCTIONS: dict[str, InstructionInfo] = {info.name: info for info in _parse_tables()}
"""Every instruction by name."""

OPCODES: dict[tuple[int, int], InstructionInfo] = {
    (info.prefix, info.code): info for info in INSTRUCTIONS.values()
}
"""Every instruction by prefix (0 for none) and code."""
