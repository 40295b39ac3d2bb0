"""The cache behind ``Func.memoize``: results of stages by the values they depend on.

Several workers may use it at once. Two that miss the same result both compute it; the first one's is kept.

Source: ``HalideRuntime.h``: ``halide_memoization_cache_lookup``, ``_store``, ``_release``, ``_evict``.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Final

from ..errors import OutOfMemoryError
from ..linker.regions import RegionAllocator
from . import layouts
from .guest_memory import GuestMemory, as_unsigned
from .types import HalideType

__all__ = ["DEFAULT_LIMIT_BYTES", "MemoizationCache"]

DEFAULT_LIMIT_BYTES: Final = 64 << 20
"""Bytes of results that are kept when no call uses them."""

_FAILED, _HIT, _MISS = -1, 0, 1
_ALIGNMENT = 128
_MOST_BYTES = 1 << 31

Key = tuple[bytes, bytes, int]


@dataclasses.dataclass(slots=True)
class _Entry:
    """The buffers of one result: address, bytes and dimensions of each."""

    buffers: list[tuple[int, int, bytes]]
    eviction_key: int | None


class MemoizationCache:
    """The cache of one store.

    Args:
        memory: the guest's.
        heap: where results live.
        limit_bytes: how much to keep.
    """

    def __init__(
        self, memory: GuestMemory, heap: RegionAllocator, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> None:
        self._memory = memory
        self._heap = heap
        self.limit_bytes = limit_bytes
        self._lock = threading.RLock()
        self.hits = 0
        self.misses = 0
        self._entries: collections.OrderedDict[Key, _Entry] = collections.OrderedDict()
        # Memory handed out by lookups and not yet released: address -> users.
        self._users: dict[int, int] = {}
        self._cached: dict[int, Key] = {}

    @property
    def live_bytes(self) -> int:
        """Bytes of kept results."""
        return sum(size for entry in self._entries.values() for _, size, _ in entry.buffers)

    def lookup(self, key: int, key_bytes: int, bounds: int, count: int, buffers: int) -> int:
        """Find a result; make room for it when there is none."""
        with self._lock:
            pointers = self._memory.pointers(buffers, max(count, 1))
            identity = self._key(key, key_bytes, bounds, count)
            entry = self._entries.get(identity)
            if entry is None:
                self.misses += 1
                return self._prepare(pointers)
            self.hits += 1
            self._entries.move_to_end(identity)
            for pointer, (address, _, dimensions) in zip(pointers, entry.buffers, strict=True):
                self._set_host(pointer, address)
                self._memory.write(self._dimensions(pointer)[0], dimensions)
                self._users[address] = self._users.get(address, 0) + 1
            return _HIT

    def store(
        self, key: int, key_bytes: int, bounds: int, count: int, buffers: int, eviction_key: int | None
    ) -> int:
        """Keep what a miss computed."""
        with self._lock:
            identity = self._key(key, key_bytes, bounds, count)
            if identity in self._entries:
                return 0
            found = []
            for pointer in self._memory.pointers(buffers, max(count, 1)):
                address = self._host(pointer)
                if address not in self._users:
                    return _FAILED
                at, length = self._dimensions(pointer)
                found.append((address, self._heap.size_of(address), self._memory.read(at, length)))
            self._entries[identity] = _Entry(found, eviction_key)
            for address, _, _ in found:
                self._cached[address] = identity
            self._shrink()
            return 0

    def release(self, host: int) -> None:
        """A pipeline is done with a result."""
        with self._lock:
            address = as_unsigned(host)
            users = self._users.get(address)
            if users is None:
                return
            if users > 1:
                self._users[address] = users - 1
                return
            del self._users[address]
            if address not in self._cached:
                self._heap.free(address)
            else:
                self._shrink()

    def evict(self, eviction_key: int) -> None:
        """Drop the results stored under an eviction key."""
        with self._lock:
            for identity, entry in list(self._entries.items()):
                if entry.eviction_key == eviction_key:
                    self._drop(identity)

    def clear(self) -> None:
        """Drop everything, also what a failed call did not release."""
        with self._lock:
            self._entries.clear()
            for address in {*self._users, *self._cached}:
                self._heap.free(address)
            self._users.clear()
            self._cached.clear()

    def _drop(self, identity: Key) -> None:
        entry = self._entries.pop(identity)
        for address, _, _ in entry.buffers:
            self._cached.pop(address, None)
            if address not in self._users:
                self._heap.free(address)

    def _shrink(self) -> None:
        live = self.live_bytes
        for identity in list(self._entries):
            if live <= self.limit_bytes:
                return
            entry = self._entries[identity]
            if not any(address in self._users for address, _, _ in entry.buffers):
                live -= sum(size for _, size, _ in entry.buffers)
                self._drop(identity)

    def _prepare(self, pointers: Sequence[int]) -> int:
        taken: list[int] = []
        for pointer in pointers:
            size = self._byte_length(pointer)
            try:
                if size > _MOST_BYTES:
                    raise OutOfMemoryError("a memoized stage is too large", requested_bytes=size)
                address = self._heap.allocate(size, _ALIGNMENT)
            except OutOfMemoryError:
                for other in taken:
                    del self._users[other]
                    self._heap.free(other)
                return _FAILED
            taken.append(address)
            self._users[address] = 1
            self._set_host(pointer, address)
        return _MISS

    def _key(self, key: int, key_bytes: int, bounds: int, count: int) -> Key:
        at, length = self._dimensions(bounds)
        return self._memory.read(key, key_bytes), self._memory.read(at, length), count

    def _dimensions(self, buffer: int) -> tuple[int, int]:
        """Address and bytes of a buffer's dimensions."""
        offsets = layouts.BUFFER.offsets
        count = int(self._memory.unpack("i", buffer + offsets["dimensions"])[0])
        at = self._memory.pointers(buffer + offsets["dim"], 1)[0]
        return at, max(count, 0) * layouts.DIMENSION.byte_length

    def _host(self, buffer: int) -> int:
        return self._memory.pointers(buffer + layouts.BUFFER.offsets["host"], 1)[0]

    def _set_host(self, buffer: int, address: int) -> None:
        self._memory.write(buffer + layouts.BUFFER.offsets["host"], address.to_bytes(4, "little"))

    def _byte_length(self, buffer: int) -> int:
        word = self._memory.pointers(buffer + layouts.BUFFER.offsets["type"], 1)[0]
        at, length = self._dimensions(buffer)
        values = self._memory.unpack("iiiI" * (length // layouts.DIMENSION.byte_length), at)
        span = sum(
            (max(int(extent), 1) - 1) * abs(int(stride))
            for extent, stride in zip(values[1::4], values[2::4], strict=True)
        )
        return (span + 1) * HalideType.from_word(word).byte_length
