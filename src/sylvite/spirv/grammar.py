"""The tables of SPIR-V that reading, printing and assembling are driven by.

They are parsed on first use from `sylvite.spirv.grammar_data`, which is generated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from . import grammar_data

__all__ = [
    "COMPOSITE_KINDS",
    "ID_KINDS",
    "EnumKind",
    "InstructionInfo",
    "enum_kinds",
    "enumerant_name",
    "extended_instructions",
    "instructions",
    "opcodes",
]

ID_KINDS = frozenset({"IdResultType", "IdResult", "IdRef", "IdScope", "IdMemorySemantics"})
"""Operand kinds whose word is an id."""

COMPOSITE_KINDS: Mapping[str, tuple[str, str]] = {
    "PairLiteralIntegerIdRef": ("LiteralContextDependentNumber", "IdRef"),
    "PairIdRefLiteralInteger": ("IdRef", "LiteralInteger"),
    "PairIdRefIdRef": ("IdRef", "IdRef"),
}
"""Kinds that stand for two operands. The literals of ``OpSwitch`` are as wide as its selector."""


@dataclasses.dataclass(frozen=True, slots=True)
class InstructionInfo:
    """An opcode: its number, name and operand kinds, each with ``""``, ``"?"`` or ``"*"``."""

    opcode: int
    name: str
    operands: tuple[tuple[str, str], ...]

    @property
    def has_type(self) -> bool:
        """Whether it names its result's type."""
        return any(kind == "IdResultType" for kind, _ in self.operands)

    @property
    def has_result(self) -> bool:
        """Whether it defines an id."""
        return any(kind == "IdResult" for kind, _ in self.operands)


@dataclasses.dataclass(frozen=True, slots=True)
class EnumKind:
    """A kind of enumerated operand. ``parameters`` has the kinds of operands that follow a value."""

    name: str
    is_bits: bool
    names: Mapping[int, str]
    values: Mapping[str, int]
    parameters: Mapping[int, tuple[tuple[str, str], ...]]


def _split(words: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((word[:-1], word[-1]) if word[-1] in "?*" else (word, "") for word in words)


def _parse_instructions(text: str) -> dict[int, InstructionInfo]:
    table = {}
    for line in text.split("\n")[1:-1]:
        number, name, *operands = line.split()
        table[int(number)] = InstructionInfo(int(number), name, _split(operands))
    return table


@functools.cache
def instructions() -> Mapping[int, InstructionInfo]:
    """Core instructions by opcode."""
    return _parse_instructions(grammar_data.INSTRUCTIONS)


@functools.cache
def extended_instructions() -> Mapping[int, InstructionInfo]:
    """Instructions of ``GLSL.std.450`` by number. Their operands follow those of ``OpExtInst``."""
    return _parse_instructions(grammar_data.GLSL_STD_450)


@functools.cache
def opcodes() -> Mapping[str, InstructionInfo]:
    """Core instructions by name."""
    return {info.name: info for info in instructions().values()}


@functools.cache
def enum_kinds() -> Mapping[str, EnumKind]:
    """Enumerated operand kinds by name."""
    kinds: dict[str, EnumKind] = {}
    for line in grammar_data.ENUMERANTS.split("\n")[1:-1]:
        first, *rest = line.split()
        if not first.isdigit():
            names: dict[int, str] = {}
            values: dict[str, int] = {}
            parameters: dict[int, tuple[tuple[str, str], ...]] = {}
            kinds[first] = EnumKind(first, rest[0] == "bits", names, values, parameters)
            continue
        number = int(first)
        names.setdefault(number, rest[0])
        values[rest[0]] = number
        if rest[1:]:
            parameters[number] = _split(rest[1:])
    return kinds


def enumerant_name(kind: str, value: int) -> str:
    """The name of a value (``GLCompute``), or its number as text when it has none."""
    return enum_kinds()[kind].names.get(value, str(value))
