"""Reader and writer of ``.irpa`` files, IREE's parameter archives (version 0.0).

A file is a chain of archives. Each has a header, a table of entries, a segment of names and metadata,
and a segment of data; offsets count from the header, those of names and data from their segment. The
format allows entries to share bytes, so overlap is not an error here.

Source: ``iree/schemas/parameter_archive.h``
"""

from __future__ import annotations

import os
import pathlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import FormatError, InvalidArgumentError, UnsupportedFeatureError, UnsupportedVersionError
from .cursor import Cursor, check_range
from .files import ParameterFile
from .index import FileRange, ParameterEntry, ParameterIndex, Splat
from .paths import resolve_parameter_path

__all__ = ["build_archive", "read_archive", "write_archive"]

_MAGIC = 0x41505249
_PREFIX = struct.Struct("<IHHQQQ")
_HEADER = struct.Struct("<IHHQQQ" + "Q" + "QQ" * 3)
_ENTRY = struct.Struct("<QIQQQQQQ")
_SPLAT = struct.Struct("<Q16sB")
_DATA = struct.Struct("<QQ")
_EXTERNAL = struct.Struct("<QQQQ")
_TYPE_SKIP, _TYPE_SPLAT, _TYPE_DATA, _TYPE_EXTERNAL = 0, 1, 2, 3
_ENTRY_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096
_PATTERN_LENGTHS = (1, 2, 4, 8, 16)
_MAXIMUM_LENGTH = (1 << 63) - 1


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class _Archive:
    """One archive of the chain, with its header checked."""

    def __init__(self, file: ParameterFile, base: int) -> None:
        self.file = file
        self.base = base
        self.where = file.name
        data = file.data
        cursor = Cursor(data, where=file.name, offset=base)
        prefix = _PREFIX.unpack(cursor.take(_PREFIX.size, "an archive header"))
        magic, major, minor, header_length, next_offset, _flags = prefix
        if magic != _MAGIC:
            raise self.fail(f"not a parameter archive (magic number {magic:#010x})", base)
        if (major, minor) != (0, 0):
            raise UnsupportedVersionError(
                f"parameter archive version {major}.{minor}; version 0.0 is read",
                offset=base + 4,
                where=self.where,
            )
        if header_length != _HEADER.size:
            raise self.fail(f"a header of {header_length} bytes instead of {_HEADER.size}", base + 8)
        cursor.offset = base
        fields = _HEADER.unpack(cursor.take(_HEADER.size, "an archive header"))
        self.entry_count: int = fields[6]
        self.entries = self._segment(fields[7:9], "the entry table", base + 40)
        self.metadata = self._segment(fields[9:11], "the metadata segment", base + 56)
        self.storage = self._segment(fields[11:13], "the storage segment", base + 72)
        self.next_base = base + next_offset if next_offset else None
        if next_offset % _ENTRY_ALIGNMENT or next_offset > len(data):
            raise self.fail(f"the next archive is said to be {next_offset} bytes further", base + 16)

    def fail(self, message: str, place: int) -> FormatError:
        """An error of this archive."""
        return FormatError(message, offset=place, where=self.where)

    def _segment(self, fields: tuple[int, ...], what: str, place: int) -> tuple[int, int]:
        """A segment as file offset and length."""
        offset, byte_length = fields
        if byte_length == 0:
            return self.base, 0
        limit = len(self.file.data) - self.base
        check_range(offset, byte_length, limit, what=what, place=place, where=self.where)
        return self.base + offset, byte_length

    def metadata_bytes(self, offset: int, byte_length: int, what: str, place: int) -> memoryview:
        """Bytes of the metadata segment."""
        if byte_length == 0:
            return self.file.data[:0]
        begin, limit = self.metadata
        check_range(offset, byte_length, limit, what=what, place=place, where=self.where)
        return self.file.data[begin + offset : begin + offset + byte_length]

    def metadata_text(self, offset: int, byte_length: int, what: str, place: int) -> str:
        """Text of the metadata segment."""
        raw = self.metadata_bytes(offset, byte_length, what, place)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8", self.metadata[0] + offset + error.start) from error


_StorageReader = Callable[[str, int, int, int], tuple[int, FileRange | Splat]]


class _EntryReader:
    """Reads the entries of one archive into an index."""

    def __init__(self, archive: _Archive, index: ParameterIndex, externals: dict[str, ParameterFile]) -> None:
        self.archive = archive
        self.index = index
        self.externals = externals
        self._readers: dict[int, _StorageReader] = {
            _TYPE_SPLAT: self._splat,
            _TYPE_DATA: self._data,
            _TYPE_EXTERNAL: self._external,
        }

    def read_all(self) -> None:
        """Walk the entry table."""
        archive = self.archive
        position, remaining = archive.entries
        for number in range(archive.entry_count):
            if remaining < _ENTRY.size:
                raise archive.fail(f"the entry table ends before entry {number}", position)
            (entry_length,) = struct.unpack_from("<Q", archive.file.data, position)
            if not _ENTRY.size <= entry_length <= remaining:
                raise archive.fail(
                    f"entry {number} has {entry_length} bytes; {remaining} are left in the table", position
                )
            self._read(position, entry_length)
            step = min(_align(entry_length, _ENTRY_ALIGNMENT), remaining)
            position += step
            remaining -= step

    def _read(self, position: int, entry_length: int) -> None:
        archive = self.archive
        fields = _ENTRY.unpack_from(archive.file.data, position)
        _, kind, _flags, name_offset, name_length, meta_offset, meta_length, alignment = fields
        if kind == _TYPE_SKIP:
            return
        key = archive.metadata_text(name_offset, name_length, "an entry name", position + 20)
        what = f"metadata of parameter {key!r}"
        metadata = bytes(archive.metadata_bytes(meta_offset, meta_length, what, position + 36))
        if alignment & (alignment - 1):
            raise archive.fail(f"parameter {key!r}: alignment {alignment} is no power of two", position + 52)
        reader = self._readers.get(kind)
        if reader is None:
            raise UnsupportedFeatureError(
                f"parameter {key!r}: unknown entry type {kind}", offset=position + 8, where=archive.where
            )
        byte_length, storage = reader(key, position + _ENTRY.size, entry_length - _ENTRY.size, alignment)
        entry = ParameterEntry(key=key, byte_length=byte_length, storage=storage, metadata=metadata)
        self.index.add(entry, place=position, where=archive.where)

    def _body(self, layout: struct.Struct, key: str, position: int, byte_length: int) -> tuple[Any, ...]:
        if byte_length < layout.size:
            raise self.archive.fail(
                f"parameter {key!r}: the entry is {layout.size - byte_length} bytes short", position
            )
        return layout.unpack_from(self.archive.file.data, position)

    def _splat(
        self, key: str, position: int, body_length: int, _alignment: int
    ) -> tuple[int, FileRange | Splat]:
        byte_length, pattern, pattern_length = self._body(_SPLAT, key, position, body_length)
        if pattern_length not in _PATTERN_LENGTHS:
            raise self.archive.fail(
                f"splat parameter {key!r}: a pattern of {pattern_length} bytes", position + 24
            )
        if byte_length % pattern_length or byte_length > _MAXIMUM_LENGTH:
            raise self.archive.fail(
                f"splat parameter {key!r}: {byte_length} bytes are no multiple of the pattern", position
            )
        return byte_length, Splat(pattern=pattern[:pattern_length])

    def _data(
        self, key: str, position: int, body_length: int, alignment: int
    ) -> tuple[int, FileRange | Splat]:
        offset, byte_length = self._body(_DATA, key, position, body_length)
        begin, limit = self.archive.storage
        what = f"parameter {key!r}"
        check_range(offset, byte_length, limit, what=what, place=position, where=self.archive.where)
        if alignment and offset % alignment:
            raise self.archive.fail(f"{what}: offset {offset} is not aligned to {alignment}", position)
        return byte_length, FileRange(file=self.archive.file, offset=begin + offset)

    def _external(
        self, key: str, position: int, body_length: int, alignment: int
    ) -> tuple[int, FileRange | Splat]:
        archive = self.archive
        path_offset, path_length, offset, byte_length = self._body(_EXTERNAL, key, position, body_length)
        path = archive.metadata_text(path_offset, path_length, f"the path of parameter {key!r}", position)
        file = self._external_file(key, path, position)
        what = f"parameter {key!r} in {path!r}"
        check_range(offset, byte_length, len(file.data), what=what, place=position + 16, where=archive.where)
        if alignment and offset % alignment:
            raise archive.fail(f"{what}: offset {offset} is not aligned to {alignment}", position + 16)
        return byte_length, FileRange(file=file, offset=offset)

    def _external_file(self, key: str, path: str, position: int) -> ParameterFile:
        folder = self.archive.file.folder
        if folder is None:
            raise self.archive.fail(
                f"parameter {key!r} is in another file; this archive has no folder", position
            )
        file = self.externals.get(path)
        if file is None:
            file = ParameterFile.open(resolve_parameter_path(folder, path, where=self.archive.where))
            self.externals[path] = file
            self.index.own(file)
        return file


def read_archive(file: ParameterFile) -> ParameterIndex:
    """Index a parameter archive, all archives of the chain and the files they name.

    Raises:
        FormatError: The file is malformed, or names a file outside its folder.
        UnsupportedVersionError: Another version of the format.
        UnsupportedFeatureError: An entry type that this release does not know.
        NotFoundError: A file named by the archive is missing.
    """
    index = ParameterIndex([file])
    # Tables may overlap in the format; this bound keeps a chain of headers from multiplying them.
    budget = len(file.data) // _ENTRY.size
    externals: dict[str, ParameterFile] = {}
    base: int | None = 0
    try:
        while base is not None:
            archive = _Archive(file, base)
            if archive.entry_count > budget:
                raise archive.fail(f"{archive.entry_count} entries do not fit into the file", base + 32)
            budget -= archive.entry_count
            _EntryReader(archive, index, externals).read_all()
            base = archive.next_base
    except BaseException:
        for external in externals.values():
            external.close()
        raise
    return index


Contents = bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[Any]]


def _contents_view(key: str, value: Contents) -> memoryview:
    if isinstance(value, np.ndarray):
        # A byte view: numpy refuses to export types it does not know (bf16) as a buffer.
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).cast("B")
    raise InvalidArgumentError(f"parameter {key!r} is a {type(value).__name__}, not bytes or an array")


def _entry_bytes(kind: int, name: tuple[int, int], alignment: int, body: bytes) -> bytes:
    raw = _ENTRY.pack(_ENTRY.size + len(body), kind, 0, *name, 0, 0, alignment) + body
    return raw + bytes(-len(raw) % _ENTRY_ALIGNMENT)


def _splat_body(key: str, byte_length: int, splat: Splat) -> bytes:
    length = len(splat.pattern)
    if length not in _PATTERN_LENGTHS or byte_length < 0 or byte_length % length:
        raise InvalidArgumentError(f"splat parameter {key!r}: {length} bytes do not repeat to {byte_length}")
    return _SPLAT.pack(byte_length, splat.pattern.ljust(16, b"\0"), length)


def build_archive(
    parameters: Mapping[str, Contents | tuple[int, Splat]],
) -> tuple[bytes, list[tuple[int, memoryview]], int]:
    """Lay out a parameter archive.

    Args:
        parameters: By key: bytes, an array (its bytes are stored, in C order), or
            ``(byte_length, Splat)``.

    Returns:
        The bytes before the data, the file offset of each parameter's contents with the contents, and
        the length of the file.

    Raises:
        InvalidArgumentError: A value is none of these, or a splat's pattern does not fit.
    """
    names = b"".join(key.encode() for key in parameters)
    table = bytearray()
    storage: list[tuple[int, memoryview]] = []
    name_offset = data_offset = 0
    for key, value in parameters.items():
        name = (name_offset, len(key.encode()))
        name_offset += name[1]
        if isinstance(value, tuple):
            table += _entry_bytes(_TYPE_SPLAT, name, 0, _splat_body(key, *value))
            continue
        contents = _contents_view(key, value)
        data_offset = _align(data_offset, _DATA_ALIGNMENT)
        table += _entry_bytes(_TYPE_DATA, name, _DATA_ALIGNMENT, _DATA.pack(data_offset, len(contents)))
        storage.append((data_offset, contents))
        data_offset += len(contents)
    table_offset = _align(_HEADER.size, _ENTRY_ALIGNMENT)
    names_offset = table_offset + len(table)
    storage_offset = _align(names_offset + len(names), _DATA_ALIGNMENT)
    header = _HEADER.pack(
        *(_MAGIC, 0, 0, _HEADER.size, 0, 0, len(parameters)),
        *(table_offset, len(table), names_offset, len(names), storage_offset, data_offset),
    )
    head = header + bytes(table_offset - len(header)) + bytes(table) + names
    head += bytes(storage_offset - len(head))
    places = [(storage_offset + offset, contents) for offset, contents in storage]
    return head, places, _align(storage_offset + data_offset, _FILE_ALIGNMENT)


def write_archive(
    path: str | os.PathLike[str], parameters: Mapping[str, Contents | tuple[int, Splat]]
) -> pathlib.Path:
    """Write a parameter archive that IREE's tools and this package read. See `build_archive`.

    The file appears under its name only when it is complete.
    """
    target = pathlib.Path(path)
    head, places, total = build_archive(parameters)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(head)
            for offset, contents in places:
                stream.seek(offset)
                stream.write(contents)
            stream.truncate(total)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
