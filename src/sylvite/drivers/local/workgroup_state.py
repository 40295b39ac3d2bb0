"""The workgroup state of one worker, with the scratch memory that its workgroups share."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from ...abi import structs

if TYPE_CHECKING:
    from ...linker import LinkSpace

__all__ = ["WorkgroupState"]


class WorkgroupState:
    """A workgroup state in guest memory. Its scratch memory is as large as the neediest of the loaded
    executables wants it. Whoever calls it holds the device's lock.

    Args:
        space: whose heap it is allocated from.
    """

    def __init__(self, space: LinkSpace) -> None:
        self._space = space
        self._needs: collections.Counter[int] = collections.Counter()
        self._local_memory = 0
        self._local_memory_bytes = 0
        self.address = space.heap.allocate(structs.WORKGROUP_STATE.byte_length)
        self._write()

    def acquire(self, byte_length: int) -> None:
        """Have at least this much scratch memory until the matching `release`.

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
        address = self._space.heap.allocate(byte_length) if byte_length else 0
        if self._local_memory:
            self._space.heap.free(self._local_memory)
        self._local_memory, self._local_memory_bytes = address, byte_length
        self._write()

    def _write(self) -> None:
        state = {"local_memory": self._local_memory, "local_memory_size": self._local_memory_bytes}
        self._space.write(self.address, structs.WORKGROUP_STATE.pack(state))
