"""Reading SPIR-V binaries.

Every word is accounted for by the grammar's tables: an instruction with missing, extra or misencoded
operands is an error at its word offset. Work is linear in the number of words.

Source: SPIR-V specification, "Physical Layout of a SPIR-V Module and Instruction" and "Logical Layout".
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final

from ..errors import FormatError, UnsupportedFeatureError, UnsupportedVersionError
from . import grammar
from .grammar import InstructionInfo
from .module import Block, EntryPoint, Function, Instruction, Module

__all__ = ["MAGIC", "read"]

MAGIC: Final = 0x07230203
HEADER_WORDS: Final = 5
TERMINATORS: Final = frozenset(
    {"OpBranch", "OpBranchConditional", "OpSwitch", "OpKill", "OpReturn", "OpReturnValue", "OpUnreachable",
     "OpTerminateInvocation", "OpIgnoreIntersectionKHR", "OpTerminateRayKHR", "OpEmitMeshTasksEXT",
     "OpAbortKHR"}
)  # fmt: skip
_SIMPLE: Final = grammar.ID_KINDS | {"LiteralInteger", "LiteralExtInstInteger", "LiteralFloat"}
_LINE_INFO: Final = frozenset({"OpLine", "OpNoLine"})


def read(data: bytes | bytearray | memoryview, *, where: str = "module") -> Module:
    """Decode a module.

    Args:
        data: the binary; little or big endian, as its magic number says.
        where: its name for messages.

    Raises:
        FormatError: it is malformed; the offset counts words.
        UnsupportedVersionError: not SPIR-V 1.0 to 1.6.
        UnsupportedFeatureError: an opcode that is not in the grammar.
    """
    words = _words(bytes(data), where)
    version = words[1] >> 16 & 0xFF, words[1] >> 8 & 0xFF
    if version[0] != 1 or version[1] > 6 or words[1] & 0xFF0000FF:
        raise UnsupportedVersionError(f"SPIR-V version word {words[1]:#x}", offset=1, where=where)
    if words[4]:
        raise FormatError(f"schema {words[4]} is not zero", offset=4, where=where)
    return _ModuleReader(words, where, version).read()


def _words(data: bytes, where: str) -> array[int]:
    if len(data) % 4 or len(data) < 4 * HEADER_WORDS:
        message = f"{len(data)} bytes are not a header and whole words"
        raise FormatError(message, offset=len(data) // 4, where=where)
    words = array("I", data)
    (magic,) = struct.unpack_from("<I", data)
    is_swapped = magic != MAGIC
    if is_swapped and struct.unpack_from(">I", data)[0] != MAGIC:
        raise FormatError(f"magic number is {magic:#010x}, not {MAGIC:#010x}", offset=0, where=where)
    if is_swapped != (sys.byteorder == "big"):
        words.byteswap()
    return words


class _Operands:
    """Decodes the operands of one instruction."""

    def __init__(self, reader: _ModuleReader, info: InstructionInfo, offset: int, end: int) -> None:
        self.reader = reader
        self.words = reader.words
        self.info = info
        self.offset = offset
        self.place = offset + 1
        self.end = end
        self.type_id = 0
        self.result_id = 0
        self.operands: list[int | str] = []
        self.kinds: list[str] = []

    def error(self, message: str) -> FormatError:
        return FormatError(f"{self.info.name}: {message}", offset=self.offset, where=self.reader.where)

    def word(self) -> int:
        if self.place >= self.end:
            raise self.error(f"ends after {self.end - self.offset} words, before its operands do")
        self.place += 1
        return self.words[self.place - 1]

    def decode(self) -> Instruction:
        self.sequence(self.info.operands)
        if self.place != self.end:
            raise self.error(f"{self.end - self.place} words are left after its operands")
        return Instruction(
            opcode=self.info.opcode,
            name=self.info.name,
            offset=self.offset,
            type_id=self.type_id,
            result_id=self.result_id,
            operands=tuple(self.operands),
            kinds=tuple(self.kinds),
        )

    def sequence(self, fields: tuple[tuple[str, str], ...]) -> None:
        for kind, quantifier in fields:
            if quantifier == "*":
                while self.place < self.end:
                    self.operand(kind)
            elif quantifier == "" or self.place < self.end:
                self.operand(kind)

    def operand(self, kind: str) -> None:
        if kind in _SIMPLE:
            self.simple(kind)
        elif kind == "LiteralString":
            self.add(kind, self.string())
        elif kind == "LiteralContextDependentNumber":
            self.add(kind, self.wide(self.literal_words()))
        elif kind == "LiteralSpecConstantOpInteger":
            self.specialized()
        elif kind in grammar.COMPOSITE_KINDS:
            for part in grammar.COMPOSITE_KINDS[kind]:
                self.operand(part)
        else:
            self.enumerant(kind)

    def add(self, kind: str, value: int | str) -> None:
        self.kinds.append(kind)
        self.operands.append(value)

    def simple(self, kind: str) -> None:
        value = self.word()
        if kind in grammar.ID_KINDS and not 0 < value < self.reader.bound:
            raise self.error(f"id {value} is not between 1 and the bound {self.reader.bound}")
        if kind == "IdResultType":
            self.type_id = value
        elif kind == "IdResult":
            self.result_id = value
        else:
            self.add(kind, value)

    def string(self) -> str:
        data = bytearray()
        while True:
            data += self.word().to_bytes(4, "little")
            if 0 in data[-4:]:
                break
        text, _, padding = bytes(data).partition(b"\0")
        if padding.strip(b"\0"):
            raise self.error("text is followed by bytes that are not zero")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self.error("text is not UTF-8") from error

    def literal_words(self) -> int:
        """How many words a literal of the instruction's type (a selector's, in a switch) takes."""
        type_id = self.type_id
        if self.info.name == "OpSwitch":
            selector_id = self.operands[0]
            selector = self.reader.definitions.get(selector_id) if isinstance(selector_id, int) else None
            type_id = selector.type_id if selector else 0
        found = self.reader.definitions.get(type_id)
        if found is None or found.name not in ("OpTypeInt", "OpTypeFloat"):
            raise self.error(f"the type %{type_id} of its literal is not a number")
        return 2 if found.number(0) > 32 else 1

    def wide(self, count: int) -> int:
        value = 0
        for index in range(count):
            value |= self.word() << 32 * index
        return value

    def specialized(self) -> None:
        opcode = self.word()
        info = grammar.instructions().get(opcode)
        if info is None or info is self.info:
            raise self.error(f"operation {opcode} is not an opcode that it takes")
        self.add("LiteralSpecConstantOpInteger", opcode)
        self.sequence(tuple(field for field in info.operands if not field[0].startswith("IdResult")))

    def enumerant(self, kind: str) -> None:
        table = grammar.enum_kinds().get(kind)
        if table is None:
            raise self.error(f"operand kind {kind} is unknown")
        value = self.word()
        self.add(kind, value)
        if not table.parameters:
            return
        if not table.is_bits:
            self.sequence(table.parameters.get(value, ()))
            return
        for bit, parameters in sorted(table.parameters.items()):
            if value & bit:
                self.sequence(parameters)


class _ModuleReader:
    def __init__(self, words: array[int], where: str, version: tuple[int, int]) -> None:
        self.words = words
        self.where = where
        self.version = version
        self.bound = words[3]
        self.definitions: dict[int, Instruction] = {}
        self.functions: dict[int, Function] = {}
        self.tables = _Tables(where)

    def error(self, message: str, offset: int) -> FormatError:
        return FormatError(message, offset=offset, where=self.where)

    def read(self) -> Module:
        instructions = tuple(self.instructions())
        self.split_functions(instructions)
        tables = self.tables
        return Module(
            where=self.where,
            version=self.version,
            generator=self.words[2],
            bound=self.bound,
            instructions=instructions,
            capabilities=tuple(tables.capabilities),
            extensions=tuple(tables.extensions),
            imports=tables.imports,
            entry_points=tuple(tables.entry_points),
            execution_modes={key: tuple(modes) for key, modes in tables.execution_modes.items()},
            names=tables.names,
            member_names=tables.member_names,
            decorations=tables.decorations,
            member_decorations=tables.member_decorations,
            definitions=self.definitions,
            functions=self.functions,
        )

    def instructions(self) -> list[Instruction]:
        table = grammar.instructions()
        found: list[Instruction] = []
        offset = HEADER_WORDS
        while offset < len(self.words):
            count, opcode = self.words[offset] >> 16, self.words[offset] & 0xFFFF
            if count == 0 or offset + count > len(self.words):
                raise self.error(f"instruction of {count} words reaches beyond the module", offset)
            info = table.get(opcode)
            if info is None:
                raise UnsupportedFeatureError(f"opcode {opcode} is unknown", offset=offset, where=self.where)
            instruction = _Operands(self, info, offset, offset + count).decode()
            if instruction.result_id:
                if instruction.result_id in self.definitions:
                    raise self.error(f"{info.name} defines %{instruction.result_id} again", offset)
                self.definitions[instruction.result_id] = instruction
            self.tables.take(instruction)
            found.append(instruction)
            offset += count
        return found

    def split_functions(self, instructions: tuple[Instruction, ...]) -> None:
        current: _FunctionParts | None = None
        for instruction in instructions:
            if instruction.name == "OpFunction":
                if current is not None:
                    raise self.error("OpFunction within a function", instruction.offset)
                current = _FunctionParts(instruction, self)
            elif current is None:
                if instruction.name in TERMINATORS or instruction.name in ("OpLabel", "OpFunctionEnd"):
                    raise self.error(f"{instruction.name} outside of a function", instruction.offset)
            elif instruction.name == "OpFunctionEnd":
                self.functions[current.definition.result_id] = current.finish(instruction)
                current = None
            else:
                current.take(instruction)
        if current is not None:
            raise self.error("OpFunction does not end", current.definition.offset)


class _FunctionParts:
    """A function while its instructions are met."""

    def __init__(self, definition: Instruction, reader: _ModuleReader) -> None:
        self.definition = definition
        self.reader = reader
        self.parameters: list[Instruction] = []
        self.blocks: list[Block] = []
        self.label: Instruction | None = None
        self.body: list[Instruction] = []

    def take(self, instruction: Instruction) -> None:
        name = instruction.name
        if name == "OpLabel":
            if self.label is not None:
                raise self.reader.error("OpLabel before its block's terminator", instruction.offset)
            self.label = instruction
            self.body = []
        elif name == "OpFunctionParameter":
            if self.blocks or self.label is not None:
                raise self.reader.error("OpFunctionParameter after the first block", instruction.offset)
            self.parameters.append(instruction)
        elif self.label is None:
            if name not in _LINE_INFO:
                raise self.reader.error(f"{name} outside of a block", instruction.offset)
        elif name not in _LINE_INFO:
            self.body.append(instruction)
            if name in TERMINATORS:
                self.finish_block(self.label)

    def finish_block(self, label: Instruction) -> None:
        for instruction in self.body[:-2]:
            if instruction.opcode in (246, 247):
                message = f"{instruction.name} is not before its block's terminator"
                raise self.reader.error(message, instruction.offset)
        self.blocks.append(Block(label=label.result_id, offset=label.offset, instructions=tuple(self.body)))
        self.label = None

    def finish(self, end: Instruction) -> Function:
        if self.label is not None:
            raise self.reader.error("a block has no terminator", end.offset)
        return Function(
            result_id=self.definition.result_id,
            definition=self.definition,
            parameters=tuple(self.parameters),
            blocks=tuple(self.blocks),
        )


class _Tables:
    """What instructions before the functions say about ids."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.capabilities: list[str] = []
        self.extensions: list[str] = []
        self.imports: dict[int, str] = {}
        self.entry_points: list[EntryPoint] = []
        self.execution_modes: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        self.names: dict[int, str] = {}
        self.member_names: dict[tuple[int, int], str] = {}
        self.decorations: dict[int, dict[str, tuple[int | str, ...]]] = {}
        self.member_decorations: dict[tuple[int, int], dict[str, tuple[int | str, ...]]] = {}

    def take(self, instruction: Instruction) -> None:
        handler = _HANDLERS.get(instruction.name)
        if handler is not None:
            handler(self, instruction)

    def capability(self, instruction: Instruction) -> None:
        self.capabilities.append(grammar.enumerant_name("Capability", instruction.number(0)))

    def extension(self, instruction: Instruction) -> None:
        self.extensions.append(instruction.text(0))

    def ext_inst_import(self, instruction: Instruction) -> None:
        self.imports[instruction.result_id] = instruction.text(0)

    def entry_point(self, instruction: Instruction) -> None:
        self.entry_points.append(
            EntryPoint(
                model=grammar.enumerant_name("ExecutionModel", instruction.number(0)),
                function=instruction.number(1),
                name=instruction.text(2),
                interface=instruction.numbers(3),
                offset=instruction.offset,
            )
        )

    def execution_mode(self, instruction: Instruction) -> None:
        mode = grammar.enumerant_name("ExecutionMode", instruction.number(1))
        modes = self.execution_modes.setdefault(instruction.number(0), [])
        modes.append((mode, instruction.numbers(2)))

    def name(self, instruction: Instruction) -> None:
        self.names[instruction.number(0)] = instruction.text(1)

    def member_name(self, instruction: Instruction) -> None:
        self.member_names[instruction.number(0), instruction.number(1)] = instruction.text(2)

    def decorate(self, instruction: Instruction) -> None:
        name = grammar.enumerant_name("Decoration", instruction.number(1))
        self.decorations.setdefault(instruction.number(0), {})[name] = instruction.operands[2:]

    def member_decorate(self, instruction: Instruction) -> None:
        name = grammar.enumerant_name("Decoration", instruction.number(2))
        key = instruction.number(0), instruction.number(1)
        self.member_decorations.setdefault(key, {})[name] = instruction.operands[3:]

    def group_decorate(self, instruction: Instruction) -> None:
        message = f"{instruction.name} is deprecated and not read"
        raise UnsupportedFeatureError(message, offset=instruction.offset, where=self.where)


_HANDLERS = {
    "OpCapability": _Tables.capability,
    "OpExtension": _Tables.extension,
    "OpExtInstImport": _Tables.ext_inst_import,
    "OpEntryPoint": _Tables.entry_point,
    "OpExecutionMode": _Tables.execution_mode,
    "OpExecutionModeId": _Tables.execution_mode,
    "OpName": _Tables.name,
    "OpMemberName": _Tables.member_name,
    "OpDecorate": _Tables.decorate,
    "OpDecorateId": _Tables.decorate,
    "OpDecorateString": _Tables.decorate,
    "OpMemberDecorate": _Tables.member_decorate,
    "OpMemberDecorateString": _Tables.member_decorate,
    "OpGroupDecorate": _Tables.group_decorate,
    "OpGroupMemberDecorate": _Tables.group_decorate,
}
