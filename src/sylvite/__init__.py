"""Sylvite: a portable compute runtime for IREE models and Halide pipelines.

Importing the package loads no native library; names below are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .compile import compile as compile
    from .model import Model as Model
    from .model import create_device as create_device
    from .model.load import load as load
    from .model.verify import verify as verify

__version__ = "0.1.0"

_LAZY = {
    "load": "sylvite.model",
    "Model": "sylvite.model",
    "verify": "sylvite.model",
    "create_device": "sylvite.model",
    "compile": "sylvite.compile",
    "onnx": "sylvite.onnx",
    "hal": "sylvite.hal",
    "halide": "sylvite.halide",
    "trace": "sylvite.trace",
}

__all__ = ["Model", "__version__", "compile", "create_device", "errors", "load", "onnx", "verify"]


def __getattr__(name: str) -> Any:
    try:
        module = importlib.import_module(_LAZY[name])
    except KeyError:
        raise AttributeError(f"module 'sylvite' has no attribute {name!r}") from None
    if f"sylvite.{name}" == module.__name__:
        return module
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
