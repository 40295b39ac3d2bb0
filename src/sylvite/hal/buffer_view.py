"""Buffer views: a buffer with a shape and an element type. The nearest thing to a tensor.

Source: ``iree/hal/buffer_view.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from .allocator import Allocator
from .buffer import Buffer
from .element_types import ElementType, NumericalType, element_type_from_numpy
from .types import EncodingType, MemoryAccess

__all__ = ["BufferView"]


class BufferView:
    """A dense row-major array in a buffer. Immutable; shares the buffer.

    Args:
        buffer: holds the elements from its first byte on; it may be longer.
        shape: extents, in elements.
        element_type: type of every element.
        encoding: how elements lie in the buffer.

    Raises:
        InvalidArgumentError: an extent is negative or the buffer is too short.
        ClosedError: the buffer is closed.
    """

    __slots__ = ("__weakref__", "_buffer", "_byte_length", "_element_type", "_encoding", "_shape")

    def __init__(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        element_type: ElementType,
        encoding: EncodingType = EncodingType.DENSE_ROW_MAJOR,
    ) -> None:
        self._shape = tuple(map(int, shape))
        if self._shape and min(self._shape) < 0:
            raise InvalidArgumentError(f"shape {self._shape} has a negative extent")
        self._element_type = element_type
        self._encoding = encoding
        self._byte_length = element_type.byte_length(self._shape)
        if self._byte_length > buffer.byte_length:
            raise InvalidArgumentError(
                f"a {self._type_text()} takes {self._byte_length} bytes but the buffer has only "
                f"{buffer.byte_length}"
            )
        # A handle of our own: closing the buffer that was passed in must not pull it from under the view.
        self._buffer = buffer.subspan(0)

    @classmethod
    def from_numpy(
        cls,
        allocator: Allocator,
        array: npt.ArrayLike,
        *,
        element_type: ElementType | None = None,
        tag: str = "input",
    ) -> BufferView:
        """Copy an array (contiguous or not) into new memory; counted in ``counters.bytes_copied``.

        Args:
            allocator: where to allocate.
            array: anything numpy can make an array of.
            element_type: what to call the elements; must have the array's dtype. By default derived
                from it.
            tag: a name for statistics.

        Raises:
            InvalidArgumentError: the dtype has no element type, or is not that of ``element_type``.
            OutOfMemoryError, ClosedError
        """
        source = np.asarray(array)
        if element_type is None:
            element_type = element_type_from_numpy(source.dtype)
        elif element_type.numpy_dtype != source.dtype:
            message = f"an array of dtype {source.dtype} cannot hold elements of type {element_type.name}"
            raise InvalidArgumentError(message)
        view = cls(allocator.allocate(source.nbytes, tag=tag), source.shape, element_type)
        np.copyto(view.numpy(), source)
        allocator.tracer.counters.bytes_copied += source.nbytes
        return view

    @classmethod
    def from_dlpack(cls, allocator: Allocator, producer: Any, *, tag: str = "input") -> BufferView:
        """Copy a tensor of another library, passed by DLPack, into new memory.

        Raises:
            InvalidArgumentError: it is not on the host, or its type has no element type.
            OutOfMemoryError, ClosedError
        """
        if isinstance(producer, BufferView):
            return producer
        try:
            array = np.from_dlpack(producer)
        except (AttributeError, TypeError, BufferError, RuntimeError, ValueError) as error:
            message = f"{type(producer).__name__} cannot be taken over through DLPack: {error}"
            raise InvalidArgumentError(message) from error
        return cls.from_numpy(allocator, array, tag=tag)

    def is_exactly(self, element_value: int, encoding: int, shape: list[int]) -> bool:
        """Whether element type (as a number, of either sign), encoding and shape are exactly these."""
        return (
            self._element_type.value == element_value & 0xFFFFFFFF
            and self._encoding == encoding
            and list(self._shape) == shape
        )

    @property
    def buffer(self) -> Buffer:
        """The buffer with the elements."""
        return self._buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, in elements."""
        return self._shape

    @property
    def element_type(self) -> ElementType:
        """Type of every element."""
        return self._element_type

    @property
    def encoding(self) -> EncodingType:
        """How elements lie in the buffer."""
        return self._encoding

    @property
    def byte_length(self) -> int:
        """Bytes the elements take (not those of the buffer, which may be longer)."""
        return self._byte_length

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of `numpy`.

        Raises:
            InvalidArgumentError: the element type has none.
        """
        return self._element_type.numpy_dtype

    def reshape(self, shape: Sequence[int]) -> BufferView:
        """The same elements under another shape.

        Raises:
            InvalidArgumentError: the number of elements differs.
        """
        if math.prod(shape) != math.prod(self._shape):
            raise InvalidArgumentError(f"{self._type_text()} cannot be reshaped to {tuple(shape)}")
        return BufferView(self._buffer, shape, self._element_type, self._encoding)

    def numpy(self) -> npt.NDArray[Any]:
        """The elements as an array over the buffer's memory, without a copy.

        The array keeps the memory alive, also after everything else is closed. It is read-only when the
        buffer does not allow writing.

        Raises:
            InvalidArgumentError: elements are smaller than a byte or of no numpy type, the encoding is
                opaque, or the host cannot see the memory.
            ClosedError: the buffer is closed or deallocated.
        """
        if self._encoding is not EncodingType.DENSE_ROW_MAJOR:
            raise InvalidArgumentError("a buffer view with an opaque encoding has no numpy array")
        dtype = self._element_type.numpy_dtype
        return self._buffer.view(0, self._byte_length).view(dtype).reshape(self._shape)

    def unpack(self) -> npt.NDArray[np.int8] | npt.NDArray[np.uint8]:
        """A copy of elements narrower than a byte, one per byte (``i4`` as int8, ``ui4`` as uint8).

        Raises:
            InvalidArgumentError: elements are not integers of 1, 2 or 4 bits.
        """
        bits = self._element_type.bit_count
        if bits not in (1, 2, 4) or not self._element_type.is_integer:
            raise InvalidArgumentError(
                f"only integers of 1, 2 or 4 bits are unpacked, not {self._element_type}"
            )
        packed = self._buffer.view(0, self._byte_length, access=MemoryAccess.READ)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        mask = np.uint8((1 << bits) - 1)
        count = math.prod(self._shape)
        elements: npt.NDArray[np.uint8] = ((packed[:, None] >> shifts) & mask).reshape(-1)[:count]
        elements = elements.reshape(self._shape)
        if self._element_type.numerical_type is NumericalType.INTEGER_UNSIGNED:
            return elements
        sign = np.uint8(1 << (bits - 1))
        signed: npt.NDArray[np.int8] = ((elements ^ sign) - sign).view(np.int8)
        return signed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"an array of {dtype} needs a copy of {array.dtype} elements")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **arguments: Any) -> Any:
        """Export without a copy. Source: DLPack Python specification."""
        return self.numpy().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host: local devices share their memory with it."""
        return (1, 0)

    def __repr__(self) -> str:
        return f"<BufferView {self._type_text()}>"

    def _type_text(self) -> str:
        return "x".join([*map(str, self._shape), self._element_type.name])
