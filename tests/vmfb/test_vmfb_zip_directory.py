"""The zip directory reader: what it accepts, and archives that lie."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from archive_writer import Zip

from sylvite.errors import FormatError, UnsupportedFeatureError
from sylvite.vmfb.zip_directory import is_zip, read_directory, verify_crc


def read(data: bytes):
    return read_directory(memoryview(data), where="test.zip")


def two_members(*, zip64: bool = True, **lies) -> tuple[bytes, Zip]:
    archive = Zip(zip64=zip64)
    archive.add("first", b"11111")
    archive.add("second", b"222")
    return archive.finish(**lies), archive


@pytest.mark.parametrize("zip64", [True, False])
def test_directory_of_two_members_is_read(zip64):
    data, archive = two_members(zip64=zip64)
    first, second = read(data)
    assert (first.name, second.name) == ("first", "second")
    assert data[first.offset : first.end] == b"11111"
    assert data[second.offset : second.end] == b"222"
    assert first.header_offset == archive.places["first"]
    for member in (first, second):
        assert member.offset % 64 == 0
        verify_crc(memoryview(data), member, where="")


def test_directory_written_by_zipfile_is_read():
    """And the other way: zipfile reads what the tests' writer writes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a", b"content")
        archive.writestr("bäé", b"")
        archive.comment = b"a comment"
    data = stream.getvalue()
    assert is_zip(memoryview(data))
    members = read(data)
    assert [(m.name, m.byte_length) for m in members] == [("a", 7), ("bäé", 0)]
    ours, _ = two_members()
    with zipfile.ZipFile(io.BytesIO(ours)) as archive:
        assert archive.testzip() is None
        assert archive.read("second") == b"222"


@pytest.mark.parametrize("zip64", [True, False])
def test_directory_of_file_cut_anywhere_is_refused(zip64):
    data, _ = two_members(zip64=zip64)
    for length in range(4, len(data)):
        with pytest.raises(FormatError) as caught:
            read(data[:length])
        assert caught.value.where == "test.zip"


def test_directory_of_file_with_something_appended_is_refused():
    data, _ = two_members()
    for more in (b"\0", b"PK\5\6", b"x" * 70000):
        with pytest.raises(FormatError, match="cut off or has been appended to"):
            read(data + more)


def test_directory_of_file_with_something_before_it_is_refused():
    data, _ = two_members()
    with pytest.raises(FormatError):
        read(b"before" + data)


def test_directory_with_comment_is_read():
    archive = Zip()
    archive.add("first", b"1")
    assert len(read(archive.finish(comment=b"a comment with PK\5\6 in it"))) == 1


# (keywords for the second member, error, message)
MEMBER_LIES = [
    ({"central": {"method": 8}, "local": {"method": 8}}, UnsupportedFeatureError, "method 8"),
    ({"central": {"method": 8}}, FormatError, "method differs"),
    ({"central": {"flags": 1}, "local": {"flags": 1}}, UnsupportedFeatureError, "flags 0x0001"),
    ({"central": {"flags": 8}, "local": {"flags": 8}}, UnsupportedFeatureError, "flags 0x0008"),
    ({"central": {"crc32": 1}}, FormatError, "crc32 differs"),
    ({"local": {"crc32": 1}}, FormatError, "crc32 differs"),
    ({"central": {"uncompressed": 4}}, FormatError, "uncompressed differs"),
    ({"central": {"compressed": 4}}, FormatError, "compressed differs"),
    ({"central": {"compressed": 2}, "local": {"compressed": 2}}, FormatError, "has 2 bytes of 3"),
    (
        {"central": dict.fromkeys(("compressed", "uncompressed"), 1 << 40)}
        | {"local": dict.fromkeys(("compressed", "uncompressed"), 1 << 40)},
        FormatError,
        "reaches into the central directory",
    ),
    (
        {"central": dict.fromkeys(("compressed", "uncompressed"), (1 << 64) - 8)}
        | {"local": dict.fromkeys(("compressed", "uncompressed"), (1 << 64) - 8)},
        FormatError,
        "reaches into the central directory",
    ),
    ({"central": {"offset": 1 << 50}}, FormatError, "local file header reaches beyond"),
    ({"central": {"offset": (1 << 64) - 1}}, FormatError, "local file header reaches beyond"),
    ({"central": {"offset": 7}}, FormatError, "no local file header"),
    ({"central": {"offset": 0}}, FormatError, "name differs"),
    ({"central": {"disk": 1}}, FormatError, "on another disk"),
]


@pytest.mark.parametrize(("lie", "error", "message"), MEMBER_LIES)
def test_directory_with_lying_member_is_refused(lie, error, message):
    archive = Zip()
    archive.add("first", b"11111")
    archive.add("second", b"222", **lie)
    with pytest.raises(error, match=message) as caught:
        read(archive.finish())
    assert caught.value.offset is not None


def test_directory_with_two_members_of_one_name_is_refused():
    archive = Zip()
    archive.add("same", b"1")
    archive.add("same", b"2")
    with pytest.raises(FormatError, match="two members named 'same'"):
        read(archive.finish())


def test_directory_that_lists_a_member_twice_is_refused():
    archive = Zip()
    archive.add("first", b"1")
    archive.directory *= 2
    archive.count = 2
    with pytest.raises(FormatError, match="two members named"):
        read(archive.finish())


def test_directory_with_overlapping_members_is_refused():
    archive = Zip()
    inner = Zip()
    inner.add("inner", b"x" * 5)
    start = archive.add("outer", bytes(inner.data))
    archive.directory += inner._central(
        b"inner",
        {
            "flags": 0,
            "method": 0,
            "crc32": struct.unpack_from("<I", inner.data, 14)[0],
            "compressed": 5,
            "uncompressed": 5,
            "offset": start,
            "disk": 0,
        },
    )
    archive.count = 2
    with pytest.raises(FormatError, match="'inner' overlaps its predecessor"):
        read(archive.finish())


END_LIES = [
    ({"count": 3}, "no central directory entry"),
    ({"count": 1}, "entries end early"),
    ({"count": 1 << 40}, "more than 65536"),
    ({"size": 10}, "does not end at"),
    ({"start": 0}, "does not end at"),
    ({"start": (1 << 64) - 1}, "does not end at"),
    ({"disk": 1}, "several disks"),
    ({"record": 100}, "does not end at its locator"),
    ({"end64": 5}, "no zip64 end of central directory record"),
    ({"end64": 1 << 60}, "reaches beyond the file"),
]


@pytest.mark.parametrize(("lies", "message"), END_LIES)
def test_directory_with_lying_end_record_is_refused(lies, message):
    data, _ = two_members(**lies)
    with pytest.raises(FormatError, match=message):
        read(data)


def test_directory_without_zip64_values_is_refused():
    data, archive = two_members()
    broken = bytearray(data)
    entry = archive.places["directory"]
    extra = entry + 46 + len("first")
    assert struct.unpack_from("<H", broken, extra) == (1,)
    struct.pack_into("<H", broken, extra, 2)
    with pytest.raises(FormatError, match="zip64 extra field is missing or too short"):
        read(bytes(broken))
    struct.pack_into("<HH", broken, extra, 1, 200)
    with pytest.raises(FormatError, match="extra field reaches beyond its area"):
        read(bytes(broken))


@pytest.mark.parametrize("zip64", [True, False])
def test_directory_with_any_byte_changed_is_read_or_refused(zip64):
    data, _ = two_members(zip64=zip64)
    for position in range(4, len(data)):
        for value in (0, 0x50, 0xFF):
            changed = bytearray(data)
            changed[position] = value
            try:
                members = read(bytes(changed))
            except FormatError:
                continue
            assert all(member.end <= len(data) for member in members)
