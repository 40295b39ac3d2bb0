"""IREE's executables of SPIR-V (``vulkan-spirv-fb``): entry points, layouts and shader modules.

An executable is a header of 64 bytes and a flatbuffer. It is verified whole, and so is every index in it.

Source: IREE ``runtime/src/iree/schemas/vulkan_executable_def.fbs`` (layout) and
``runtime/src/iree/base/internal/flatcc/parsing.h`` (header).
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, Final

from ..errors import FormatError, UnsupportedFeatureError, UnsupportedVersionError
from ..vmfb.flatbuffer import Record, read_root
from ..vmfb.schema import BYTES, STRING, Scalar, Schema, Struct, Table, Vector

__all__ = ["EntryPointDef", "ExecutableDef", "LayoutBinding", "is_executable", "read_executable"]

IDENTIFIER: Final = b"VKE1"
HEADER: Final = struct.Struct("<4sIQ48x")
_U8: Final = Scalar("B")
_U32: Final = Scalar("I")
_U64: Final = Scalar("Q")
DESCRIPTOR_ABI: Final = 0
DESCRIPTOR_TYPES: Final = {6: "uniform", 7: "storage"}

SCHEMA: Final = Schema(
    root="ExecutableDef",
    identifier=IDENTIFIER,
    tables={
        "FileLineLocDef": (("filename", STRING), ("line", Scalar("i"))),
        "StageLocationDef": (("stage", STRING), ("location", Table("FileLineLocDef"))),
        "ExportDef": (
            ("name", STRING),
            ("location", Table("FileLineLocDef")),
            ("stage_locations", Vector(Table("StageLocationDef"))),
        ),
        "SourceFileDef": (("path", STRING), ("content", BYTES)),
        "DescriptorSetLayoutBindingDef": (
            ("binding", _U32),
            ("descriptor_type", _U32),
            ("descriptor_count", _U32),
            ("stage_flags", _U32),
        ),
        "DescriptorSetLayoutDef": (("bindings", Vector(Table("DescriptorSetLayoutBindingDef"))),),
        "PipelineLayoutDef": (
            ("descriptor_set_layout_ordinals", Vector(_U32)),
            ("push_constant_ranges", Vector(Struct("PushConstantRange"))),
        ),
        "BdaBindingDef": (("minimum_alignment", Scalar("I", 1)), ("minimum_length", _U64)),
        "BdaDispatchLayoutDef": (
            ("abi_version", Scalar("I", 1)),
            ("root_push_constant_offset", _U32),
            ("root_push_constant_length", Scalar("I", 32)),
            ("constant_push_constant_offset", Scalar("I", 32)),
            ("constant_count", _U32),
            ("binding_table_entry_type", _U8),
            ("binding_count", _U32),
            ("bindings", Vector(Table("BdaBindingDef"))),
        ),
        "ShaderModuleDef": (("spirv_code", Vector(_U32)),),
        "PipelineDef": (
            ("shader_module_ordinal", _U32),
            ("entry_point", STRING),
            ("pipeline_layout_ordinal", _U32),
            ("subgroup_size", _U32),
            ("debug_info", Table("ExportDef")),
            ("dispatch_abi", _U8),
            ("bda_dispatch_layout", Table("BdaDispatchLayoutDef")),
        ),
        "ExecutableDef": (
            ("pipelines", Vector(Table("PipelineDef"))),
            ("descriptor_set_layouts", Vector(Table("DescriptorSetLayoutDef"))),
            ("pipeline_layouts", Vector(Table("PipelineLayoutDef"))),
            ("shader_modules", Vector(Table("ShaderModuleDef"))),
            ("source_files", Vector(Table("SourceFileDef"))),
        ),
    },
    structs={"PushConstantRange": (("stage_flags", "I"), ("offset", "I"), ("size", "I"))},
    unions={},
    required=frozenset({"PipelineDef.entry_point", "ShaderModuleDef.spirv_code"}),
)
"""The schema of IREE 3.13."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBinding:
    """A descriptor of an entry point: ``kind`` is ``"storage"`` or ``"uniform"``."""

    set: int
    binding: int
    kind: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryPointDef:
    """A kernel.

    Args:
        name: the export's name, which is also that of the entry point.
        shader_module: index of its shader module.
        bindings: its descriptors in the order of the HAL's bindings.
        push_constant_words: 32-bit constants a dispatch passes.
        subgroup_size: what it was compiled for; 0 when any will do.
    """

    name: str
    shader_module: int
    bindings: tuple[LayoutBinding, ...]
    push_constant_words: int
    subgroup_size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableDef:
    """An executable. ``shader_modules`` are SPIR-V binaries."""

    entry_points: tuple[EntryPointDef, ...]
    shader_modules: tuple[bytes, ...]


def is_executable(data: bytes | memoryview) -> bool:
    """Whether data begins like an executable of this format."""
    return bytes(data[:4]) == IDENTIFIER


def read_executable(data: bytes | memoryview, *, where: str = "executable") -> ExecutableDef:
    """Read and verify an executable.

    Raises:
        FormatError: it is malformed; the offset counts bytes.
        UnsupportedVersionError: its header is of another version.
        UnsupportedFeatureError: it takes its bindings by device address.
    """
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise FormatError(f"{len(view)} bytes are less than a header", offset=0, where=where)
    magic, version, size = HEADER.unpack_from(view)
    if magic != IDENTIFIER:
        raise FormatError(f"identifier is {magic!r}, not {IDENTIFIER!r}", offset=0, where=where)
    if version:
        raise UnsupportedVersionError(f"version {version} of executables", offset=4, where=where)
    if size < 8 or size > len(view) - HEADER.size:
        message = f"content of {size} bytes in {len(view)} bytes"
        raise FormatError(message, offset=8, where=where)
    content = view[HEADER.size : HEADER.size + size]
    root = read_root(content, SCHEMA, file_offset=HEADER.size, where=where, prefix=0)
    return _Executable(root, where).read()


class _Executable:
    def __init__(self, root: Record, where: str) -> None:
        self.root = root
        self.where = where

    def error(self, message: str, record: Record) -> FormatError:
        return FormatError(f"{record.path}: {message}", offset=record.offset, where=self.where)

    def pick(self, table: str, ordinal: int, user: Record) -> Any:
        items = self.root[table] or ()
        if ordinal >= len(items):
            raise self.error(f"ordinal {ordinal} of {len(items)} {table}", user)
        return items[ordinal]

    def read(self) -> ExecutableDef:
        modules = tuple(
            struct.pack(f"<{len(record['spirv_code'])}I", *record["spirv_code"])
            for record in self.root["shader_modules"] or ()
        )
        entry_points = tuple(self.entry_point(record) for record in self.root["pipelines"] or ())
        return ExecutableDef(entry_points=entry_points, shader_modules=modules)

    def entry_point(self, record: Record) -> EntryPointDef:
        if record["dispatch_abi"] != DESCRIPTOR_ABI:
            message = f"{record.path}: dispatch ABI {record['dispatch_abi']} (device addresses)"
            raise UnsupportedFeatureError(message, offset=record.offset, where=self.where)
        self.pick("shader_modules", record["shader_module_ordinal"], record)
        layout: Record = self.pick("pipeline_layouts", record["pipeline_layout_ordinal"], record)
        return EntryPointDef(
            name=record["entry_point"],
            shader_module=record["shader_module_ordinal"],
            bindings=self.bindings(layout),
            push_constant_words=self.push_constant_words(layout),
            subgroup_size=record["subgroup_size"],
        )

    def push_constant_words(self, layout: Record) -> int:
        ranges = layout["push_constant_ranges"]
        end = max((offset + size for _, offset, size in ranges.items), default=0) if ranges else 0
        if end % 4:
            raise self.error(f"push constants of {end} bytes are not whole words", layout)
        return int(end // 4)

    def bindings(self, layout: Record) -> tuple[LayoutBinding, ...]:
        found = []
        for number, ordinal in enumerate(layout["descriptor_set_layout_ordinals"] or ()):
            set_layout: Record = self.pick("descriptor_set_layouts", ordinal, layout)
            for record in set_layout["bindings"] or ():
                kind = DESCRIPTOR_TYPES.get(record["descriptor_type"])
                if kind is None or record["descriptor_count"] != 1:
                    message = f"{record['descriptor_count']} descriptors of type {record['descriptor_type']}"
                    raise self.error(message, record)
                found.append(LayoutBinding(set=number, binding=record["binding"], kind=kind))
        return tuple(found)
