"""The Python interface: `load` a model and call it with numpy arrays.

::

    with sylvite.load("model.onnx") as model:
        y = model(x)                      # numpy in, numpy out
        print(model.functions)            # names, shapes, dtypes
"""

from __future__ import annotations

from ..drivers import create_device
from ..engines.base import Limits
from .function import Function, Invocation
from .load import load
from .model import Functions, Model
from .signature import Argument, Signature, ValueKind
from .verify import OutputComparison, Verification, verify

__all__ = [
    "Argument",
    "Function",
    "Functions",
    "Invocation",
    "Limits",
    "Model",
    "OutputComparison",
    "Signature",
    "ValueKind",
    "Verification",
    "create_device",
    "load",
    "verify",
]
