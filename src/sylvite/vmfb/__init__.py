"""IREE module archives (.vmfb): reading, verifying, decoding and disassembling them."""

from __future__ import annotations

from . import bytecode, isa
from .archive import Archive, open_archive
from .disassembler import disassemble, disassemble_function
from .module import ExportFunction, FunctionDef, ImportFunction, ModuleDef, RodataSegment
from .signature import Argument, ArgumentKind, Signature, read_signature
from .verifier import verify

__all__ = [
    "Archive",
    "Argument",
    "ArgumentKind",
    "ExportFunction",
    "FunctionDef",
    "ImportFunction",
    "ModuleDef",
    "RodataSegment",
    "Signature",
    "bytecode",
    "disassemble",
    "disassemble_function",
    "isa",
    "open_archive",
    "read_signature",
    "verify",
]
