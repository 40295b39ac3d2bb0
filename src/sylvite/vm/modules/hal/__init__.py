"""The ``hal`` module: what compiled programs call to use devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from ....errors import InvalidArgumentError
from ....hal.allocator import Allocator
from ....hal.buffer import Buffer
from ....hal.buffer_view import BufferView
from ....hal.command_buffer import CommandBuffer
from ....hal.device import Device
from ....hal.executable import Executable
from ....hal.fence import Fence
from ....hal.file import File
from ....hal.semaphore import Semaphore
from ...native import NativeFunction, NativeModule
from ...watch import Watch
from .state import HalState
from .table import TABLE, VERSION

__all__ = ["HalModule"]

_FUNCTIONS = {
    name: NativeFunction(name=name, calling_convention=convention, call=call)
    for name, convention, call in TABLE
}

_REFERENCE_TYPES = {
    "hal.allocator": Allocator,
    "hal.buffer": Buffer,
    "hal.buffer_view": BufferView,
    "hal.command_buffer": CommandBuffer,
    "hal.device": Device,
    "hal.executable": Executable,
    "hal.fence": Fence,
    "hal.file": File,
    "hal.semaphore": Semaphore,
}


class HalModule(NativeModule):
    """IREE's hardware abstraction layer for programs.

    Args:
        devices: What the program may use, in the order it sees them; they stay the caller's to close.
        trace_stream: Where ``buffer_view.trace`` prints; standard error when absent.
    """

    name = "hal"
    version = VERSION

    def __init__(self, devices: Sequence[Device], *, trace_stream: TextIO | None = None) -> None:
        if not devices:
            raise InvalidArgumentError("the hal module needs at least one device")
        self.devices = tuple(devices)
        self._trace_stream = trace_stream

    @property
    def functions(self) -> Mapping[str, NativeFunction]:
        """Functions by local name."""
        return _FUNCTIONS

    @property
    def reference_types(self) -> Mapping[str, type | tuple[type, ...]]:
        """The module's types and their classes."""
        return _REFERENCE_TYPES

    def create_state(self) -> HalState:
        """State of one context."""
        return HalState(self.devices, self._trace_stream)

    def bound_state(self, state: HalState, watch: Watch) -> None:
        """Have ``fence.await`` heed the limits of the context's calls."""
        state.watch = watch
