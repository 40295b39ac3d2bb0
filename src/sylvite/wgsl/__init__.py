"""Compute shaders in WGSL, translated from SPIR-V."""

from __future__ import annotations

from .shader import GRID_WORDS, Binding, Shader
from .translate import translate

__all__ = ["GRID_WORDS", "Binding", "Shader", "translate"]
