"""Devices that run WebAssembly executables in one linear memory.

``local-sync`` runs everything in the thread that submits it.
"""

from __future__ import annotations

from .allocator import LocalAllocator
from .command_buffer import LocalCommandBuffer
from .device import LocalDevice, LocalSyncDriver
from .executable import FORMAT, LocalExecutable

__all__ = [
    "FORMAT",
    "LocalAllocator",
    "LocalCommandBuffer",
    "LocalDevice",
    "LocalExecutable",
    "LocalSyncDriver",
]
