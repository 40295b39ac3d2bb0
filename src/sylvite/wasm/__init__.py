"""The WebAssembly binary format: decode, encode, inspect, rewrite, assemble.

>>> from sylvite import wasm
>>> module = wasm.decode(b"\\0asm\\1\\0\\0\\0")
>>> wasm.encode(module) == b"\\0asm\\1\\0\\0\\0"
True
"""

from __future__ import annotations

from . import dylink, features, instructions, names, passes, producers, rewrite, target_features
from .assembler import ModuleBuilder, constant, expression
from .decoder import decode
from .encoder import encode
from .function_builder import FunctionBuilder, Label, vector
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
from .validator import validate, validate_function

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
    "FunctionBuilder",
    "FunctionType",
    "Global",
    "GlobalType",
    "Import",
    "Label",
    "Locals",
    "MemoryType",
    "Module",
    "ModuleBuilder",
    "SectionId",
    "SegmentMode",
    "TableType",
    "TagType",
    "ValueType",
    "constant",
    "decode",
    "dylink",
    "encode",
    "expression",
    "features",
    "instructions",
    "names",
    "passes",
    "producers",
    "rewrite",
    "target_features",
    "validate",
    "validate_function",
    "vector",
]
