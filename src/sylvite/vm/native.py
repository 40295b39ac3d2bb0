"""Modules implemented in Python that bytecode modules import from (``hal``, ``io_parameters``, ...).

Value mapping between bytecode and Python:
    ``i`` i32 -> int in [-2**31, 2**31); ``I`` i64 -> int in [-2**63, 2**63);
    ``f`` f32 -> float already rounded to f32; ``F`` f64 -> float; ``r`` ref -> object or None.
A variadic span ``C..D`` arrives as one list: of scalars when the span has one element, of tuples
otherwise. No result -> None; one result -> the value; several -> a tuple.

Source: IREE VM calling convention, ``iree/vm/module.h``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .watch import Watch

__all__ = ["NativeFunction", "NativeModule"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeFunction:
    """One importable function. ``call(state, *arguments)`` runs it.

    ``calling_convention`` is IREE's string without version prefix, such as ``rII_r``.
    """

    name: str
    calling_convention: str
    call: Callable[..., Any]


class NativeModule(abc.ABC):
    """A module of host functions. One instance may serve several contexts; per-context data is in
    the state made by `create_state`."""

    name: str
    version: int

    @property
    @abc.abstractmethod
    def functions(self) -> Mapping[str, NativeFunction]:
        """Functions by local name (``buffer_view.create``)."""

    @property
    def reference_types(self) -> Mapping[str, type | tuple[type, ...]]:
        """Python classes of the reference types this module makes, by name (``hal.buffer_view``).

        Bytecode checks references against them. A type that no module names is not checked.
        """
        return {}

    @abc.abstractmethod
    def create_state(self) -> Any:
        """State of this module within one context."""

    def bound_state(self, state: Any, watch: Watch) -> None:  # noqa: B027 -- most functions never wait
        """Have functions that wait heed the limits of the context's calls."""

    def close_state(self, state: Any) -> None:  # noqa: B027 -- most states own nothing
        """Release what a state owns. Idempotent."""
