"""Memory of a GPU, and its image on the host.

The HAL promises that the host sees a buffer's bytes in place. A GPU has no such memory, so a storage keeps
an image of itself on the host, made when somebody first looks at it, and moves bytes at the points where
the HAL promises that they are there:

* before a submission that uses it, what the host may have written is uploaded: ranges that were viewed
  for writing since the last time, and ranges which are so viewed still;
* when a submission has ended, and before its fence is signalled, what it wrote is downloaded into ranges
  that are being viewed; other ranges are downloaded when they are viewed next.

Nobody pays for memory that is never viewed. Ranges are whole words: nothing smaller can be transferred.
"""

from __future__ import annotations

import collections
import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgumentError
from ...hal import DEFAULT_MEMORY_TYPE, Allocator, MemoryType, Storage
from ...hal.queue import Queue
from .gpu import Gpu, round_up
from .ranges import Ranges

__all__ = ["GpuStorage", "Located", "WebGpuAllocator", "locate"]

ByteArray = npt.NDArray[np.uint8]

_SMALLEST: Final = 256
_LARGEST_SLOT: Final = 64 << 10
_SLAB_BYTES: Final = 1 << 20
_KEPT_IMAGE_BYTES: Final = 1 << 20
_POOL_BYTES: Final = 512 << 20

Slot = tuple[Any, int]
"""A buffer of the GPU, and where in it."""


class Pool:
    """Where storages get their bytes: slots of slabs when small, buffers of their own when large.

    Used under the GPU's lock, but for `give`, which finalizers call.

    Args:
        gpu: whose memory.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._smallest = max(_SMALLEST, gpu.offset_alignment)
        self._free: dict[int, list[Slot]] = {}
        self._free_bytes = 0
        self._given: collections.deque[tuple[Slot, int]] = collections.deque()

    def capacity(self, byte_length: int) -> int:
        """Bytes that are set aside for so many."""
        if byte_length <= self._smallest:
            return self._smallest
        if byte_length <= _LARGEST_SLOT:
            return 1 << (byte_length - 1).bit_length()
        # An eighth of waste at most, and few sizes, so that what is given back fits again.
        return round_up(byte_length, max(1 << ((byte_length - 1).bit_length() - 4), _SMALLEST))

    def take(self, byte_length: int) -> tuple[Slot, int]:
        """A slot for so many bytes, and its capacity.

        Raises:
            OutOfMemoryError, DeviceLostError
        """
        self._collect()
        capacity = self.capacity(byte_length)
        if capacity > self._gpu.limits["max-buffer-size"]:
            capacity = byte_length
        free = self._free.setdefault(capacity, [])
        if free:
            self._free_bytes -= capacity
            return free.pop(), capacity
        if capacity > _LARGEST_SLOT:
            return (self._gpu.create_storage(capacity), 0), capacity
        slab = self._gpu.create_storage(_SLAB_BYTES)
        free.extend((slab, offset) for offset in range(0, _SLAB_BYTES, capacity))
        self._free_bytes += _SLAB_BYTES - capacity
        return free.pop(), capacity

    def give(self, slot: Slot, capacity: int) -> None:
        """Take a slot back, when the lock is next held. Safe in finalizers."""
        self._given.append((slot, capacity))

    def _collect(self) -> None:
        while self._given:
            slot, capacity = self._given.popleft()
            if capacity > _LARGEST_SLOT and self._free_bytes + capacity > _POOL_BYTES:
                continue
            self._free.setdefault(capacity, []).append(slot)
            self._free_bytes += capacity

    def trim(self) -> None:
        """Give large buffers that are not in use back to the GPU."""
        self._collect()
        for capacity in [size for size in self._free if size > _LARGEST_SLOT]:
            self._free_bytes -= capacity * len(self._free.pop(capacity))


class ViewSpan:
    """What numpy sees of an image: keeps the storage alive, and tells it when nobody looks any more."""

    __slots__ = ("__array_interface__", "_key", "address", "begin", "storage")

    def __init__(
        self, storage: GpuStorage, key: int, begin: int, length: int, address: int, writable: bool
    ) -> None:
        self.storage = storage
        self.begin = begin
        self.address = address
        self._key = key
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (length,),
            "data": (address, not writable),
        }

    def __del__(self) -> None:
        self.storage.ended.append(self._key)


class GpuStorage(Storage):
    """A range of a GPU buffer, with an image on the host while somebody needs it.

    Args:
        allocator: whose pool it comes from.
        slot: buffer and offset.
        capacity: bytes of the slot.
        byte_length: bytes that were asked for.
        tag: for statistics.
    """

    def __init__(
        self, allocator: WebGpuAllocator, slot: Slot, capacity: int, byte_length: int, tag: str
    ) -> None:
        super().__init__(byte_length, allocator.tracer.counters, allocator.domain)
        self.gpu = allocator.gpu
        self.buffer, self.offset = slot
        self.capacity = capacity
        self.ended: collections.deque[int] = collections.deque()
        self._pool = allocator.pool
        self._tag = tag
        self._image: ByteArray | None = None
        self._keys = itertools.count()
        self._spans: dict[int, tuple[int, int, bool]] = {}
        # Bytes newer on the device than in the image, and the other way round. A new storage has none.
        self._stale = Ranges()
        self._dirty = Ranges()
        self._allocator: WebGpuAllocator | None = allocator

    @property
    def address(self) -> int:
        """There is none: kernels are bound to buffers."""
        raise InvalidArgumentError("memory of a WebGPU device has no address")

    @property
    def host_address(self) -> int:
        """There is none that stays: views are what keeps the image right."""
        raise InvalidArgumentError("memory of a WebGPU device has no address in this process; view it")

    def view(self, offset: int, length: int, *, writable: bool) -> ByteArray:
        """The bytes ``[offset, offset + length)`` in the image, up to date; see the module.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        with self.gpu.lock:
            self._note_ended()
            image = self._image
            if image is None:
                image = self._image = np.zeros(round_up(max(self.byte_length, 1), 16), np.uint8)
            begin, end = offset // 4 * 4, round_up(offset + length, 4)
            self._refresh(begin, end)
            key = next(self._keys)
            self._spans[key] = (begin, end, writable)
            address = image.ctypes.data + offset
            return np.asarray(ViewSpan(self, key, offset, length, address, writable))

    # The rest is called under the GPU's lock.

    def prepare(self) -> None:
        """Upload what the host may have written. Before every use by the device.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        self._note_ended()
        image = self._image
        if image is None:
            return
        for begin, end, writable in self._spans.values():
            if writable:
                self._add_dirty(begin, end)
        for begin, end in self._dirty:
            self.gpu.upload(self.buffer, self.offset + begin, image[begin:end])
            self.counters.bytes_copied += end - begin
        self._dirty.clear()
        if not self._spans and image.size > _KEPT_IMAGE_BYTES:
            self._image = None
            self._stale = Ranges((0, image.size))

    def note_written(self, begin: int, end: int) -> None:
        """The device was told to write the bytes ``[begin, end)``."""
        self._stale.add(begin // 4 * 4, min(round_up(end, 4), round_up(max(self.byte_length, 1), 16)))

    def refresh_views(self) -> None:
        """Download what the device wrote into whatever is being viewed.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        self._note_ended()
        for begin, end, _ in list(self._spans.values()):
            self._refresh(begin, end)

    @property
    def is_viewed(self) -> bool:
        """Whether a view of it lives."""
        self._note_ended()
        return bool(self._spans)

    def _refresh(self, begin: int, end: int) -> None:
        if self._image is None or not self._stale:
            return
        for first, last in self._stale.within(begin, end):
            self.gpu.download(self.buffer, self.offset + first, self._image[first:last])
            self.counters.bytes_copied += last - first
            self._stale.remove(first, last)

    def _note_ended(self) -> None:
        while self.ended:
            begin, end, writable = self._spans.pop(self.ended.popleft())
            if writable:
                self._add_dirty(begin, end)

    def _add_dirty(self, begin: int, end: int) -> None:
        """Mark what the host may have written, except where the device wrote later."""
        written = Ranges((begin, end))
        for first, last in self._stale.within(begin, end):
            written.remove(first, last)
        for first, last in written:
            self._dirty.add(first, last)

    def __del__(self) -> None:
        allocator = getattr(self, "_allocator", None)
        if allocator is not None:
            self._pool.give((self.buffer, self.offset), self.capacity)
            allocator.note_release(self.byte_length, self._tag)


class _ImportedStorage(Storage):
    """A part of another storage: an array over one of its buffers, come back."""

    def __init__(self, parent: GpuStorage, begin: int, byte_length: int) -> None:
        super().__init__(byte_length, parent.counters, parent.domain)
        self.parent = parent
        self.begin = begin

    @property
    def address(self) -> int:
        """There is none."""
        return self.parent.address

    @property
    def host_address(self) -> int:
        """There is none."""
        return self.parent.host_address

    def view(self, offset: int, length: int, *, writable: bool) -> ByteArray:
        """See `GpuStorage.view`."""
        return self.parent.view(self.begin + offset, length, writable=writable)


Located = tuple[GpuStorage, int]
"""A storage of the GPU, and a byte offset in it."""


def locate(storage: Storage, offset: int) -> Located:
    """The GPU's storage behind whatever storage a binding holds.

    Raises:
        InvalidArgumentError: it is memory of another device, or transient and not there yet.
        ClosedError: it was deallocated.
    """
    alive = storage.keepalive()
    if isinstance(alive, _ImportedStorage):
        return alive.parent, alive.begin + offset
    if not isinstance(alive, GpuStorage):
        raise InvalidArgumentError("the buffer is in memory of another device")
    return alive, offset


class WebGpuAllocator(Allocator):
    """Allocates memory of a GPU.

    Args:
        gpu: whose memory.
        queue: of the device; its lock is the GPU's.
    """

    def __init__(self, gpu: Gpu, queue: Queue) -> None:
        super().__init__(gpu.tracer)
        self.gpu = gpu
        self.pool = Pool(gpu)
        self._queue = queue

    @property
    def domain(self) -> object:
        """The GPU."""
        return self.gpu

    def _offered_type(self, memory_type: MemoryType) -> MemoryType:
        # Images make all of it visible to the host; see the module.
        return DEFAULT_MEMORY_TYPE

    def _allocate(self, byte_length: int, tag: str) -> Storage:
        with self.gpu.lock:
            self._queue.check_open()
            self.gpu.drain()
            self.gpu.check(f"an allocation of {byte_length} bytes")
            slot, capacity = self.pool.take(byte_length)
            storage = GpuStorage(self, slot, capacity, byte_length, tag)
        self._account_allocation(byte_length, tag)
        return storage

    def _import(self, source: np.ndarray[Any, np.dtype[np.uint8]], owner: Any) -> Storage | None:
        self._queue.check_open()
        base: Any = source
        while True:
            if isinstance(base, np.ndarray):
                base = base.base
            elif isinstance(base, memoryview):
                base = base.obj
            else:
                break
        if not isinstance(base, ViewSpan) or base.storage.gpu is not self.gpu or not source.size:
            return None
        begin = base.begin + source.__array_interface__["data"][0] - base.address
        return _ImportedStorage(base.storage, begin, source.size)

    def _trim(self) -> None:
        with self.gpu.lock:
            self._queue.check_open()
            self.pool.trim()
            self.gpu.drain()
