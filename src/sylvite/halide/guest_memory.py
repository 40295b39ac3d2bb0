"""Reading and writing the guest's memory by address, for the host's half of the runtime."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..engines.base import Memory
from ..errors import InvalidArgumentError

__all__ = ["GuestMemory", "as_unsigned"]

_TEXT_CHUNK = 256
_TEXT_LIMIT = 1 << 16


def as_unsigned(address: int) -> int:
    """A pointer as the guest means it: engines pass i32 values signed."""
    return address & 0xFFFFFFFF


class GuestMemory:
    """Typed access to a linear memory. Every method raises InvalidArgumentError outside of it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def read(self, address: int, byte_length: int) -> bytes:
        """A copy of a range."""
        return bytes(self._memory.view(as_unsigned(address), byte_length))

    def writable(self, address: int, byte_length: int) -> memoryview:
        """A range itself."""
        return self._memory.view(as_unsigned(address), byte_length)

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes in."""
        self._memory.view(as_unsigned(address), len(data))[:] = data

    def unpack(self, layout: str, address: int) -> tuple[int | float, ...]:
        """Values by a format of the struct module, little endian."""
        layout = "<" + layout
        return struct.unpack(layout, self.read(address, struct.calcsize(layout)))

    def pointers(self, address: int, count: int) -> Sequence[int]:
        """``count`` pointers or u32 values from ``address``."""
        return [int(value) for value in self.unpack(f"{count}I", address)]

    def text(self, address: int) -> str:
        """The zero-terminated text at an address; the null pointer reads as ``<nullptr>``.

        Raises:
            InvalidArgumentError: it has no end within 64 KiB or within the memory.
        """
        address = as_unsigned(address)
        if not address:
            return "<nullptr>"
        found = bytearray()
        while len(found) < _TEXT_LIMIT:
            room = min(_TEXT_CHUNK, self._memory.byte_length - address - len(found))
            if room <= 0:
                break
            chunk = self.read(address + len(found), room)
            end = chunk.find(b"\0")
            if end >= 0:
                return bytes(found + chunk[:end]).decode(errors="replace")
            found += chunk
        raise InvalidArgumentError(f"the text at guest address {address:#x} has no end")
