"""Which rewritings modules get when a link space compiles them."""

from __future__ import annotations

from ..engines.base import Capabilities
from ..wasm import contraction
from ..wasm.passes import Pass, share_memory
from ..wasm.stack_check import CHECK_STACK

__all__ = ["passes_for"]

_CONTRACTION = Pass(name="contraction", version=contraction.VERSION, function=contraction.contract)
"""Fuses multiplications and additions of modules that allow it."""


def passes_for(capabilities: Capabilities, *, shared_pages: int | None) -> tuple[Pass, ...]:
    """Passes for every module of a space, in order.

    Args:
        capabilities: of the engine that compiles them.
        shared_pages: most pages of the space's memory when it is a shared one, otherwise None.
    """
    passes: list[Pass] = []
    if capabilities.relaxed_simd and not capabilities.deterministic:
        passes.append(_CONTRACTION)
    if shared_pages is not None and capabilities.threads:
        # Only the first of several stacks is at the bottom of memory.
        passes.append(CHECK_STACK)
        passes.append(share_memory(shared_pages))
    return tuple(passes)
