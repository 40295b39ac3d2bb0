"""Records of a decoded SPIR-V module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..errors import FormatError

__all__ = ["Block", "EntryPoint", "Function", "Instruction", "Module"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Args:
        opcode: its number.
        name: its name, with ``Op``.
        offset: where it starts, in words from the start of the module.
        type_id: id of the result's type; 0 when it has none.
        result_id: id it defines; 0 when it defines none.
        operands: what follows them: ids and numbers as ``int``, text as ``str``. Bit masks and enumerants
            are followed by their parameters.
        kinds: the kind of each operand, in the words of the grammar.
    """

    opcode: int
    name: str
    offset: int
    type_id: int
    result_id: int
    operands: tuple[int | str, ...]
    kinds: tuple[str, ...]

    def number(self, index: int) -> int:
        """Operand ``index``, an id or a number."""
        value = self.operands[index]
        if isinstance(value, str):
            raise FormatError(f"operand {index} of {self.name} is text", offset=self.offset)
        return value

    def numbers(self, start: int = 0) -> tuple[int, ...]:
        """Operands from ``start`` on, ids or numbers."""
        return tuple(self.number(index) for index in range(start, len(self.operands)))

    def text(self, index: int) -> str:
        """Operand ``index``, text."""
        value = self.operands[index]
        if isinstance(value, int):
            raise FormatError(f"operand {index} of {self.name} is not text", offset=self.offset)
        return value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """An ``OpEntryPoint``. ``interface`` holds ids of the variables it names."""

    model: str
    function: int
    name: str
    interface: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A basic block: what follows its ``OpLabel``, the last being the terminator."""

    label: int
    offset: int
    instructions: tuple[Instruction, ...]

    @property
    def terminator(self) -> Instruction:
        """The instruction that ends it."""
        return self.instructions[-1]

    @property
    def merge(self) -> Instruction | None:
        """Its ``OpSelectionMerge`` or ``OpLoopMerge``."""
        if len(self.instructions) > 1 and self.instructions[-2].opcode in (246, 247):
            return self.instructions[-2]
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function definition; one without ``blocks`` is a declaration."""

    result_id: int
    definition: Instruction
    parameters: tuple[Instruction, ...]
    blocks: tuple[Block, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A decoded module.

    Args:
        where: its name for messages.
        version: major and minor.
        generator: the header's word about what wrote it.
        bound: ids are less than this.
        instructions: all, in order.
        capabilities: names.
        extensions: names.
        imports: sets of extended instructions: name by id.
        entry_points: all.
        execution_modes: by function id: mode name and operands (ids in case of ``OpExecutionModeId``).
        names: by id.
        member_names: by type id and member index.
        decorations: by id: decoration name to its operands.
        member_decorations: by type id and member index.
        definitions: the instruction that defines an id.
        functions: by id, in order.
    """

    where: str
    version: tuple[int, int]
    generator: int
    bound: int
    instructions: tuple[Instruction, ...]
    capabilities: tuple[str, ...]
    extensions: tuple[str, ...]
    imports: Mapping[int, str]
    entry_points: tuple[EntryPoint, ...]
    execution_modes: Mapping[int, tuple[tuple[str, tuple[int, ...]], ...]]
    names: Mapping[int, str]
    member_names: Mapping[tuple[int, int], str]
    decorations: Mapping[int, Mapping[str, tuple[int | str, ...]]]
    member_decorations: Mapping[tuple[int, int], Mapping[str, tuple[int | str, ...]]]
    definitions: Mapping[int, Instruction]
    functions: Mapping[int, Function]

    def definition(self, identifier: int, user: Instruction | None = None) -> Instruction:
        """The instruction that defines an id.

        Raises:
            FormatError: nothing does.
        """
        found = self.definitions.get(identifier)
        if found is None:
            offset = None if user is None else user.offset
            name = "" if user is None else f" of {user.name}"
            raise FormatError(f"id %{identifier}{name} is not defined", offset=offset, where=self.where)
        return found

    def decoration(self, identifier: int, name: str) -> tuple[int | str, ...] | None:
        """Operands of a decoration of an id, or ``None``."""
        return self.decorations.get(identifier, {}).get(name)
