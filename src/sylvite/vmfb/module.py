"""The decoded module: what a .vmfb file declares, as frozen records.

`build_module` turns the verified flatbuffer into a `ModuleDef` and checks what the schema alone
cannot say: names that must not be empty, ranges of functions and data, counts that must agree,
requirement bits, indices of the debug database.

Source: IREE ``runtime/src/iree/schemas/bytecode_module_def.fbs`` and
``runtime/src/iree/vm/bytecode/verifier.c`` (which rules hold).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import FormatError, UnsupportedFeatureError
from . import isa
from .calling_convention import CallingConvention, parse_calling_convention
from .flatbuffer import Record, StructVector
from .isa import Feature
from .locations import DebugDatabase, build_debug_database
from .schema import MODULE_SCHEMA

__all__ = [
    "Dependency",
    "ExportFunction",
    "FunctionDef",
    "ImportFunction",
    "ModuleDef",
    "RodataSegment",
    "build_module",
]

MAX_GLOBAL_BYTES = 1 << 26
"""Largest state of globals that is accepted; the native schema allows 2 GiB."""

MAX_GLOBAL_REFS = 1 << 20
"""Largest number of global references that is accepted."""

MAX_OVERLAP = 4
"""How many times over the functions may cover the bytecode: functions may share ranges, but their
number times the size of the bytecode is more work than any real module asks for."""

_OPTIONAL_FLAG = 2
_KNOWN_FLAGS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A module that must (or may) be there, of at least ``minimum_version``."""

    name: str
    minimum_version: int
    is_optional: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImportFunction:
    """An imported function. ``calling_convention`` has no version digit (``rII_r``)."""

    ordinal: int
    full_name: str
    calling_convention: str
    attrs: Mapping[str, str]
    is_optional: bool

    @property
    def module_name(self) -> str:
        """The module part of ``full_name``: ``hal`` of ``hal.buffer_view.create``."""
        return self.full_name.partition(".")[0]

    @property
    def local_name(self) -> str:
        """The rest of ``full_name``: ``buffer_view.create``."""
        return self.full_name.partition(".")[2]

    @property
    def signature(self) -> CallingConvention:
        """The parsed calling convention."""
        return parse_calling_convention(self.calling_convention)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportFunction:
    """An exported name of function ``ordinal``."""

    name: str
    ordinal: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDef:
    """An internal function.

    ``name`` is the name it is exported under, else its name in the debug database, else None.
    ``bytecode_offset`` and ``bytecode_length`` are a range of ``ModuleDef.bytecode``. Arguments
    arrive in the first registers of their file in order, 64-bit values in aligned pairs.
    """

    ordinal: int
    name: str | None
    calling_convention: str
    attrs: Mapping[str, str]
    bytecode_offset: int
    bytecode_length: int
    i32_register_count: int
    ref_register_count: int
    block_count: int
    requirements: Feature

    @property
    def signature(self) -> CallingConvention:
        """The parsed calling convention."""
        return parse_calling_convention(self.calling_convention)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RodataSegment:
    """A read-only data segment: a range of the archive. ``member`` is its zip member, if it has one."""

    ordinal: int
    offset: int
    byte_length: int
    is_embedded: bool
    member: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDef:
    """A module. ``where`` names the file; ``bytecode_file_offset`` places ``bytecode`` in it."""

    where: str
    name: str
    version: int
    requirements: Feature
    bytecode_version: tuple[int, int]
    attrs: Mapping[str, str]
    types: tuple[str, ...]
    dependencies: tuple[Dependency, ...]
    imports: tuple[ImportFunction, ...]
    exports: tuple[ExportFunction, ...]
    functions: tuple[FunctionDef, ...]
    rodata: tuple[RodataSegment, ...]
    rwdata: tuple[int, ...]
    global_bytes: int
    global_ref_count: int
    bytecode: bytes = dataclasses.field(repr=False)
    bytecode_file_offset: int
    debug: DebugDatabase | None = dataclasses.field(repr=False)

    def export_ordinal(self, name: str) -> int | None:
        """The function exported as ``name``, or None."""
        for export in self.exports:
            if export.name == name:
                return export.ordinal
        return None


def build_module(
    root: Record, data: memoryview, rodata: tuple[RodataSegment, ...], *, where: str
) -> ModuleDef:
    """Build the module from its flatbuffer.

    Args:
        root: the verified root table.
        data: the whole archive; record offsets index it.
        rodata: the segments, already checked against the archive.
        where: the file's name for messages.

    Raises:
        FormatError, UnsupportedFeatureError: the module breaks a rule of the format.
    """
    return _Builder(root, data, where).build(rodata)


class _Builder:
    def __init__(self, root: Record, data: memoryview, where: str) -> None:
        self.root = root
        self.data = data
        self.where = where

    def error(self, message: str, path: str, offset: int) -> FormatError:
        return FormatError(f"{path}: {message}", offset=offset, where=self.where)

    def refuse(self, record: Record, field: str, message: str) -> FormatError:
        """The error for a field of a table."""
        return self.error(message, f"{record.path}.{field}", record.field_offset(field))

    def build(self, rodata: tuple[RodataSegment, ...]) -> ModuleDef:
        root = self.root
        span = root["bytecode_data"]
        start, length = span if span is not None else (root.offset, 0)
        imports = self.imports()
        exports = self.exports()
        debug = build_debug_database(root["debug_database"], where=self.where)
        state = root["module_state"]
        version = root["bytecode_version"]
        return ModuleDef(
            where=self.where,
            name=self.text(root, "name"),
            version=root["version"],
            requirements=self.features(root["requirements"], root.path, root.field_offset("requirements")),
            bytecode_version=(version >> 16, version & 0xFFFF),
            attrs=self.attributes(root["attrs"]),
            types=tuple(self.text(record, "full_name") for record in root["types"] or ()),
            dependencies=tuple(self.dependency(record) for record in root["dependencies"] or ()),
            imports=imports,
            exports=exports,
            functions=self.functions(exports, debug, length),
            rodata=rodata,
            rwdata=tuple(
                self.count(record, "byte_size", 0x7FFFFFFF) for record in root["rwdata_segments"] or ()
            ),
            global_bytes=self.count(state, "global_bytes_capacity", MAX_GLOBAL_BYTES) if state else 0,
            global_ref_count=self.count(state, "global_ref_count", MAX_GLOBAL_REFS) if state else 0,
            bytecode=bytes(self.data[start : start + length]),
            bytecode_file_offset=start,
            debug=debug,
        )

    # Fields.

    def text(self, record: Record, field: str) -> str:
        """A string that must be there and not be empty."""
        value: str | None = record[field]
        if not value:
            raise self.refuse(record, field, "name is missing or empty")
        return value

    def count(self, record: Record, field: str, limit: int) -> int:
        value: int = record[field]
        if not 0 <= value <= limit:
            raise self.refuse(record, field, f"{value} is not within 0..{limit}")
        return value

    def features(self, bits: int, path: str, offset: int) -> Feature:
        unknown = bits & ~int(Feature.EXT_F32 | Feature.EXT_F64 | Feature.YIELD | Feature.UNWIND)
        if unknown:
            raise UnsupportedFeatureError(
                f"{path}.requirements: unknown requirement bits {unknown:#x}", offset=offset, where=self.where
            )
        return Feature(bits)

    def attributes(self, records: Sequence[Record] | None) -> Mapping[str, str]:
        result: dict[str, str] = {}
        for record in records or ():
            key = self.text(record, "key")
            if key in result:
                raise self.refuse(record, "key", f"attribute {key!r} is given twice")
            result[key] = record["value"] or ""
        return MappingProxyType(result)

    def is_optional(self, record: Record) -> bool:
        flags: int = record["flags"]
        if flags & ~_KNOWN_FLAGS:
            raise self.refuse(record, "flags", f"unknown bits {flags & ~_KNOWN_FLAGS:#x}")
        return bool(flags & _OPTIONAL_FLAG)

    def dependency(self, record: Record) -> Dependency:
        return Dependency(
            name=self.text(record, "name"),
            minimum_version=record["minimum_version"],
            is_optional=self.is_optional(record),
        )

    def calling_convention(self, record: Record | None) -> tuple[str, Mapping[str, str]]:
        """A signature's calling convention without version digit, and its attributes."""
        if record is None:
            return "", MappingProxyType({})
        text: str = record["calling_convention"] or ""
        if text[:1] not in ("", "0"):
            raise UnsupportedFeatureError(
                f"{record.path}.calling_convention: version {text[0]!r} of the calling convention",
                offset=record.field_offset("calling_convention"),
                where=self.where,
            )
        try:
            parse_calling_convention(text[1:])
        except FormatError as error:
            raise self.refuse(record, "calling_convention", error.message) from error
        return text[1:], self.attributes(record["attrs"])

    # Functions.

    def imports(self) -> tuple[ImportFunction, ...]:
        result: list[ImportFunction] = []
        for ordinal, record in enumerate(self.root["imported_functions"] or ()):
            full_name = self.text(record, "full_name")
            module_name, _, local_name = full_name.partition(".")
            if not module_name or not local_name:
                raise self.refuse(record, "full_name", f"{full_name!r} is not of the form module.function")
            convention, attrs = self.calling_convention(record["signature"])
            result.append(
                ImportFunction(
                    ordinal=ordinal,
                    full_name=full_name,
                    calling_convention=convention,
                    attrs=attrs,
                    is_optional=self.is_optional(record),
                )
            )
        return tuple(result)

    def exports(self) -> tuple[ExportFunction, ...]:
        functions: StructVector | None = self.root["function_descriptors"]
        count = len(functions.items) if functions else 0
        result: list[ExportFunction] = []
        names: set[str] = set()
        for record in self.root["exported_functions"] or ():
            name = self.text(record, "local_name")
            if name in names:
                raise self.refuse(record, "local_name", f"{name!r} is exported twice")
            names.add(name)
            ordinal = record["internal_ordinal"]
            if not 0 <= ordinal < count:
                raise self.refuse(record, "internal_ordinal", f"{ordinal} is not one of {count} functions")
            result.append(ExportFunction(name=name, ordinal=ordinal))
        return tuple(result)

    def functions(
        self, exports: tuple[ExportFunction, ...], debug: DebugDatabase | None, bytecode_length: int
    ) -> tuple[FunctionDef, ...]:
        signatures: tuple[Record, ...] = self.root["function_signatures"] or ()
        descriptors: StructVector = self.root["function_descriptors"] or StructVector((), self.root.offset, 1)
        if len(signatures) != len(descriptors.items):
            raise self.refuse(
                self.root,
                "function_descriptors",
                f"{len(descriptors.items)} descriptors for {len(signatures)} signatures",
            )
        names = debug.function_names(len(signatures)) if debug else dict[int, str]()
        names.update({export.ordinal: export.name for export in reversed(exports)})
        functions = tuple(
            self.function(ordinal, descriptors, signature, names.get(ordinal), bytecode_length)
            for ordinal, signature in enumerate(signatures)
        )
        covered = sum(function.bytecode_length for function in functions)
        if covered > MAX_OVERLAP * bytecode_length:
            raise self.refuse(
                self.root,
                "function_descriptors",
                f"functions cover {covered} bytes of a bytecode of {bytecode_length}",
            )
        return functions

    def function(
        self,
        ordinal: int,
        descriptors: StructVector,
        signature: Record,
        name: str | None,
        bytecode_length: int,
    ) -> FunctionDef:
        place = descriptors.offset + ordinal * descriptors.stride
        path = f"{self.root.path}.function_descriptors[{ordinal}]"
        names = [name for name, _ in MODULE_SCHEMA.structs["FunctionDescriptor"]]
        values: dict[str, Any] = dict(zip(names, descriptors.items[ordinal], strict=True))
        problem = _descriptor_problem(values, bytecode_length)
        if problem is not None:
            field, message = problem
            raise self.error(message, f"{path}.{field}", place + _DESCRIPTOR_PLACES[field])
        convention, attrs = self.calling_convention(signature)
        return FunctionDef(
            ordinal=ordinal,
            name=name,
            calling_convention=convention,
            attrs=attrs,
            bytecode_offset=values["bytecode_offset"],
            bytecode_length=values["bytecode_length"],
            i32_register_count=values["i32_register_count"],
            ref_register_count=values["ref_register_count"],
            block_count=values["block_count"],
            requirements=self.features(
                values["requirements"], path, place + _DESCRIPTOR_PLACES["requirements"]
            ),
        )


_DESCRIPTOR_PLACES = {
    "bytecode_offset": 0,
    "bytecode_length": 4,
    "requirements": 8,
    "reserved": 12,
    "block_count": 14,
    "i32_register_count": 16,
    "ref_register_count": 18,
}


def _descriptor_problem(values: Mapping[str, int], bytecode_length: int) -> tuple[str, str] | None:
    """The first field of a function descriptor that breaks a rule, and which."""
    offset, length = values["bytecode_offset"], values["bytecode_length"]
    if not 0 <= offset <= bytecode_length:
        return "bytecode_offset", f"{offset} is not within the bytecode of {bytecode_length} bytes"
    if not 0 < length <= bytecode_length - offset:
        return "bytecode_length", f"{length} bytes from {offset} are not within {bytecode_length} bytes"
    if values["reserved"]:
        return "reserved", f"is {values['reserved']}, not 0"
    if values["block_count"] <= 0:
        return "block_count", f"{values['block_count']} blocks; a function has at least one"
    limits = {"i32_register_count": isa.I32_REGISTER_LIMIT, "ref_register_count": isa.REF_REGISTER_LIMIT}
    for field, limit in limits.items():
        if not 0 <= values[field] <= limit:
            return field, f"{values[field]} is not within 0..{limit}"
    return None
