"""Verification of bytecode: that what instructions refer to exists and fits."""

from __future__ import annotations

from .bytecode import decode_function
from .module import ModuleDef

__all__ = ["verify_module"]


def verify_module(module: ModuleDef) -> None:
    """Verify every function of ``module``."""
    for ordinal in range(len(module.functions)):
        decode_function(module, ordinal)
