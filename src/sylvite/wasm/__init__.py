"""The WebAssembly binary format: decode, encode, inspect, rewrite, assemble.

>>> from sylvite import wasm
>>> module = wasm.decode(b"\\0asm\\1\\0\\0\\0")
>>> wasm.encode(module) == b"\\0asm\\1\\0\\0\\0"
True
"""

from __future__ import annotations

from . import dylink, instructions, names, producers, target_features
from .decoder import decode
from .encoder import encode
from .module import (
    CustomSection,
    DataSegment,
    ElementSegment,
    Export,
    Expression,
    FunctionBody,
    Global,
    Import,
    Locals,
    Module,
    SegmentMode,
)
from .types import (
    PAGE_BYTES,
    ExternKind,
    Feature,
    FunctionType,
    GlobalType,
    MemoryType,
    SectionId,
    TableType,
    TagType,
    ValueType,
)

__all__ = [
    "PAGE_BYTES",
    "CustomSection",
    "DataSegment",
    "ElementSegment",
    "Export",
    "Expression",
    "ExternKind",
    "Feature",
    "FunctionBody",
    "FunctionType",
    "Global",
    "GlobalType",
    "Import",
    "Locals",
    "MemoryType",
    "Module",
    "SectionId",
    "SegmentMode",
    "TableType",
    "TagType",
    "ValueType",
    "decode",
    "dylink",
    "encode",
    "instructions",
    "names",
    "producers",
    "target_features",
]
