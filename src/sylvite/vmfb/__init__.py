"""IREE module archives (.vmfb): reading, verifying, decoding and disassembling them."""

from __future__ import annotations

from . import bytecode, isa
from .archive import Archive, open_archive
from .module import ExportFunction, FunctionDef, ImportFunction, ModuleDef, RodataSegment
from .verify import verify_module

__all__ = [
    "Archive",
    "ExportFunction",
    "FunctionDef",
    "ImportFunction",
    "ModuleDef",
    "RodataSegment",
    "bytecode",
    "isa",
    "open_archive",
    "verify_module",
]
