"""WebGPU devices: GPUs through wgpu-native or Dawn.

The packages are imported when a device is opened, not before.
"""

from __future__ import annotations

from .device import WebGpuDevice
from .driver import WebGpuDriver
from .executable import FORMATS, JSON_FORMAT, SPIRV_FORMAT, WebGpuExecutable
from .memory import WebGpuAllocator

__all__ = [
    "FORMATS",
    "JSON_FORMAT",
    "SPIRV_FORMAT",
    "WebGpuAllocator",
    "WebGpuDevice",
    "WebGpuDriver",
    "WebGpuExecutable",
]
