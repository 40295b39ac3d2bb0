"""The argument block of a call: an argv array, buffer structs, dimensions and scalars in guest memory."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import InvalidArgumentError
from . import layouts
from .arrays import Dimension
from .metadata import Argument, Number, Signature
from .place import Place

__all__ = ["Slab"]

_HOST: Final = layouts.BUFFER.offsets["host"]
_DIM: Final = layouts.BUFFER.offsets["dim"]
_DIMENSION: Final = struct.Struct("<iiiI")
_POINTER: Final = struct.Struct("<I")
_INT32: Final = range(-(1 << 31), 1 << 31)


class Slab:
    """Arguments of one pipeline, laid out once and rewritten for every call.

    Args:
        place: whose memory it takes.
        signature: of the pipeline.
        dimensions: of every buffer, by argument index.
    """

    def __init__(
        self, place: Place, signature: Signature, dimensions: Mapping[int, Sequence[Dimension]]
    ) -> None:
        arguments = signature.arguments
        at = -(-4 * len(arguments) // 8) * 8
        self._offsets: list[int] = []
        for argument in arguments:
            self._offsets.append(at)
            at += layouts.BUFFER.byte_length if argument.is_buffer else layouts.SCALAR_VALUE_BYTES
        self._dims: dict[int, int] = {}
        for index, dims in dimensions.items():
            self._dims[index] = at
            at += layouts.DIMENSION.byte_length * len(dims)
        self._counts = {index: len(dims) for index, dims in dimensions.items()}
        self._bytes = place.allocate(max(at, 8))
        found = place.address_of(self._bytes.__array_interface__["data"][0])
        if found is None:
            raise InvalidArgumentError("the place allocates outside its own memory")
        self.address = found
        self.view = self._bytes.data
        template = bytearray(len(self._bytes))
        for index, argument in enumerate(arguments):
            _POINTER.pack_into(template, 4 * index, self.address + self._offsets[index])
            if argument.is_buffer:
                self._fill_buffer(template, index, argument, dimensions[index])
        self.template = bytes(template)
        self.host_offsets = {index: self._offsets[index] + _HOST for index in dimensions}
        self._scalars = [
            (index, argument, struct.Struct("<" + argument.scalar_format), self._offsets[index])
            for index, argument in enumerate(arguments)
            if not argument.is_buffer
        ]

    def _fill_buffer(
        self, template: bytearray, index: int, argument: Argument, dims: Sequence[Dimension]
    ) -> None:
        layouts.BUFFER.pack_into(
            template,
            self._offsets[index],
            {
                "type.code": argument.type.code,
                "type.bits": argument.type.bits,
                "type.lanes": 1,
                "dimensions": len(dims),
                "dim": self.address + self._dims[index],
            },
        )
        for number, dim in enumerate(dims):
            values = (dim.min, dim.extent, dim.stride)
            # Pipelines compute with coordinates in 32 bits and do not look for overflow.
            if any(value not in _INT32 for value in (*values, dim.min + dim.extent)):
                raise InvalidArgumentError(
                    f"{argument.name}: minimum, extent and stride of dimension {number} are {values}, which "
                    "do not fit 32 bits"
                )
            _DIMENSION.pack_into(template, self._dims[index] + number * _DIMENSION.size, *values, 0)

    def buffer_address(self, index: int) -> int:
        """Guest address of a buffer's struct, by argument index."""
        return self.address + self._offsets[index]

    @property
    def scalar_slots(self) -> list[tuple[int, int, str]]:
        """Argument index, offset and format of every scalar."""
        return [(index, offset, argument.scalar_format) for index, argument, _, offset in self._scalars]

    def fill(self, hosts: dict[int, int], scalars: Sequence[Number]) -> None:
        """Write everything for a call.

        Args:
            hosts: guest addresses of the buffers' smallest coordinates; 0 asks for bounds.
            scalars: values in the order of the signature's scalars.

        Raises:
            InvalidArgumentError: a scalar does not fit its type.
        """
        view = self.view
        view[:] = self.template
        for index, host in hosts.items():
            _POINTER.pack_into(view, self.host_offsets[index], host)
        for (_, argument, layout, offset), value in zip(self._scalars, scalars, strict=True):
            try:
                layout.pack_into(view, offset, value)
            except (struct.error, OverflowError, TypeError) as error:
                raise InvalidArgumentError(
                    f"{argument.name} is of type {argument.type}: {value!r} does not fit ({error})"
                ) from error

    def dimensions(self, index: int) -> list[Dimension]:
        """The dimensions of a buffer as the pipeline left them."""
        found = []
        for number in range(self._counts[index]):
            offset = self._dims[index] + number * _DIMENSION.size
            low, extent, stride, _ = _DIMENSION.unpack_from(self.view, offset)
            found.append(Dimension(low, extent, stride))
        return found
