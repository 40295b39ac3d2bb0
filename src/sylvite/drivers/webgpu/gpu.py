"""A GPU device as the rest of the driver uses it: one lock, typed errors, uploads and downloads.

It lives as long as any storage of it does, so memory can be read after the HAL device was closed.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import (
    DeviceLostError,
    InternalError,
    KernelError,
    OutOfMemoryError,
    StatusCode,
    SylviteError,
)
from ...trace import Tracer
from .providers import MAP_MODE_READ, BufferUsageBits, Promise, Provider, describe

__all__ = ["Gpu", "round_up"]

ByteArray = npt.NDArray[np.uint8]

_STORAGE_USAGE: Final = BufferUsageBits.STORAGE | BufferUsageBits.COPY_SRC | BufferUsageBits.COPY_DST
_UNIFORM_USAGE: Final = BufferUsageBits.UNIFORM | BufferUsageBits.COPY_DST
_STAGING_USAGE: Final = BufferUsageBits.MAP_READ | BufferUsageBits.COPY_DST
_MARK_BYTES: Final = 16
_CHUNK_BYTES: Final = 64 << 20
_KEPT_STAGING: Final = 4

# Features that kernels can use; whatever else an adapter offers is of no use to compute.
_WANTED_FEATURES: Final = ("shader-f16", "subgroups", "subgroup", "timestamp-query")


def round_up(value: int, multiple: int) -> int:
    """The next multiple at or above."""
    return -(-value // multiple) * multiple


class Gpu:
    """One device of one adapter.

    Args:
        provider: the package it comes from.
        adapter: its adapter.
        lock: held for every call into the package.
        tracer: counts bytes moved.
    """

    def __init__(self, provider: Provider, adapter: Any, lock: threading.RLock, tracer: Tracer) -> None:
        self.provider = provider
        self.adapter_name = describe(adapter)
        self.adapter_info: dict[str, Any] = dict(adapter.info)
        self.tracer = tracer
        self.lock = lock
        features = [feature for feature in _WANTED_FEATURES if feature in adapter.features]
        self.device = provider.open(adapter, features, dict(adapter.limits))
        self.features = frozenset(features)
        self.limits: dict[str, int] = dict(self.device.limits)
        self.offset_alignment = max(
            self.limits["min-storage-buffer-offset-alignment"],
            self.limits["min-uniform-buffer-offset-alignment"],
        )
        self._trash: collections.deque[Any] = collections.deque()
        self._marks: list[Any] = []
        self._staging: list[Any] = []
        self._lost: DeviceLostError | None = None
        self._clock_offset: int | None = None
        self.filler_count = 64
        self.filler = self.create_storage(self.filler_count * self.offset_alignment)
        """What is bound where a binding has no bytes, in pieces."""

    # -- errors -------------------------------------------------------------------------------------

    def translate(self, error: Exception, what: str, *, kernel: str | None = None) -> SylviteError:
        """The typed error for one of the package's."""
        text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        # Nothing here destroys buffers; a device that is lost does.
        if self._lost is not None or "is lost" in text or "destroyed" in text or self.probe_lost():
            return self.lost_error(what)
        if isinstance(error, self.provider.memory_error):
            return OutOfMemoryError(f"{what}: the GPU ran out of memory: {text}")
        if isinstance(error, self.provider.error):
            return KernelError(
                f"{what}: {self.provider.title} refuses it: {text:.2000}",
                code=StatusCode.INTERNAL,
                kernel=kernel,
            )
        return InternalError(f"{what}: {type(error).__name__}: {text}")

    def lost_error(self, what: str) -> DeviceLostError:
        """The error of whatever is asked of a device that is lost."""
        self._lost = self._lost or DeviceLostError(f"the GPU device {self.adapter_name} is lost")
        return DeviceLostError(f"{what}: the GPU device {self.adapter_name} is lost")

    def probe_lost(self) -> bool:
        """Whether the device is lost; asks it when that is not known yet."""
        if self._lost is None:
            try:
                with self.lock:
                    self.device.create_buffer(size=16, usage=_UNIFORM_USAGE)
            except Exception as error:  # noqa: BLE001 - whatever it says, only loss counts here
                if "lost" in str(error):
                    self._lost = DeviceLostError(f"the GPU device {self.adapter_name} is lost")
        return self._lost is not None

    def check(self, what: str) -> None:
        """Refuse to go on with a lost device.

        Raises:
            DeviceLostError
        """
        if self._lost is not None:
            raise self.lost_error(what)

    # -- lifetime -----------------------------------------------------------------------------------

    def discard(self, thing: Any) -> None:
        """Let go of an object of the package, later and under the lock. Safe in finalizers."""
        self._trash.append(thing)

    def drain(self) -> None:
        """Let go of what was discarded. The caller holds the lock."""
        while self._trash:
            self._trash.popleft()

    # -- buffers ------------------------------------------------------------------------------------

    def create_storage(self, byte_length: int) -> Any:
        """A storage buffer.

        Raises:
            OutOfMemoryError: it is larger than buffers may be, or there is no memory.
            DeviceLostError
        """
        limit = self.limits["max-buffer-size"]
        size = round_up(byte_length, 16)
        if size > limit:
            message = f"{byte_length} bytes are more than a buffer of {self.adapter_name} may have, {limit}"
            raise OutOfMemoryError(message, requested_bytes=byte_length, limit_bytes=limit)
        try:
            with self.lock:
                return self.device.create_buffer(size=size, usage=_STORAGE_USAGE)
        except Exception as error:
            translated = self.translate(error, f"an allocation of {byte_length} bytes")
            if isinstance(translated, (KernelError, OutOfMemoryError)):
                translated = OutOfMemoryError(str(translated), requested_bytes=byte_length)
            raise translated from error

    def create_uniform(self, data: bytes) -> Any:
        """A uniform buffer with these bytes, a multiple of four.

        Raises:
            OutOfMemoryError, DeviceLostError
        """
        try:
            with self.lock:
                buffer = self.device.create_buffer(size=round_up(len(data), 16), usage=_UNIFORM_USAGE)
                self.device.queue.write_buffer(buffer, 0, data)
                return buffer
        except Exception as error:
            raise self.translate(error, "constants") from error

    def upload(self, buffer: Any, offset: int, data: ByteArray) -> None:
        """Write host bytes; offset and length are multiples of four. The caller holds the lock.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        if not data.size:
            return
        try:
            self.device.queue.write_buffer(buffer, offset, data)
        except Exception as error:
            raise self.translate(error, f"an upload of {data.size} bytes") from error

    def upload_bytes(self, buffer: Any, offset: int, data: bytes) -> None:
        """Write host bytes of any length, padded to whole words; the offset is a multiple of four. The caller
        holds the lock.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        self.upload(buffer, offset, np.frombuffer(data.ljust(round_up(len(data), 4), b"\0"), np.uint8))

    def download(self, buffer: Any, offset: int, target: ByteArray) -> None:
        """Read into host memory after everything submitted so far; offset and length are multiples of four.
        The caller holds the lock.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        for begin in range(0, target.size, _CHUNK_BYTES):
            part = target[begin : begin + _CHUNK_BYTES]
            staging = self._take_staging(part.size)
            what = f"a download of {target.size} bytes"
            try:
                encoder = self.device.create_command_encoder()
                encoder.copy_buffer_to_buffer(buffer, offset + begin, staging, 0, part.size)
                self.device.queue.submit([encoder.finish()])
                self._map(staging, part.size, what)
                mapped = staging.read_mapped(0, part.size, copy=False)
                np.copyto(part, np.frombuffer(mapped, np.uint8))
                del mapped
                staging.unmap()
            except SylviteError:
                raise
            except Exception as error:
                raise self.translate(error, what) from error
            if len(self._staging) < _KEPT_STAGING:
                self._staging.append(staging)

    def _take_staging(self, byte_length: int) -> Any:
        for index, staging in enumerate(self._staging):
            if byte_length <= staging.size <= max(4 * byte_length, 1 << 16):
                return self._staging.pop(index)
        if len(self._staging) >= _KEPT_STAGING:
            self._staging.pop(0)
        size = max(1 << 16, 1 << (byte_length - 1).bit_length())
        try:
            return self.device.create_buffer(size=size, usage=_STAGING_USAGE)
        except Exception as error:
            raise self.translate(error, f"staging memory of {size} bytes") from error

    def _map(self, buffer: Any, byte_length: int, what: str) -> None:
        promise = buffer.map_async(MAP_MODE_READ, 0, byte_length)
        if not self.provider.wait(promise, step=lambda act: act(), give_up=self.probe_lost):
            raise self.lost_error(what)
        promise.sync_wait()

    # -- submissions --------------------------------------------------------------------------------

    def submit(self, encoder: Any, what: str, *, kernels: Sequence[str] = ()) -> None:
        """Finish an encoder and submit it. The caller holds the lock.

        Raises:
            KernelError: a command is refused; names the kernels in it.
            DeviceLostError, OutOfMemoryError
        """
        self.check(what)
        try:
            self.device.queue.submit([encoder.finish()])
        except Exception as error:
            raise self.translate(error, what, kernel=self._blame(error, kernels)) from error

    @staticmethod
    def _blame(error: Exception, kernels: Sequence[str]) -> str | None:
        """The kernels an error speaks of, or all that it may be about."""
        text = str(error)
        named = [kernel for kernel in kernels if kernel in text]
        return ", ".join(dict.fromkeys(named or kernels)) or None

    def mark(self, encoder: Any) -> Any:
        """Have a submission write a small buffer, to see its end by; for `end_of`. The lock is held."""
        buffer = self._marks.pop() if self._marks else None
        if buffer is None:
            buffer = self.device.create_buffer(size=_MARK_BYTES, usage=_STAGING_USAGE)
        encoder.copy_buffer_to_buffer(self.filler, 0, buffer, 0, _MARK_BYTES)
        return buffer

    def clock_offset(self, bound_ns: int) -> int:
        """Nanoseconds of the host's clock minus the GPU's, now known to be at most ``bound_ns``."""
        known = self._clock_offset
        self._clock_offset = bound_ns if known is None else min(known, bound_ns)
        return self._clock_offset

    def end_of(self, mark: Any) -> Promise:
        """A promise that is settled when the submission with this mark has ended. The lock is held."""
        try:
            promise: Promise = mark.map_async(MAP_MODE_READ, 0, _MARK_BYTES)
        except Exception as error:
            raise self.translate(error, "a submission") from error
        return promise

    def reuse_mark(self, mark: Any) -> None:
        """Take a mark back whose submission has ended. The lock is held.

        Raises:
            DeviceLostError
        """
        try:
            mark.unmap()
        except Exception as error:
            raise self.translate(error, "a submission") from error
        self._marks.append(mark)

    def wait(self, promise: Promise, what: str, is_late: Callable[[], bool]) -> bool:
        """Wait for a promise, without the lock. Whether it was settled before ``is_late``.

        Raises:
            DeviceLostError: the device was lost meanwhile.
        """

        def locked(act: Callable[[], bool]) -> bool:
            with self.lock:
                return act()

        if not self.provider.wait(promise, step=locked, give_up=lambda: is_late() or self.probe_lost()):
            if self._lost is not None:
                raise self.lost_error(what)
            return False
        try:
            with self.lock:
                promise.sync_wait()
        except Exception as error:
            raise self.translate(error, what) from error
        return True
