"""Python source for one bytecode function.

Value register ``n`` is the local variable ``r<n>``, reference register ``n`` is ``o<n>``. A branch
to a block with no other way in continues in place; every other block gets a label, and the labelled
blocks live in one ``while True`` that picks among them by the variable ``b``. Functions without
merging control flow are straight-line code.

Nothing of the module's content gets into the source except integers, finite floats and names made
of a fixed letter and an integer: strings and NaNs are entries of the constant list ``C``.

Names generated code uses, besides those of `sylvite.translator.numerics.NUMERICS` and of
`sylvite.translator.operations.EXPRESSIONS`:

====================  ==============================================================================
``F<n>``              function ``n`` of the module
``I<n>``, ``P[n]``    import ``n``, and whether it is resolved (1 or 0)
``R[n]``, ``C[n]``    read-only data buffers; constants
``gi gq gf gd``       the globals viewed as i32, i64, f32, f64; ``gr[n]`` is a global reference
``get_<T> set_<T>``   globals of type T at any byte offset, checked; ``get_ref set_ref`` likewise
``k<n> t<n>``         classes known to be of type ``n``; check a reference against type ``n``
``tick() n``          look at the deadline and give the number of rounds until the next look
``enter() leave()``   count the depth of recursion
====================  ==============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import FormatError
from ..vmfb.bytecode import Branch, DecodedFunction, FunctionRef, Instruction, Reg
from ..vmfb.calling_convention import CallingConvention, Span
from ..vmfb.isa import Access, ValueType
from .flow import Flow, analyze_flow
from .operations import EXPRESSIONS, Finish
from .registers import State, Walker, analyze

__all__ = ["FunctionEmitter", "Line", "ModuleFacts"]

Line = tuple[int, str, int]
"""Indentation, text, and the bytecode offset it came from."""

_GOTO = "\0goto"
"""Stands, with a block number, for a jump whose form depends on how many labels there will be."""

_MAXIMUM_DEPTH = 12
"""Blocks nested deeper than this become labels; Python's parser stops at 100 levels."""

_GLOBAL_VIEWS: Mapping[ValueType, tuple[str, int]] = {
    ValueType.I32: ("gi", 4),
    ValueType.I64: ("gq", 8),
    ValueType.F32: ("gf", 4),
    ValueType.F64: ("gd", 8),
}

_SLOW_ENCODINGS = frozenset(
    {
        "buffer_alloc",
        "buffer_clone",
        "buffer_copy",
        "buffer_compare",
        "buffer_hash",
        "buffer_fill",
        "list_resize",
    }
)
"""Operations whose time grows with an operand: loops around them look at the deadline every round."""


class ModuleFacts:
    """What an emitter knows about the module around its function."""

    def __init__(
        self,
        *,
        conventions: Callable[[FunctionRef], CallingConvention],
        global_byte_length: int,
        any_types: frozenset[int],
        recursive: frozenset[int],
        branching: frozenset[int],
    ) -> None:
        self.conventions = conventions
        self.global_byte_length = global_byte_length
        self.any_types = any_types
        self.recursive = recursive
        self.branching = branching
        self.constants: list[Any] = []
        self._constant_indices: dict[Any, int] = {}

    def constant(self, value: object) -> str:
        """Source of an expression for ``value``, an entry of the constant list."""
        key = value if value == value else (str(value), len(self.constants))
        index = self._constant_indices.setdefault(key, len(self.constants))
        if index == len(self.constants):
            self.constants.append(value)
        return f"C[{index}]"


def _name(register: Reg) -> str:
    return f"o{register.index}" if register.bank is ValueType.REF else f"r{register.index}"


_WRAPS: Mapping[Finish, str] = {
    Finish.WRAP_I32: "if not -2147483648 <= {0} <= 2147483647: "
    "{0} = ({0} + 2147483648 & 4294967295) - 2147483648",
    Finish.WRAP_I64: "if not -9223372036854775808 <= {0} <= 9223372036854775807: "
    "{0} = ({0} + 9223372036854775808 & 18446744073709551615) - 9223372036854775808",
}


class FunctionEmitter:
    """Emits one function. Use once."""

    def __init__(
        self,
        facts: ModuleFacts,
        function: DecodedFunction,
        convention: CallingConvention,
        error: Callable[[str, int], FormatError],
    ) -> None:
        self.facts = facts
        self.function = function
        self.convention = convention
        self.error = error
        self.walker = Walker(convention, facts.conventions, error)
        self.types = analyze(function, self.walker)
        self.flow: Flow = analyze_flow(function)
        self.labels: dict[int, list[Line]] = {}
        self.pending: list[int] = []
        self.lines: list[Line] = []
        self.state = State({}, set())
        self.pc = 0
        instructions = [item for block in function.blocks for item in block.instructions]
        self.looks_often = any(
            item.op.encoding in _SLOW_ENCODINGS or item.op.encoding.startswith("call")
            for item in instructions
        )
        self.counts_rounds = False

    def emit(self) -> list[Line]:
        """The whole function, a ``def`` statement."""
        entry = self._collect(0)
        while self.pending:
            block = self.pending.pop()
            self.labels[block] = self._collect(block)
        parameters = [_name(register) for register in self.walker.initial_state()[1]]
        parameters.append("_=None")
        lines: list[Line] = [(0, f"def F{self.function.ordinal}({', '.join(parameters)}):", 0)]
        given = {name for name in parameters if name.startswith("o")}
        nulls = sorted(self.types.null_references - {int(name[1:]) for name in given})
        if nulls:
            lines.append((1, " = ".join(f"o{index}" for index in nulls) + " = None", 0))
        if self.function.ordinal in self.facts.branching:
            lines.append((1, "tick()", 0))
        depth = 1
        if self.function.ordinal in self.facts.recursive:
            lines += [(1, "enter()", 0), (1, "try:", 0)]
            depth = 2
        lines += [(depth + level, text, pc) for level, text, pc in self._body(entry)]
        if depth == 2:
            lines += [(1, "finally:", 0), (2, "leave()", 0)]
        return lines

    # Structure.

    def _collect(self, block: int) -> list[Line]:
        """The lines of ``block`` and of everything that continues in place after it."""
        self.lines = []
        entry = self.types.entry_states[block]
        if entry is None:
            raise self.error("a branch leads to a block that the analysis did not reach", 0)
        self.state = entry.copy()
        self._emit_from(block, 0)
        return self.lines

    def _emit_from(self, start: int, depth: int) -> None:
        block: int | None = start
        while block is not None:
            instructions = self.function.blocks[block].instructions
            for instruction in instructions[:-1]:
                self._emit_plain(instruction, depth)
            block = self._emit_terminator(instructions[-1], block, depth)

    def _take(self, branch: Branch, source: int, depth: int) -> int | None:
        """Emit the copies of a branch; a jump, or return the block that continues in place."""
        for read, written in self.state.remap(branch):
            self._copy(read, written, depth)
        target = branch.block
        if self.flow.entries[target] == 1 and target not in self.labels and depth < _MAXIMUM_DEPTH:
            return target
        self._goto(target, source, depth)
        return None

    def _goto(self, target: int, source: int, depth: int) -> None:
        if self.flow.is_backward(source, target):
            self._look_at_deadline(depth)
        if target not in self.labels:
            self.labels[target] = []
            self.pending.append(target)
        self.lines.append((depth, f"{_GOTO}{target}", self.pc))

    def _look_at_deadline(self, depth: int) -> None:
        if self.looks_often:
            self._line(depth, "tick()")
            return
        self.counts_rounds = True
        self._line(depth, "n -= 1")
        self._line(depth, "if not n: n = tick()")

    def _nested(self, branch: Branch, source: int, depth: int) -> None:
        """Emit one arm of a terminator, indented; the state is put back afterwards."""
        saved = self.state.copy()
        following = self._take(branch, source, depth)
        if following is not None:
            self._emit_from(following, depth)
        self.state = saved

    def _body(self, entry: list[Line]) -> list[Line]:
        """Put entry code and labelled blocks together."""
        prologue: list[Line] = [(0, "n = 1", 0)] if self.counts_rounds else []
        labels = dict(self.labels)
        if not labels:
            return prologue + entry
        tail = entry[-1]
        jumps = [line for line in entry if line[1].startswith(_GOTO)]
        if 0 not in labels and jumps == [tail] and tail[0] == 0:
            prologue += entry[:-1]
            first = int(tail[1][len(_GOTO) :])
        else:
            labels.setdefault(0, entry)
            first = 0
        blocks = sorted(labels, key=self.flow.order.__getitem__)
        if len(blocks) > 1:
            prologue.append((0, f"b = {self.flow.order[first]}", tail[2]))
        prologue.append((0, "while True:", tail[2]))
        return prologue + list(self._dispatch(blocks, labels, 1, is_only=len(blocks) == 1))

    def _dispatch(
        self, blocks: Sequence[int], labels: Mapping[int, list[Line]], depth: int, *, is_only: bool
    ) -> Iterable[Line]:
        """A binary decision over ``b``, which holds a block's place in reverse post-order."""
        if len(blocks) == 1:
            for level, text, pc in labels[blocks[0]]:
                if text.startswith(_GOTO):
                    if not is_only:
                        order = self.flow.order[int(text[len(_GOTO) :])]
                        yield depth + level, f"b = {order}", pc
                    yield depth + level, "continue", pc
                else:
                    yield depth + level, text, pc
            return
        middle = (len(blocks) + 1) // 2
        yield depth, f"if b < {self.flow.order[blocks[middle]]}:", 0
        yield from self._dispatch(blocks[:middle], labels, depth + 1, is_only=False)
        yield depth, "else:", 0
        yield from self._dispatch(blocks[middle:], labels, depth + 1, is_only=False)

    # Terminators.

    def _emit_terminator(self, instruction: Instruction, block: int, depth: int) -> int | None:
        self.pc = instruction.pc
        self.walker.step(self.state, instruction)
        encoding = instruction.op.encoding
        if encoding == "return":
            names = ", ".join(_name(register) for register in instruction["operands"])
            self._line(depth, f"return {names}".rstrip())
            return None
        if encoding == "fail":
            message = self.facts.constant(instruction["message"])
            self._line(depth, f"raise fail(r{instruction['status'].index}, {message})")
            return None
        if encoding == "cond_branch":
            return self._emit_conditional(instruction, block, depth)
        if encoding == "branch_table":
            for number, case in enumerate(instruction["cases"]):
                self._line(depth, f"if r{instruction['index'].index} == {number}:")
                self._nested(case, block, depth + 1)
            return self._take(instruction["default"], block, depth)
        if encoding.startswith("call"):
            self._emit_call(instruction, depth)
        elif instruction.op.name == "yield":
            self._line(depth, "tick()")
        return self._take(instruction["target"], block, depth)

    def _emit_conditional(self, instruction: Instruction, block: int, depth: int) -> int | None:
        condition = _name(instruction["condition"])
        taken, other = instruction["true_target"], instruction["false_target"]
        if self._is_short(other) and not self._is_short(taken):
            condition, taken, other = f"not {condition}", other, taken
        self._line(depth, f"if {condition}:")
        self._nested(taken, block, depth + 1)
        return self._take(other, block, depth)

    def _is_short(self, branch: Branch) -> bool:
        """Whether an arm leaves at once, so that the other one can stay at this indentation."""
        return self.flow.entries[branch.block] > 1 or self.function.blocks[branch.block].instructions[
            -1
        ].op.encoding in ("fail", "return")

    # Instructions.

    def _line(self, depth: int, text: str) -> None:
        self.lines.append((depth, text, self.pc))

    def _clear(self, registers: Iterable[Reg], depth: int, *, keep: Iterable[Reg] = ()) -> None:
        """Set moved references to null, so that what they held can go."""
        kept = {register.index for register in keep if register.bank is ValueType.REF}
        names = dict.fromkeys(
            _name(register) for register in registers if register.is_move and register.index not in kept
        )
        if names:
            self._line(depth, " = ".join(names) + " = None")

    def _copy(self, source: Reg, target: Reg, depth: int) -> None:
        if source.bank is ValueType.REF and source.index == target.index:
            return
        self._line(depth, f"{_name(target)} = {_name(source)}")
        self._clear((source,), depth)

    def _emit_plain(self, instruction: Instruction, depth: int) -> None:
        self.pc = instruction.pc
        self.walker.step(self.state, instruction)
        row = EXPRESSIONS.get(instruction.op.name)
        if row is None:
            _EMITTERS[instruction.op.encoding](self, instruction, depth)
            return
        operands: list[str] = []
        result = ""
        for field, value in zip(instruction.op.fields, instruction.values, strict=True):
            if field.access is Access.WRITE:
                result = _name(value)
            else:
                operands.append(_name(value))
        text = row.template.format(*operands)
        if row.finish is Finish.ROUND_F32:
            text = f"f32({text})"
        self._line(depth, f"{result} = {text}" if result else text)
        if row.finish in _WRAPS:
            self._line(depth, _WRAPS[row.finish].format(result))

    def _emit_constant(self, instruction: Instruction, depth: int) -> None:
        value = instruction["value"]
        is_nan = isinstance(value, float) and math.isnan(value)
        text = self.facts.constant(value) if is_nan else repr(value)
        self._line(depth, f"{_name(instruction['result'])} = {text}")

    def _emit_zero(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        is_float = result.bank in (ValueType.F32, ValueType.F64)
        self._line(depth, f"{_name(result)} = {'0.0' if is_float else '0'}")

    def _emit_null(self, instruction: Instruction, depth: int) -> None:
        self._line(depth, f"{_name(instruction['result'])} = None")

    def _emit_rodata(self, instruction: Instruction, depth: int) -> None:
        self._line(depth, f"{_name(instruction['result'])} = R[{instruction['rodata']}]")

    def _global_place(self, value_type: ValueType, byte_offset: int) -> str:
        """Source of a global's storage, or "" where it is not aligned."""
        view, size = _GLOBAL_VIEWS[value_type]
        if byte_offset + size > self.facts.global_byte_length:
            raise self.error(
                f"global at {byte_offset} lies outside of the {self.facts.global_byte_length} bytes "
                "of globals",
                self.pc,
            )
        return "" if byte_offset % size else f"{view}[{byte_offset // size}]"

    def _emit_global_load(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        byte_offset: int = instruction["global"]
        place = self._global_place(result.bank, byte_offset) or f"get_{result.bank.value}({byte_offset})"
        self._line(depth, f"{_name(result)} = {place}")

    def _emit_global_store(self, instruction: Instruction, depth: int) -> None:
        value: Reg = instruction["value"]
        byte_offset: int = instruction["global"]
        place = self._global_place(value.bank, byte_offset)
        if place:
            self._line(depth, f"{place} = {_name(value)}")
        else:
            self._line(depth, f"set_{value.bank.value}({byte_offset}, {_name(value)})")

    def _emit_global_load_indirect(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        self._line(depth, f"{_name(result)} = get_{result.bank.value}({_name(instruction['global'])})")

    def _emit_global_store_indirect(self, instruction: Instruction, depth: int) -> None:
        value: Reg = instruction["value"]
        self._line(depth, f"set_{value.bank.value}({_name(instruction['global'])}, {_name(value)})")

    def _check_type(self, name: str, type_index: int, depth: int) -> None:
        if type_index not in self.facts.any_types:
            known = f"{name} is not None and {name}.__class__ not in k{type_index}"
            self._line(depth, f"if {known}: t{type_index}({name})")

    def _emit_global_load_ref(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        self._line(depth, f"{_name(result)} = gr[{instruction['global']}]")
        if result.is_move:
            self._line(depth, f"gr[{instruction['global']}] = None")
        self._check_type(_name(result), instruction["type"], depth)

    def _emit_global_store_ref(self, instruction: Instruction, depth: int) -> None:
        value: Reg = instruction["value"]
        self._check_type(_name(value), instruction["type"], depth)
        self._line(depth, f"gr[{instruction['global']}] = {_name(value)}")
        self._clear((value,), depth)

    def _emit_global_load_indirect_ref(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        ordinal = _name(instruction["global"])
        self._line(depth, f"{_name(result)} = get_ref({ordinal}, {result.is_move})")
        self._check_type(_name(result), instruction["type"], depth)

    def _emit_global_store_indirect_ref(self, instruction: Instruction, depth: int) -> None:
        value: Reg = instruction["value"]
        self._check_type(_name(value), instruction["type"], depth)
        self._line(depth, f"set_ref({_name(instruction['global'])}, {_name(value)})")
        self._clear((value,), depth)

    def _emit_list_alloc(self, instruction: Instruction, depth: int) -> None:
        result, capacity = _name(instruction["result"]), _name(instruction["capacity"])
        self._line(depth, f"{result} = list_alloc({instruction['type']}, {capacity})")

    def _emit_list_get_ref(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        source, index = _name(instruction["list"]), _name(instruction["index"])
        self._line(
            depth,
            f"{_name(result)} = list_get_ref({source}, {index}, {instruction['type']}, {result.is_move})",
        )

    def _emit_list_set_ref(self, instruction: Instruction, depth: int) -> None:
        value: Reg = instruction["value"]
        target, index = _name(instruction["list"]), _name(instruction["index"])
        self._line(depth, f"list_set_ref({target}, {index}, {_name(value)})")
        self._clear((value,), depth)

    def _emit_buffer_alloc(self, instruction: Instruction, depth: int) -> None:
        length, alignment = _name(instruction["length"]), _name(instruction["alignment"])
        self._line(depth, f"{_name(instruction['result'])} = buffer_alloc({length}, {alignment})")

    def _emit_buffer_clone(self, instruction: Instruction, depth: int) -> None:
        names = ("source", "offset", "length", "alignment")
        operands = ", ".join(_name(instruction[name]) for name in names)
        self._line(depth, f"{_name(instruction['result'])} = buffer_clone({operands})")

    def _emit_select_ref(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        chosen, other = instruction["true_value"], instruction["false_value"]
        self._line(
            depth,
            f"{_name(result)} = {_name(chosen)} if {_name(instruction['condition'])} else {_name(other)}",
        )
        self._clear((chosen, other), depth, keep=(result,))
        self._check_type(_name(result), instruction["type"], depth)

    def _switch(self, instruction: Instruction) -> str:
        values: Sequence[Reg] = instruction["values"]
        index, default = _name(instruction["index"]), _name(instruction["default"])
        if not values:
            return default
        names = "".join(f"{_name(value)}, " for value in values)
        return f"({names})[{index}] if 0 <= {index} < {len(values)} else {default}"

    def _emit_switch(self, instruction: Instruction, depth: int) -> None:
        self._line(depth, f"{_name(instruction['result'])} = {self._switch(instruction)}")

    def _emit_switch_ref(self, instruction: Instruction, depth: int) -> None:
        result: Reg = instruction["result"]
        self._line(depth, f"{_name(result)} = {self._switch(instruction)}")
        self._clear((instruction["default"], *instruction["values"]), depth, keep=(result,))
        self._check_type(_name(result), instruction["type"], depth)

    def _emit_cast(self, instruction: Instruction, depth: int) -> None:
        self._check_type(_name(instruction["operand"]), instruction["type"], depth)
        self._copy(instruction["operand"], instruction["result"], depth)

    def _emit_assign(self, instruction: Instruction, depth: int) -> None:
        self._copy(instruction["source"], instruction["result"], depth)

    def _emit_discard(self, instruction: Instruction, depth: int) -> None:
        self._clear([register._replace(is_move=True) for register in instruction["refs"]], depth)

    def _emit_trace(self, instruction: Instruction, depth: int) -> None:
        self._clear(instruction["operands"], depth)

    def _emit_import_resolved(self, instruction: Instruction, depth: int) -> None:
        self._line(depth, f"{_name(instruction['result'])} = P[{instruction['callee'].ordinal}]")

    def _emit_call(self, instruction: Instruction, depth: int) -> None:
        callee: FunctionRef = instruction["callee"]
        operands: Sequence[Reg] = instruction["operands"]
        results: Sequence[Reg] = instruction["results"]
        arguments = self._arguments(instruction, callee, operands)
        moved = dict.fromkeys(_name(register) for register in operands if register.is_move)
        if moved and not callee.is_import:
            # Evaluated after the arguments: the callee then holds the only references, and lets
            # go of them as early as it can.
            arguments.append(" ".join(f"({name} :=" for name in moved) + " None" + ")" * len(moved))
        name = f"{'I' if callee.is_import else 'F'}{callee.ordinal}"
        call = f"{name}({', '.join(arguments)})"
        targets = ", ".join(_name(register) for register in results)
        self._line(depth, f"{targets} = {call}" if targets else call)
        if callee.is_import:
            self._clear(operands, depth, keep=results)

    def _arguments(self, instruction: Instruction, callee: FunctionRef, operands: Sequence[Reg]) -> list[str]:
        """Source of a call's arguments; a span becomes a list."""
        names = iter([_name(register) for register in operands])
        arguments: list[str] = []
        for position, argument in enumerate(self.facts.conventions(callee).arguments):
            if not isinstance(argument, Span):
                arguments.append(next(names))
                continue
            elements = []
            for _ in range(instruction["segments"][position]):
                element = [next(names) for _ in argument.elements]
                elements.append(element[0] if len(element) == 1 else f"({', '.join(element)})")
            arguments.append(f"[{', '.join(elements)}]")
        return arguments


_EMITTERS: Mapping[str, Callable[[FunctionEmitter, Instruction, int], None]] = {
    "constant": FunctionEmitter._emit_constant,
    "zero": FunctionEmitter._emit_zero,
    "const_ref_zero": FunctionEmitter._emit_null,
    "const_ref_rodata": FunctionEmitter._emit_rodata,
    "global_load": FunctionEmitter._emit_global_load,
    "global_store": FunctionEmitter._emit_global_store,
    "global_load_indirect": FunctionEmitter._emit_global_load_indirect,
    "global_store_indirect": FunctionEmitter._emit_global_store_indirect,
    "global_load_ref": FunctionEmitter._emit_global_load_ref,
    "global_store_ref": FunctionEmitter._emit_global_store_ref,
    "global_load_indirect_ref": FunctionEmitter._emit_global_load_indirect_ref,
    "global_store_indirect_ref": FunctionEmitter._emit_global_store_indirect_ref,
    "list_alloc": FunctionEmitter._emit_list_alloc,
    "list_get_ref": FunctionEmitter._emit_list_get_ref,
    "list_set_ref": FunctionEmitter._emit_list_set_ref,
    "buffer_alloc": FunctionEmitter._emit_buffer_alloc,
    "buffer_clone": FunctionEmitter._emit_buffer_clone,
    "select_ref": FunctionEmitter._emit_select_ref,
    "switch": FunctionEmitter._emit_switch,
    "switch_ref": FunctionEmitter._emit_switch_ref,
    "cast_any_ref": FunctionEmitter._emit_cast,
    "assign_ref": FunctionEmitter._emit_assign,
    "discard_refs": FunctionEmitter._emit_discard,
    "trace": FunctionEmitter._emit_trace,
    "import_resolved": FunctionEmitter._emit_import_resolved,
    "call": FunctionEmitter._emit_call,
    "call_variadic": FunctionEmitter._emit_call,
}
"""Encoding -> emitter, for operations that are not in `EXPRESSIONS` and end no block."""
