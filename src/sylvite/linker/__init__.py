"""The dynamic linker: position-independent side modules in one memory and one table."""

from __future__ import annotations

from .linked import LinkedModule
from .regions import RegionAllocator, RegionStatistics
from .resolver import Symbol
from .space import LinkSpace, StackRegion
from .support import HostFunctionSpec

__all__ = [
    "HostFunctionSpec",
    "LinkSpace",
    "LinkedModule",
    "RegionAllocator",
    "RegionStatistics",
    "StackRegion",
    "Symbol",
]
