"""Compute shaders in WGSL, translated from SPIR-V."""

from __future__ import annotations

from .shader import GRID_WORDS, Binding, Shader

__all__ = ["GRID_WORDS", "Binding", "Shader"]
