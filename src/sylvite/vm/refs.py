"""Reference types the virtual machine itself provides: ``!vm.buffer`` and ``!vm.list``.

Other reference types belong to the modules that make them (``!hal.buffer_view`` is
`sylvite.hal.BufferView`); the machine passes them around as Python objects.

Source: IREE ``runtime/src/iree/vm/buffer.h`` and ``list.h``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..errors import InvalidArgumentError, OutOfMemoryError, ProgramError, StatusCode

__all__ = ["HostHeap", "VmBuffer", "VmList"]

MAXIMUM_LIST_LENGTH: Final = 1 << 24
"""Most elements a list may have."""

DEFAULT_HEAP_BYTES: Final = 4 << 30
"""Bytes that buffers and lists made by a program may take, unless a limit says otherwise."""

_ELEMENT_BYTES: Final = 8


class HostHeap:
    """Counts the host memory that a program's buffers and lists take, and caps it.

    ``live_bytes`` counts down when a buffer or list is dropped, not when its last view is.
    """

    __slots__ = ("_lock", "limit_bytes", "live_bytes")

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = DEFAULT_HEAP_BYTES if limit_bytes is None else limit_bytes
        self.live_bytes = 0
        # Reentrant: collecting garbage within `take` may give bytes back.
        self._lock = threading.RLock()

    def take(self, byte_length: int) -> None:
        """Count ``byte_length`` more bytes.

        Raises:
            OutOfMemoryError: the cap would be exceeded.
        """
        with self._lock:
            if self.live_bytes + byte_length <= self.limit_bytes:
                self.live_bytes += byte_length
                return
        raise OutOfMemoryError(
            f"the program's host memory is capped at {self.limit_bytes} bytes; "
            f"{self.live_bytes} are in use and {byte_length} more were asked for",
            requested_bytes=byte_length,
            limit_bytes=self.limit_bytes,
        )

    def give(self, byte_length: int) -> None:
        """Count ``byte_length`` fewer bytes."""
        with self._lock:
            self.live_bytes -= byte_length


class VmBuffer:
    """``!vm.buffer``: bytes in host memory, by which strings, constants and files reach modules.

    ``data`` is a contiguous view of bytes, writable when ``mutable``; the buffer keeps what the
    view looks at alive.
    """

    __slots__ = ("__weakref__", "_counted", "_heap", "data", "mutable")

    def __init__(self, data: Any, *, mutable: bool = False) -> None:
        """Wrap ``data``, any object with a contiguous buffer; nothing is copied.

        Raises:
            InvalidArgumentError: ``data`` is not contiguous, or is read-only but must be mutable.
        """
        self._heap: HostHeap | None = None
        self._counted = 0
        try:
            view = memoryview(data).cast("B")
        except TypeError as error:
            raise InvalidArgumentError(f"a VM buffer needs contiguous bytes: {error}") from error
        if mutable and view.readonly:
            raise InvalidArgumentError("a mutable VM buffer needs writable bytes")
        self.data: memoryview = view if mutable else view.toreadonly()
        self.mutable = mutable

    @classmethod
    def allocate(cls, byte_length: int, *, heap: HostHeap | None = None) -> VmBuffer:
        """A mutable buffer of zeros.

        Raises:
            OutOfMemoryError: the heap's cap is reached or the machine has no more.
        """
        if heap is not None:
            heap.take(byte_length)
        try:
            buffer = cls(bytearray(byte_length), mutable=True)
        except (MemoryError, OverflowError) as error:
            if heap is not None:
                heap.give(byte_length)
            raise OutOfMemoryError(
                f"no memory for a VM buffer of {byte_length} bytes", requested_bytes=byte_length
            ) from error
        if heap is not None:
            buffer._heap = heap
            buffer._counted = byte_length
        return buffer

    @classmethod
    def from_text(cls, text: str) -> VmBuffer:
        """A read-only buffer of ``text`` in UTF-8."""
        return cls(text.encode())

    def __del__(self) -> None:
        if self._heap is not None:
            self._heap.give(self._counted)

    def __len__(self) -> int:
        return self.data.nbytes

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def text(self) -> str:
        """The contents as UTF-8 text.

        Raises:
            InvalidArgumentError: they are not UTF-8.
        """
        try:
            return bytes(self.data).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"VM buffer is not UTF-8 text: {error}") from error

    def __repr__(self) -> str:
        return f"<VmBuffer of {len(self)} bytes{', mutable' if self.mutable else ''}>"


def _wrap(bits: int) -> Callable[[Any], int]:
    half, mask = 1 << (bits - 1), (1 << bits) - 1

    def wrap(value: int) -> int:
        return (value + half & mask) - half

    return wrap


def _f32(value: float) -> float:
    return ctypes.c_float(value).value


_INTEGERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "i8": _wrap(8),
    "i16": _wrap(16),
    "i32": _wrap(32),
    "i64": _wrap(64),
}
_FLOATS: Final[Mapping[str, Callable[[Any], Any]]] = {"f32": _f32, "f64": float}
_ZEROS: Final[Mapping[str, Any]] = {**dict.fromkeys(_INTEGERS, 0), **dict.fromkeys(_FLOATS, 0.0)}


def convert(value: Any, source: str, target: str) -> Any:
    """``value`` of type ``source`` as type ``target``, as lists convert.

    Integers wrap around, floats round; between integers and floats there is no conversion and the
    result is zero.
    """
    if source == target:
        return value
    for family in (_INTEGERS, _FLOATS):
        if source in family and target in family:
            return family[target](value)
    return _ZEROS[target]


class Scalar:
    """A number in a list that can hold anything. ``kind`` is its type's name."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any) -> None:
        self.kind = kind
        self.value = value


class VmList:
    """``!vm.list``: a resizable list of numbers of one type, of references, or of anything.

    ``element_type`` is ``i8`` to ``i64``, ``f32``, ``f64``, the name of a reference type such as
    ``!vm.buffer``, or ``?`` for anything. New elements are zero or null.
    """

    __slots__ = ("__weakref__", "_heap", "_items", "element_type")

    def __init__(self, element_type: str = "?", *, heap: HostHeap | None = None) -> None:
        self.element_type = element_type
        self._items: list[Any] = []
        self._heap = heap

    def __del__(self) -> None:
        if self._heap is not None:
            self._heap.give(_ELEMENT_BYTES * len(self._items))

    @property
    def holds_numbers(self) -> bool:
        """Whether all elements are numbers of one type."""
        return self.element_type in _ZEROS

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item.value if isinstance(item, Scalar) else item

    def check_capacity(self, capacity: int) -> None:
        """Raises OutOfMemoryError when a list cannot grow to ``capacity`` elements."""
        if capacity > MAXIMUM_LIST_LENGTH:
            raise OutOfMemoryError(
                f"a VM list of {capacity} elements; the limit is {MAXIMUM_LIST_LENGTH}",
                requested_bytes=_ELEMENT_BYTES * capacity,
                limit_bytes=_ELEMENT_BYTES * MAXIMUM_LIST_LENGTH,
            )

    def resize(self, length: int) -> None:
        """Cut off or append elements.

        Raises:
            OutOfMemoryError: more than the limit.
        """
        self.check_capacity(length)
        growth = length - len(self._items)
        if self._heap is not None:
            if growth > 0:
                self._heap.take(_ELEMENT_BYTES * growth)
            else:
                self._heap.give(-_ELEMENT_BYTES * growth)
        if growth > 0:
            self._items.extend([_ZEROS.get(self.element_type)] * growth)
        else:
            del self._items[length:]

    def append(self, value: Any, kind: str | None = None) -> None:
        """Append a reference, or a number of type ``kind``."""
        self.resize(len(self._items) + 1)
        if kind is None:
            self.set_reference(len(self._items) - 1, value)
        else:
            self.set_number(len(self._items) - 1, value, kind)

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self._items):
            raise ProgramError(
                f"list index {index} is out of bounds of {len(self._items)} elements",
                status=StatusCode.OUT_OF_RANGE,
            )

    def get_number(self, index: int, kind: str) -> Any:
        """Element ``index`` as a number of type ``kind``.

        Raises:
            ProgramError: out of bounds, or not a number.
        """
        self._check(index)
        item = self._items[index]
        if self.element_type in _ZEROS:
            return convert(item, self.element_type, kind)
        if not isinstance(item, Scalar):
            raise ProgramError(f"list element {index} is not a number", status=StatusCode.FAILED_PRECONDITION)
        return convert(item.value, item.kind, kind)

    def set_number(self, index: int, value: Any, kind: str) -> None:
        """Store a number of type ``kind``.

        Raises:
            ProgramError: out of bounds, or the list holds references.
        """
        self._check(index)
        if self.element_type in _ZEROS:
            self._items[index] = convert(value, kind, self.element_type)
        elif self.element_type == "?":
            self._items[index] = Scalar(kind, value)
        else:
            raise ProgramError(
                f"a list of {self.element_type} cannot hold numbers", status=StatusCode.FAILED_PRECONDITION
            )

    def get_reference(self, index: int, *, move: bool = False) -> Any:
        """Element ``index`` as a reference; ``move`` leaves null behind.

        Raises:
            ProgramError: out of bounds, or a number.
        """
        self._check(index)
        item = self._items[index]
        if self.element_type in _ZEROS or isinstance(item, Scalar):
            raise ProgramError(
                f"list element {index} is not a reference", status=StatusCode.FAILED_PRECONDITION
            )
        if move:
            self._items[index] = None
        return item

    def set_reference(self, index: int, value: Any) -> None:
        """Store a reference. The caller has checked its type.

        Raises:
            ProgramError: out of bounds, or the list holds numbers.
        """
        self._check(index)
        if self.element_type in _ZEROS:
            raise ProgramError(
                f"a list of {self.element_type} cannot hold references",
                status=StatusCode.FAILED_PRECONDITION,
            )
        self._items[index] = value

    def __repr__(self) -> str:
        return f"<VmList of {len(self)} {self.element_type}>"
