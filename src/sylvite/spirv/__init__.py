"""SPIR-V modules: reading, printing and assembling them.

Everything is driven by one table, generated from Khronos' grammar (`sylvite.spirv.grammar`).
"""

from __future__ import annotations

from .assembler import assemble
from .disassembler import disassemble
from .executable import EntryPointDef, ExecutableDef, LayoutBinding, is_executable, read_executable
from .module import Block, EntryPoint, Function, Instruction, Module
from .reader import read

__all__ = [
    "Block",
    "EntryPoint",
    "EntryPointDef",
    "ExecutableDef",
    "Function",
    "Instruction",
    "LayoutBinding",
    "Module",
    "assemble",
    "disassemble",
    "is_executable",
    "read",
    "read_executable",
]
