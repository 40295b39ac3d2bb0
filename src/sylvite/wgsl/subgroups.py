"""Subgroup operations: tables of ``OpGroupNonUniform*`` as WGSL writes them.

Source: SPIR-V specification, "Non-Uniform Instructions"; WGSL, "Subgroup Built-in Functions".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ARITHMETIC", "EXCHANGES", "SCANS"]

EXCHANGES: Final[Mapping[str, tuple[str, int]]] = {
    "OpGroupNonUniformElect": ("subgroupElect", 0),
    "OpGroupNonUniformAll": ("subgroupAll", 1),
    "OpGroupNonUniformAny": ("subgroupAny", 1),
    "OpGroupNonUniformBallot": ("subgroupBallot", 1),
    "OpGroupNonUniformBroadcastFirst": ("subgroupBroadcastFirst", 1),
    "OpGroupNonUniformShuffle": ("subgroupShuffle", 2),
    "OpGroupNonUniformShuffleXor": ("subgroupShuffleXor", 2),
    "OpGroupNonUniformShuffleUp": ("subgroupShuffleUp", 2),
    "OpGroupNonUniformShuffleDown": ("subgroupShuffleDown", 2),
    "OpGroupNonUniformBroadcast": ("subgroupShuffle", 2),
}
"""The function and how many operands it takes after the scope. A broadcast's lane need not be constant."""

ARITHMETIC: Final[Mapping[str, tuple[str, str]]] = {
    "OpGroupNonUniformIAdd": ("Add", "r"),
    "OpGroupNonUniformFAdd": ("Add", "r"),
    "OpGroupNonUniformIMul": ("Mul", "r"),
    "OpGroupNonUniformFMul": ("Mul", "r"),
    "OpGroupNonUniformSMin": ("Min", "i"),
    "OpGroupNonUniformUMin": ("Min", "u"),
    "OpGroupNonUniformFMin": ("Min", "r"),
    "OpGroupNonUniformSMax": ("Max", "i"),
    "OpGroupNonUniformUMax": ("Max", "u"),
    "OpGroupNonUniformFMax": ("Max", "r"),
    "OpGroupNonUniformBitwiseAnd": ("And", "r"),
    "OpGroupNonUniformBitwiseOr": ("Or", "r"),
    "OpGroupNonUniformBitwiseXor": ("Xor", "r"),
}
"""The function's name after ``subgroup`` and the domain of its operand."""

SCANS: Final[Mapping[int, str]] = {0: "", 1: "Inclusive", 2: "Exclusive"}
"""Prefix by group operation; WGSL scans sums and products only, and has no clusters."""
