"""Files in memory and on disk."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sylvite.errors import ClosedError, FormatError, InvalidArgumentError, NotFoundError
from sylvite.hal import File, MemoryAccess


def test_file_from_memory_is_not_copied():
    data = bytearray(b"0123456789")
    file = File.from_memory(data, access=MemoryAccess.READ | MemoryAccess.WRITE)
    file.range(2, 3, MemoryAccess.WRITE)[:] = b"abc"
    assert data == b"01abc56789"
    assert file.byte_length == 10


def test_file_from_path_reads_and_writes_the_file(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"hello world")
    with File.from_path(path) as file:
        assert bytes(file.range(6, -1, MemoryAccess.READ)) == b"world"
        with pytest.raises(InvalidArgumentError, match="allows"):
            file.range(0, 1, MemoryAccess.WRITE)
    with File.from_path(path, access=MemoryAccess.READ | MemoryAccess.WRITE) as file:
        file.range(0, 5, MemoryAccess.WRITE)[:] = b"HELLO"
    assert path.read_bytes() == b"HELLO world"


def test_file_empty_on_disk_has_no_bytes(tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert File.from_path(path).range(0, -1, MemoryAccess.READ).nbytes == 0


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 11), (11, 0), (5, 6)])
def test_file_range_outside_is_refused(offset, length):
    with pytest.raises(InvalidArgumentError, match="10 bytes"):
        File.from_memory(b"0123456789").range(offset, length, MemoryAccess.READ)


def test_file_missing_or_read_only_memory_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match="nowhere"):
        File.from_path(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="read-only"):
        File.from_memory(b"x", access=MemoryAccess.WRITE)
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        File.from_memory(np.arange(6, dtype=np.uint8)[::2])


def test_file_after_close_raises_and_ranges_stay(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"hello")
    file = File.from_path(path)
    data = file.range(0, 5, MemoryAccess.READ)
    file.close()
    file.close()
    with pytest.raises(ClosedError):
        file.range(0, 1, MemoryAccess.READ)
    assert bytes(data) == b"hello"


needs_preadv = pytest.mark.skipif(not hasattr(os, "preadv"), reason="files are mapped here, not read")


@needs_preadv
def test_open_file_reads_into_a_place_and_outlives_its_name(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(100)))
    opened = File.from_path(path).opened
    path.unlink()
    target = bytearray(10)
    opened.read_into(memoryview(target)[2:6], 40)
    assert target == bytes([0, 0, 40, 41, 42, 43, 0, 0, 0, 0])


@needs_preadv
def test_open_file_that_was_cut_short_says_where(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(1 << 16))
    opened = File.from_path(path).opened
    os.truncate(path, 1000)
    with pytest.raises(FormatError, match="cut short") as caught:
        opened.read_into(memoryview(bytearray(600)), 600)
    assert (caught.value.offset, caught.value.where) == (1000, str(path))


def test_open_file_is_not_used_where_queues_write(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"hello")
    assert File.from_path(path, access=MemoryAccess.READ | MemoryAccess.WRITE).opened is None
    assert File.from_memory(b"hello").opened is None
