"""Files of parameters, mapped into memory."""

from __future__ import annotations

import mmap
import os
import pathlib

from ...errors import ClosedError, FormatError, InvalidArgumentError, NotFoundError
from ...hal.file import OpenFile

__all__ = ["ParameterFile"]


class ParameterFile:
    """The bytes of one parameter file: a memory map, or bytes a caller holds.

    Views given out keep the mapping alive after `close`. The file must not be truncated by somebody
    else while it is mapped: the operating system then ends the process.
    """

    def __init__(
        self, contents: mmap.mmap | bytes | bytearray | memoryview, *, name: str, writable: bool = False
    ) -> None:
        view = memoryview(contents).cast("B")
        if writable and view.readonly:
            raise InvalidArgumentError(f"{name} was asked to be writable and its contents are read-only")
        self.name = name
        self.writable = writable
        self.folder: pathlib.Path | None = None
        self.opened: OpenFile | None = None
        self._contents: mmap.mmap | bytes | bytearray | memoryview | None = contents
        self._view: memoryview | None = view if writable else view.toreadonly()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, writable: bool = False) -> ParameterFile:
        """Map a file. A writable one is shared: what is written reaches the file.

        Raises:
            NotFoundError: There is no such file.
            FormatError: The file is empty.
            InvalidArgumentError: The file cannot be opened this way.
        """
        path = pathlib.Path(path)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            with path.open("r+b" if writable else "rb") as stream:
                if os.fstat(stream.fileno()).st_size == 0:
                    raise FormatError("the parameter file is empty", offset=0, where=str(path))
                contents = mmap.mmap(stream.fileno(), 0, access=access)
                opened = None if writable else OpenFile.of(stream.fileno(), name=str(path))
        except FileNotFoundError as error:
            raise NotFoundError(f"no parameter file {path}") from error
        except OSError as error:
            raise InvalidArgumentError(f"cannot open parameter file {path}: {error}") from error
        file = cls(contents, name=str(path), writable=writable)
        file.folder = path.resolve().parent
        file.opened = opened
        return file

    @property
    def data(self) -> memoryview:
        """All bytes, without a copy.

        Raises:
            ClosedError: The file was closed.
        """
        if self._view is None:
            raise ClosedError(f"parameter file {self.name} is closed")
        return self._view

    @property
    def byte_length(self) -> int:
        """Size of the file in bytes."""
        return len(self.data)

    def flush(self) -> None:
        """Bring what was written to a mapped file to the disk."""
        if self.writable and isinstance(self._contents, mmap.mmap):
            self._contents.flush()

    def close(self) -> None:
        """Give the mapping back, now or when the last view of it dies. Idempotent."""
        if self._view is None:
            return
        self.flush()
        self._view = None
        self.opened = None
        contents, self._contents = self._contents, None
        if isinstance(contents, mmap.mmap):
            try:
                contents.close()
            except BufferError:
                # Views are still out; they own the mapping now.
                return

    def __enter__(self) -> ParameterFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
