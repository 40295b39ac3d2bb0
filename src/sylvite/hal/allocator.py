"""The allocator of a device: makes buffers, counts them.

Source: ``iree/hal/allocator.h``.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..errors import InvalidArgumentError
from ..trace import Tracer
from .buffer import Buffer, Storage, TransientStorage, host_bytes
from .types import BufferUsage, MemoryAccess, MemoryType

__all__ = ["DEFAULT_MEMORY_TYPE", "DEFAULT_USAGE", "Allocator", "AllocatorStatistics"]

DEFAULT_MEMORY_TYPE: Final = MemoryType.DEVICE_LOCAL | MemoryType.HOST_LOCAL
"""Memory that host and device both see: what every local device has."""

DEFAULT_USAGE: Final = (
    BufferUsage.DEFAULT
    | BufferUsage.DISPATCH_INDIRECT_PARAMETERS
    | BufferUsage.DISPATCH_UNIFORM_READ
    | BufferUsage.MAPPING
    | BufferUsage.MAPPING_PERSISTENT
)
"""Everything a tensor is used for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStatistics:
    """What an allocator holds now. ``live_bytes`` counts what callers asked for; ``by_tag`` splits it."""

    live_bytes: int
    peak_bytes: int
    allocation_count: int
    live_count: int
    by_tag: Mapping[str, int]


_MOST_RELEASED: Final = 64
"""Ends of storages that may wait to be accounted for."""


class _Accounting:
    """Counts of live allocations. The caller provides the locking."""

    __slots__ = ("allocation_count", "by_tag", "live_bytes", "live_count", "peak_bytes")

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self.allocation_count = 0
        self.live_count = 0
        self.by_tag: dict[str, int] = {}

    def add(self, byte_length: int, tag: str, count: int = 1) -> None:
        self.live_bytes += byte_length
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
        self.allocation_count += count
        self.live_count += count
        self.by_tag[tag] = self.by_tag.get(tag, 0) + byte_length

    def remove(self, byte_length: int, tag: str, count: int) -> None:
        self.live_bytes -= byte_length
        self.live_count -= count
        # Empty buffers leave no entry behind, and may be the last to go.
        left = self.by_tag.get(tag, 0) - byte_length
        if left:
            self.by_tag[tag] = left
        else:
            self.by_tag.pop(tag, None)

    def snapshot(self) -> AllocatorStatistics:
        return AllocatorStatistics(
            live_bytes=self.live_bytes,
            peak_bytes=self.peak_bytes,
            allocation_count=self.allocation_count,
            live_count=self.live_count,
            by_tag=dict(self.by_tag),
        )


class Allocator(abc.ABC):
    """Makes buffers in memory that one device can use.

    Args:
        tracer: its counters count allocations and copies.
    """

    alignment: int = 64
    """Alignment of every allocation, in bytes."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._accounting = _Accounting()
        self._accounting_lock = threading.Lock()
        # Storages die in the garbage collector, at any place: also where this lock is held.
        # How many, how many bytes together, and their tag.
        self._released: collections.deque[tuple[int, int, str]] = collections.deque()

    def allocate(
        self,
        byte_length: int,
        *,
        memory_type: MemoryType = DEFAULT_MEMORY_TYPE,
        usage: BufferUsage = DEFAULT_USAGE,
        access: MemoryAccess = MemoryAccess.ALL,
        tag: str = "",
    ) -> Buffer:
        """A new buffer of ``byte_length`` bytes with undefined contents.

        Raises:
            InvalidArgumentError: the length is negative or the memory type is not offered.
            OutOfMemoryError: memory ran out or a cap was reached.
            ClosedError: the device is closed.
        """
        offered = self._offered_type(memory_type)
        if byte_length < 0:
            raise InvalidArgumentError(f"a buffer cannot have {byte_length} bytes")
        storage = self._allocate(byte_length, tag)
        return Buffer(
            storage,
            memory_type=offered,
            allowed_usage=usage,
            allowed_access=access or MemoryAccess.ALL,
            tag=tag,
        )

    def import_host(
        self,
        data: Any,
        *,
        memory_type: MemoryType = DEFAULT_MEMORY_TYPE,
        usage: BufferUsage = DEFAULT_USAGE,
        access: MemoryAccess = MemoryAccess.ALL,
        tag: str = "import",
        copy: bool = True,
    ) -> Buffer | None:
        """A buffer with the contents of a bytes-like object.

        Memory that already belongs to the device is used as it is. Anything else is copied (and counted
        in ``counters.bytes_copied``), or ``None`` is returned when ``copy`` is false.

        Raises:
            InvalidArgumentError: the memory type is not offered.
            OutOfMemoryError: memory ran out or a cap was reached.
            ClosedError: the device is closed.
        """
        offered = self._offered_type(memory_type)
        source = host_bytes(data, what="import of host memory")
        storage = self._import(source, data)
        if storage is None:
            if not copy:
                return None
            storage = self._allocate(source.size, tag)
            storage.view(0, source.size, writable=True)[:] = source
            self.tracer.counters.bytes_copied += source.size
        return Buffer(
            storage,
            byte_length=source.size,
            memory_type=offered,
            allowed_usage=usage,
            allowed_access=access or MemoryAccess.ALL,
            tag=tag,
        )

    def promise(
        self, byte_length: int, *, memory_type: MemoryType, usage: BufferUsage, tag: str = "transient"
    ) -> tuple[Buffer, TransientStorage]:
        """A buffer whose memory comes later in queue order, and the storage to commit (for devices)."""
        if byte_length < 0:
            raise InvalidArgumentError(f"a buffer cannot have {byte_length} bytes")
        storage = TransientStorage(byte_length, self.tracer.counters, self.domain)
        offered = self._offered_type(memory_type)
        return Buffer(storage, memory_type=offered, allowed_usage=usage, tag=tag), storage

    def commit(self, storage: TransientStorage, tag: str = "transient") -> None:
        """Allocate what `promise` promised.

        Raises:
            OutOfMemoryError: memory ran out or a cap was reached.
        """
        storage.commit(self._allocate(storage.byte_length, tag))

    @property
    def statistics(self) -> AllocatorStatistics:
        """What is allocated now."""
        with self._accounting_lock:
            self._drain_released()
            return self._accounting.snapshot()

    def trim(self) -> None:
        """Give back what is not in use, as far as the device can."""
        self._trim()

    def settle(self) -> None:  # noqa: B027 - a hook that most allocators do not need
        """Give back the large pieces that are not in use, cheaply.

        Called once a program has been initialized: what its weights were made from may never be wanted again.
        """

    @property
    @abc.abstractmethod
    def domain(self) -> object:
        """Identity of the address space that buffers are in."""

    def note_release(self, byte_length: int, tag: str, count: int = 1) -> None:
        """Account for the end of storages of this length together; safe in finalizers."""
        self._released.append((count, byte_length, tag))

    def _account_allocation(self, byte_length: int, tag: str) -> None:
        self.account_allocations(1, byte_length, tag)

    def account_allocations(self, count: int, byte_length: int, tag: str) -> None:
        """Account for ``count`` allocations of ``byte_length`` bytes together (for devices)."""
        with self._accounting_lock:
            counters, accounting = self.tracer.counters, self._accounting
            counters.allocations += count
            if self._released:
                # Most calls are like the call before, and what ends with one begins with the other.
                latest = self._released.pop()
                if latest == (count, byte_length, tag) and len(self._released) < _MOST_RELEASED:
                    counters.deallocations += count
                    accounting.allocation_count += count
                    return
                self._released.append(latest)
                self._drain_released()
            accounting.add(byte_length, tag, count)

    def _drain_released(self) -> None:
        while self._released:
            count, byte_length, tag = self._released.popleft()
            self._accounting.remove(byte_length, tag, count)
            self.tracer.counters.deallocations += count

    @abc.abstractmethod
    def _offered_type(self, memory_type: MemoryType) -> MemoryType:
        """Resolve what was asked for to what the device has, or raise InvalidArgumentError."""

    @abc.abstractmethod
    def _allocate(self, byte_length: int, tag: str) -> Storage:
        """Allocate memory and account for it."""

    def _import(self, source: np.ndarray[Any, np.dtype[np.uint8]], owner: Any) -> Storage | None:
        """Use host memory as it is, when that is possible."""
        return None

    def _trim(self) -> None:  # noqa: B027 - a hook that most allocators do not need
        """Give unused memory back."""
