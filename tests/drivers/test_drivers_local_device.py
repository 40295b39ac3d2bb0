"""The local-sync device: memory, views, zero copies, limits."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sylvite import drivers
from sylvite.engines.base import Limits
from sylvite.errors import ClosedError, InvalidArgumentError, OutOfMemoryError
from sylvite.hal import BufferRef, BufferView, MemoryAccess
from sylvite.trace import Tracer

PAGE = 65536


def inside(device, array):
    """Whether an array lies in guest memory."""
    memory = device.space.memory
    first = array.__array_interface__["data"][0] - memory.base_address
    return first >= 0 and first + array.nbytes <= memory.byte_length


def test_buffers_are_slices_of_guest_memory(device):
    view = BufferView.from_numpy(device.allocator, np.arange(10, dtype=np.float32))
    array = view.numpy()
    assert inside(device, array)
    assert view.buffer.address % 64 == 0
    assert device.space.read(view.buffer.address, 40) == array.tobytes()
    array[3] = 99
    assert np.frombuffer(device.space.read(view.buffer.address, 40), np.float32)[3] == 99


def test_buffer_imported_from_guest_memory_is_not_copied(device):
    array = BufferView.from_numpy(device.allocator, np.arange(16, dtype=np.int32)).numpy()
    before = device.tracer.counters.bytes_copied
    imported = device.allocator.import_host(array[4:8], copy=False)
    assert device.tracer.counters.bytes_copied == before
    address = array.__array_interface__["data"][0] - device.space.memory.base_address
    assert imported.address == address + 16
    imported.view().view(np.int32)[:] = 7
    np.testing.assert_array_equal(array[3:9], [3, 7, 7, 7, 7, 8])
    del array
    assert device.allocator.statistics.live_count == 1
    del imported
    assert device.allocator.statistics.live_count == 0
    assert device.allocator.import_host(b"elsewhere", copy=False) is None
    assert device.allocator.import_host(b"elsewhere").read() == b"elsewhere"


def test_views_stay_right_when_memory_grows(device):
    view = BufferView.from_numpy(device.allocator, np.arange(1000, dtype=np.int64)).numpy()
    length, base = device.space.memory.byte_length, device.space.memory.base_address
    large = device.allocator.allocate(64 << 20)
    assert device.space.memory.byte_length > length
    assert device.space.memory.base_address == base
    view += 1
    np.testing.assert_array_equal(view, np.arange(1, 1001))
    large.fill(b"\xff")
    np.testing.assert_array_equal(view, np.arange(1, 1001))


def test_views_stay_right_after_close_and_collection():
    device = drivers.create_device("local-sync")
    view = BufferView.from_numpy(device.allocator, np.arange(1000, dtype=np.int64))
    buffer = device.allocator.allocate(100)
    buffer.fill(b"m")
    array, mapping = view.numpy(), buffer.map(MemoryAccess.ALL)
    device.close()
    with pytest.raises(ClosedError):
        device.allocator.allocate(1)
    assert view.numpy()[999] == 999
    del device, view, buffer
    gc.collect()
    array += 1
    assert array.sum() == 500500
    assert bytes(mapping) == b"m" * 100


def test_view_of_a_device_that_nobody_closed_stays_right():
    array = BufferView.from_numpy(drivers.create_device("local-sync").allocator, np.arange(100)).numpy()
    gc.collect()
    assert array.sum() == 4950


def test_devices_opened_and_closed_many_times_do_not_pile_up_memory():
    def mapped_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmSize:"))

    def cycle():
        with drivers.create_device("local-sync", engine=engine) as device:
            BufferView.from_numpy(device.allocator, np.ones(100_000)).numpy()

    from sylvite import engines

    engine = engines.create("wasmtime")
    for _ in range(3):
        cycle()
    gc.collect()
    before = mapped_kib()
    for _ in range(30):
        cycle()
    gc.collect()
    # One leaked store would be 4 GiB of reserved addresses.
    assert mapped_kib() - before < 4 << 20
    engine.close()


def test_allocator_reuses_what_was_freed(device):
    for _ in range(200):
        device.allocator.allocate(1 << 20).write(0, b"x")
    assert device.allocator.statistics.peak_bytes <= 2 << 20
    assert device.space.memory.byte_length < 16 << 20


def test_allocator_trim_keeps_live_contents(device):
    kept = device.allocator.allocate(100_000)
    kept.fill(b"k")
    del_me = device.allocator.allocate(10 << 20)
    del_me.fill(b"d")
    del del_me
    device.allocator.trim()
    assert kept.read() == b"k" * 100_000


def test_allocator_cap_names_requested_live_and_limit():
    with drivers.create_device("local-sync", limits=Limits(memory_bytes=64 * PAGE)) as device:
        held = device.allocator.allocate(1 << 20)
        with pytest.raises(OutOfMemoryError, match="16777216 bytes do not fit") as caught:
            device.allocator.allocate(16 << 20)
        assert caught.value.requested_bytes == 16 << 20
        assert caught.value.limit_bytes == 64 * PAGE
        live = device.space.heap.statistics.live_bytes
        assert f"{live} bytes of guest memory are live under the limit of {64 * PAGE}" in str(caught.value)
        assert live >= held.byte_length
        held.write(0, b"fine")
        assert device.allocator.statistics.live_count == 1


def test_transfer_between_devices_goes_through_the_host(device):
    with drivers.create_device("local-sync") as other:
        source = other.allocator.allocate(8)
        source.fill(b"o")
        target = device.allocator.allocate(8)
        device.queue_copy(source=source, target=target)
        assert target.read() == b"o" * 8


def test_device_options_in_the_uri_and_wrong_ones():
    with drivers.create_device("local-sync?stack_bytes=65536&maximum_pages=64") as device:
        assert device.space.stack.byte_length == 65536
        assert device.space.memory.maximum_pages == 64
    with pytest.raises(InvalidArgumentError, match="stack_bytes"):
        drivers.create_device("local-sync?stack_bytes=many")
    with pytest.raises(InvalidArgumentError, match="no options speed"):
        drivers.create_device("local-sync", speed=9)


def test_device_counts_in_the_tracer_it_is_given():
    tracer = Tracer()
    with drivers.create_device("local-sync", tracer=tracer) as device:
        BufferView.from_numpy(device.allocator, np.zeros(10, np.float32))
        assert device.tracer is tracer
    assert tracer.counters.bytes_copied == 40
    assert tracer.counters.allocations == 1


def test_releases_from_other_threads_during_allocations_are_counted_once(device):
    allocator = device.allocator

    def work(seed):
        generator = np.random.default_rng(seed)
        held = []
        for _ in range(300):
            size = int(generator.integers(0, 5000))
            buffer = allocator.allocate(size)
            buffer.fill(bytes([seed]))
            held.append((buffer.view(), seed))
            if len(held) > 10:
                view, value = held.pop(int(generator.integers(0, len(held))))
                assert np.all(view == value)

    errors = []

    def guarded(seed):
        try:
            work(seed)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    statistics = allocator.statistics
    assert (statistics.live_count, statistics.live_bytes) == (0, 0)
    assert statistics.allocation_count == 1200


def test_finalizers_that_run_inside_an_allocation_do_no_harm(device):
    """Buffers in reference cycles die whenever the collector runs, for instance inside `allocate`."""

    class Node:
        pass

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            node = Node()
            node.self = node
            node.buffer = device.allocator.allocate(1000)
    finally:
        gc.set_threshold(*before)
    del node
    gc.collect()
    assert device.allocator.statistics.live_count == 0
    assert device.space.heap.statistics.live_bytes < 4 << 20


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), st.integers(0, 300_000)),
            st.tuples(st.just("view"), st.integers(0, 1000)),
            st.tuples(st.just("drop"), st.integers(0, 1000)),
            st.tuples(st.just("drop_view"), st.integers(0, 1000)),
            st.tuples(st.just("trim"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_allocator_any_sequence_keeps_contents_apart(shared_device, steps):
    allocator = shared_device.allocator
    start = allocator.statistics.live_count
    buffers, views, number = [], [], 0
    for action, value in steps:
        if action == "allocate":
            number += 1
            buffer = allocator.allocate(value)
            buffer.fill(bytes([number % 256]))
            buffers.append((buffer, number % 256))
        elif action == "trim":
            allocator.trim()
        elif action == "view" and buffers:
            buffer, mark = buffers[value % len(buffers)]
            views.append((buffer.view(value % (buffer.byte_length + 1)), mark))
        elif action == "drop" and buffers:
            del buffers[value % len(buffers)]
        elif action == "drop_view" and views:
            del views[value % len(views)]
    for buffer, mark in buffers:
        assert np.all(buffer.view() == mark)
    assert all(np.all(view == mark) for view, mark in views)
    ranges = sorted((buffer.address, buffer.byte_length) for buffer, _ in buffers)
    for (first, length), (second, _) in itertools.pairwise(ranges):
        assert first + length <= second
    buffer = view = None
    buffers.clear()
    views.clear()
    assert allocator.statistics.live_count == start
    assert (buffer, view) == (None, None)


@pytest.fixture(scope="module")
def shared_device():
    with drivers.create_device("local-sync") as device:
        yield device


def test_command_buffer_slab_is_given_back(device):
    buffer = device.allocator.allocate(64)
    live = device.space.heap.statistics.live_count
    for close in (True, False):
        command_buffer = device.create_command_buffer()
        command_buffer.fill_buffer(BufferRef(buffer), b"x")
        command_buffer.finalize()
        assert device.space.heap.statistics.live_count == live + 1
        if close:
            command_buffer.close()
        del command_buffer
        assert device.space.heap.statistics.live_count == live
