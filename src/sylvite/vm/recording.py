"""Recording a call: what a repeatable function asks of its device, as a `sylvite.hal.CallPlan`.

The function runs as always, on code of its own whose imports take notes. Which functions may be recorded is
decided by a look at their bytecode (`sylvite.translator.is_repeatable`) and by the table here: of imports
that neither show what tensors contain nor depend on time, and whose results are functions of what a plan
holds fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..errors import SylviteError
from ..hal import Buffer, BufferView, CommandBuffer, Device, EncodingType, Storage, TransientStorage
from ..hal.call_plan import CallPlan, PlannedArray, SlotMapper
from ..hal.command_buffer import Binding
from ..hal.commands import Command
from .frames import VmFrame, frame_of
from .module import INSTANCE_KEY, ModuleInstance

__all__ = ["CallRecorder", "Recording", "is_recordable"]

_RECORDABLE: Final = frozenset(
    {
        "hal.allocator.select",
        "hal.buffer.assert",
        "hal.buffer.length",
        "hal.buffer.subspan",
        "hal.buffer_view.assert",
        "hal.buffer_view.buffer",
        "hal.buffer_view.create",
        "hal.buffer_view.dim",
        "hal.buffer_view.element_type",
        "hal.buffer_view.encoding_type",
        "hal.buffer_view.rank",
        "hal.command_buffer.advise_buffer",
        "hal.command_buffer.begin_debug_group",
        "hal.command_buffer.copy_buffer",
        "hal.command_buffer.create",
        "hal.command_buffer.dispatch",
        "hal.command_buffer.dispatch.indirect",
        "hal.command_buffer.end_debug_group",
        "hal.command_buffer.execution_barrier",
        "hal.command_buffer.fill_buffer",
        "hal.command_buffer.finalize",
        "hal.command_buffer.update_buffer",
        "hal.device.allocator",
        "hal.device.query.i64",
        "hal.device.queue.alloca",
        "hal.device.queue.barrier",
        "hal.device.queue.dealloca",
        "hal.device.queue.execute",
        "hal.device.queue.execute.indirect",
        "hal.device.queue.flush",
        "hal.devices.count",
        "hal.devices.get",
        "hal.executable.lookup.function",
        "hal.fence.await",
        "hal.fence.create",
        "hal.fence.join",
    }
)
_NO_TIMEOUT: Final = -1
_MOST_NOTES: Final = 1024
"""Allocations and submissions of one call. A program with a loop around them may make any number."""


def is_recordable(import_name: str) -> bool:
    """Whether recorded functions may call an import."""
    return import_name in _RECORDABLE


class Recording:
    """What came of a recorded call.

    Args:
        plan: what the call did.
        frames: the functions that ran while it waited for the device, innermost first; an error of a kernel
            comes out there.
    """

    __slots__ = ("frames", "plan")

    def __init__(self, plan: CallPlan, frames: tuple[VmFrame, ...]) -> None:
        self.plan = plan
        self.frames = frames


class CallRecorder:
    """Takes notes of one call.

    Args:
        device: the only device that the call may use.
        inputs: its arguments; of element types that numpy has.
    """

    def __init__(self, device: Device, inputs: Sequence[BufferView]) -> None:
        self._device = device
        self._inputs = tuple(
            PlannedArray(slot=slot, byte_offset=0, shape=view.shape, dtype=view.dtype)
            for slot, view in enumerate(inputs)
        )
        self._slots: dict[Storage, int] = {}
        self._mapper = SlotMapper(self._slots)
        self._allocations: list[int] = []
        self._submissions: list[tuple[Command, ...]] = []
        self._frames: tuple[VmFrame, ...] = ()
        self._is_lost = False
        for view in inputs:
            buffer = view.buffer
            # A slot begins where its input does, and no two inputs may be the same memory: which of them a
            # command means could not be told.
            if buffer.byte_offset or buffer.storage in self._slots:
                self._is_lost = True
            self._slots[buffer.storage] = len(self._slots)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The import of that name, taking notes."""
        wrapped: Callable[[Callable[..., Any]], Callable[..., Any]] | None = {
            "hal.device.queue.alloca": self._wrap_alloca,
            "hal.device.queue.execute": self._wrap_execute,
            "hal.device.queue.execute.indirect": self._wrap_execute,
            "hal.fence.await": self._wrap_await,
        }.get(name)
        return function if wrapped is None else wrapped(function)

    def finish(self, results: Any) -> Recording | None:
        """The recording, when everything that happened can be done again.

        Args:
            results: what the call returned.
        """
        views = () if results is None else results if isinstance(results, tuple) else (results,)
        outputs = [self._output(view) for view in views]
        if self._is_lost or not outputs:
            return None
        plan = CallPlan(
            inputs=self._inputs,
            allocations=tuple(self._allocations),
            submissions=tuple(self._submissions),
            outputs=tuple(output for output in outputs if output is not None),
            pinned=tuple(self._mapper.pinned.items()),
        )
        return Recording(plan, self._frames) if len(plan.outputs) == len(outputs) else None

    def _output(self, view: Any) -> PlannedArray | None:
        if not isinstance(view, BufferView) or view.encoding is not EncodingType.DENSE_ROW_MAJOR:
            return None
        buffer = view.buffer
        slot = self._slots.get(buffer.storage, -1)
        if slot < len(self._inputs) or not view.element_type.is_byte_aligned or not view.byte_length:
            return None
        return PlannedArray(slot=slot, byte_offset=buffer.byte_offset, shape=view.shape, dtype=view.dtype)

    def _wrap_alloca(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def alloca(device: Device, *arguments: Any) -> Buffer:
            buffer: Buffer = function(device, *arguments)
            if device is not self._device or not isinstance(buffer.storage, TransientStorage):
                self._is_lost = True
            if len(self._allocations) < _MOST_NOTES:
                self._slots[buffer.storage] = len(self._slots)
                self._allocations.append(buffer.byte_length)
            else:
                self._is_lost = True
            return buffer

        return alloca

    def _wrap_execute(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def execute(device: Device, *arguments: Any) -> None:
            commands = arguments[3]
            table = arguments[5] if len(arguments) > 5 else ()
            function(device, *arguments)
            if len(self._submissions) >= _MOST_NOTES:
                self._is_lost = True
            if self._is_lost or device is not self._device or not isinstance(commands, CommandBuffer):
                self._is_lost = True
                return
            try:
                self._note(commands, table)
            except SylviteError:
                # What was right for the device a moment ago may be closed by another thread now.
                self._is_lost = True

        return execute

    def _note(self, commands: CommandBuffer, table: Sequence[tuple[Buffer | None, int, int]]) -> None:
        bindings = [
            None
            if buffer is None
            else Binding(
                buffer.storage,
                buffer.byte_offset + offset,
                buffer.byte_length - offset if length < 0 else length,
            )
            for buffer, offset, length in table
        ]
        self._submissions.append(self._mapper.map(commands.commands, bindings))

    def _wrap_await(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wait(timeout_millis: int, *arguments: Any) -> int:
            status: int = function(timeout_millis, *arguments)
            if status or timeout_millis != _NO_TIMEOUT:
                self._is_lost = True
            self._frames = _running_frames()
            return status

        return wait


def _running_frames() -> tuple[VmFrame, ...]:
    """The bytecode functions that run in this thread, innermost first."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        instance = frame.f_globals.get(INSTANCE_KEY)
        if isinstance(instance, ModuleInstance):
            found.append(frame_of(instance, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
