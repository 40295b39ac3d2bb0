"""Files that queues read from and write to.

Source: ``iree/hal/file.h``.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from ..errors import ClosedError, InvalidArgumentError, NotFoundError
from .buffer import check_range, host_bytes
from .types import MemoryAccess

__all__ = ["File"]


class File:
    """A range of bytes outside of any device: memory of the host, or a file mapped into it.

    Args:
        data: the bytes; mutable when the file is to be written.
        access: what queues may do with it.
        name: for messages.
    """

    def __init__(
        self, data: memoryview, *, access: MemoryAccess = MemoryAccess.READ, name: str = "memory"
    ) -> None:
        if access & MemoryAccess.WRITE and data.readonly:
            raise InvalidArgumentError(f"file {name} is to be written but its memory is read-only")
        self._data: memoryview | None = data
        self._mapping: mmap.mmap | None = None
        self.access = access
        self.name = name
        self.byte_length = data.nbytes

    @classmethod
    def from_memory(
        cls, data: Any, *, access: MemoryAccess = MemoryAccess.READ, name: str = "memory"
    ) -> File:
        """A file over a bytes-like object, which is not copied.

        Raises:
            InvalidArgumentError: the object is read-only but is to be written, or not contiguous.
        """
        return cls(host_bytes(data, what=f"file {name}").data, access=access, name=name)

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
        except OSError as error:
            raise NotFoundError(f"file {os.fspath(path)} cannot be opened: {error.strerror}") from error
        data = memoryview(bytearray()) if mapping is None else memoryview(mapping)
        file = cls(data, access=access, name=os.fspath(path))
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
        if data is not None and mapping is not None:
            mapping.flush()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
