"""Parameters by key, and where their bytes are."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import FormatError, InvalidArgumentError, NotFoundError
from .element_types import ParameterType
from .files import ParameterFile

__all__ = ["FileRange", "ParameterEntry", "ParameterIndex", "Splat"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Bytes in a file, from ``offset`` on."""

    file: ParameterFile
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Splat:
    """A pattern of 1, 2, 4, 8 or 16 bytes, repeated; it has no storage."""

    pattern: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEntry:
    """One parameter. ``element_type`` and ``shape`` are known where the format states them."""

    key: str
    byte_length: int
    storage: FileRange | Splat
    element_type: ParameterType | None = None
    shape: tuple[int, ...] | None = None
    metadata: bytes = b""

    def check_span(self, offset: int, byte_length: int) -> None:
        """Make sure a program may read or write ``byte_length`` bytes from ``offset`` on.

        Raises:
            InvalidArgumentError: The span is not inside the parameter; the message says both sizes.
        """
        if offset < 0 or byte_length < 0 or offset + byte_length > self.byte_length:
            raise InvalidArgumentError(
                f"the program wants {byte_length} bytes at offset {offset} of parameter {self.key!r}, "
                f"which has {self.byte_length} bytes"
            )

    def view(self, offset: int = 0, byte_length: int | None = None) -> memoryview:
        """The bytes in the file, without a copy; they are writable when the file is.

        Raises:
            InvalidArgumentError: The span is outside, or the parameter is a splat (it has no bytes).
        """
        byte_length = self.byte_length - offset if byte_length is None else byte_length
        self.check_span(offset, byte_length)
        if isinstance(self.storage, Splat):
            raise InvalidArgumentError(f"parameter {self.key!r} is a splat and has no bytes to look at")
        begin = self.storage.offset + offset
        return self.storage.file.data[begin : begin + byte_length]

    def read(self, offset: int = 0, byte_length: int | None = None) -> bytes:
        """A copy of the bytes; a splat is written out."""
        byte_length = self.byte_length - offset if byte_length is None else byte_length
        if isinstance(self.storage, FileRange):
            return bytes(self.view(offset, byte_length))
        self.check_span(offset, byte_length)
        pattern = self.storage.pattern
        phase = offset % len(pattern)
        return (pattern * ((phase + byte_length) // len(pattern) + 1))[phase : phase + byte_length]

    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The parameter as a numpy array of its shape: a view of the file, or of one element for splats.

        Raises:
            InvalidArgumentError: The format does not state the element type, or numpy has no such type.
        """
        if self.element_type is None or self.shape is None:
            raise InvalidArgumentError(f"parameter {self.key!r} has bytes but no element type")
        dtype = self.element_type.numpy_dtype()
        if isinstance(self.storage, Splat):
            return np.broadcast_to(np.frombuffer(self.storage.pattern, dtype), self.shape)
        return np.frombuffer(self.view(), dtype).reshape(self.shape)


class ParameterIndex(Mapping[str, ParameterEntry]):
    """Parameters by key, from one or several files. The index owns the files it is given."""

    def __init__(self, files: Iterable[ParameterFile] = ()) -> None:
        self._entries: dict[str, ParameterEntry] = {}
        self._files = list(files)

    def add(self, entry: ParameterEntry, *, place: int | None = None, where: str | None = None) -> None:
        """Add a parameter. ``place`` and ``where`` say where a file declares it.

        Raises:
            FormatError: The key is there already.
        """
        if entry.key in self._entries:
            raise FormatError(f"parameter {entry.key!r} is there twice", offset=place, where=where)
        self._entries[entry.key] = entry

    def own(self, file: ParameterFile) -> None:
        """Close ``file`` together with this index."""
        self._files.append(file)

    def merge(self, other: ParameterIndex) -> None:
        """Take over every entry and file of ``other``.

        Raises:
            FormatError: A key is in both.
        """
        for entry in other.values():
            self.add(entry)
        self._files += other._files

    def lookup(self, key: str, *, scope: str = "") -> ParameterEntry:
        """The parameter of that key.

        Raises:
            NotFoundError: It is not there; the message names the scope and the closest keys.
        """
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        close = difflib.get_close_matches(key, self._entries, n=3, cutoff=0.5)
        shown = close or list(self._entries)[:3]
        hint = ", ".join(repr(name) for name in shown) or "nothing"
        kind = "closest" if close else "there are"
        raise NotFoundError(
            f"no parameter {key!r} in scope {scope!r} ({len(self._entries)} parameters; {kind}: {hint})"
        )

    def flush(self) -> None:
        """Bring what was written to the disk."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """Close every file. Views that are out stay valid. Idempotent."""
        for file in self._files:
            file.close()

    def __enter__(self) -> ParameterIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, key: str) -> ParameterEntry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
