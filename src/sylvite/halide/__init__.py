"""Halide pipelines: images and arrays, sandboxed at SIMD speed, in the same memory as models.

    >>> from sylvite import halide
    >>> blur = halide.load("blur.wasm")                                  # doctest: +SKIP
    >>> smooth = blur(image, radius=3)                                   # doctest: +SKIP

`load` takes linked modules and objects; `compile` and `realize` take Halide's Python objects and need the
``halide`` extra. Names below are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..errors import PipelineError as PipelineError
    from .arrays import AxisOrder as AxisOrder
    from .arrays import Region as Region
    from .arrays import Window as Window
    from .externs import ExternStage as ExternStage
    from .jit import build as build
    from .jit import compile as compile
    from .jit import realize as realize
    from .loading import load as load
    from .metadata import Argument as Argument
    from .metadata import Signature as Signature
    from .pipeline import Pipeline as Pipeline

_LAZY = {
    "Argument": "metadata",
    "AxisOrder": "arrays",
    "ExternStage": "externs",
    "Pipeline": "pipeline",
    "PipelineError": "pipeline",
    "Region": "arrays",
    "Signature": "metadata",
    "Window": "arrays",
    "build": "jit",
    "compile": "jit",
    "load": "loading",
    "realize": "jit",
}

__all__ = [
    "Argument",
    "AxisOrder",
    "ExternStage",
    "Pipeline",
    "PipelineError",
    "Region",
    "Signature",
    "Window",
    "build",
    "compile",
    "load",
    "realize",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sylvite.halide' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
