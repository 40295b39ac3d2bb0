"""Memories of the wasmtime engine, and views over them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...errors import InternalError, InvalidArgumentError, OutOfMemoryError, UnsupportedFeatureError
from ..base import PAGE_BYTES
from . import native
from .host_pages import DISCARDED_IS_ZERO, discard_pages, page_bounds
from .native import ffi

if TYPE_CHECKING:
    from .engine import WasmtimeEngine
    from .store import WasmtimeStore

__all__ = ["ADDRESS_SPACE_PAGES", "SharedMemory", "WasmtimeMemory", "Window"]

ADDRESS_SPACE_PAGES = 65536
# Below this writing zeros is faster than a system call and the page faults after it.
DISCARD_BYTES = 1 << 20
_WholeMemory = ctypes.c_uint8 * (ADDRESS_SPACE_PAGES * PAGE_BYTES)


class Window:
    """The host bytes of a memory as one memoryview that holds the memory's owner.

    It spans the whole reservation, so growth never needs a new one; `slice` checks against the length
    that exists. Every slice keeps the ctypes array alive, the array keeps ``hold`` alive, and ``hold``
    releases the owner when the last slice is gone.
    """

    __slots__ = ("_view",)

    def __init__(self, base_address: int, hold: object) -> None:
        array = _WholeMemory.from_address(base_address)
        array.hold = hold  # type: ignore[attr-defined]  # ctypes objects take attributes
        self._view = memoryview(array).cast("B")

    def slice(self, address: int, byte_length: int) -> memoryview:
        """A view of a range, which must be inside the memory."""
        return self._view[address : address + byte_length]


class _Memory:
    """What private and shared memories have in common."""

    __slots__ = ("_base_address", "_byte_length", "_maximum_pages")

    _base_address: int
    _byte_length: int
    _maximum_pages: int

    @property
    def base_address(self) -> int:
        """Host address of guest address 0; constant."""
        return self._base_address

    @property
    def maximum_pages(self) -> int:
        """Most pages it may grow to: its own maximum or its store's cap, whichever is less."""
        return self._maximum_pages

    @property
    def byte_length(self) -> int:
        """Current length in bytes."""
        raise InternalError("abstract")

    def _window(self) -> Window:
        raise InternalError("abstract")

    def view(self, address: int, byte_length: int) -> memoryview:
        """A writable view of guest memory that keeps the memory alive.

        Raises:
            InvalidArgumentError: the range is not inside the memory.
            ClosedError: the store is closed.
        """
        self._check(address, byte_length)
        return self._window().slice(address, byte_length)

    def discard(self, address: int, byte_length: int) -> int:
        """Drop the contents of the whole host pages inside a range; they hold anything afterwards.

        Returns:
            Bytes given back to the operating system (0 where it cannot be told to take them).
        """
        self._check(address, byte_length)
        return discard_pages(self._base_address + address, byte_length)

    def clear(self, address: int, byte_length: int) -> None:
        """Make a range zero. A long one costs little: its pages are dropped, not written.

        Raises: as `view`.
        """
        view = self.view(address, byte_length)
        if byte_length >= DISCARD_BYTES and DISCARDED_IS_ZERO:
            first, last = page_bounds(self._base_address + address, byte_length)
            discard_pages(first, last - first)
            head, tail = first - self._base_address - address, last - self._base_address - address
            view[:head] = bytes(head)
            view[tail:] = bytes(byte_length - tail)
        else:
            view[:] = bytes(byte_length)

    def _check(self, address: int, byte_length: int) -> None:
        # The length is remembered because memories never shrink; most checks then need no native call.
        if (
            address < 0
            or byte_length < 0
            or (address + byte_length > self._byte_length and address + byte_length > self.byte_length)
        ):
            raise InvalidArgumentError(
                f"guest range {address:#x}+{byte_length} is outside the memory of {self.byte_length} bytes"
            )

    def _check_growth(self, page_delta: int) -> None:
        if page_delta < 0:
            raise InvalidArgumentError(f"page_delta must not be negative, got {page_delta}")
        pages = self.byte_length // PAGE_BYTES
        if pages + page_delta > self._maximum_pages:
            limit = self._maximum_pages * PAGE_BYTES
            raise OutOfMemoryError(
                f"memory of {pages} pages cannot grow by {page_delta}: the limit is {limit} bytes",
                requested_bytes=page_delta * PAGE_BYTES,
                limit_bytes=limit,
            )

    def _machine_is_full(self, page_delta: int, reason: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"the machine has no room for {page_delta} more pages of guest memory: {reason}",
            requested_bytes=page_delta * PAGE_BYTES,
        )


class WasmtimeMemory(_Memory):
    """A memory of one store. The engine reserves 4 GiB of addresses, so its base stays."""

    __slots__ = ("native", "store")

    def __init__(self, store: WasmtimeStore, memory: Any) -> None:
        self.store = store
        self.native = memory
        context = store.context
        self._byte_length = ffi.wasmtime_memory_data_size(context, ctypes.byref(memory))
        if self._byte_length > ADDRESS_SPACE_PAGES * PAGE_BYTES:
            raise UnsupportedFeatureError(f"a memory of {self._byte_length} bytes: 4 GiB are the most here")
        self._base_address = native.address_of(ffi.wasmtime_memory_data(context, ctypes.byref(memory))) or 0
        self._maximum_pages = self._read_maximum(context)

    @classmethod
    def create(
        cls, store: WasmtimeStore, minimum_pages: int, maximum_pages: int | None, *, is_64: bool = False
    ) -> WasmtimeMemory:
        """Make a new one; sizes were checked."""
        memory_type = _new_memory_type(minimum_pages, maximum_pages, shared=False, is_64=is_64)
        memory = ffi.wasmtime_memory_t()
        error = ffi.wasmtime_memory_new(store.context, memory_type, ctypes.byref(memory))
        ffi.wasm_memorytype_delete(memory_type)
        message = native.take_error(error)
        if message is not None:
            raise OutOfMemoryError(
                f"no guest memory of {minimum_pages} pages: {message}",
                requested_bytes=minimum_pages * PAGE_BYTES,
            )
        return cls(store, memory)

    @property
    def byte_length(self) -> int:
        """Current length in bytes."""
        # Reading it while a call of another thread runs is harmless, so this needs no exclusive use.
        context = self.store.shared_context
        self._byte_length = ffi.wasmtime_memory_data_size(context, ctypes.byref(self.native))
        return self._byte_length

    def grow(self, page_delta: int) -> int:
        """Grow by ``page_delta`` pages; return the old page count."""
        context = self.store.context
        self._check_growth(page_delta)
        previous = ctypes.c_uint64()
        error = ffi.wasmtime_memory_grow(
            context, ctypes.byref(self.native), page_delta, ctypes.byref(previous)
        )
        message = native.take_error(error)
        if message is not None:
            raise self._machine_is_full(page_delta, message)
        base = native.address_of(ffi.wasmtime_memory_data(context, ctypes.byref(self.native))) or 0
        if base != self._base_address:
            raise InternalError("the memory moved when it grew, though it was reserved")
        return previous.value

    def _window(self) -> Window:
        return self.store.window(self._base_address)

    def _read_maximum(self, context: Any) -> int:
        memory_type = ffi.wasmtime_memory_type(context, ctypes.byref(self.native))
        maximum = ctypes.c_uint64(ADDRESS_SPACE_PAGES)
        has_maximum = ffi.wasmtime_memorytype_maximum(memory_type, ctypes.byref(maximum))
        ffi.wasm_memorytype_delete(memory_type)
        most = maximum.value if has_maximum else ADDRESS_SPACE_PAGES
        cap = self.store.limits.memory_bytes
        return most if cap is None else min(most, cap // PAGE_BYTES)


class SharedMemory(_Memory):
    """A memory that several stores of one engine import. It lives while a store or a view uses it.

    ``wasmtime.SharedMemory`` holds the native memory; its ``_as_extern`` and ``size`` are not used,
    because in release 50.0.1 both pass a pointer to the pointer. Memory made shared cannot be capped by a
    store's limiter, so its maximum is the cap.
    """

    __slots__ = ("_owner", "_shared_window", "engine")

    def __init__(self, engine: WasmtimeEngine, owner: Any, maximum_pages: int) -> None:
        self.engine = engine
        self._owner = owner
        self._byte_length = owner.data_len()
        self._base_address = native.address_of(owner.data_ptr()) or 0
        self._maximum_pages = maximum_pages
        self._shared_window = Window(self._base_address, owner)

    @classmethod
    def create(cls, engine: WasmtimeEngine, minimum_pages: int, maximum_pages: int) -> SharedMemory:
        """Make a new one; sizes were checked."""
        memory_type = _new_memory_type(minimum_pages, maximum_pages, shared=True)
        pointer = ctypes.POINTER(ffi.wasmtime_sharedmemory_t)()
        error = ffi.wasmtime_sharedmemory_new(engine.native.ptr(), memory_type, ctypes.byref(pointer))
        ffi.wasm_memorytype_delete(memory_type)
        message = native.take_error(error)
        if message is not None:
            raise OutOfMemoryError(
                f"no shared guest memory of {minimum_pages} to {maximum_pages} pages: {message}",
                requested_bytes=minimum_pages * PAGE_BYTES,
            )
        return cls(engine, native.wasmtime.SharedMemory._from_ptr(pointer), maximum_pages)

    @property
    def byte_length(self) -> int:
        """Current length in bytes."""
        self._byte_length = self._owner.data_len()
        return self._byte_length

    @property
    def pointer(self) -> Any:
        """The native ``wasmtime_sharedmemory_t*``."""
        return self._owner.ptr()

    def grow(self, page_delta: int) -> int:
        """Grow by ``page_delta`` pages; return the old page count. Any thread may do it."""
        self._check_growth(page_delta)
        previous = ctypes.c_uint64()
        error = ffi.wasmtime_sharedmemory_grow(self.pointer, page_delta, ctypes.byref(previous))
        message = native.take_error(error)
        if message is not None:
            raise self._machine_is_full(page_delta, message)
        return previous.value

    def _window(self) -> Window:
        return self._shared_window


def _new_memory_type(
    minimum_pages: int, maximum_pages: int | None, *, shared: bool, is_64: bool = False
) -> Any:
    pointer = ctypes.POINTER(ffi.wasm_memorytype_t)()
    error = ffi.wasmtime_memorytype_new(
        minimum_pages,
        maximum_pages is not None,
        maximum_pages or 0,
        is_64,
        shared,
        16,
        ctypes.byref(pointer),
    )
    message = native.take_error(error)
    if message is not None:
        raise InvalidArgumentError(f"memory of {minimum_pages} to {maximum_pages} pages: {message}")
    return pointer
