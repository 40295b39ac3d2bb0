"""The WebGPU device."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ...errors import InvalidArgumentError
from ...hal import (
    Binding,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    Device,
    Executable,
)
from ...hal.queue import Pending
from ...trace import Tracer
from .command_buffer import WebGpuCommandBuffer
from .encoding import Encoding, Prepared, Uniforms
from .executable import FORMATS, WebGpuExecutable, load_kernels
from .gpu import Gpu
from .lane import Lane
from .memory import WebGpuAllocator, locate
from .providers import Provider
from .timeline import Timeline
from .transfers import TransferKernels

__all__ = ["WebGpuDevice"]

IDENTIFIER: Final = "webgpu"
_COMPILED_FOR: Final = ("local", "vulkan")


class WebGpuDevice(Device):
    """A device of one GPU adapter.

    Args:
        provider: the package it is reached through.
        adapter: the package's adapter.
        tracer: counts and times what happens.
        deadline_ns: how long a submission may take; ``None`` for no limit.
    """

    def __init__(
        self,
        provider: Provider,
        adapter: Any,
        *,
        tracer: Tracer | None = None,
        deadline_ns: int | None = None,
    ) -> None:
        title = f"webgpu on {provider.title} {provider.version}"
        super().__init__(identifier=IDENTIFIER, name=title, tracer=tracer)
        self.gpu = Gpu(provider, adapter, self._queue.lock, self.tracer)
        self.name = f"{title}: {self.gpu.adapter_name}"
        self._allocator = WebGpuAllocator(self.gpu, self._queue)
        self._transfers = TransferKernels(self.gpu)
        self._prepared = Prepared(Uniforms(self.gpu))
        self._lane = Lane(self.gpu, self.identifier)
        self._deadline_ns = deadline_ns
        self._guarded = threading.local()

    @property
    def allocator(self) -> WebGpuAllocator:
        """Allocates memory of the GPU."""
        return self._allocator

    @property
    def limits(self) -> Mapping[str, int]:
        """Limits of the device, by WebGPU's names in kebab case."""
        return self.gpu.limits

    @property
    def features(self) -> frozenset[str]:
        """Optional features that the device has, by WebGPU's names."""
        return self.gpu.features

    def can_load(self, format: str) -> bool:
        """Whether the format is one of `FORMATS`."""
        return format in FORMATS

    @contextmanager
    def guard(self, timeout_ns: int | None) -> Iterator[None]:
        """Bound what this thread submits meanwhile. A GPU cannot be stopped: the caller is told in time, and
        the device takes more work when the kernel has ended. See `Device.guard`."""
        before = getattr(self._guarded, "expires_ns", None)
        if timeout_ns is not None:
            expires_ns = time.monotonic_ns() + timeout_ns
            self._guarded.expires_ns = expires_ns if before is None else min(before, expires_ns)
        try:
            yield
        finally:
            self._guarded.expires_ns = before

    def close(self) -> None:
        """Wait for what is running, fail what waits, end the thread. Idempotent."""
        self._lane.close()
        super().close()

    def __del__(self) -> None:
        # The thread does not refer to the device, so it has to be told.
        lane = getattr(self, "_lane", None)
        if lane is not None and not self.closed:
            lane.close()

    def query_i64(self, category: str, key: str) -> int | None:
        """See `Device.query_i64`. The compiler knows no device of this name, so programs ask for one that it
        knows (``local``, or ``vulkan``): what they can run on is a question of executable formats."""
        if category == "hal.device.id" and any(fnmatch.fnmatchcase(name, key) for name in _COMPILED_FOR):
            self._queue.check_open()
            return 1
        return super().query_i64(category, key)

    # -- hooks --------------------------------------------------------------------------------------

    def _query_i64(self, category: str, key: str) -> int | None:
        if category in ("hal.device", "hal.dispatch") and key == "concurrency":
            return 1
        return self.gpu.limits.get(key) if category == "webgpu.limit" else None

    def _create_command_buffer(
        self, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> CommandBuffer:
        return WebGpuCommandBuffer(
            self.gpu, mode=mode, categories=categories, binding_capacity=binding_capacity
        )

    def _create_executable(
        self, *, format: str, data: memoryview | bytes, constants: tuple[int, ...]
    ) -> Executable:
        self.gpu.drain()
        return WebGpuExecutable(
            self.gpu, load_kernels(format, bytes(data), constants, self.gpu), format=format
        )

    def _check_own(self, command_buffer: CommandBuffer) -> None:
        if not isinstance(command_buffer, WebGpuCommandBuffer) or command_buffer.gpu is not self.gpu:
            raise InvalidArgumentError("the command buffer belongs to another device")

    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> Pending | None:
        if not isinstance(command_buffer, WebGpuCommandBuffer):
            raise InvalidArgumentError("the command buffer belongs to another device")
        timeline = Timeline(self.gpu) if self.tracer.enabled else None
        encoding = self._encoding(command_buffer.prepared, timeline)
        try:
            command_buffer.encode(encoding, bindings)
            if encoding.is_empty:
                return None
            kernels = tuple(encoding.kernels)
            mark = encoding.submit("a command buffer", marked=True)
        finally:
            encoding.release()
        self.tracer.counters.engine_calls += 1
        promise = self.gpu.end_of(mark)
        return self._lane.put(
            promise,
            mark,
            list(encoding.written.values()),
            kernels=kernels,
            expires_ns=self._expires_ns(),
            timeline=timeline,
        )

    def _expires_ns(self) -> int | None:
        expires_ns: int | None = getattr(self._guarded, "expires_ns", None)
        if self._deadline_ns is None:
            return expires_ns
        own_ns = time.monotonic_ns() + self._deadline_ns
        return own_ns if expires_ns is None else min(own_ns, expires_ns)

    def _encoding(self, prepared: Prepared, timeline: Timeline | None = None) -> Encoding:
        self.gpu.drain()
        return Encoding(self.gpu, self._allocator.pool, self._transfers, prepared, timeline)

    def _transfer_now(self, encode: Callable[[Encoding], int], what: str) -> int:
        """Submit a transfer. Its end need not be waited for: whatever is done next comes later in the queue,
        and views are brought up to date here."""
        encoding = self._encoding(self._prepared)
        try:
            moved = encode(encoding)
            if not encoding.is_empty:
                encoding.submit(what)
        finally:
            encoding.release()
        for storage in encoding.written.values():
            storage.refresh_views()
        return moved

    def _fill(self, target: Binding, pattern: bytes) -> int:
        return self._transfer_now(lambda encoding: encoding.fill(target, pattern), "a fill")

    def _copy(self, source: Binding, target: Binding) -> int:
        return self._transfer_now(lambda encoding: encoding.copy(source, target), "a copy")

    def _update(self, data: bytes | memoryview, target: Binding) -> int:
        return self._transfer_now(lambda encoding: encoding.update(data, target), "an update")

    def _download(self, source: Binding, data: memoryview) -> int:
        storage, offset = locate(source.storage, source.byte_offset)
        data[:] = storage.view(offset, source.byte_length, writable=False).data
        return source.byte_length

    def _close(self) -> None:
        self.gpu.discard(self._prepared)
        self._prepared = Prepared(Uniforms(self.gpu))
        self.gpu.drain()
