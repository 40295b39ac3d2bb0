"""Opening .vmfb archives: find the flatbuffer, verify it, and hand out read-only data in place.

An archive is either a zip file whose first member is the module, or the module itself. The module
is a size-prefixed flatbuffer; data segments kept outside of it begin at the next multiple of 64
bytes after its end, at the offsets the flatbuffer says. In a zip file they are members of their own.

Checksums: the flatbuffer's CRC-32 is always compared; those of the other members, which may be
gigabytes of weights, with ``verify_crc=True`` only.

Source: IREE ``runtime/src/iree/vm/bytecode/archive.c`` and the compiler's archive writer (layout).
"""

from __future__ import annotations

import mmap
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import (
    ClosedError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedVersionError,
)
from . import isa, zip_directory
from .flatbuffer import Record, read_root
from .module import ModuleDef, RodataSegment, build_module
from .recognize import IDENTIFIER, recognize
from .schema import MODULE_SCHEMA, VERSION_SCHEMA
from .verifier import verify as verify_bytecode
from .zip_directory import Member

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Archive", "open_archive"]

SEGMENT_ALIGNMENT = 64
"""Alignment of the data that follows the flatbuffer, in bytes from the start of the file."""


class Archive:
    """An open module archive. Create it with `open_archive`.

    ``module`` is the decoded module and stays usable after `close`; ``verified`` says whether its bytecode
    was. Views given out by `rodata` keep the file mapped for as long as they live; `close` never
    invalidates them.
    """

    def __init__(
        self, data: memoryview, module: ModuleDef, members: tuple[Member, ...], *, verified: bool
    ) -> None:
        self._data: memoryview | None = data
        self.module = module
        self.members = members
        self.byte_length = len(data)
        self.verified = verified

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._data is None

    def rodata(self, index: int) -> memoryview:
        """Segment ``index`` as a read-only view of the file; nothing is copied.

        Raises:
            ClosedError: the archive is closed.
            InvalidArgumentError: there is no such segment.
        """
        if self._data is None:
            raise ClosedError(f"{self.module.where} is closed")
        if not 0 <= index < len(self.module.rodata):
            raise InvalidArgumentError(f"no data segment {index}: there are {len(self.module.rodata)}")
        segment = self.module.rodata[index]
        return self._data[segment.offset : segment.offset + segment.byte_length]

    def close(self) -> None:
        """Give the file back. The mapping goes with the last view of it. Idempotent."""
        # The mapping is dropped rather than closed: closing one with live views is an error.
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{self.byte_length} bytes"
        return f"<Archive {self.module.name!r} from {self.module.where} ({state})>"


def open_archive(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    where: str | None = None,
    verify: bool = True,
    verify_crc: bool = False,
) -> Archive:
    """Open a module archive.

    Args:
        source: a path, which is memory-mapped, or the bytes themselves, which are not copied. The
            file must not be changed while it is open.
        where: what to call it in messages; by default its path.
        verify: check the bytecode of all functions too (`sylvite.vmfb.verify`); else whoever translates it
            does, unless the result is known.
        verify_crc: compare the checksums of all members, not only that of the flatbuffer.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it cannot be read, or ``source`` is not contiguous bytes.
        UnsupportedVersionError: the bytecode has another version.
        FormatError: it is malformed; the offset counts from the start of the file.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return _open(_map(path), where or path, verify, verify_crc)
    try:
        data = memoryview(source).cast("B").toreadonly()
    except TypeError as error:
        raise InvalidArgumentError(f"source must be a path or contiguous bytes: {error}") from error
    return _open(data, where or "module", verify, verify_crc)


def _map(path: str) -> memoryview:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError("file is empty", offset=0, where=path)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from error


def _open(data: memoryview, where: str, verify: bool, verify_crc: bool) -> Archive:
    members: tuple[Member, ...] = ()
    start, end = 0, len(data)
    if zip_directory.is_zip(data):
        members = zip_directory.read_directory(data, where=where)
        start, end = _module_member(members, where)
        for member in members if verify_crc else members[:1]:
            zip_directory.verify_crc(data, member, where=where)
    _refuse_other_files(data, start, members, where)
    start, end, declared_end = _flatbuffer_range(data, start, end, where, is_zip=bool(members))
    root = _read_flatbuffer(data, start, end, where)
    segments = _rodata_segments(root, data, declared_end, members, where)
    module = build_module(root, data, segments, where=where)
    if verify:
        verify_bytecode(module)
    return Archive(data, module, members, verified=verify)


def _refuse_other_files(data: memoryview, start: int, members: tuple[Member, ...], where: str) -> None:
    """Refuse what is clearly another kind of file, by its name."""
    head = bytes(data[start : start + 64])
    if head[8:12] == IDENTIFIER:
        return
    if members and not members[0].name.endswith(".fb"):
        raise FormatError(
            f"not a module archive: a zip file that holds {members[0].name!r:.80}", offset=start, where=where
        )
    kind = recognize(head)
    if kind is not None and not members:
        raise FormatError(f"not a module archive: the file is {kind}", offset=start, where=where)


def _module_member(members: tuple[Member, ...], where: str) -> tuple[int, int]:
    """The range of the first member, which holds the module."""
    if not members or members[0].header_offset != 0:
        raise FormatError("archive does not begin with the module", offset=0, where=where)
    return members[0].offset, members[0].end


def _flatbuffer_range(
    data: memoryview, start: int, end: int, where: str, *, is_zip: bool
) -> tuple[int, int, int]:
    """Start and end of the flatbuffer after its size prefix, and the end that the prefix declares.

    In zip files the compiler pads the module and writes the member's size, which includes the
    prefix, where the size without it belongs. Data offsets count from the declared end.
    """
    if end - start < 16:
        raise FormatError(f"{end - start} bytes are too few for a module", offset=start, where=where)
    length = int.from_bytes(data[start : start + 4], "little")
    declared_end = start + 4 + length
    if is_zip and declared_end not in (end, end + 4):
        raise FormatError(
            f"flatbuffer of {length} bytes does not fill its zip member of {end - start}",
            offset=start,
            where=where,
        )
    if not is_zip and declared_end > end:
        raise FormatError(
            f"flatbuffer of {length} bytes reaches beyond the {end - start - 4} bytes there are",
            offset=start,
            where=where,
        )
    return start + 4, min(declared_end, end), declared_end


def _read_flatbuffer(data: memoryview, start: int, end: int, where: str) -> Record:
    """Read the module table, after making sure that it is of the version we read."""
    flatbuffer = data[start:end]
    probe = read_root(flatbuffer, VERSION_SCHEMA, file_offset=start, where=where)
    major, minor = probe["bytecode_version"] >> 16, probe["bytecode_version"] & 0xFFFF
    if major != isa.BYTECODE_VERSION[0] or minor > isa.BYTECODE_VERSION[1]:
        wanted = ".".join(map(str, isa.BYTECODE_VERSION))
        raise UnsupportedVersionError(
            f"module has bytecode version {major}.{minor}, this release reads {wanted}: compile it with "
            f"{isa.COMPILER_RELEASE}",
            offset=probe.field_offset("bytecode_version"),
            where=where,
        )
    return read_root(flatbuffer, MODULE_SCHEMA, file_offset=start, where=where)


def _rodata_segments(
    root: Record, data: memoryview, flatbuffer_end: int, members: tuple[Member, ...], where: str
) -> tuple[RodataSegment, ...]:
    base = -(-flatbuffer_end // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
    limit = members[-1].end if members else len(data)
    segments: list[RodataSegment] = []
    for ordinal, record in enumerate(root["rodata_segments"] or ()):
        segments.append(_segment(ordinal, record, base, limit, members, where))
    if not members:
        _check_bare_end(segments, flatbuffer_end, base, len(data), where)
    return tuple(segments)


def _segment(
    ordinal: int, record: Any, base: int, limit: int, members: tuple[Member, ...], where: str
) -> RodataSegment:
    embedded = record["embedded_data"]
    if embedded is not None:
        return RodataSegment(
            ordinal=ordinal,
            offset=embedded.offset,
            byte_length=embedded.length,
            is_embedded=True,
            member=None,
        )
    offset, length = base + record["external_data_offset"], record["external_data_length"]
    if offset + length > limit:
        raise FormatError(
            f"{record.path}: {length} bytes from {offset:#x} reach beyond the data, which ends at "
            f"{limit:#x}; the file may be cut off",
            offset=record.field_offset("external_data_offset"),
            where=where,
        )
    member = _member_of(members, offset, length)
    if members and length and member is None:
        raise FormatError(
            f"{record.path}: {length} bytes from {offset:#x} are not within one zip member",
            offset=record.field_offset("external_data_offset"),
            where=where,
        )
    return RodataSegment(
        ordinal=ordinal,
        offset=offset if length else base,
        byte_length=length,
        is_embedded=False,
        member=member.name if member else None,
    )


def _member_of(members: tuple[Member, ...], offset: int, length: int) -> Member | None:
    """The member that holds a range."""
    low, high = 0, len(members)
    while low < high:
        middle = (low + high) // 2
        if members[middle].end <= offset:
            low = middle + 1
        else:
            high = middle
    if low < len(members) and members[low].offset <= offset and offset + length <= members[low].end:
        return members[low]
    return None


def _check_bare_end(
    segments: list[RodataSegment], flatbuffer_end: int, base: int, length: int, where: str
) -> None:
    """A bare module ends with its flatbuffer, the padding after it, or its last segment."""
    ends = [segment.offset + segment.byte_length for segment in segments if not segment.is_embedded]
    expected = max([base, *ends])
    if length != expected and (ends or length != flatbuffer_end):
        raise FormatError(
            f"file has {length} bytes, the module in it {expected}: it is cut off or has been appended to",
            offset=min(length, expected),
            where=where,
        )
