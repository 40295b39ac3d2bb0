"""Which type every value register holds where.

Bytecode names registers of one untyped 32-bit file; instructions say how they read one, but branches
copy bits. In Python a register is a local variable, and a 64-bit value is one variable rather than
two halves, so the translator has to know what it copies. A forward dataflow analysis finds out. It
also proves that every register is read as what was written there, which generated code relies on;
code of which that is not true is refused (no compiler emits it).

References need no types. For them the analysis finds the registers that may be read before they
are written, which hold null then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ..errors import FormatError
from ..vmfb.bytecode import Branch, DecodedFunction, FunctionRef, Instruction, Reg
from ..vmfb.calling_convention import CallingConvention, Span
from ..vmfb.isa import Access, FieldKind, ValueType

__all__ = ["FunctionTypes", "State", "Walker", "analyze"]

_WIDE = (ValueType.I64, ValueType.F64)


class State:
    """Types of value registers and the set of written reference registers, at one place.

    A 64-bit value is entered at its low register; its high register has no entry.
    """

    __slots__ = ("references", "values")

    def __init__(self, values: dict[int, ValueType], references: set[int]) -> None:
        self.values = values
        self.references = references

    def copy(self) -> State:
        """An independent copy."""
        return State(dict(self.values), set(self.references))

    def write(self, index: int, value_type: ValueType) -> None:
        """Enter that register ``index`` now holds a value of ``value_type``."""
        if value_type is ValueType.REF:
            self.references.add(index)
            return
        self._forget(index)
        if value_type in _WIDE:
            self._forget(index + 1)
        self.values[index] = value_type

    def _forget(self, index: int) -> None:
        self.values.pop(index, None)
        if self.values.get(index - 1) in _WIDE:
            del self.values[index - 1]

    def merge(self, other: State) -> bool:
        """Keep what both states agree on. Returns whether this one changed."""
        disagreeing = [key for key, held in self.values.items() if other.values.get(key) is not held]
        for key in disagreeing:
            del self.values[key]
        missing = not self.references <= other.references
        if missing:
            self.references &= other.references
        return bool(disagreeing) or missing

    def remap(self, branch: Branch) -> Iterator[tuple[Reg, Reg]]:
        """Apply a branch's copies in order; yield those that move a variable.

        The second half of a 64-bit copy moves none, nor does the copy of a register that holds
        nothing known.
        """
        pending_high: tuple[int, int] | None = None
        for source, target in branch.remaps:
            if source.bank is ValueType.REF:
                yield source, target
                self.references.add(target.index)
                continue
            if (source.index, target.index) == pending_high:
                pending_high = None
                continue
            held = self.values.get(source.index)
            if held is None:
                self._forget(target.index)
                continue
            pending_high = (source.index + 1, target.index + 1) if held in _WIDE else None
            if source.index != target.index:
                self.write(target.index, held)
                yield source, target


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionTypes:
    """What the analysis found: the state at the start of each block (None where unreachable), and
    the reference registers that need a null at entry."""

    entry_states: tuple[State | None, ...]
    null_references: frozenset[int]


def operand_types(convention: CallingConvention, segments: Sequence[int] | None) -> Iterator[ValueType]:
    """Types of a call's operands, with every span as long as ``segments`` says."""
    for position, argument in enumerate(convention.arguments):
        if isinstance(argument, Span):
            count = segments[position] if segments is not None else 0
            for _ in range(count):
                yield from argument.elements
        else:
            yield argument


class Walker:
    """Steps a `State` over instructions, checking reads."""

    def __init__(
        self,
        convention: CallingConvention,
        conventions: Callable[[FunctionRef], CallingConvention],
        error: Callable[[str, int], FormatError],
    ) -> None:
        self.convention = convention
        self.conventions = conventions
        self.error = error
        self.null_references: set[int] = set()

    def initial_state(self) -> tuple[State, list[Reg]]:
        """The state at entry, and the registers that hold the arguments.

        Each register file is filled from 0; 64-bit values are aligned to even registers.
        """
        state = State({}, set())
        registers: list[Reg] = []
        value_count = reference_count = 0
        for argument in self.convention.arguments:
            if isinstance(argument, Span):
                raise self.error("a bytecode function cannot take a span", 0)
            value_type = argument
            if value_type is ValueType.REF:
                index = reference_count
                reference_count += 1
            else:
                value_count += value_count & 1 if value_type in _WIDE else 0
                index = value_count
                value_count += 2 if value_type in _WIDE else 1
            state.write(index, value_type)
            registers.append(Reg(index, value_type))
        return state, registers

    def step(self, state: State, instruction: Instruction) -> None:
        """Check what ``instruction`` reads, then enter what it writes. Branches are not taken."""
        writes: list[tuple[int, ValueType]] = []
        for field, value in zip(instruction.op.fields, instruction.values, strict=True):
            if field.kind is FieldKind.REGISTER:
                if field.access is Access.WRITE:
                    writes.append((value.index, value.bank))
                else:
                    self._read(state, value, value.bank, instruction)
            elif field.kind is FieldKind.OPERANDS:
                self._read_all(state, value, instruction)
            elif field.kind is FieldKind.RESULTS:
                results = self.conventions(instruction["callee"]).results
                self._same_length(value, results, "results", instruction)
                for register, value_type in zip(value, results, strict=True):
                    self._same_bank(register, value_type, instruction)
                    writes.append((register.index, value_type))
        for index, value_type in writes:
            state.write(index, value_type)

    def _read(self, state: State, register: Reg, expected: ValueType, instruction: Instruction) -> None:
        if expected is ValueType.REF:
            if register.index not in state.references:
                self.null_references.add(register.index)
            return
        held = state.values.get(register.index)
        if held is not expected:
            found = f"holds {held.value}" if held is not None else "has no value of one type"
            raise self.error(
                f"{instruction.op.name} reads register {register.index} as {expected.value}, but it {found}",
                instruction.pc,
            )

    def _read_all(self, state: State, registers: Sequence[Reg], instruction: Instruction) -> None:
        encoding = instruction.op.encoding
        if encoding in ("trace", "discard_refs"):
            return
        if encoding.startswith("switch"):
            for register in registers:
                self._read(state, register, register.bank, instruction)
            return
        if encoding == "return":
            types: Sequence[ValueType] = self.convention.results
        else:
            convention = self.conventions(instruction["callee"])
            segments = self._segments(convention, instruction)
            types = tuple(operand_types(convention, segments))
        self._same_length(registers, types, "operands", instruction)
        for register, value_type in zip(registers, types, strict=True):
            self._same_bank(register, value_type, instruction)
            self._read(state, register, value_type, instruction)

    def _segments(self, convention: CallingConvention, instruction: Instruction) -> Sequence[int] | None:
        if "variadic" not in instruction.op.encoding:
            if convention.is_variadic:
                raise self.error("a call without segments to a function that takes a span", instruction.pc)
            return None
        segments: Sequence[int] = instruction["segments"]
        is_span = [isinstance(argument, Span) for argument in convention.arguments]
        if len(segments) != len(is_span) or [count >= 0 for count in segments] != is_span:
            raise self.error("segments do not match the callee's calling convention", instruction.pc)
        return segments

    def _same_length(
        self, found: Sequence[Reg], expected: Sequence[ValueType], what: str, instruction: Instruction
    ) -> None:
        if len(found) != len(expected):
            raise self.error(
                f"{instruction.op.name} has {len(found)} {what} where the calling convention has "
                f"{len(expected)}",
                instruction.pc,
            )

    def _same_bank(self, register: Reg, expected: ValueType, instruction: Instruction) -> None:
        if (register.bank is ValueType.REF) != (expected is ValueType.REF):
            raise self.error(
                f"{instruction.op.name} passes a register of the wrong file as {expected.value}",
                instruction.pc,
            )


def analyze(function: DecodedFunction, walker: Walker) -> FunctionTypes:
    """Run the analysis to its fixed point.

    Raises:
        FormatError: a register is read as something it does not hold.
    """
    states: list[State | None] = [None] * len(function.blocks)
    states[0] = walker.initial_state()[0]
    pending = [0]
    while pending:
        index = pending.pop()
        entry = states[index]
        if entry is None:
            continue
        state = entry.copy()
        for instruction in function.blocks[index].instructions:
            walker.step(state, instruction)
        for branch in function.blocks[index].instructions[-1].branches:
            outgoing = state.copy()
            for source, _ in outgoing.remap(branch):
                if source.bank is ValueType.REF and source.index not in outgoing.references:
                    walker.null_references.add(source.index)
            known = states[branch.block]
            if known is None:
                states[branch.block] = outgoing
                pending.append(branch.block)
            elif known.merge(outgoing):
                pending.append(branch.block)
    return FunctionTypes(tuple(states), frozenset(walker.null_references))
