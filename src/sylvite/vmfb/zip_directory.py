"""A strict reader of zip directories, for archives whose members are stored uncompressed.

The compiler writes modules as zip files so that any zip tool can take them apart, and the module's
own offsets rely on the members being stored as they are. So this reader accepts little: the end
record must be the last thing in the file (a file cut anywhere loses it), the directory must sit
right before it, each local header must repeat what the directory says, and members must be stored,
unencrypted, uniquely named and apart from each other.

Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
"""

from __future__ import annotations

import dataclasses
import struct
import zlib

from ..errors import FormatError, UnsupportedFeatureError

__all__ = ["Member", "is_zip", "read_directory", "verify_crc"]

MAX_MEMBERS = 1 << 16
"""More members than any module has segments; bounds the work for a hostile file."""

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_LOCAL_SIGNATURE = 0x04034B50
_CENTRAL_SIGNATURE = 0x02014B50
_END_SIGNATURE = 0x06054B50
_END64_SIGNATURE = 0x06064B50
_LOCATOR64_SIGNATURE = 0x07064B50
_END_MARK = _END_SIGNATURE.to_bytes(4, "little")
_ZIP64_EXTRA = 0x0001
_IN_ZIP64 = 0xFFFFFFFF
_UTF8_FLAG = 0x0800
_COMPRESSION_HINTS = 0x0006


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One stored file: ``offset`` and ``byte_length`` of its content in the archive."""

    name: str
    header_offset: int
    offset: int
    byte_length: int
    crc32: int

    @property
    def end(self) -> int:
        """The offset after the content."""
        return self.offset + self.byte_length


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What a local header and a directory entry have in common."""

    name: bytes
    flags: int
    method: int
    crc32: int
    compressed: int
    uncompressed: int
    header_offset: int
    end: int


def is_zip(data: memoryview) -> bool:
    """Whether ``data`` begins with a local file header."""
    return len(data) >= 4 and int.from_bytes(data[:4], "little") == _LOCAL_SIGNATURE


def read_directory(data: memoryview, *, where: str) -> tuple[Member, ...]:
    """All members in file order.

    Raises:
        FormatError: the directory is missing, inconsistent or points outside of the file.
        UnsupportedFeatureError: a member is compressed or encrypted.
    """
    return _DirectoryReader(data, where).members()


def verify_crc(data: memoryview, member: Member, *, where: str) -> None:
    """Compare a member's content with its checksum. Raises FormatError when they differ."""
    actual = zlib.crc32(data[member.offset : member.end])
    if actual != member.crc32:
        raise FormatError(
            f"content of member {member.name!r} has CRC-32 {actual:#010x}, its header says "
            f"{member.crc32:#010x}",
            offset=member.offset,
            where=where,
        )


class _DirectoryReader:
    def __init__(self, data: memoryview, where: str) -> None:
        self.data = data
        self.where = where

    def error(self, message: str, offset: int) -> FormatError:
        return FormatError(message, offset=offset, where=self.where)

    def unpack(self, layout: struct.Struct, offset: int, signature: int, what: str) -> tuple[int, ...]:
        """Read a structure that begins with ``signature``."""
        if offset < 0 or offset + layout.size > len(self.data):
            raise self.error(f"{what} reaches beyond the file of {len(self.data)} bytes", offset)
        values: tuple[int, ...] = layout.unpack_from(self.data, offset)
        if values[0] != signature:
            raise self.error(f"no {what} (signature {values[0]:#010x})", offset)
        return values

    def take(self, offset: int, byte_length: int, what: str) -> bytes:
        if offset + byte_length > len(self.data):
            raise self.error(f"{what} reaches beyond the file of {len(self.data)} bytes", offset)
        return bytes(self.data[offset : offset + byte_length])

    def signature_at(self, offset: int) -> int | None:
        return int.from_bytes(self.data[offset : offset + 4], "little") if offset >= 0 else None

    def end_record(self) -> tuple[int, int, int, int]:
        """Entry count, directory offset, directory size, and where the directory must end."""
        offset = self.find_end_record()
        _, disk, start_disk, on_disk, count, size, start, _ = self.unpack(
            _END, offset, _END_SIGNATURE, "end of central directory record"
        )
        limit = offset
        locator = offset - _LOCATOR64.size
        if (
            locator >= 0
            and int.from_bytes(self.data[locator : locator + 4], "little") == _LOCATOR64_SIGNATURE
        ):
            limit, values = self.end_record64(locator)
            _, _, _, _, disk, start_disk, on_disk, count, size, start = values
        if disk or start_disk or on_disk != count:
            raise self.error("archive is split over several disks", offset)
        return count, start, size, limit

    def find_end_record(self) -> int:
        """The end record is the last thing in the file; only a comment may follow it."""
        start = max(0, len(self.data) - _END.size - 0xFFFF)
        tail = bytes(self.data[start:])
        position = tail.rfind(_END_MARK)
        while position >= 0:
            if position + _END.size <= len(tail):
                comment_length = _END.unpack_from(tail, position)[-1]
                if position + _END.size + comment_length == len(tail):
                    return start + position
            position = tail.rfind(_END_MARK, 0, position)
        raise self.error(
            "no zip end of central directory record at the end of the file: it is cut off or has been "
            "appended to",
            len(self.data),
        )

    def end_record64(self, locator: int) -> tuple[int, tuple[int, ...]]:
        _, disk, offset, _ = self.unpack(_LOCATOR64, locator, _LOCATOR64_SIGNATURE, "zip64 locator")
        values = self.unpack(_END64, offset, _END64_SIGNATURE, "zip64 end of central directory record")
        if disk or offset + 12 + values[1] != locator:
            raise self.error("zip64 end of central directory record does not end at its locator", offset)
        return offset, values

    def members(self) -> tuple[Member, ...]:
        count, start, size, limit = self.end_record()
        if start + size != limit:
            raise self.error(f"central directory of {size} bytes does not end at {limit:#x}", start)
        if count > MAX_MEMBERS:
            raise self.error(f"{count} members, more than {MAX_MEMBERS}", limit)
        entries: list[_Entry] = []
        offset = start
        for _ in range(count):
            entry = self.central_entry(offset)
            entries.append(entry)
            offset = entry.end
        if offset != limit:
            raise self.error(f"central directory has {size} bytes but its entries end early", offset)
        members = [self.member(entry) for entry in entries]
        return self.arranged(members, start)

    def arranged(self, members: list[Member], directory: int) -> tuple[Member, ...]:
        """Members sorted by place, refusing duplicate names and overlaps."""
        members.sort(key=lambda member: member.header_offset)
        names: set[str] = set()
        end = 0
        for member in members:
            if member.name in names:
                raise self.error(f"two members named {member.name!r}", member.header_offset)
            names.add(member.name)
            if member.header_offset < end:
                raise self.error(f"member {member.name!r} overlaps its predecessor", member.header_offset)
            end = member.end
            if end > directory:
                raise self.error(f"member {member.name!r} reaches into the central directory", member.offset)
        return tuple(members)

    def member(self, entry: _Entry) -> Member:
        """Check a directory entry against the local header it points to."""
        local = self.local_entry(entry.header_offset)
        try:
            name = entry.name.decode("utf-8" if entry.flags & _UTF8_FLAG else "cp437")
        except UnicodeDecodeError as error:
            raise self.error("member name is not UTF-8", entry.header_offset) from error
        for what in ("name", "flags", "method", "crc32", "compressed", "uncompressed"):
            if getattr(local, what) != getattr(entry, what):
                raise self.error(
                    f"member {name!r}: {what} differs between local header and directory",
                    entry.header_offset,
                )
        self.check_stored(entry, name)
        return Member(
            name=name,
            header_offset=entry.header_offset,
            offset=local.end,
            byte_length=entry.uncompressed,
            crc32=entry.crc32,
        )

    def check_stored(self, entry: _Entry, name: str) -> None:
        flags = entry.flags & ~(_UTF8_FLAG | _COMPRESSION_HINTS)
        if entry.method != 0 or flags:
            raise UnsupportedFeatureError(
                f"member {name!r} is not plainly stored (method {entry.method}, flags {entry.flags:#06x}); "
                f"module archives must not be repacked",
                offset=entry.header_offset,
                where=self.where,
            )
        if entry.compressed != entry.uncompressed:
            raise self.error(
                f"stored member {name!r} has {entry.compressed} bytes of {entry.uncompressed}",
                entry.header_offset,
            )

    def central_entry(self, offset: int) -> _Entry:
        values = self.unpack(_CENTRAL, offset, _CENTRAL_SIGNATURE, "central directory entry")
        _, _, _, flags, method, _, _, crc32, compressed, uncompressed = values[:10]
        name_length, extra_length, comment_length, disk, _, _, header_offset = values[10:]
        if disk:
            raise self.error("member is on another disk", offset)
        name = self.take(offset + _CENTRAL.size, name_length, "member name")
        extra = self.take(offset + _CENTRAL.size + name_length, extra_length, "extra field")
        uncompressed, compressed, header_offset = self.zip64_values(
            extra, (uncompressed, compressed, header_offset), offset
        )
        return _Entry(
            name=name,
            flags=flags,
            method=method,
            crc32=crc32,
            compressed=compressed,
            uncompressed=uncompressed,
            header_offset=header_offset,
            end=offset + _CENTRAL.size + name_length + extra_length + comment_length,
        )

    def local_entry(self, offset: int) -> _Entry:
        values = self.unpack(_LOCAL, offset, _LOCAL_SIGNATURE, "local file header")
        _, _, flags, method, _, _, crc32, compressed, uncompressed, name_length, extra_length = values
        name = self.take(offset + _LOCAL.size, name_length, "member name")
        extra = self.take(offset + _LOCAL.size + name_length, extra_length, "extra field")
        uncompressed, compressed, _ = self.zip64_values(extra, (uncompressed, compressed, 0), offset)
        return _Entry(
            name=name,
            flags=flags,
            method=method,
            crc32=crc32,
            compressed=compressed,
            uncompressed=uncompressed,
            header_offset=offset,
            end=offset + _LOCAL.size + name_length + extra_length,
        )

    def zip64_values(self, extra: bytes, values: tuple[int, int, int], offset: int) -> list[int]:
        """Replace sentinel values by those of the zip64 extra field, in the order it stores them."""
        wanted = [i for i, value in enumerate(values) if value == _IN_ZIP64]
        result = list(values)
        if not wanted:
            return result
        body = self.zip64_body(extra, offset)
        if len(body) < 8 * len(wanted):
            raise self.error("zip64 extra field is missing or too short", offset)
        for position, index in enumerate(wanted):
            result[index] = int.from_bytes(body[8 * position : 8 * position + 8], "little")
        return result

    def zip64_body(self, extra: bytes, offset: int) -> bytes:
        position = 0
        while position + 4 <= len(extra):
            identifier, length = struct.unpack_from("<HH", extra, position)
            if position + 4 + length > len(extra):
                raise self.error("extra field reaches beyond its area", offset)
            if identifier == _ZIP64_EXTRA:
                return extra[position + 4 : position + 4 + length]
            position += 4 + length
        return b""
