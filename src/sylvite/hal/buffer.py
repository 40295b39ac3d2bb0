"""Storage and the buffers that look at it.

A `Storage` is one allocation. It lives as long as anything refers to it: buffers, subspans, numpy
arrays and memoryviews made from them, recorded commands, queued operations. There is no other
ownership: Python's references decide, so a view can never look at memory that was given away.

Source: ``iree/hal/buffer.h``.
"""

from __future__ import annotations

import abc
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ClosedError, InvalidArgumentError
from ..trace import Counters
from .types import WHOLE_BUFFER, BufferUsage, MemoryAccess, MemoryType, has_any, lacks

__all__ = ["Buffer", "Storage", "TransientStorage", "check_range", "host_bytes"]

ByteArray = npt.NDArray[np.uint8]

# Programs that count owners are rare; a lock per storage would cost every one of them.
_OWNER_LOCK = threading.Lock()

_WRITABLE = MemoryAccess.WRITE | MemoryAccess.ANY


def check_range(offset: int, length: int, available: int, *, what: str) -> int:
    """Check a byte range against what is there; return the length with `WHOLE_BUFFER` resolved.

    Raises:
        InvalidArgumentError: the range is not inside ``[0, available)``; ``what`` names it.
    """
    if offset < 0 or offset > available:
        raise InvalidArgumentError(f"{what}: offset {offset} is outside of its {available} bytes")
    if length == WHOLE_BUFFER:
        return available - offset
    if length < 0 or length > available - offset:
        message = f"{what}: {length} bytes at offset {offset} reach beyond its {available} bytes"
        raise InvalidArgumentError(message)
    return length


def host_bytes(data: Any, *, what: str) -> ByteArray:
    """The bytes of a bytes-like object or of an array of any dtype, without a copy.

    Raises:
        InvalidArgumentError: it is neither, or not contiguous; ``what`` names it.
    """
    try:
        if isinstance(data, np.ndarray):
            if not data.flags.c_contiguous:
                raise InvalidArgumentError(f"{what}: the array is not contiguous")
            # Not through the buffer protocol, which does not know every dtype (bf16).
            return data.reshape(-1).view(np.uint8)
        view = memoryview(data)
        return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{what}: needs contiguous bytes: {error}") from error


class _Span:
    """What numpy sees of a storage: an address, a length, and a reference that keeps it alive."""

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, storage: Storage, address: int, length: int, writable: bool) -> None:
        self._storage = storage
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (length,),
            "data": (address, not writable),
        }


class Storage(abc.ABC):
    """One allocation of memory. Freed when the last reference to it dies.

    Args:
        byte_length: usable bytes.
        counters: where copies made by the host are counted.
        domain: identity of the address space in which `address` means something; compared with ``is``.
    """

    def __init__(self, byte_length: int, counters: Counters, domain: object) -> None:
        self.byte_length = byte_length
        self.counters = counters
        self.domain = domain
        self._owner_count = 1

    @property
    @abc.abstractmethod
    def address(self) -> int:
        """Address in the device's address space (a guest address on local devices).

        Raises:
            InvalidArgumentError: nothing is allocated yet.
            ClosedError: it was deallocated.
        """

    @property
    @abc.abstractmethod
    def host_address(self) -> int:
        """Address of the first byte in this process.

        Raises:
            InvalidArgumentError: nothing is allocated yet.
            ClosedError: it was deallocated.
        """

    def keepalive(self) -> Storage:
        """What must stay referenced for `host_address` to stay valid."""
        return self

    def view(self, offset: int, length: int, *, writable: bool) -> ByteArray:
        """The bytes ``[offset, offset + length)`` without a copy; the array keeps them alive."""
        return np.asarray(_Span(self.keepalive(), self.host_address + offset, length, writable))

    def preserve(self) -> None:
        """Count one more logical owner (``hal.buffer.allocation.preserve``)."""
        with _OWNER_LOCK:
            self._owner_count += 1

    def discard(self) -> bool:
        """Count one logical owner less; whether that was the last one."""
        with _OWNER_LOCK:
            self._owner_count -= 1
            return self._owner_count == 0

    @property
    def is_terminal(self) -> bool:
        """Whether exactly one logical owner is left."""
        return self._owner_count == 1


class TransientStorage(Storage):
    """Storage in queue order: promised by ``queue_alloca``, there once that has run, gone after
    ``queue_dealloca``. Views made in between keep the memory they look at."""

    def __init__(self, byte_length: int, counters: Counters, domain: object) -> None:
        super().__init__(byte_length, counters, domain)
        self._storage: Storage | None = None
        self._deallocated = False

    @property
    def is_committed(self) -> bool:
        """Whether there is memory behind it now."""
        return self._storage is not None

    def is_backed_by(self, storage: Storage) -> bool:
        """Whether it is this memory that is behind it now."""
        return self._storage is storage

    def commit(self, storage: Storage) -> None:
        """Put memory behind it."""
        self._storage = storage

    def decommit(self) -> None:
        """Let go of the memory. Idempotent."""
        self._storage = None
        self._deallocated = True

    def keepalive(self) -> Storage:
        """The memory that is behind it now."""
        storage = self._storage
        if storage is not None:
            return storage
        if self._deallocated:
            raise ClosedError("the transient buffer was deallocated")
        raise InvalidArgumentError(
            "the transient buffer is not allocated yet: wait for the fence that its alloca signals"
        )

    def view(self, offset: int, length: int, *, writable: bool) -> ByteArray:
        """The bytes ``[offset, offset + length)`` of the memory behind it; see `Storage.view`."""
        return self.keepalive().view(offset, length, writable=writable)

    @property
    def address(self) -> int:
        """Address in the device's address space."""
        return self.keepalive().address

    @property
    def host_address(self) -> int:
        """Address of the first byte in this process."""
        return self.keepalive().host_address


class Buffer:
    """A range of bytes in a storage, with what may be done to it.

    Args:
        storage: memory that the buffer looks at.
        byte_offset: first byte within the storage.
        byte_length: length in bytes; the rest of the storage when absent.
        memory_type: where the memory lives.
        allowed_usage: what it may be used for.
        allowed_access: how it may be accessed.
        tag: a name for statistics.
        allocated_buffer: the buffer this one is a subspan of; absent for a whole allocation.
    """

    __slots__ = (
        "__weakref__",
        "_allocated_buffer",
        "_storage",
        "allowed_access",
        "allowed_usage",
        "byte_length",
        "byte_offset",
        "memory_type",
        "tag",
    )

    def __init__(
        self,
        storage: Storage,
        *,
        byte_offset: int = 0,
        byte_length: int | None = None,
        memory_type: MemoryType,
        allowed_usage: BufferUsage,
        allowed_access: MemoryAccess = MemoryAccess.ALL,
        tag: str = "",
        allocated_buffer: Buffer | None = None,
    ) -> None:
        self._storage: Storage | None = storage
        self._allocated_buffer = allocated_buffer
        self.byte_offset = byte_offset
        self.byte_length = storage.byte_length - byte_offset if byte_length is None else byte_length
        self.memory_type = memory_type
        self.allowed_usage = allowed_usage
        self.allowed_access = allowed_access
        self.tag = tag

    def __repr__(self) -> str:
        state = "closed" if self._storage is None else f"{self.byte_length} bytes at +{self.byte_offset}"
        return f"<{type(self).__name__} {self.tag!r} {state}>"

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._storage is None

    @property
    def storage(self) -> Storage:
        """The allocation the buffer looks at.

        Raises:
            ClosedError: the buffer is closed.
        """
        storage = self._storage
        if storage is None:
            raise ClosedError(f"buffer {self.tag!r} is closed")
        return storage

    @property
    def allocated_buffer(self) -> Buffer:
        """The buffer of the whole allocation: itself unless it is a subspan."""
        return self if self._allocated_buffer is None else self._allocated_buffer

    @property
    def address(self) -> int:
        """Address of the first byte in the device's address space.

        Raises:
            ClosedError: the buffer is closed or deallocated.
            InvalidArgumentError: the buffer is transient and not allocated yet.
        """
        return self.storage.address + self.byte_offset

    def subspan(self, offset: int, length: int = WHOLE_BUFFER) -> Buffer:
        """A buffer over part of this one, sharing its storage.

        Raises:
            InvalidArgumentError: the range is not inside this buffer.
            ClosedError: the buffer is closed.
        """
        storage = self.storage
        length = check_range(offset, length, self.byte_length, what="subspan of a buffer")
        return Buffer(
            storage,
            byte_offset=self.byte_offset + offset,
            byte_length=length,
            memory_type=self.memory_type,
            allowed_usage=self.allowed_usage,
            allowed_access=self.allowed_access,
            tag=self.tag,
            allocated_buffer=self.allocated_buffer,
        )

    def view(
        self, offset: int = 0, length: int = WHOLE_BUFFER, *, access: MemoryAccess | None = None
    ) -> ByteArray:
        """The bytes as a numpy array, without a copy. The array keeps the memory alive and is read-only
        unless ``access`` (by default everything the buffer allows) includes writing.

        Raises:
            InvalidArgumentError: the range or the access is not allowed, or the host cannot see it.
            ClosedError: the buffer is closed or deallocated.
        """
        storage = self.storage
        length = check_range(offset, length, self.byte_length, what="mapping of a buffer")
        if not has_any(self.memory_type, MemoryType.HOST_VISIBLE):
            raise InvalidArgumentError("the buffer cannot be mapped: its memory is not visible to the host")
        if access is None:
            access = self.allowed_access
        elif not has_any(access, MemoryAccess.ANY) and lacks(self.allowed_access, access, MemoryAccess.ALL):
            message = f"the buffer allows {self.allowed_access!r} but {access!r} was asked for"
            raise InvalidArgumentError(message)
        writable = has_any(access, _WRITABLE)
        return storage.view(self.byte_offset + offset, length, writable=writable)

    def map(
        self,
        access: MemoryAccess = MemoryAccess.READ,
        offset: int = 0,
        length: int | None = None,
    ) -> memoryview:
        """The bytes as a memoryview, without a copy. It keeps the memory alive; unmapping is letting go.

        Raises:
            InvalidArgumentError: the range or the access is not allowed, or the host cannot see it.
            ClosedError: the buffer is closed or deallocated.
        """
        return self.view(offset, WHOLE_BUFFER if length is None else length, access=access).data

    def read(self, offset: int = 0, length: int = WHOLE_BUFFER) -> bytes:
        """A copy of the bytes ``[offset, offset + length)``.

        Raises:
            InvalidArgumentError, ClosedError: see `view`.
        """
        data = self.view(offset, length, access=MemoryAccess.READ).tobytes()
        self.storage.counters.bytes_copied += len(data)
        return data

    def write(self, offset: int, data: Any) -> None:
        """Copy a bytes-like object into the buffer at ``offset``.

        Raises:
            InvalidArgumentError, ClosedError: see `view`.
        """
        source = host_bytes(data, what="source of a write")
        self.view(offset, source.size, access=MemoryAccess.WRITE)[:] = source
        self.storage.counters.bytes_copied += source.size

    def fill(self, pattern: bytes, offset: int = 0, length: int = WHOLE_BUFFER) -> None:
        """Repeat ``pattern`` over ``[offset, offset + length)``, a multiple of its length.

        Raises:
            InvalidArgumentError, ClosedError: see `view`; or the length does not divide.
        """
        target = self.view(offset, length, access=MemoryAccess.WRITE)
        if not pattern or target.size % len(pattern):
            message = f"{target.size} bytes cannot be filled with a pattern of {len(pattern)} bytes"
            raise InvalidArgumentError(message)
        target.reshape(-1, len(pattern))[:] = np.frombuffer(pattern, np.uint8)

    def close(self) -> None:
        """Let go of the storage; it is freed when nothing else refers to it. Idempotent."""
        self._storage = None
        self._allocated_buffer = None
