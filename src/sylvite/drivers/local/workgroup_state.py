"""The workgroup states of the workers, with the scratch memory that workgroups use."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from ...abi import structs

if TYPE_CHECKING:
    from ...linker import LinkSpace

__all__ = ["WorkgroupState"]

# Workers write their states for every workgroup: each has a cache line of its own.
_STRIDE: Final = 64


class WorkgroupState:
    """Workgroup states in guest memory, one for each worker. Each has scratch memory of its own, as large as
    the neediest of the loaded executables wants it. Whoever calls it holds the device's lock.

    Args:
        space: whose heap it is allocated from.
    """

    def __init__(self, space: LinkSpace) -> None:
        self._space = space
        self._count = 1 + len(space.replicas)
        self._needs: collections.Counter[int] = collections.Counter()
        self._local_memory = 0
        self._local_memory_bytes = 0
        self.address = space.heap.allocate(_STRIDE * self._count)
        self._write()

    def address_of(self, worker: int) -> int:
        """Guest address of a worker's state."""
        return self.address + _STRIDE * worker

    def acquire(self, byte_length: int) -> None:
        """Have at least this much scratch memory for each worker until the matching `release`.

        Raises:
            OutOfMemoryError: there is no room.
        """
        if byte_length > self._local_memory_bytes:
            self._resize(byte_length)
        self._needs[byte_length] += 1

    def release(self, byte_length: int) -> None:
        """Undo one `acquire`."""
        self._needs[byte_length] -= 1
        needed = max(+self._needs, default=0)
        if needed < self._local_memory_bytes:
            # Given back first, so the smaller one always fits.
            self._space.heap.free(self._local_memory)
            self._local_memory = self._local_memory_bytes = 0
            self._resize(needed)

    def _resize(self, byte_length: int) -> None:
        # Pages are multiples of cache lines, so no two workers share one.
        address = self._space.heap.allocate(byte_length * self._count) if byte_length else 0
        if self._local_memory:
            self._space.heap.free(self._local_memory)
        self._local_memory, self._local_memory_bytes = address, byte_length
        self._write()

    def _write(self) -> None:
        for worker in range(self._count):
            state = {
                "processor_id": worker,
                "local_memory": self._local_memory + worker * self._local_memory_bytes,
                "local_memory_size": self._local_memory_bytes,
            }
            self._space.write(self.address_of(worker), structs.WORKGROUP_STATE.pack(state))
