"""The bytecode decoder: a function's bytes to blocks of instructions.

Decoding checks what is needed to read: ranges, opcodes, that every byte belongs to one block, that
blocks end in a terminator and that branch targets are block markers. What the operands refer to is
checked by `sylvite.vmfb.verify`.

A decoded instruction is plain data: ``instruction.op`` is the row of the instruction table and
``instruction.values`` holds one value per ``op.fields`` entry, in the same order. The Python type
of a value follows from the field's kind, see `sylvite.vmfb.isa.FieldKind`.

Source: IREE ``runtime/src/iree/vm/bytecode/utils/isa_decoder.h`` (encodings).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import FormatError, InvalidArgumentError
from . import isa
from .isa import FieldKind, OpInfo, ValueType

if TYPE_CHECKING:
    from .module import ModuleDef

__all__ = ["Block", "Branch", "DecodedFunction", "FunctionRef", "Instruction", "Reg", "decode_function"]


class Reg(NamedTuple):
    """A register operand.

    ``bank`` is `ValueType.REF` for the reference file. In the value file it is the type the
    instruction reads or writes there, or `ValueType.ANY` where the encoding does not say (calls,
    returns, branches, trace): the callee's calling convention decides then. 64-bit values are named
    by their even register. ``is_move`` says that the reference leaves the register.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index on purpose
    bank: ValueType
    is_move: bool = False


class FunctionRef(NamedTuple):
    """A callee: an index into ``module.imports`` or into ``module.functions``."""

    ordinal: int
    is_import: bool


class Branch(NamedTuple):
    """A branch: where to, and which registers are copied on the way.

    ``block`` is the index of the target in ``DecodedFunction.blocks``; ``target`` its pc. ``remaps``
    are (source, target) registers, to be copied as if all at once. 64-bit values appear as two
    pairs, low register first.
    """

    block: int
    target: int
    remaps: tuple[tuple[Reg, Reg], ...]


Value: TypeAlias = (
    "int | float | str | Reg | FunctionRef | Branch | tuple[Reg, ...] | tuple[int, ...] | tuple[Branch, ...]"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One decoded instruction. ``pc`` counts bytes from the start of the function.

    ``instruction["result"]`` gives the value of a field by its name in the instruction table.
    """

    op: OpInfo
    pc: int
    values: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        """The value of the field called ``name``. Raises KeyError when the operation has none."""
        for field, value in zip(self.op.fields, self.values, strict=True):
            if field.name == name:
                return value
        raise KeyError(name)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """Every branch of a terminator, in encoding order."""
        found: list[Branch] = []
        for value in self.values:
            if isinstance(value, Branch):
                found.append(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Branch):
                found.extend(value)
        return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A basic block: ``instructions`` without the block marker, the last one a terminator."""

    pc: int
    instructions: tuple[Instruction, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFunction:
    """A function's blocks in bytecode order; execution enters the first."""

    ordinal: int
    blocks: tuple[Block, ...]


def decode_function(module: ModuleDef, ordinal: int) -> DecodedFunction:
    """Decode function ``ordinal`` of ``module``.

    Raises:
        InvalidArgumentError: there is no such function.
        FormatError: the bytecode is malformed; the offset counts from the start of the file.
    """
    if not 0 <= ordinal < len(module.functions):
        raise InvalidArgumentError(f"no function {ordinal}: the module has {len(module.functions)}")
    function = module.functions[ordinal]
    start = function.bytecode_offset
    data = module.bytecode[start : start + function.bytecode_length]
    where = f"function {function.name or ordinal} of {module.where}"
    decoder = _Decoder(data, module.bytecode_file_offset + start, where)
    return DecodedFunction(ordinal=ordinal, blocks=decoder.blocks())


_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_IMMEDIATES: Mapping[ValueType, struct.Struct] = {
    ValueType.I32: struct.Struct("<i"),
    ValueType.I64: struct.Struct("<q"),
    ValueType.F32: struct.Struct("<f"),
    ValueType.F64: struct.Struct("<d"),
}
_NO_SEGMENT = 0xFFFF
_BLOCK = isa.BY_NAME["block"]


class _Decoder:
    """Decodes one function. ``pc`` is the next byte to read; every read checks the range first."""

    def __init__(self, data: bytes | memoryview, file_offset: int, where: str) -> None:
        self.data = data
        self.file_offset = file_offset
        self.where = where
        self.pc = 0
        self.targets: list[int] = []

    def error(self, message: str, pc: int) -> FormatError:
        return FormatError(message, offset=self.file_offset + pc, where=self.where)

    def take(self, byte_length: int) -> int:
        """Advance over ``byte_length`` bytes and return where they start."""
        start = self.pc
        if start + byte_length > len(self.data):
            raise self.error(f"bytecode ends within an instruction ({byte_length} bytes needed)", start)
        self.pc = start + byte_length
        return start

    def u16(self) -> int:
        value: int = _U16.unpack_from(self.data, self.take(2))[0]
        return value

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4))[0]
        return value

    def u16_list(self, per_element: int = 1) -> tuple[int, ...]:
        """A count and that many times ``per_element`` 16-bit values, aligned to 2 bytes."""
        self.pc += self.pc & 1
        count = self.u16() * per_element
        return struct.unpack_from(f"<{count}H", self.data, self.take(2 * count))

    def blocks(self) -> tuple[Block, ...]:
        """All blocks, with branch targets resolved to block indices."""
        blocks: list[tuple[int, list[Instruction]]] = []
        while self.pc < len(self.data):
            blocks.append(self.block())
        indices = {pc: index for index, (pc, _) in enumerate(blocks)}
        return tuple(
            Block(pc=pc, instructions=tuple(self.resolve(instruction, indices) for instruction in body))
            for pc, body in blocks
        )

    def block(self) -> tuple[int, list[Instruction]]:
        start = self.pc
        if self.opcode() is not _BLOCK:
            raise self.error("instruction outside of a block", start)
        body: list[Instruction] = []
        while self.pc < len(self.data):
            instruction = self.instruction()
            body.append(instruction)
            if instruction.op.is_terminator:
                return start, body
        raise self.error("block without a terminator", start)

    def opcode(self) -> OpInfo:
        start = self.take(1)
        first = self.data[start]
        extension = isa.PREFIXES.get(first)
        if extension is None:
            op = isa.CORE.get(first)
            name = f"{first:#04x}"
        else:
            second = self.data[self.take(1)]
            op = extension.get(second)
            name = f"{first:#04x} {second:#04x}"
        if op is None:
            raise self.error(f"unknown opcode {name}", start)
        return op

    def instruction(self) -> Instruction:
        start = self.pc
        op = self.opcode()
        if op is _BLOCK:
            raise self.error("block marker within a block", start)
        return Instruction(op, start, tuple([_READERS[field.kind](self, field) for field in op.fields]))

    def resolve(self, instruction: Instruction, indices: Mapping[int, int]) -> Instruction:
        """Fill in the block indices of a terminator's branches."""
        if not instruction.op.is_terminator:
            return instruction

        def fill(value: Any) -> Any:
            if isinstance(value, Branch):
                index = indices.get(value.target)
                if index is None:
                    raise self.error(
                        f"branch target {value.target:#x} is not the start of a block", instruction.pc
                    )
                return value._replace(block=index)
            if isinstance(value, tuple) and value and isinstance(value[0], Branch):
                return tuple(fill(branch) for branch in value)
            return value

        return dataclasses.replace(instruction, values=tuple(fill(value) for value in instruction.values))

    # One reader per field kind.

    def register(self, field: isa.Field) -> Reg:
        start = self.pc
        raw = self.u16()
        wants_reference = field.type is ValueType.REF
        if bool(raw & isa.REF_TYPE_BIT) != wants_reference:
            found = "a value register" if wants_reference else "a reference register"
            raise self.error(f"operand {field.name!r} of type {_name(field)} names {found}", start)
        if not wants_reference:
            return Reg(raw, field.type or ValueType.ANY)
        is_move = bool(raw & isa.REF_MOVE_BIT)
        if is_move and not field.allows_move:
            raise self.error(f"operand {field.name!r} must not have the MOVE bit", start)
        return Reg(raw & isa.REF_REGISTER_LIMIT, ValueType.REF, is_move)

    def registers(self, field: isa.Field) -> tuple[Reg, ...]:
        start = self.pc
        expected = field.type or ValueType.ANY
        registers = tuple([_register(raw, expected) for raw in self.u16_list()])
        if expected is not ValueType.ANY:
            for register in registers:
                if (register.bank is ValueType.REF) != (expected is ValueType.REF):
                    raise self.error(f"operand {field.name!r} mixes register files", start)
        return registers

    def immediate(self, field: isa.Field) -> int | float:
        layout = _IMMEDIATES[field.type or ValueType.I32]
        value: int | float = layout.unpack_from(self.data, self.take(layout.size))[0]
        return value

    def ordinal(self, field: isa.Field) -> int:
        return self.u32()

    def function(self, field: isa.Field) -> FunctionRef:
        raw = self.u32()
        return FunctionRef(raw & ~isa.IMPORT_BIT, bool(raw & isa.IMPORT_BIT))

    def string(self, field: isa.Field) -> str:
        length = self.u16()
        start = self.take(length)
        try:
            return bytes(self.data[start : start + length]).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"operand {field.name!r} is not UTF-8", start) from error

    def segments(self, field: isa.Field) -> tuple[int, ...]:
        return tuple([-1 if raw == _NO_SEGMENT else raw for raw in self.u16_list()])

    def branch(self, field: isa.Field) -> Branch:
        target = self.u32()
        start = self.pc
        raw = self.u16_list(2)
        pairs = tuple(
            [
                (_register(source, ValueType.ANY), _register(result, ValueType.ANY))
                for source, result in zip(raw[::2], raw[1::2], strict=True)
            ]
        )
        for source, result in pairs:
            if (source.bank is ValueType.REF) != (result.bank is ValueType.REF):
                raise self.error("branch copies between the value and the reference file", start)
        return Branch(-1, target, pairs)

    def branch_target(self, field: isa.Field) -> Branch:
        return Branch(-1, self.u32(), ())

    def cases(self, field: isa.Field) -> tuple[Branch, ...]:
        return tuple([self.branch(field) for _ in range(self.u16())])


def _name(field: isa.Field) -> str:
    return field.type.value if field.type else "any"


def _register(raw: int, value_type: ValueType) -> Reg:
    if raw & isa.REF_TYPE_BIT:
        return Reg(raw & isa.REF_REGISTER_LIMIT, ValueType.REF, bool(raw & isa.REF_MOVE_BIT))
    return Reg(raw, value_type)


_READERS: Mapping[FieldKind, Callable[[_Decoder, isa.Field], Any]] = {
    FieldKind.REGISTER: _Decoder.register,
    FieldKind.IMMEDIATE: _Decoder.immediate,
    FieldKind.GLOBAL: _Decoder.ordinal,
    FieldKind.RODATA: _Decoder.ordinal,
    FieldKind.TYPE: _Decoder.ordinal,
    FieldKind.FUNCTION: _Decoder.function,
    FieldKind.STRING: _Decoder.string,
    FieldKind.OPERANDS: _Decoder.registers,
    FieldKind.RESULTS: _Decoder.registers,
    FieldKind.SEGMENTS: _Decoder.segments,
    FieldKind.BRANCH: _Decoder.branch,
    FieldKind.TARGET: _Decoder.branch_target,
    FieldKind.CASES: _Decoder.cases,
}
