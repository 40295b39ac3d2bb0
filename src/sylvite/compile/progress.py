"""Progress of a compilation, reported through a callback.

A compile goes through the phases of `Phase` in order; a phase that has nothing to do is skipped. The
callback runs in the thread that compiles and must return quickly; an exception from it ends the compile
and comes out unchanged.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Phase", "Progress", "ProgressEvent", "ignore"]


class Phase(enum.Enum):
    """What the compiler is busy with, in order."""

    READ = "read"
    SIMPLIFY = "simplify"
    IMPORT = "import"
    COMPILE = "compile"
    LINK = "link"
    DONE = "done"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """The compile entered ``phase``; ``detail`` says more, ``elapsed_s`` counts seconds since the start.

    ``cached`` is true on the `Phase.DONE` event of a compile that was answered from the cache.
    """

    phase: Phase
    elapsed_s: float
    detail: str = ""
    cached: bool = False


Progress: TypeAlias = Callable[[ProgressEvent], None]


def ignore(event: ProgressEvent) -> None:
    """The callback of those who do not listen."""
