"""The instruction table and the code that reads and writes instruction sequences by it.

`INSTRUCTIONS` (by name) is parsed from the declarative tables beside this file and is the only place
that knows opcodes, immediates, signatures and features; decoder, encoder, validator, assembler,
feature scan, docs and tests are driven by it.
"""

from __future__ import annotations

from .codec import (
    Instruction,
    decode_body,
    decode_expression,
    decode_instruction,
    encode_body,
    encode_instruction,
)
from .immediates import KINDS, Catch, ImmediateKind, MemoryArgument
from .table import INSTRUCTIONS, InstructionInfo, Operand, Signature

__all__ = [
    "INSTRUCTIONS",
    "KINDS",
    "Catch",
    "ImmediateKind",
    "Instruction",
    "InstructionInfo",
    "MemoryArgument",
    "Operand",
    "Signature",
    "decode_body",
    "decode_expression",
    "decode_instruction",
    "encode_body",
    "encode_instruction",
]
