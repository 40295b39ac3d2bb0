"""The module flatbuffer's schema as one declarative table.

Each table lists its fields in the order of their ids; the verifying reader
(`sylvite.vmfb.flatbuffer`) needs nothing else. Structs list their members in memory order without
padding (none of this schema's structs has any).

Source: IREE ``runtime/src/iree/schemas/bytecode_module_def.fbs``; the FlatBuffers internals page
for the binary format.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from typing import Final, TypeAlias

__all__ = [
    "BYTES",
    "MODULE_SCHEMA",
    "STRING",
    "VERSION_SCHEMA",
    "FieldType",
    "Scalar",
    "Schema",
    "String",
    "Struct",
    "Table",
    "Union",
    "Vector",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A fixed-size number; ``code`` is a `struct` format character, ``default`` what absence means."""

    code: str
    default: int = 0

    @property
    def byte_length(self) -> int:
        """Size, which is also the alignment."""
        return struct.calcsize("<" + self.code)


@dataclasses.dataclass(frozen=True, slots=True)
class String:
    """UTF-8 text with a length and a terminating zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A reference to a table of the schema."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Union:
    """A reference to one of several tables. It takes two fields: the type, then the value."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Struct:
    """A fixed-size record stored inline."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Vector:
    """A counted array. A vector of unions takes two fields: the types, then the values."""

    element: FieldType


FieldType: TypeAlias = "Scalar | String | Table | Union | Struct | Vector"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All types of a flatbuffer.

    ``required`` names fields (``Table.field``) that must be present.
    """

    root: str
    identifier: bytes
    tables: Mapping[str, tuple[tuple[str, FieldType], ...]]
    structs: Mapping[str, tuple[tuple[str, str], ...]]
    unions: Mapping[str, tuple[str, ...]]
    required: frozenset[str] = frozenset()


STRING: Final = String()
BYTES: Final = Vector(Scalar("B"))
_I32: Final = Scalar("i")
_U32: Final = Scalar("I")
_U64: Final = Scalar("Q")
_REQUIRED_FLAG: Final = Scalar("I", 1)

MODULE_SCHEMA: Final = Schema(
    root="BytecodeModuleDef",
    identifier=b"IREE",
    tables={
        "AttrDef": (("key", STRING), ("value", STRING)),
        "TypeDef": (("full_name", STRING),),
        "FunctionSignatureDef": (("calling_convention", STRING), ("attrs", Vector(Table("AttrDef")))),
        "ModuleDependencyDef": (("name", STRING), ("minimum_version", _U32), ("flags", _REQUIRED_FLAG)),
        "ImportFunctionDef": (
            ("full_name", STRING),
            ("signature", Table("FunctionSignatureDef")),
            ("flags", _REQUIRED_FLAG),
        ),
        "ExportFunctionDef": (("local_name", STRING), ("internal_ordinal", _I32)),
        "UncompressedDataDef": (),
        "RodataSegmentDef": (
            ("compression_type", Union("CompressionTypeDef")),
            ("embedded_data", BYTES),
            ("external_data_offset", _U64),
            ("external_data_length", _U64),
        ),
        "RwdataSegmentDef": (("byte_size", _I32),),
        "ModuleStateDef": (("global_bytes_capacity", _I32), ("global_ref_count", _I32)),
        "CallSiteLocDef": (("callee", _I32), ("caller", _I32)),
        "FileLineColLocDef": (("filename", STRING), ("line", _I32), ("column", _I32)),
        "FusedLocDef": (("metadata", STRING), ("locations", Vector(_I32))),
        "NameLocDef": (("name", STRING), ("child_location", _I32)),
        "FunctionSourceMapDef": (
            ("local_name", STRING),
            ("locations", Vector(Struct("BytecodeLocationDef"))),
        ),
        "DebugDatabaseDef": (
            ("location_table", Vector(Union("LocationTypeDef"))),
            ("functions", Vector(Table("FunctionSourceMapDef"))),
        ),
        "BytecodeModuleDef": (
            ("name", STRING),
            ("version", _U32),
            ("requirements", _U32),
            ("attrs", Vector(Table("AttrDef"))),
            ("types", Vector(Table("TypeDef"))),
            ("dependencies", Vector(Table("ModuleDependencyDef"))),
            ("imported_functions", Vector(Table("ImportFunctionDef"))),
            ("exported_functions", Vector(Table("ExportFunctionDef"))),
            ("function_signatures", Vector(Table("FunctionSignatureDef"))),
            ("rodata_segments", Vector(Table("RodataSegmentDef"))),
            ("rwdata_segments", Vector(Table("RwdataSegmentDef"))),
            ("module_state", Table("ModuleStateDef")),
            ("function_descriptors", Vector(Struct("FunctionDescriptor"))),
            ("bytecode_version", _U32),
            ("bytecode_data", BYTES),
            ("debug_database", Table("DebugDatabaseDef")),
        ),
    },
    structs={
        "FunctionDescriptor": (
            ("bytecode_offset", "i"),
            ("bytecode_length", "i"),
            ("requirements", "I"),
            ("reserved", "h"),
            ("block_count", "h"),
            ("i32_register_count", "h"),
            ("ref_register_count", "h"),
        ),
        "BytecodeLocationDef": (("bytecode_offset", "i"), ("location", "i")),
    },
    unions={
        "CompressionTypeDef": ("UncompressedDataDef",),
        "LocationTypeDef": ("CallSiteLocDef", "FileLineColLocDef", "FusedLocDef", "NameLocDef"),
    },
    required=frozenset({"BytecodeModuleDef.name"}),
)
"""The schema of IREE bytecode modules, bytecode version 17.0."""

_SKIPPED: Final = Scalar("B")

VERSION_SCHEMA: Final = Schema(
    root="BytecodeModuleDef",
    identifier=MODULE_SCHEMA.identifier,
    tables={
        "BytecodeModuleDef": tuple(
            (name, field if name == "bytecode_version" else _SKIPPED)
            for name, field in MODULE_SCHEMA.tables["BytecodeModuleDef"]
        )
    },
    structs={},
    unions={},
)
"""Only what is needed to read the bytecode version; modules of other versions may differ elsewhere."""
