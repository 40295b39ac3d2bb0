"""Buffers of pipelines as a GPU's runtime sees them: structs in guest memory, and memory of the device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from . import layouts
from .arrays import Dimension, byte_span
from .guest_memory import GuestMemory, as_unsigned
from .types import HalideType

if TYPE_CHECKING:
    from ..hal import Buffer

__all__ = ["DeviceRange", "GuestBuffer"]

_AT: Final = layouts.BUFFER.offsets
_HOST_DIRTY, _DEVICE_DIRTY = 1, 2
_MOST_DIMENSIONS: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRange:
    """Memory of the device behind a buffer: ``byte_length`` bytes from ``offset``. ``is_shared`` when an
    array of the caller lies over it."""

    buffer: Buffer
    offset: int
    byte_length: int
    is_shared: bool = False


class GuestBuffer:
    """A ``halide_buffer_t`` in guest memory; attributes read and write its members.

    Args:
        memory: the guest's.
        address: of the struct.

    Raises:
        InvalidArgumentError: it lies outside of memory, or has more dimensions than Halide knows.
    """

    def __init__(self, memory: GuestMemory, address: int) -> None:
        self._memory = memory
        self.address = as_unsigned(address)
        count = self._get("dimensions", "i")
        if not 0 <= count <= _MOST_DIMENSIONS:
            raise InvalidArgumentError(f"a buffer at guest address {self.address:#x} has {count} dimensions")
        values = memory.unpack("iiiI" * count, self._get("dim", "I")) if count else ()
        self.dims = [Dimension(*(int(value) for value in values[4 * n : 4 * n + 3])) for n in range(count)]
        """Minimum, extent and stride of every dimension."""
        self.type = HalideType.from_word(self._get("type.code", "I"))
        """Of its elements."""

    def _get(self, member: str, layout: str) -> int:
        (value,) = self._memory.unpack(layout, self.address + _AT[member])
        return int(value)

    def _set(self, member: str, value: int, byte_length: int) -> None:
        self._memory.write(self.address + _AT[member], value.to_bytes(byte_length, "little"))

    @property
    def handle(self) -> int:
        """What stands for its memory on the device; 0 for none."""
        return self._get("device", "Q")

    def attach(self, handle: int, interface: int) -> None:
        """Give it memory of the device, or with 0 take it away."""
        self._set("device", handle, 8)
        self._set("device_interface", interface, 4)

    @property
    def host(self) -> int:
        """Guest address of its smallest coordinates; 0 for none."""
        return self._get("host", "I")

    @host.setter
    def host(self, address: int) -> None:
        self._set("host", address, 4)

    @property
    def host_dirty(self) -> bool:
        """Whether guest memory is newer than the device's."""
        return bool(self._get("flags", "Q") & _HOST_DIRTY)

    @host_dirty.setter
    def host_dirty(self, is_dirty: bool) -> None:
        self._flag(_HOST_DIRTY, is_dirty)

    @property
    def device_dirty(self) -> bool:
        """Whether the device's memory is newer."""
        return bool(self._get("flags", "Q") & _DEVICE_DIRTY)

    @device_dirty.setter
    def device_dirty(self, is_dirty: bool) -> None:
        self._flag(_DEVICE_DIRTY, is_dirty)

    def _flag(self, bit: int, is_set: bool) -> None:
        flags = self._get("flags", "Q")
        self._set("flags", flags | bit if is_set else flags & ~bit, 8)

    @property
    def byte_length(self) -> int:
        """Bytes from its first element to one past its last.

        Raises:
            InvalidArgumentError: a stride is negative, so that there are elements before the first.
        """
        low, high = byte_span(self.dims, self.type.byte_length)
        if low:
            raise InvalidArgumentError("a buffer on a GPU cannot have negative strides")
        return high

    def offset_of(self, coordinates: dict[int, int]) -> int:
        """Bytes from its first element to that at some coordinates, by dimension; others are at their
        minimum."""
        elements = sum((at - self.dims[n].min) * self.dims[n].stride for n, at in coordinates.items())
        return elements * self.type.byte_length

    def elements(self, data: Any) -> npt.NDArray[Any]:
        """Its elements as an array over bytes that begin with its first element; dimension 0 comes last."""
        size = self.type.byte_length
        dims = self.dims[::-1]
        found: npt.NDArray[Any] = np.ndarray(
            tuple(max(dim.extent, 0) for dim in dims),
            np.dtype(f"V{size}"),
            data,
            strides=tuple(dim.stride * size for dim in dims),
        )
        return found
