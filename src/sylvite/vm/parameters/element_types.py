"""Element types of parameter files: their sizes and what they are called in each format.

A type is stored in blocks: ``block_length`` elements take ``block_bits`` bits. Plain types have blocks
of one element and MLIR's name; ggml's quantised types have blocks of 32 or 256 elements and ggml's name.

Source: safetensors ``Dtype``; the GGUF specification's ``ggml_type``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from ...hal.element_types import element_type_from_name

__all__ = ["GGML_TYPES", "SAFETENSORS_TYPES", "ParameterType"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterType:
    """One element type of a parameter file."""

    name: str
    block_length: int = 1
    block_bits: int

    def bit_length(self, element_count: int) -> int:
        """Bits that ``element_count`` elements (a whole number of blocks) take."""
        return element_count // self.block_length * self.block_bits

    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy type with this layout; see `sylvite.hal.element_types` for those numpy lacks.

        Raises:
            InvalidArgumentError: There is none: quantised blocks, or elements under a byte.
        """
        if self.block_length != 1:
            raise InvalidArgumentError(f"{self.name} is a quantised type: numpy has no dtype for its blocks")
        return element_type_from_name(self.name).numpy_dtype


def _plain(name: str, bits: int) -> ParameterType:
    return ParameterType(name=name, block_bits=bits)


def _block(name: str, length: int, byte_length: int) -> ParameterType:
    return ParameterType(name=name, block_length=length, block_bits=8 * byte_length)


SAFETENSORS_TYPES: dict[str, ParameterType] = {
    "BOOL": _plain("i1", 8),
    "F4": _plain("f4E2M1FN", 4),
    "F6_E2M3": _plain("f6E2M3FN", 6),
    "F6_E3M2": _plain("f6E3M2FN", 6),
    "U8": _plain("ui8", 8),
    "I8": _plain("i8", 8),
    "F8_E5M2": _plain("f8E5M2", 8),
    "F8_E4M3": _plain("f8E4M3FN", 8),
    "F8_E5M2FNUZ": _plain("f8E5M2FNUZ", 8),
    "F8_E4M3FNUZ": _plain("f8E4M3FNUZ", 8),
    "F8_E8M0": _plain("f8E8M0FNU", 8),
    "I16": _plain("i16", 16),
    "U16": _plain("ui16", 16),
    "F16": _plain("f16", 16),
    "BF16": _plain("bf16", 16),
    "I32": _plain("i32", 32),
    "U32": _plain("ui32", 32),
    "F32": _plain("f32", 32),
    "C64": _plain("complex<f32>", 64),
    "I64": _plain("i64", 64),
    "U64": _plain("ui64", 64),
    "F64": _plain("f64", 64),
}
"""By the name a safetensors header uses."""

GGML_TYPES: dict[int, ParameterType] = {
    0: _plain("f32", 32),
    1: _plain("f16", 16),
    2: _block("q4_0", 32, 18),
    3: _block("q4_1", 32, 20),
    6: _block("q5_0", 32, 22),
    7: _block("q5_1", 32, 24),
    8: _block("q8_0", 32, 34),
    9: _block("q8_1", 32, 40),
    10: _block("q2_k", 256, 84),
    11: _block("q3_k", 256, 110),
    12: _block("q4_k", 256, 144),
    13: _block("q5_k", 256, 176),
    14: _block("q6_k", 256, 210),
    15: _block("q8_k", 256, 292),
    16: _block("iq2_xxs", 256, 66),
    17: _block("iq2_xs", 256, 74),
    18: _block("iq3_xxs", 256, 98),
    19: _block("iq1_s", 256, 50),
    20: _block("iq4_nl", 32, 18),
    21: _block("iq3_s", 256, 110),
    22: _block("iq2_s", 256, 82),
    23: _block("iq4_xs", 256, 136),
    24: _plain("i8", 8),
    25: _plain("i16", 16),
    26: _plain("i32", 32),
    27: _plain("i64", 64),
    28: _plain("f64", 64),
    29: _block("iq1_m", 256, 56),
    30: _plain("bf16", 16),
    34: _block("tq1_0", 256, 54),
    35: _block("tq2_0", 256, 66),
    39: _block("mxfp4", 32, 17),
    40: _block("nvfp4", 64, 36),
    41: _block("q1_0", 128, 18),
}
"""By the number of a GGUF tensor record. Numbers that were given up (4, 5, 31-33, 36-38) are unknown."""
