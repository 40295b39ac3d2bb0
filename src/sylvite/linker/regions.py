"""The one allocator of guest memory.

Module data, the shadow stack, command-buffer slabs and tensors all come from the same `RegionAllocator`,
so that a linear memory has exactly one owner. It lives on the host and keeps no header in guest memory:
a guest that writes outside its buffers can spoil other buffers, never the allocator.

Best fit over free ranges kept in two sorted lists (by address for coalescing, by length for fitting).
What was freed lately is kept apart, by length, for who asks for the same length next: programs take and
give back the same few lengths over and over.
Memory grows on demand and never shrinks, as WebAssembly has it; `RegionAllocator.trim` gives the
physical pages of free ranges back to the operating system instead.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Protocol

from ..errors import InvalidArgumentError, OutOfMemoryError
from .ranges import FreeRanges, round_up

__all__ = ["GRANULE_BYTES", "RESERVED_BYTES", "GrowableMemory", "RegionAllocator", "RegionStatistics"]

GRANULE_BYTES = 64
"""Every region starts and ends on a multiple of this; it is also the least alignment."""

RESERVED_BYTES = 1024
"""Guest addresses below this are never handed out, so that null and small offsets from it mean nothing."""

PAGE_BYTES = 65536
ADDRESS_SPACE_BYTES = 1 << 32
# Regions that may wait to be put back to the free ranges.
MOST_RECENT = 64
# Growing costs a call into the engine, so small requests grow by at least this many pages (1 MiB), and by
# this part of the memory. Untouched pages cost nothing.
LEAST_GROWTH_PAGES = 16
GROWTH_PART = 4


class GrowableMemory(Protocol):
    """What the allocator needs of a linear memory."""

    @property
    def byte_length(self) -> int:
        """Current length in bytes."""

    @property
    def maximum_pages(self) -> int | None:
        """Most pages it may grow to."""

    def grow(self, page_delta: int) -> int:
        """Grow by ``page_delta`` pages; return the old page count."""

    def discard(self, address: int, byte_length: int) -> int:
        """Drop the contents of whole host pages in a range; return the bytes given back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatistics:
    """What a `RegionAllocator` holds at one moment.

    Args:
        live_bytes: sum of the lengths asked for by regions that live now.
        peak_bytes: largest ``live_bytes`` ever.
        live_count: regions that live now.
        allocation_count: regions ever allocated.
        free_bytes: bytes in free ranges of the present memory.
        largest_free_bytes: the longest free range.
        memory_bytes: length of the linear memory.
    """

    live_bytes: int
    peak_bytes: int
    live_count: int
    allocation_count: int
    free_bytes: int
    largest_free_bytes: int
    memory_bytes: int


class RegionAllocator:
    """Hands out regions of a linear memory.

    `allocate` may grow the memory, so it must be called where the memory's store may be used. `free`
    touches no store and takes no lock it could wait for: finalizers may call it from any thread at any
    moment, even while `allocate` runs further down the same thread's stack.

    Args:
        memory: the memory; everything from ``begin`` to its present end becomes free.
        begin: first address to hand out, at least `RESERVED_BYTES`.
    """

    __slots__ = (
        "_allocation_count",
        "_begin",
        "_end",
        "_free",
        "_live",
        "_live_bytes",
        "_lock",
        "_memory",
        "_peak_bytes",
        "_recent",
        "_recent_count",
    )

    def __init__(self, memory: GrowableMemory, *, begin: int = RESERVED_BYTES) -> None:
        self._memory = memory
        self._free = FreeRanges()
        # address -> (length of the range taken, length asked for)
        self._live: dict[int, tuple[int, int]] = {}
        # Freed but not yet put back, by length taken: (address, length asked for). Lists are never removed,
        # as a finalizer may be about to append to one. The count is a hint: finalizers race on it.
        self._recent: dict[int, list[tuple[int, int]]] = {}
        self._recent_count = 0
        self._lock = threading.Lock()
        self._live_bytes = 0
        self._peak_bytes = 0
        self._allocation_count = 0
        self._end = memory.byte_length
        self._begin = round_up(max(begin, RESERVED_BYTES), GRANULE_BYTES)
        if self._begin < self._end:
            self._free.insert(self._begin, self._end - self._begin)

    def allocate(self, byte_length: int, alignment: int = GRANULE_BYTES) -> int:
        """Take a region; its contents are whatever was there before.

        Args:
            byte_length: bytes needed; 0 is allowed and gives an address of its own.
            alignment: power of two, in bytes.

        Returns:
            The guest address.

        Raises:
            InvalidArgumentError: a negative length, or an alignment that is no power of two.
            OutOfMemoryError: the memory's maximum, its store's cap or the machine does not allow it.
        """
        if byte_length < 0:
            raise InvalidArgumentError(f"byte_length must not be negative, got {byte_length}")
        if alignment != GRANULE_BYTES:
            if alignment <= 0 or alignment & (alignment - 1):
                raise InvalidArgumentError(f"alignment must be a power of two, got {alignment}")
            alignment = max(alignment, GRANULE_BYTES)
        taken = (byte_length + GRANULE_BYTES - 1) & -GRANULE_BYTES or GRANULE_BYTES
        with self._lock:
            recent = self._recent.get(taken)
            if recent and alignment == GRANULE_BYTES:
                # Only holders of the lock take from these lists.
                address, asked = recent.pop()
                self._recent_count -= 1
                self._live_bytes -= asked
            else:
                address = self._take(taken, alignment, byte_length)
            self._live[address] = (taken, byte_length)
            self._allocation_count += 1
            self._live_bytes += byte_length
            if self._live_bytes > self._peak_bytes:
                self._drain()
                self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        return address

    def _take(self, taken: int, alignment: int, asked: int) -> int:
        """Take a range; grow the memory for it if that must be."""
        self._drain()
        address = self._free.take(taken, alignment)
        if address is None:
            self._grow(taken, alignment, asked)
            address = self._free.take(taken, alignment)
            if address is None:
                raise OutOfMemoryError(
                    f"no room for {asked} bytes aligned to {alignment} after growth", requested_bytes=asked
                )
        return address

    def free(self, address: int) -> int:
        """Give a region back.

        Returns:
            The length it was allocated with, in bytes.

        Raises:
            InvalidArgumentError: no region lives at ``address`` (never allocated, or freed before).
        """
        # Methods of dict and list are atomic, which is what makes the docstring's promise hold.
        entry = self._live.pop(address, None)
        if entry is None:
            raise InvalidArgumentError(f"no region lives at guest address {address:#x}")
        taken, asked = entry
        recent = self._recent.get(taken)
        if recent is None:
            recent = self._recent.setdefault(taken, [])
        recent.append((address, asked))
        self._recent_count += 1
        if self._recent_count > MOST_RECENT and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()
        return asked

    def size_of(self, address: int) -> int:
        """Length in bytes that the region at ``address`` was allocated with.

        Raises:
            InvalidArgumentError: no region lives there.
        """
        entry = self._live.get(address)
        if entry is None:
            raise InvalidArgumentError(f"no region lives at guest address {address:#x}")
        return entry[1]

    def ensure_memory(self, page_count: int) -> None:
        """Make the memory at least ``page_count`` pages long; what is new becomes free.

        Raises:
            OutOfMemoryError: the limits or the machine do not allow it.
        """
        with self._lock:
            self._drain()
            missing = page_count - self._memory.byte_length // PAGE_BYTES
            if missing > 0:
                self._extend(missing)

    def trim(self, least_bytes: int = 0) -> int:
        """Give the physical pages of free ranges back to the operating system.

        The guest's memory does not get shorter; freed ranges read as anything afterwards.

        Args:
            least_bytes: shorter ranges keep their pages.

        Returns:
            Bytes of whole host pages given back.
        """
        with self._lock:
            self._drain()
            return sum(
                self._memory.discard(start, length)
                for start, length in self._free.items()
                if length >= least_bytes
            )

    @property
    def statistics(self) -> RegionStatistics:
        """What is live and free now."""
        with self._lock:
            self._drain()
            return RegionStatistics(
                live_bytes=self._live_bytes,
                peak_bytes=self._peak_bytes,
                live_count=len(self._live),
                allocation_count=self._allocation_count,
                free_bytes=self._free.total,
                largest_free_bytes=self._free.longest,
                memory_bytes=self._memory.byte_length,
            )

    def _drain(self) -> None:
        """Put everything that was freed back to the free ranges."""
        self._recent_count = 0
        for taken in list(self._recent):
            recent = self._recent[taken]
            while recent:
                address, asked = recent.pop()
                self._free.insert(address, taken)
                self._live_bytes -= asked

    def _grow(self, taken: int, alignment: int, asked: int) -> None:
        """Grow the memory until an aligned range of ``taken`` bytes fits at its end."""
        # The guest may have grown its memory by itself; those pages are its own, ours start after them.
        self._end = max(self._end, self._memory.byte_length)
        start = max(self._free.tail(self._end), self._begin)
        last = round_up(start, alignment) + taken
        maximum_pages = self._memory.maximum_pages
        limit = ADDRESS_SPACE_BYTES if maximum_pages is None else maximum_pages * PAGE_BYTES
        if last > limit:
            raise OutOfMemoryError(
                f"guest memory is full: {asked} bytes more do not fit under the limit of {limit} bytes",
                requested_bytes=asked,
                limit_bytes=limit,
            )
        needed = -(-(last - self._end) // PAGE_BYTES)
        room = (limit - self._end) // PAGE_BYTES
        generous = min(max(needed, LEAST_GROWTH_PAGES, self._end // PAGE_BYTES // GROWTH_PART), room)
        try:
            self._extend(generous)
        except OutOfMemoryError:
            if needed >= generous:
                raise
            self._extend(needed)

    def _extend(self, page_delta: int) -> None:
        old_end = self._memory.grow(page_delta) * PAGE_BYTES
        self._end = old_end + page_delta * PAGE_BYTES
        begin = max(old_end, self._begin)
        if begin < self._end:
            self._free.insert(begin, self._end - begin)
