"""What the host sees of a GPU's memory, and the GPU of what the host writes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import InvalidArgumentError, OutOfMemoryError
from sylvite.hal import BufferRef, BufferView, MemoryAccess

PATIENCE_NS = 30 * 10**9
DOUBLE = "b[id.x] = a[id.x] * 2u;"


def dispatch(device, executable, count, *buffers, constants=()):
    recorded = device.create_command_buffer()
    refs = [item if isinstance(item, BufferRef) else BufferRef(item) for item in buffers]
    recorded.dispatch(executable, 0, (count, 1, 1), bindings=refs, constants=constants)
    recorded.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=recorded, signal=fence)
    fence.wait(PATIENCE_NS)
    recorded.close()


def words(buffer):
    return buffer.view().view(np.uint32)


def test_memory_views_that_live_see_what_kernels_write(device, load, put):
    source, result = put(np.arange(64, dtype=np.uint32)), device.allocator.allocate(256)
    seen, written = words(result), words(source)
    executable = load(DOUBLE)
    for factor in (1, 3, 5):
        written[:] = np.arange(64) * factor
        dispatch(device, executable, 64, source, result)
        np.testing.assert_array_equal(seen, np.arange(64) * factor * 2)


def test_memory_that_a_kernel_wrote_survives_views_that_live(device, load, put):
    buffer = put(np.arange(64, dtype=np.uint32))
    view = words(buffer)
    executable = load("a[id.x] = a[id.x] + 1u;", bindings=("write",))
    recorded = device.create_command_buffer()
    recorded.dispatch(executable, 0, (64, 1, 1), bindings=[BufferRef(buffer)])
    recorded.finalize()
    fences = [device.create_fence() for _ in range(20)]
    for fence in fences:
        device.queue_execute(command_buffer=recorded, signal=fence)
    for fence in fences:
        fence.wait(PATIENCE_NS)
    np.testing.assert_array_equal(view, np.arange(64) + 20)


def test_memory_written_in_parts_by_host_and_device_is_whole(device, load, put):
    buffer = put(np.zeros(64, np.uint32))
    executable = load("a[id.x] = 7u;", bindings=("write",))
    dispatch(device, executable, 32, buffer)
    part = buffer.view(128 + 5, 3)
    part[:] = 9
    dispatch(device, executable, 16, buffer)
    del part
    expected = np.zeros(256, np.uint8)
    expected[:128:4] = 7
    expected[133:136] = 9
    assert buffer.read() == expected.tobytes()


def test_memory_of_arrays_that_come_back_is_used_as_it_is(device, load):
    array = device.allocate((4, 16), np.uint32)
    array[:] = np.arange(64).reshape(4, 16)
    tail = array[2:]
    copied = device.tracer.counters.bytes_copied
    buffer = device.allocator.import_host(tail, copy=False)
    assert buffer is not None
    assert device.tracer.counters.bytes_copied == copied
    result = device.allocator.allocate(128)
    dispatch(device, load(DOUBLE), 32, buffer, result)
    np.testing.assert_array_equal(words(result), np.arange(32, 64) * 2)
    assert device.allocator.import_host(np.zeros(4), copy=False) is None


def test_memory_large_images_are_dropped_once_uploaded(device, load, put):
    data = np.arange(1 << 20, dtype=np.uint32)
    source, result = put(data), device.allocator.allocate(data.nbytes)
    dispatch(device, load("b[id.x] = a[id.x] + 1u;", size=64), data.size // 64, source, result)
    assert source.storage._image is None
    np.testing.assert_array_equal(words(source), data)
    np.testing.assert_array_equal(words(result), data + 1)


def test_memory_read_only_views_are_not_uploaded(device, load, put):
    buffer, result = put(np.arange(16, dtype=np.uint32)), device.allocator.allocate(64)
    executable = load(DOUBLE)
    view = buffer.view(access=MemoryAccess.READ)
    dispatch(device, executable, 16, buffer, result)
    copied = device.tracer.counters.bytes_copied
    dispatch(device, executable, 16, buffer, result)
    assert device.tracer.counters.bytes_copied == copied
    assert view.size == 64


def test_memory_of_dead_storages_is_used_again(device):
    first = device.allocator.allocate(300_000)
    place = first.storage.buffer
    del first
    gc.collect()
    assert device.allocator.allocate(299_000).storage.buffer is place
    device.allocator.trim()


def test_memory_has_no_addresses(device):
    buffer = device.allocator.allocate(16)
    with pytest.raises(InvalidArgumentError, match="no address"):
        _ = buffer.address


def test_memory_beyond_the_limit_names_both(device):
    limit = device.limits["max-buffer-size"]
    with pytest.raises(OutOfMemoryError, match=str(limit)) as caught:
        device.allocator.allocate(limit + 1)
    assert (caught.value.requested_bytes, caught.value.limit_bytes) == (limit + 1, limit)


def test_memory_above_the_default_binding_limit_is_bound(device, load):
    count = (160 << 20) // 4
    buffer = device.allocator.allocate(4 * count)
    dispatch(
        device, load("a[u.c0] = u.c0;", bindings=("write",), constants=1), 1, buffer, constants=[count - 1]
    )
    assert buffer.read(4 * (count - 1), 4) == (count - 1).to_bytes(4, "little")


def test_memory_of_another_device_is_refused(device, load):
    executable = load(DOUBLE)
    with drivers.create_device("null") as other, pytest.raises(InvalidArgumentError, match="another device"):
        dispatch(device, executable, 1, other.allocator.allocate(16), device.allocator.allocate(16))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_memory_of_empty_and_scalar_arrays(device, load, shape):
    view = BufferView.from_numpy(device.allocator, np.full(shape, 3, np.uint32))
    result = device.allocator.allocate(16)
    dispatch(device, load("if (arrayLength(&a) > 0u) { b[0] = a[0]; }"), 1, view.buffer, result)
    assert view.numpy().shape == shape
    assert words(result)[0] == (3 if shape == () else 0)
