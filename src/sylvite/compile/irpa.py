"""Writing IREE parameter archives (.irpa).

One archive header, an entry table, the names, then the tensors, each aligned to 64 bytes so that a reader
can map them. Tensors are written one at a time; only one is in memory.

Source: IREE parameter archive format 0.0, ``iree/schemas/parameter_archive.h``.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["ParameterEntry", "write_archive"]

_MAGIC = 0x41505249
_HEADER = struct.Struct("<IHHQQQ Q QQ QQ QQ")
_ENTRY = struct.Struct("<QIQ QQ QQ Q QQ")
_ENTRY_ALIGNMENT = 16
_ENTRY_TYPE_DATA = 2
_DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEntry:
    """A tensor to be written: its name, its length in bytes, and a function that produces its bytes."""

    name: str
    byte_length: int
    load: Callable[[], bytes]


def write_archive(path: Path, entries: Sequence[ParameterEntry]) -> None:
    """Write ``entries`` to a new file at ``path``.

    Raises:
        ValueError: an entry produced another number of bytes than it said.
    """
    names = [entry.name.encode() for entry in entries]
    entry_stride = _align(_ENTRY.size, _ENTRY_ALIGNMENT)
    entry_offset = _align(_HEADER.size, _ENTRY_ALIGNMENT)
    metadata_offset = entry_offset + entry_stride * len(entries)
    metadata_length = sum(map(len, names))
    storage_offset = _align(metadata_offset + metadata_length, _FILE_ALIGNMENT)

    data_offsets = _layout([entry.byte_length for entry in entries])
    storage_length = _align(data_offsets[-1] + entries[-1].byte_length, _DATA_ALIGNMENT) if entries else 0
    header = _HEADER.pack(
        *(_MAGIC, 0, 0, _HEADER.size, 0, 0, len(entries)),
        *(entry_offset, entry_stride * len(entries)),
        *(metadata_offset, metadata_length),
        *(storage_offset, storage_length),
    )
    with path.open("wb") as file:
        file.write(header)
        file.seek(entry_offset)
        name_offset = 0
        for entry, name, data_offset in zip(entries, names, data_offsets, strict=True):
            record = _ENTRY.pack(
                *(_ENTRY.size, _ENTRY_TYPE_DATA, 0, name_offset, len(name), 0, 0),
                *(_DATA_ALIGNMENT, data_offset, entry.byte_length),
            )
            file.write(record.ljust(entry_stride, b"\0"))
            name_offset += len(name)
        file.write(b"".join(names))
        for entry, data_offset in zip(entries, data_offsets, strict=True):
            data = entry.load()
            if len(data) != entry.byte_length:
                raise ValueError(
                    f"parameter {entry.name} has {len(data)} bytes, expected {entry.byte_length}"
                )
            file.seek(storage_offset + data_offset)
            file.write(data)
        file.truncate(_align(storage_offset + storage_length, _FILE_ALIGNMENT))


def _layout(byte_lengths: Sequence[int]) -> list[int]:
    offsets, position = [], 0
    for byte_length in byte_lengths:
        offsets.append(position)
        position = _align(position + byte_length, _DATA_ALIGNMENT)
    return offsets


def _align(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
