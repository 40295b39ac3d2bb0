"""Models to modules: `compile` turns ONNX, MLIR or PyTorch into an IREE archive for one target.

The package itself can be called, so ``sylvite.compile(...)`` works whether or not the package has been
imported before (an imported submodule becomes an attribute of ``sylvite`` of the same name)::

    artifact = sylvite.compile("model.onnx", dims={"N": 1})
    artifact.path              # the .vmfb
    artifact.parameters        # external parameter files, if any

Nothing of the compiler is imported before the first call, and the compiler runs in a child process.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from .artifact import ArgumentSpec, Artifact, FunctionSpec
from .cache import cache_root
from .progress import Phase, Progress, ProgressEvent

if TYPE_CHECKING:
    from .driver import compile as compile
    from .driver import symbolic_dims as symbolic_dims
    from .options import CompileOptions as CompileOptions
    from .options import Target as Target
    from .options import targets as targets

__all__ = [
    "ArgumentSpec",
    "Artifact",
    "CompileOptions",
    "FunctionSpec",
    "Phase",
    "Progress",
    "ProgressEvent",
    "Target",
    "cache_root",
    "compile",
    "symbolic_dims",
    "targets",
]


# What takes long to import and loading compiled modules does not need.
_LAZY = {
    "CompileOptions": "options",
    "Target": "options",
    "compile": "driver",
    "symbolic_dims": "driver",
    "targets": "options",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


class _CallablePackage(types.ModuleType):
    """Lets ``sylvite.compile`` be the function and the package at once."""

    def __call__(self, *args: Any, **kwargs: Any) -> Artifact:
        from .driver import compile as compile_model

        return compile_model(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
