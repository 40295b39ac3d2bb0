"""Passes over modules, applied in order when a module is compiled.

A `Pass` has a name and a version besides its function, because compiled code is cached under the bytes that
went *in* and the passes that ran: a cached module is then loaded without looking at its code at all. Whoever
changes what a pass does raises its version.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from . import rewrite
from .decoder import decode
from .encoder import encode
from .module import Module
from .types import ExternKind

__all__ = ["Pass", "apply", "identity", "share_memory"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One rewriting of a module.

    Args:
        name: what it does, with every parameter that changes what it does.
        version: raised whenever its result changes.
        function: takes a valid module and gives a valid one, the same object when there is nothing to do.
    """

    name: str
    version: int
    function: Callable[[Module], Module]


def identity(passes: Sequence[Pass]) -> bytes:
    """What a module rewritten by these passes depends on besides its bytes; 32 bytes."""
    text = "\n".join(f"{item.name} {item.version}" for item in passes)
    return hashlib.sha256(text.encode()).digest()


def apply(data: bytes, passes: Sequence[Pass], *, where: str) -> bytes:
    """The module that ``passes`` make of a valid one.

    Args:
        data: the binary.
        passes: in the order in which they run.
        where: what it is, for errors.

    Raises:
        FormatError, UnsupportedFeatureError: it cannot be decoded.
    """
    if not passes:
        return data
    module = original = decode(data, where=where)
    for item in passes:
        module = item.function(module)
    return data if module is original else encode(module)


def share_memory(maximum: int) -> Pass:
    """The pass that makes an imported memory a shared one of up to ``maximum`` pages."""

    def share(module: Module) -> Module:
        if not module.imported_count(ExternKind.MEMORY):
            return module
        # A memory fits an import whose range holds its own: what it has now, and its maximum.
        return rewrite.share_memory_import(module, 0, maximum)

    return Pass(name=f"share memory of {maximum} pages", version=1, function=share)
