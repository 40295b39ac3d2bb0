"""Devices that run WebAssembly executables in one linear memory.

``local-sync`` runs everything in the thread that submits it, ``local-task`` on threads of its own.
"""

from __future__ import annotations

from .allocator import LocalAllocator
from .command_buffer import LocalCommandBuffer
from .device import LocalDevice
from .driver import LocalSyncDriver, LocalTaskDriver
from .executable import FORMAT, LocalExecutable
from .task import LocalTaskDevice

__all__ = [
    "FORMAT",
    "LocalAllocator",
    "LocalCommandBuffer",
    "LocalDevice",
    "LocalExecutable",
    "LocalSyncDriver",
    "LocalTaskDevice",
    "LocalTaskDriver",
]
