"""Command buffers of WebGPU devices."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ...errors import InvalidArgumentError
from ...hal import (
    Binding,
    Command,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    CopyBuffer,
    Dispatch,
    DispatchIndirect,
    Executable,
    FillBuffer,
    UpdateBuffer,
)
from ...hal.command_buffer import MAX_WORKGROUP_COUNT
from .encoding import Encoding, Prepared, Uniforms
from .executable import WebGpuExecutable
from .gpu import Gpu
from .memory import locate

__all__ = ["WebGpuCommandBuffer"]


class WebGpuCommandBuffer(CommandBuffer):
    """Encodes its commands at every execution.

    Args:
        gpu: the device.
        mode, categories, binding_capacity: see `CommandBuffer`.
    """

    def __init__(
        self, gpu: Gpu, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> None:
        super().__init__(mode=mode, categories=categories, binding_capacity=binding_capacity)
        self.gpu = gpu
        self.prepared = Prepared(Uniforms(gpu))

    def encode(self, encoding: Encoding, table: Sequence[Binding | None]) -> None:
        """Encode every command, with this binding table. The caller holds the GPU's lock.

        Raises:
            InvalidArgumentError: something does not fit that is known only now.
            KernelError, OutOfMemoryError, DeviceLostError
        """
        counters = self.gpu.tracer.counters
        for command in self.commands:
            if isinstance(command, (Dispatch, DispatchIndirect)):
                self._encode_dispatch(command, encoding, table)
            else:
                counters.device_bytes_copied += self._encode_transfer(command, encoding, table)

    def _encode_transfer(self, command: Command, encoding: Encoding, table: Sequence[Binding | None]) -> int:
        if isinstance(command, FillBuffer):
            return encoding.fill(self.resolve(command.target, table), command.pattern)
        if isinstance(command, UpdateBuffer):
            return encoding.update(command.data, self.resolve(command.target, table))
        if isinstance(command, CopyBuffer):
            return encoding.copy(self.resolve(command.source, table), self.resolve(command.target, table))
        # Barriers: WebGPU orders every command after those before it.
        return 0

    def _encode_dispatch(
        self, command: Dispatch | DispatchIndirect, encoding: Encoding, table: Sequence[Binding | None]
    ) -> None:
        executable = self._own(command.executable)
        if isinstance(command, Dispatch):
            counts = command.workgroup_count
        else:
            counts = self._read_counts(command, encoding, self.resolve(command.workgroups, table))
        if not all(counts):
            return
        bindings = [self.resolve(ref, table) for ref in command.bindings]
        encoding.dispatch(executable, command.export_ordinal, counts, command.constants, bindings)
        self.gpu.tracer.counters.dispatches += 1
        self.gpu.tracer.counters.workgroups += counts[0] * counts[1] * counts[2]

    def _read_counts(
        self, command: DispatchIndirect, encoding: Encoding, workgroups: Binding
    ) -> tuple[int, int, int]:
        """The grid that commands before this one may have written: WebGPU's own indirect dispatch drops
        grids it cannot run, without a word, so the host looks at them."""
        name = command.executable.export(command.export_ordinal).name
        storage, offset = locate(workgroups.storage, workgroups.byte_offset)
        storage.prepare()
        if not encoding.is_empty:
            encoding.submit(f"commands before the dispatch of {name}")
        words = np.zeros(12, np.uint8)
        self.gpu.download(storage.buffer, storage.offset + offset, words)
        counts = struct.unpack("<3I", words.tobytes())
        for axis, count, limit in zip("xyz", counts, MAX_WORKGROUP_COUNT, strict=True):
            if count > limit:
                raise InvalidArgumentError(
                    f"dispatch of {name}: {count} workgroups along {axis} are more than {limit}"
                )
        return counts

    def _own(self, executable: Executable) -> WebGpuExecutable:
        if not isinstance(executable, WebGpuExecutable) or executable.gpu is not self.gpu:
            raise InvalidArgumentError("the executable was loaded by another device")
        return executable

    def _close(self) -> None:
        self.gpu.discard(self.prepared)
        self.prepared = Prepared(Uniforms(self.gpu))

    def __del__(self) -> None:
        prepared = getattr(self, "prepared", None)
        if prepared is not None:
            self.gpu.discard(prepared)
