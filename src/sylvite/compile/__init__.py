"""Models to modules: `compile` turns ONNX, MLIR or PyTorch into an IREE archive for one target.

The package itself can be called, so ``sylvite.compile(...)`` works whether or not the package has been
imported before (an imported submodule becomes an attribute of ``sylvite`` of the same name)::

    artifact = sylvite.compile("model.onnx", dims={"N": 1})
    artifact.path              # the .vmfb
    artifact.parameters        # external parameter files, if any

Nothing of the compiler is imported before the first call, and the compiler runs in a child process.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .artifact import ArgumentSpec, Artifact, FunctionSpec
from .cache import cache_root
from .driver import compile, symbolic_dims
from .options import CompileOptions, Target, targets
from .progress import Phase, Progress, ProgressEvent

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


class _CallablePackage(types.ModuleType):
    """Lets ``sylvite.compile`` be the function and the package at once."""

    def __call__(self, *args: Any, **kwargs: Any) -> Artifact:
        return compile(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
