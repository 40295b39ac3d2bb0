"""WebAssembly engines behind one interface. The table is lazy: no engine is imported before use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import NotFoundError

if TYPE_CHECKING:
    from .base import Engine

__all__ = ["create", "names"]

# name -> (module below this package, class)
_ENGINES: dict[str, tuple[str, str]] = {
    "wasmtime": (".wasmtime", "WasmtimeEngine"),
}


def names() -> tuple[str, ...]:
    """Names that `create` accepts."""
    return tuple(_ENGINES)


def create(name: str = "wasmtime", **options: Any) -> Engine:
    """Make an engine; this is where its native library is loaded.

    Args:
        name: one of `names`.
        options: keywords of the engine's class, e.g. ``cache_dir`` and ``stack_bytes``.

    Raises:
        NotFoundError: no engine of that name.
        InvalidArgumentError: an option is unknown or out of range.
        UnavailableError: the engine is not installed, or not usable on this machine.
    """
    try:
        module_name, class_name = _ENGINES[name]
    except KeyError:
        raise NotFoundError(f"no engine named {name!r}; there are: {', '.join(_ENGINES)}") from None
    engine_class = getattr(importlib.import_module(module_name, __name__), class_name)
    engine: Engine = engine_class(**options)
    return engine
