"""The allocator of local devices: slices of the guest heap.

The heap (`sylvite.linker.regions.RegionAllocator`) is shared with the linker and the command buffers, so
tensors, module data and dispatch states lie in one linear memory. Buffers are views: the host writes and
reads them in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OutOfMemoryError
from ...hal import DEFAULT_MEMORY_TYPE, Allocator, MemoryType, Storage
from ...hal.queue import Queue

if TYPE_CHECKING:
    from ...linker import LinkSpace

__all__ = ["HeapStorage", "LocalAllocator"]


# Shorter free ranges keep their pages for who takes them next.
_LONG_BYTES = 4 << 20


class HeapStorage(Storage):
    """A region of the guest heap. Holds the store, and so the memory's mapping, open while it lives."""

    def __init__(self, allocator: LocalAllocator, address: int, byte_length: int, tag: str) -> None:
        super().__init__(byte_length, allocator.tracer.counters, allocator.domain)
        space = allocator.space
        self._allocator: LocalAllocator | None = None
        self._heap = space.heap
        self._store = space.store
        self._address = address
        self._host_address = space.memory.base_address + address
        self._tag = tag
        self._store.retain()
        # Set last: a storage that was not finished has nothing to give back.
        self._allocator = allocator

    @property
    def address(self) -> int:
        """Guest address."""
        return self._address

    @property
    def host_address(self) -> int:
        """Address in this process."""
        return self._host_address

    def __del__(self) -> None:
        # The garbage collector may call this anywhere, in any thread; all three are made for that.
        allocator = getattr(self, "_allocator", None)
        if allocator is not None:
            self._heap.free(self._address)
            allocator.note_release(self.byte_length, self._tag)
            self._store.release()


class _ImportedStorage(Storage):
    """Host memory that lies inside the guest's: an array over one of its buffers, come back."""

    def __init__(
        self, allocator: LocalAllocator, address: int, host_address: int, source: Any, owner: Any
    ) -> None:
        super().__init__(source.size, allocator.tracer.counters, allocator.domain)
        self._address = address
        self._host_address = host_address
        self._owner = owner

    @property
    def address(self) -> int:
        """Guest address."""
        return self._address

    @property
    def host_address(self) -> int:
        """Address in this process."""
        return int(self._host_address)


class LocalAllocator(Allocator):
    """Allocates from the heap of a link space.

    Args:
        space: whose heap.
        queue: of the device; its lock is held while memory may grow.
    """

    def __init__(self, space: LinkSpace, queue: Queue) -> None:
        super().__init__(space.tracer)
        self.space = space
        self._queue = queue

    @property
    def domain(self) -> object:
        """The guest heap."""
        return self.space.heap

    def address_of(self, host_address: int, byte_length: int) -> int | None:
        """Guest address of a range of this process's memory; ``None`` when it is not in the guest's."""
        memory = self.space.memory
        address = host_address - memory.base_address
        return address if 0 <= address <= memory.byte_length - byte_length else None

    def _offered_type(self, memory_type: MemoryType) -> MemoryType:
        # One linear memory serves host and device alike: whatever is asked for, it is that.
        return DEFAULT_MEMORY_TYPE

    def _allocate(self, byte_length: int, tag: str) -> Storage:
        with self._queue.lock:
            self._queue.check_open()
            try:
                address = self.space.heap.allocate(byte_length, self.alignment)
            except OutOfMemoryError as error:
                raise self._explain(error, byte_length) from error
            try:
                storage = HeapStorage(self, address, byte_length, tag)
            except BaseException:
                self.space.heap.free(address)
                raise
        self._account_allocation(byte_length, tag)
        return storage

    def _explain(self, error: OutOfMemoryError, byte_length: int) -> OutOfMemoryError:
        live = self.space.heap.statistics.live_bytes
        limit = error.limit_bytes
        capped = "" if limit is None else f" under the limit of {limit} bytes"
        message = f"{byte_length} bytes do not fit: {live} bytes of guest memory are live{capped}"
        return OutOfMemoryError(message, requested_bytes=byte_length, limit_bytes=limit)

    def _import(self, source: np.ndarray[Any, np.dtype[np.uint8]], owner: Any) -> Storage | None:
        self._queue.check_open()
        host_address = source.__array_interface__["data"][0]
        address = self.address_of(host_address, source.size)
        if address is None or not source.size:
            return None
        return _ImportedStorage(self, address, host_address, source, owner)

    def settle(self) -> None:
        """Give the pages of long free ranges back."""
        with self._queue.lock:
            self._queue.check_open()
            self.space.heap.trim(_LONG_BYTES)

    def _trim(self) -> None:
        with self._queue.lock:
            self._queue.check_open()
            self.space.heap.trim()
