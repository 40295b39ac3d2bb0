"""Hand-made bytecode: for what no compiler emits."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Any

from sylvite.vmfb.isa import BY_NAME, IMPORT_BIT, PREFIXES, Feature, FieldKind, ValueType
from sylvite.vmfb.module import ExportFunction, FunctionDef, ImportFunction, ModuleDef

_LAYOUTS = {ValueType.I32: "<i", ValueType.I64: "<q", ValueType.F32: "<f", ValueType.F64: "<d"}


def ref(index: int, *, move: bool = False) -> int:
    """A reference register as encoded."""
    return 0x8000 | (0x4000 if move else 0) | index


class Function:
    """Assembles one function. Blocks are named by their number; branches may go forward."""

    def __init__(self, convention: str, *, name: str | None = None) -> None:
        self.convention = convention
        self.name = name
        self.code = bytearray()
        self.blocks: list[int] = []
        self.fixups: list[tuple[int, int]] = []

    def block(self) -> Function:
        self.blocks.append(len(self.code))
        self.code.append(BY_NAME["block"].opcode)
        return self

    def op(self, name: str, *values: Any) -> Function:
        """Append an instruction; a branch is (block, [(source, target), ...])."""
        info = BY_NAME[name]
        for prefix, operations in PREFIXES.items():
            if operations.get(info.opcode) is info:
                self.code.append(prefix)
        self.code.append(info.opcode)
        for field, value in zip(info.fields, values, strict=True):
            self._field(field, value)
        return self

    def _field(self, field: Any, value: Any) -> None:
        kind = field.kind
        if kind is FieldKind.REGISTER:
            self.code += struct.pack("<H", value)
        elif kind is FieldKind.IMMEDIATE:
            self.code += struct.pack(_LAYOUTS[field.type], value)
        elif kind in (FieldKind.GLOBAL, FieldKind.RODATA, FieldKind.TYPE, FieldKind.FUNCTION):
            self.code += struct.pack("<I", value)
        elif kind is FieldKind.STRING:
            self.code += struct.pack("<H", len(value.encode())) + value.encode()
        elif kind in (FieldKind.OPERANDS, FieldKind.RESULTS, FieldKind.SEGMENTS):
            self._list(value)
        elif kind is FieldKind.BRANCH:
            self._branch(value)
        elif kind is FieldKind.TARGET:
            self._target(value)
        else:
            self.code += struct.pack("<H", len(value))
            for branch in value:
                self._branch(branch)

    def _list(self, registers: list[int]) -> None:
        self.code += bytes(len(self.code) & 1)
        self.code += struct.pack(f"<{1 + len(registers)}H", len(registers), *registers)

    def _target(self, block: int) -> None:
        self.fixups.append((len(self.code), block))
        self.code += bytes(4)

    def _branch(self, branch: tuple[int, list[tuple[int, int]]]) -> None:
        block, pairs = branch
        self._target(block)
        self.code += bytes(len(self.code) & 1)
        self.code += struct.pack("<H", len(pairs))
        for source, target in pairs:
            self.code += struct.pack("<HH", source, target)

    def bytes(self) -> bytes:
        for place, block in self.fixups:
            self.code[place : place + 4] = struct.pack("<I", self.blocks[block])
        return bytes(self.code)


def module_of(
    *functions: Function,
    types: tuple[str, ...] = ("i32",),
    imports: tuple[tuple[str, str], ...] = (),
    global_bytes: int = 0,
    global_ref_count: int = 0,
) -> ModuleDef:
    """A module of the functions, each exported as its name or ``f<ordinal>``."""
    code = bytearray()
    definitions = []
    for ordinal, function in enumerate(functions):
        body = function.bytes()
        definitions.append(
            FunctionDef(
                ordinal=ordinal,
                name=function.name or f"f{ordinal}",
                calling_convention=function.convention,
                attrs=MappingProxyType({}),
                bytecode_offset=len(code),
                bytecode_length=len(body),
                i32_register_count=64,
                ref_register_count=64,
                block_count=len(function.blocks),
                requirements=Feature.EXT_F32 | Feature.EXT_F64 | Feature.YIELD,
            )
        )
        code += body + bytes(-len(body) % 8)
    return ModuleDef(
        where="made by hand",
        name="made",
        version=0,
        requirements=Feature.EXT_F32 | Feature.EXT_F64 | Feature.YIELD,
        bytecode_version=(17, 0),
        attrs=MappingProxyType({}),
        types=types,
        dependencies=(),
        imports=tuple(
            ImportFunction(
                ordinal=ordinal,
                full_name=name,
                calling_convention=convention,
                attrs=MappingProxyType({}),
                is_optional=False,
            )
            for ordinal, (name, convention) in enumerate(imports)
        ),
        exports=tuple(
            ExportFunction(name=item.name, ordinal=item.ordinal) for item in definitions if item.name
        ),
        functions=tuple(definitions),
        rodata=(),
        rwdata=(),
        global_bytes=global_bytes,
        global_ref_count=global_ref_count,
        bytecode=bytes(code),
        bytecode_file_offset=0x1000,
        debug=None,
    )


IMPORT = IMPORT_BIT
