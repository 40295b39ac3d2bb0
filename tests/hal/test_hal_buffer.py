"""Buffers and their views over memory of the host (null device)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from sylvite import drivers, hal
from sylvite.errors import ClosedError, InvalidArgumentError
from sylvite.hal import BufferUsage, MemoryAccess, MemoryType


@pytest.fixture
def device():
    with drivers.create_device("null") as device:
        yield device


@pytest.fixture
def allocator(device):
    return device.allocator


def test_buffer_write_then_read_returns_what_was_written(allocator):
    buffer = allocator.allocate(16)
    buffer.write(4, b"abcd")
    assert buffer.read(3, 6) == b"\0abcd\0"
    assert buffer.byte_length == 16


@pytest.mark.parametrize(
    "data",
    [b"", b"ab", bytearray(b"ab"), np.arange(3, dtype=np.complex64), np.zeros((2, 0)), np.float32([1, 2])],
    ids=lambda data: type(data).__name__,
)
def test_buffer_write_takes_any_contiguous_bytes(allocator, data):
    buffer = allocator.allocate(64)
    buffer.write(0, data)
    expected = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    assert buffer.read(0, len(expected)) == expected


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], np.arange(8)[::2], memoryview(b"abcd")[::2]])
def test_buffer_write_of_anything_else_is_refused(allocator, data):
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        allocator.allocate(64).write(0, data)


def test_buffer_map_is_memory_of_the_buffer(allocator):
    buffer = allocator.allocate(8)
    mapping = buffer.map(MemoryAccess.ALL, offset=2, length=3)
    mapping[:] = b"xyz"
    assert buffer.read() == b"\0\0xyz\0\0\0"
    with pytest.raises(TypeError):
        buffer.map(MemoryAccess.READ)[0] = 1


def test_buffer_subspan_shares_storage_and_offsets(allocator):
    buffer = allocator.allocate(64)
    inner = buffer.subspan(16, 32).subspan(8)
    assert (inner.byte_offset, inner.byte_length) == (24, 24)
    assert inner.allocated_buffer is buffer
    assert inner.address == buffer.address + 24
    inner.fill(b"\7")
    assert buffer.read() == bytes(24) + b"\7" * 24 + bytes(16)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (65, 0), (0, 65), (60, 5), (0, -2), (1 << 64, 1)])
def test_buffer_range_outside_is_refused(allocator, offset, length):
    buffer = allocator.allocate(64)
    with pytest.raises(InvalidArgumentError, match="64 bytes"):
        buffer.subspan(offset, length)
    with pytest.raises(InvalidArgumentError, match="64 bytes"):
        buffer.view(offset, length)


def test_buffer_of_zero_bytes_has_empty_views(allocator):
    buffer = allocator.allocate(0)
    assert buffer.read() == b""
    assert buffer.map().nbytes == 0
    assert hal.BufferView(buffer, (0, 3), hal.element_type_from_name("f32")).numpy().shape == (0, 3)


def test_buffer_read_only_gives_read_only_views(allocator):
    buffer = allocator.allocate(8, access=MemoryAccess.READ)
    assert not buffer.view().flags.writeable
    with pytest.raises(InvalidArgumentError, match="allows"):
        buffer.write(0, b"x")
    with pytest.raises(InvalidArgumentError, match="allows"):
        buffer.view(access=MemoryAccess.WRITE)


def test_buffer_invisible_to_the_host_cannot_be_mapped(allocator):
    storage = allocator.allocate(8).storage
    buffer = hal.Buffer(storage, memory_type=MemoryType.DEVICE_LOCAL, allowed_usage=BufferUsage.DEFAULT)
    with pytest.raises(InvalidArgumentError, match="not visible to the host"):
        buffer.map()


def test_buffer_after_close_raises_and_subspans_stay(allocator):
    buffer = allocator.allocate(8)
    inner = buffer.subspan(4)
    buffer.write(4, b"abcd")
    buffer.close()
    buffer.close()
    for use in (buffer.read, buffer.map, lambda: buffer.subspan(0), lambda: buffer.address):
        with pytest.raises(ClosedError):
            use()
    assert inner.read() == b"abcd"


def test_buffer_storage_is_freed_with_the_last_view(allocator):
    buffer = allocator.allocate(64, tag="seen")
    inner = buffer.subspan(8)
    array = inner.view()
    mapping = buffer.map(MemoryAccess.ALL)
    mapping[8] = 42
    assert allocator.statistics.by_tag == {"seen": 64}
    del buffer, inner, mapping
    gc.collect()
    assert allocator.statistics.live_count == 1
    assert array[0] == 42
    derived = array[:4].view(np.float32)
    del array
    assert allocator.statistics.live_count == 1
    del derived
    assert allocator.statistics.live_count == 0
    assert allocator.statistics.by_tag == {}


def test_buffer_fill_pattern_must_divide(allocator):
    buffer = allocator.allocate(10)
    buffer.fill(b"ab")
    assert buffer.read() == b"ab" * 5
    for pattern in (b"abcd", b""):
        with pytest.raises(InvalidArgumentError, match="pattern"):
            buffer.fill(pattern)


def test_allocator_statistics_count_live_peak_and_tags(allocator):
    first = allocator.allocate(100, tag="a")
    second = allocator.allocate(50, tag="b")
    third = allocator.allocate(50, tag="b")
    del second
    statistics = allocator.statistics
    assert (statistics.live_bytes, statistics.peak_bytes) == (150, 200)
    assert (statistics.live_count, statistics.allocation_count) == (2, 3)
    assert statistics.by_tag == {"a": 100, "b": 50}
    counters = allocator.tracer.counters
    assert (counters.allocations, counters.deallocations) == (3, 1)
    del first, third
    assert allocator.statistics.live_bytes == 0


def test_allocator_negative_length_is_refused(allocator):
    with pytest.raises(InvalidArgumentError, match="-1 bytes"):
        allocator.allocate(-1)


def test_allocator_import_host_copies_and_counts(allocator):
    data = bytearray(b"0123456789")
    before = allocator.tracer.counters.bytes_copied
    assert allocator.import_host(data, copy=False) is None
    buffer = allocator.import_host(data, access=MemoryAccess.READ)
    assert allocator.tracer.counters.bytes_copied - before == 10
    data[0] = 0
    assert buffer.read() == b"0123456789"


def test_buffer_owner_count_tells_the_last_owner(allocator):
    buffer = allocator.allocate(4)
    storage = buffer.storage
    assert storage.is_terminal
    storage.preserve()
    assert not storage.is_terminal
    assert not buffer.subspan(0).storage.discard()
    assert storage.is_terminal
    assert storage.discard()
