"""Type checking of instruction sequences, one instruction at a time.

The same `StackChecker` validates decoded bodies and watches the assembler while it emits, so both give
the same messages. Source: core specification, 3.3 and appendix 7.3 (validation algorithm).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .instructions import INSTRUCTIONS, Catch, InstructionInfo, MemoryArgument
from .types import BlockType, FunctionType, GlobalType, MemoryType, TableType, TagType, ValueType

__all__ = ["Context", "Frame", "StackChecker", "StackError"]

I32 = ValueType.I32
Stack = list["ValueType | None"]


class StackError(Exception):
    """Internal: an instruction does not fit; callers translate it and add the place."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Context:
    """The module around a function: its index spaces. ``data_count`` or ``declared`` (functions ref.func
    may name) None means: not checked here."""

    types: Sequence[FunctionType] = ()
    functions: Sequence[int] = ()
    tables: Sequence[TableType] = ()
    memories: Sequence[MemoryType] = ()
    globals: Sequence[GlobalType] = ()
    tags: Sequence[TagType] = ()
    elements: Sequence[ValueType] | None = ()
    data_count: int | None = 0
    declared: frozenset[int] | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Frame:
    """An open block: its kind, its types, the stack height below its operands, and whether the code at
    the cursor can be reached."""

    kind: str
    parameters: tuple[ValueType, ...]
    results: tuple[ValueType, ...]
    height: int
    unreachable: bool = False

    @property
    def label_types(self) -> tuple[ValueType, ...]:
        """What a branch to the frame's label carries."""
        return self.parameters if self.kind == "loop" else self.results


def _text(types: Sequence[ValueType | None]) -> str:
    """The top of a stack, for messages."""
    shown = ["any" if value_type is None else value_type.text for value_type in types[-8:]]
    return " ".join(["...", *shown] if len(types) > 8 else shown)


class StackChecker:
    """Checks the instructions of one function in order.

    Args:
        context: the module around it.
        local_types: types of parameters and locals; may grow while checking.
        results: result types of the function.
    """

    def __init__(
        self, context: Context, local_types: list[ValueType], results: tuple[ValueType, ...]
    ) -> None:
        self.context = context
        self.local_types = local_types
        self.results = results
        self.stack: Stack = []
        self.frames = [Frame(kind="function", parameters=(), results=results, height=0)]

    @property
    def done(self) -> bool:
        """Whether the final ``end`` was seen."""
        return not self.frames

    def step(self, name: str, immediates: tuple[Any, ...]) -> None:
        """Check one instruction.

        Raises:
            StackError
        """
        if not self.frames:
            raise StackError(f"{name} after the end of the function")
        info = INSTRUCTIONS[name]
        signature = info.signature
        try:
            if signature is None:
                _CONTEXTUAL[name](self, *immediates)
                return
            address = self._check_operands(info, immediates) if info.operands else I32
            for value_type in reversed(signature.pops):
                self.pop(address if value_type is None else value_type)
            for value_type in signature.pushes:
                self.stack.append(address if value_type is None else value_type)
        except StackError as error:
            raise StackError(f"{name}: {error}") from None

    # Stack

    def push(self, *types: ValueType) -> None:
        """Push values."""
        self.stack.extend(types)

    def pop(self, expected: ValueType | None = None) -> ValueType | None:
        """Pop one value, of ``expected`` type when given. None: unknown, in unreachable code."""
        frame = self.frames[-1]
        if len(self.stack) == frame.height:
            if frame.unreachable:
                return expected
            wanted = "a value" if expected is None else expected.text
            raise StackError(f"needs {wanted}, but the stack of this {frame.kind} is empty")
        found = self.stack.pop()
        if expected is not None and found is not None and found is not expected:
            rest = _text([*self.stack[frame.height :][-8:], found])
            raise StackError(f"needs {expected.text}, but the stack is [{rest}]")
        return expected if found is None else found

    def pop_all(self, types: Sequence[ValueType]) -> None:
        """Pop values, the last of ``types`` first."""
        for value_type in reversed(types):
            self.pop(value_type)

    def peek_all(self, types: Sequence[ValueType]) -> None:
        """Check that values are there and leave them with their own types (br_table)."""
        popped = [self.pop(value_type) for value_type in reversed(types)]
        self.stack.extend(reversed(popped))

    # Frames

    def open(self, kind: str, block: FunctionType) -> None:
        """Open a block whose parameters are on the stack."""
        self.pop_all(block.parameters)
        self.frames.append(
            Frame(kind=kind, parameters=block.parameters, results=block.results, height=len(self.stack))
        )
        self.push(*block.parameters)

    def close(self) -> Frame:
        """Close the innermost block; its results must be all that is on its stack."""
        frame = self.frames[-1]
        self.pop_all(frame.results)
        extra = len(self.stack) - frame.height
        if extra:
            rest = _text(self.stack[frame.height :])
            raise StackError(f"{extra} values are left on the stack of this {frame.kind}: [{rest}]")
        return self.frames.pop()

    def leave(self) -> None:
        """Mark what follows as unreachable."""
        frame = self.frames[-1]
        del self.stack[frame.height :]
        frame.unreachable = True

    def label(self, depth: int) -> tuple[ValueType, ...]:
        """Types a branch to the label at ``depth`` carries."""
        if depth >= len(self.frames):
            raise StackError(f"label {depth} does not exist ({len(self.frames)} are open)")
        return self.frames[-1 - depth].label_types

    # Index spaces

    def at(self, what: str, items: Sequence[Any], index: int) -> Any:
        """``items[index]``, checked."""
        if not 0 <= index < len(items):
            raise StackError(f"{what} {index} does not exist (there are {len(items)})")
        return items[index]

    def function_type(self, index: int) -> FunctionType:
        """Type of a function."""
        type_index = self.at("function", self.context.functions, index)
        return self.type(type_index)

    def type(self, index: int) -> FunctionType:
        """A type of the module."""
        found: FunctionType = self.at("type", self.context.types, index)
        return found

    def table(self, index: int) -> TableType:
        """Type of a table."""
        found: TableType = self.at("table", self.context.tables, index)
        return found

    def memory(self, index: int) -> MemoryType:
        """Type of a memory."""
        found: MemoryType = self.at("memory", self.context.memories, index)
        return found

    def element(self, index: int) -> ValueType | None:
        """Type of an element segment; None when segments are not checked here."""
        if self.context.elements is None:
            return None
        found: ValueType = self.at("element segment", self.context.elements, index)
        return found

    def data(self, index: int) -> None:
        """Check that a data segment exists."""
        if self.context.data_count is not None and index >= self.context.data_count:
            raise StackError(f"data segment {index} is not declared by a data count section")

    def block(self, block_type: BlockType) -> FunctionType:
        """What a block type stands for."""
        if block_type is None:
            return FunctionType()
        if isinstance(block_type, ValueType):
            return FunctionType(results=(block_type,))
        return self.type(block_type)

    def _check_operands(self, info: InstructionInfo, immediates: tuple[Any, ...]) -> ValueType:
        """Check immediates of an instruction with a fixed signature; return the address type."""
        address = I32
        for operand, value in zip(info.operands, immediates, strict=True):
            if operand.kind == "memarg":
                address = self._check_memory_argument(info, value, operand.limit)
            elif operand.kind == "memory":
                address = self.memory(value).address_type
            elif operand.kind == "data":
                self.data(value)
            elif operand.kind == "element":
                self.element(value)
            elif operand.kind == "lane" and not 0 <= value < operand.limit:
                raise StackError(f"lane {value} of a vector with {operand.limit} lanes")
            elif operand.kind == "function":
                self._check_function_reference(value)
        return address

    def _check_memory_argument(self, info: InstructionInfo, value: MemoryArgument, natural: int) -> ValueType:
        memory = self.memory(value.memory)
        if info.prefix == 0xFE and value.align != natural:
            raise StackError(f"alignment must be 2**{natural}, not 2**{value.align}")
        if value.align > natural:
            raise StackError(f"alignment 2**{value.align} is above the natural 2**{natural}")
        if value.offset >> (64 if memory.is_64 else 32):
            raise StackError(f"offset {value.offset} is too large for this memory")
        return memory.address_type

    def _check_function_reference(self, index: int) -> None:
        self.function_type(index)
        if self.context.declared is not None and index not in self.context.declared:
            raise StackError(f"function {index} is not declared by an element segment, export or global")


# Instructions whose types depend on context. Each takes the checker and the immediates.


def _unreachable(checker: StackChecker) -> None:
    checker.leave()


def _open(kind: str) -> Callable[[StackChecker, BlockType], None]:
    def check(checker: StackChecker, block_type: BlockType) -> None:
        if kind == "if":
            checker.pop(I32)
        checker.open(kind, checker.block(block_type))

    return check


def _else(checker: StackChecker) -> None:
    if checker.frames[-1].kind != "if":
        raise StackError("there is no open if")
    frame = checker.close()
    checker.frames.append(
        Frame(kind="else", parameters=frame.parameters, results=frame.results, height=len(checker.stack))
    )
    checker.push(*frame.parameters)


def _end(checker: StackChecker) -> None:
    frame = checker.close()
    if frame.kind == "if" and frame.parameters != frame.results:
        raise StackError("an if without else must yield what it takes")
    checker.push(*frame.results)


def _br(checker: StackChecker, depth: int) -> None:
    checker.pop_all(checker.label(depth))
    checker.leave()


def _br_if(checker: StackChecker, depth: int) -> None:
    checker.pop(I32)
    types = checker.label(depth)
    checker.pop_all(types)
    checker.push(*types)


def _br_table(checker: StackChecker, labels: tuple[int, ...]) -> None:
    checker.pop(I32)
    arity = len(checker.label(labels[-1]))
    for depth in dict.fromkeys(labels):
        types = checker.label(depth)
        if len(types) != arity:
            raise StackError(f"labels {depth} and {labels[-1]} carry different counts of values")
        checker.peek_all(types)
    checker.pop_all(checker.label(labels[-1]))
    checker.leave()


def _return(checker: StackChecker) -> None:
    checker.pop_all(checker.results)
    checker.leave()


def _call_type(checker: StackChecker, function_type: FunctionType) -> None:
    checker.pop_all(function_type.parameters)
    checker.push(*function_type.results)


def _tail_call_type(checker: StackChecker, function_type: FunctionType) -> None:
    checker.pop_all(function_type.parameters)
    if function_type.results != checker.results:
        raise StackError(f"callee of type {function_type} does not return what this function returns")
    checker.leave()


def _indirect(checker: StackChecker, type_index: int, table_index: int) -> FunctionType:
    table = checker.table(table_index)
    if table.element is not ValueType.FUNCREF:
        raise StackError(f"table {table_index} holds {table.element.text}, not functions")
    checker.pop(table.address_type)
    return checker.type(type_index)


def _drop(checker: StackChecker) -> None:
    checker.pop()


def _select(checker: StackChecker) -> None:
    checker.pop(I32)
    second = checker.pop()
    first = checker.pop(second)
    found = second if first is None else first
    if found is not None and found.is_reference:
        raise StackError(f"select without a type cannot choose between values of type {found.text}")
    checker.stack.append(found)


def _select_typed(checker: StackChecker, types: tuple[ValueType, ...]) -> None:
    if len(types) != 1:
        raise StackError(f"one type expected, {len(types)} given")
    checker.pop(I32)
    checker.pop(types[0])
    checker.pop(types[0])
    checker.push(types[0])


def _local(checker: StackChecker, index: int) -> ValueType:
    found: ValueType = checker.at("local", checker.local_types, index)
    return found


def _local_tee(checker: StackChecker, index: int) -> None:
    value_type = _local(checker, index)
    checker.pop(value_type)
    checker.push(value_type)


def _global(checker: StackChecker, index: int) -> GlobalType:
    found: GlobalType = checker.at("global", checker.context.globals, index)
    return found


def _global_set(checker: StackChecker, index: int) -> None:
    global_type = _global(checker, index)
    if not global_type.mutable:
        raise StackError(f"global {index} is immutable")
    checker.pop(global_type.value)


def _table_get(checker: StackChecker, index: int) -> None:
    table = checker.table(index)
    checker.pop(table.address_type)
    checker.push(table.element)


def _table_set(checker: StackChecker, index: int) -> None:
    table = checker.table(index)
    checker.pop(table.element)
    checker.pop(table.address_type)


def _table_grow(checker: StackChecker, index: int) -> None:
    table = checker.table(index)
    checker.pop(table.address_type)
    checker.pop(table.element)
    checker.push(table.address_type)


def _table_fill(checker: StackChecker, index: int) -> None:
    table = checker.table(index)
    checker.pop_all((table.address_type, table.element, table.address_type))


def _table_copy(checker: StackChecker, target_index: int, source_index: int) -> None:
    target, source = checker.table(target_index), checker.table(source_index)
    if target.element is not source.element:
        raise StackError(f"cannot copy {source.element.text} into a table of {target.element.text}")
    length = ValueType.I64 if target.is_64 and source.is_64 else I32
    checker.pop_all((target.address_type, source.address_type, length))


def _table_init(checker: StackChecker, element_index: int, table_index: int) -> None:
    table = checker.table(table_index)
    element = checker.element(element_index)
    if element is not None and element is not table.element:
        raise StackError(f"cannot copy {element.text} into a table of {table.element.text}")
    checker.pop_all((table.address_type, I32, I32))


def _memory_copy(checker: StackChecker, target_index: int, source_index: int) -> None:
    target, source = checker.memory(target_index), checker.memory(source_index)
    length = ValueType.I64 if target.is_64 and source.is_64 else I32
    checker.pop_all((target.address_type, source.address_type, length))


def _memory_init(checker: StackChecker, data_index: int, memory_index: int) -> None:
    checker.data(data_index)
    checker.pop_all((checker.memory(memory_index).address_type, I32, I32))


def _ref_is_null(checker: StackChecker) -> None:
    found = checker.pop()
    if found is not None and not found.is_reference:
        raise StackError(f"needs a reference, found {found.text}")
    checker.push(I32)


def _throw(checker: StackChecker, tag: int) -> None:
    tag_type: TagType = checker.at("tag", checker.context.tags, tag)
    checker.pop_all(checker.type(tag_type.type_index).parameters)
    checker.leave()


def _throw_ref(checker: StackChecker) -> None:
    checker.pop(ValueType.EXNREF)
    checker.leave()


def _try_table(checker: StackChecker, block_type: BlockType, catches: tuple[Catch, ...]) -> None:
    block = checker.block(block_type)
    for catch in catches:
        carried: tuple[ValueType, ...] = ()
        if catch.tag is not None:
            tag_type: TagType = checker.at("tag", checker.context.tags, catch.tag)
            carried = checker.type(tag_type.type_index).parameters
        if catch.reference:
            carried += (ValueType.EXNREF,)
        if carried != checker.label(catch.label):
            raise StackError(f"catch clause does not carry what label {catch.label} takes")
    checker.open("try_table", block)


_CONTEXTUAL: dict[str, Callable[..., None]] = {
    "unreachable": _unreachable,
    "block": _open("block"),
    "loop": _open("loop"),
    "if": _open("if"),
    "else": _else,
    "end": _end,
    "br": _br,
    "br_if": _br_if,
    "br_table": _br_table,
    "return": _return,
    "call": lambda checker, index: _call_type(checker, checker.function_type(index)),
    "call_indirect": lambda checker, *index: _call_type(checker, _indirect(checker, *index)),
    "return_call": lambda checker, index: _tail_call_type(checker, checker.function_type(index)),
    "return_call_indirect": lambda checker, *index: _tail_call_type(checker, _indirect(checker, *index)),
    "drop": _drop,
    "select": _select,
    "select_t": _select_typed,
    "local.get": lambda checker, index: checker.push(_local(checker, index)),
    "local.set": lambda checker, index: checker.pop(_local(checker, index)),
    "local.tee": _local_tee,
    "global.get": lambda checker, index: checker.push(_global(checker, index).value),
    "global.set": _global_set,
    "table.get": _table_get,
    "table.set": _table_set,
    "table.grow": _table_grow,
    "table.size": lambda checker, index: checker.push(checker.table(index).address_type),
    "table.fill": _table_fill,
    "table.copy": _table_copy,
    "table.init": _table_init,
    "memory.copy": _memory_copy,
    "memory.init": _memory_init,
    "ref.null": lambda checker, value_type: checker.push(value_type),
    "ref.is_null": _ref_is_null,
    "throw": _throw,
    "throw_ref": _throw_ref,
    "try_table": _try_table,
}
