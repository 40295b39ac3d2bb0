"""SPIR-V modules: reading, printing and assembling them.

Everything is driven by one table, generated from Khronos' grammar (`sylvite.spirv.grammar`).
"""

from __future__ import annotations

from .module import Block, EntryPoint, Function, Instruction, Module
from .reader import read

__all__ = ["Block", "EntryPoint", "Function", "Instruction", "Module", "read"]
