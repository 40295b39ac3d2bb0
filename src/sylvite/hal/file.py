"""Files that queues read from and write to.

Source: ``iree/hal/file.h``.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from ..errors import ClosedError, FormatError, InvalidArgumentError, NotFoundError, UnavailableError
from .buffer import check_range, host_bytes
from .types import MemoryAccess

__all__ = ["File", "OpenFile"]

_CAN_READ_IN_PLACE = hasattr(os, "preadv")


class OpenFile:
    """A regular file that stays open while somebody holds this.

    Reading it into a place takes fewer steps than copying from a mapping, leaves no pages of the file in this
    process, and finds out when the file was cut short, where a mapping ends the process.

    Args:
        descriptor: of the file; not taken over.
        name: for messages.

    Raises:
        OSError: it cannot be duplicated.
    """

    def __init__(self, descriptor: int, *, name: str) -> None:
        self.name = name
        self._descriptor = os.dup(descriptor)

    @classmethod
    def of(cls, descriptor: int, *, name: str) -> OpenFile | None:
        """The same; ``None`` where the system cannot read into a place at an offset."""
        return cls(descriptor, name=name) if _CAN_READ_IN_PLACE else None

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` with the bytes from ``offset`` on.

        Raises:
            FormatError: the file ends before that.
            UnavailableError: it cannot be read.
        """
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
            except OSError as error:
                raise UnavailableError(f"file {self.name} cannot be read: {error.strerror}") from error
            if not count:
                raise FormatError(
                    f"file was cut short while it was open: {len(target) - done} bytes more were there",
                    offset=offset + done,
                    where=self.name,
                )
            done += count

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


class File:
    """A range of bytes outside of any device: memory of the host, or a file mapped into it.

    Args:
        data: the bytes; mutable when the file is to be written.
        access: what queues may do with it.
        name: for messages.
        opened: the file that ``data`` maps from its first byte on, when it can be read as well.
    """

    def __init__(
        self,
        data: memoryview,
        *,
        access: MemoryAccess = MemoryAccess.READ,
        name: str = "memory",
        opened: OpenFile | None = None,
    ) -> None:
        if access & MemoryAccess.WRITE and data.readonly:
            raise InvalidArgumentError(f"file {name} is to be written but its memory is read-only")
        self._data: memoryview | None = data
        self._mapping: mmap.mmap | None = None
        self.access = access
        self.name = name
        self.opened = opened
        self.byte_length = data.nbytes

    @classmethod
    def from_memory(
        cls,
        data: Any,
        *,
        access: MemoryAccess = MemoryAccess.READ,
        name: str = "memory",
        opened: OpenFile | None = None,
    ) -> File:
        """A file over a bytes-like object, which is not copied.

        Raises:
            InvalidArgumentError: the object is read-only but is to be written, or not contiguous.
        """
        return cls(host_bytes(data, what=f"file {name}").data, access=access, name=name, opened=opened)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, access: MemoryAccess = MemoryAccess.READ) -> File:
        """A file mapped from disk.

        Raises:
            NotFoundError: it cannot be opened.
        """
        writable = bool(access & MemoryAccess.WRITE)
        try:
            with open(path, "r+b" if writable else "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                mode = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                mapping = mmap.mmap(stream.fileno(), 0, access=mode) if size else None
                # What queues write to a mapping need not be there for who reads the file.
                opened = None if writable else OpenFile.of(stream.fileno(), name=os.fspath(path))
        except OSError as error:
            raise NotFoundError(f"file {os.fspath(path)} cannot be opened: {error.strerror}") from error
        data = memoryview(bytearray()) if mapping is None else memoryview(mapping)
        file = cls(data, access=access, name=os.fspath(path), opened=opened)
        file._mapping = mapping
        return file

    def range(self, offset: int, length: int, access: MemoryAccess) -> memoryview:
        """The bytes ``[offset, offset + length)`` without a copy.

        Raises:
            InvalidArgumentError: the range is outside of the file, or the access is not allowed.
            ClosedError: the file is closed.
        """
        data = self._data
        if data is None:
            raise ClosedError(f"file {self.name} is closed")
        if access & ~self.access & MemoryAccess.ALL:
            raise InvalidArgumentError(f"file {self.name} allows {self.access!r}, not {access!r}")
        length = check_range(offset, length, self.byte_length, what=f"file {self.name}")
        return data[offset : offset + length]

    def close(self) -> None:
        """Let go of the memory. Idempotent; ranges handed out stay valid."""
        data, self._data = self._data, None
        mapping, self._mapping = self._mapping, None
        self.opened = None
        if data is not None and mapping is not None:
            mapping.flush()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
