"""Wasmtime behind `sylvite.engines.base.Engine`. Importing this loads the native library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine import WasmtimeEngine

if TYPE_CHECKING:
    from ..base import Engine

    # The type checker holds the classes to the protocols here.
    _conforms: type[Engine] = WasmtimeEngine

__all__ = ["WasmtimeEngine"]
