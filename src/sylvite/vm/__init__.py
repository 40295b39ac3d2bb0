"""The virtual machine: contexts that link bytecode and native modules and run them."""

from __future__ import annotations

from .context import Context, FunctionHandle
from .frames import VmFrame, frames_of
from .module import BytecodeModule
from .native import NativeFunction, NativeModule
from .refs import VmBuffer, VmList

__all__ = [
    "BytecodeModule",
    "Context",
    "FunctionHandle",
    "NativeFunction",
    "NativeModule",
    "VmBuffer",
    "VmFrame",
    "VmList",
    "frames_of",
]
