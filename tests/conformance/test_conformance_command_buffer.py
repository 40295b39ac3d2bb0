"""Transfers recorded in command buffers, and the checks while recording."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import ClosedError, InvalidArgumentError
from sylvite.hal import (
    BufferRef,
    BufferUsage,
    CommandBufferMode,
    CommandBufferState,
    CommandCategory,
    MemoryAccess,
)

# Devices with threads of their own are not done when submitting returns.
PATIENCE_NS = 30 * 10**9


def test_command_buffer_empty_executes_and_signals(target, command_buffer_mode):
    command_buffer = target.recorder(mode=command_buffer_mode)
    assert command_buffer.state is CommandBufferState.RECORDING
    command_buffer.finalize()
    target.submit(command_buffer).wait(PATIENCE_NS)


FILLS = [
    (1, 0, 1),
    (1, 3, 5),
    (1, 0, 1000),
    (2, 0, 2),
    (2, 6, 10),
    (4, 0, 4),
    (4, 8, 400),
    (8, 0, 8),
    (8, 64, 512),
    (1, 10, 0),
    (4, 100, -1),
]


@pytest.mark.parametrize(("pattern_length", "offset", "length"), FILLS)
def test_fill_writes_its_range_and_nothing_else(target, pattern_length, offset, length):
    buffer = target.buffer(np.full(1000, 0xEE, np.uint8))
    pattern = bytes(range(1, pattern_length + 1))
    command_buffer = target.recorder()
    command_buffer.fill_buffer(target.ref(buffer, offset, length), pattern)
    target.run(command_buffer)
    end = 1000 if length < 0 else offset + length
    expected = b"\xee" * offset + pattern * ((end - offset) // pattern_length) + b"\xee" * (1000 - end)
    assert buffer.read() == expected


@pytest.mark.parametrize(
    ("pattern", "offset", "length", "message"),
    [
        (b"", 0, 4, "1, 2, 4 or 8 bytes"),
        (b"abc", 0, 3, "1, 2, 4 or 8 bytes"),
        (b"ab", 1, 2, "multiple"),
        (b"abcd", 0, 6, "multiple"),
    ],
)
def test_fill_with_unfit_pattern_is_refused(target, pattern, offset, length, message):
    command_buffer = target.recorder()
    with pytest.raises(InvalidArgumentError, match=message):
        command_buffer.fill_buffer(target.ref(target.buffer(64), offset, length), pattern)


def test_fill_of_a_whole_slot_that_does_not_divide_fails_the_fence(device):
    command_buffer = device.create_command_buffer(binding_capacity=1)
    command_buffer.fill_buffer(BufferRef(None, 0), b"abcd")
    command_buffer.finalize()
    fence = device.create_fence()
    device.queue_execute(
        command_buffer=command_buffer, binding_table=[BufferRef(device.allocator.allocate(6))], signal=fence
    )
    with pytest.raises(InvalidArgumentError, match="fill target"):
        fence.wait(PATIENCE_NS)


@pytest.mark.parametrize(("offset", "length"), [(0, -1), (0, 16), (5, 7), (16, 0)])
def test_update_writes_bytes_captured_when_recorded(target, offset, length):
    buffer = target.buffer(64)
    source = bytearray(range(16))
    command_buffer = target.recorder()
    command_buffer.update_buffer(source, offset, target.ref(buffer, 20, length))
    source[:] = bytes(16)
    target.run(command_buffer)
    written = bytes(range(16))[offset:] if length < 0 else bytes(range(16))[offset : offset + length]
    assert buffer.read() == bytes(20) + written + bytes(44 - len(written))


def test_update_beyond_its_source_is_refused(target):
    with pytest.raises(InvalidArgumentError, match="update source"):
        target.recorder().update_buffer(b"abcd", 2, target.ref(target.buffer(8), 0, 4))


def test_update_of_a_subspan_writes_to_its_place(target):
    buffer = target.buffer(16)
    command_buffer = target.recorder()
    command_buffer.update_buffer(b"abcd", 0, target.ref(buffer.subspan(4, 8), 2))
    target.run(command_buffer)
    assert buffer.read() == bytes(6) + b"abcd" + bytes(6)


@pytest.mark.parametrize(
    ("source_offset", "target_offset", "length"),
    [(0, 0, 64), (3, 7, 20), (63, 0, 1), (10, 20, 0), (0, 0, -1)],
)
def test_copy_moves_its_range(target, source_offset, target_offset, length):
    data = np.arange(64, dtype=np.uint8)
    source, destination = target.buffer(data), target.buffer(64)
    command_buffer = target.recorder()
    command_buffer.copy_buffer(
        target.ref(source, source_offset, length), target.ref(destination, target_offset, length)
    )
    target.run(command_buffer)
    count = 64 if length < 0 else length
    expected = np.zeros(64, np.uint8)
    expected[target_offset : target_offset + count] = data[source_offset : source_offset + count]
    assert destination.read() == expected.tobytes()
    assert source.read() == data.tobytes()


def test_copy_of_large_and_unaligned_ranges(target):
    data = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)
    source, destination = target.buffer(data), target.buffer(data.size)
    command_buffer = target.recorder()
    command_buffer.copy_buffer(
        target.ref(source, 1, data.size - 5), target.ref(destination, 3, data.size - 5)
    )
    target.run(command_buffer)
    np.testing.assert_array_equal(destination.view()[3:-2], data[1:-4])


def test_copy_of_overlapping_or_unequal_ranges_is_refused(target):
    buffer = target.buffer(64)
    command_buffer = target.recorder()
    with pytest.raises(InvalidArgumentError, match="do not fill"):
        command_buffer.copy_buffer(BufferRef(buffer, 0, 0, 8), BufferRef(buffer, 0, 32, 9))
    with pytest.raises(InvalidArgumentError, match="overlap"):
        command_buffer.copy_buffer(BufferRef(buffer, 0, 0, 8), BufferRef(buffer.subspan(4), 0, 3, 8))
    command_buffer.copy_buffer(BufferRef(buffer, 0, 0, 8), BufferRef(buffer, 0, 8, 8))


def test_copy_between_slots_of_one_buffer_that_overlap_fails_the_fence(device):
    command_buffer = device.create_command_buffer(binding_capacity=2)
    command_buffer.copy_buffer(BufferRef(None, 0, 0, 8), BufferRef(None, 1, 4, 8))
    command_buffer.finalize()
    buffer, fence = device.allocator.allocate(16), device.create_fence()
    device.queue_execute(command_buffer=command_buffer, binding_table=[BufferRef(buffer)] * 2, signal=fence)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        fence.wait(PATIENCE_NS)


def test_commands_run_in_order(target):
    buffer, other = target.buffer(16), target.buffer(16)
    command_buffer = target.recorder(mode=CommandBufferMode.DEFAULT)
    command_buffer.begin_debug_group("all")
    command_buffer.fill_buffer(target.ref(buffer), b"a")
    command_buffer.execution_barrier()
    command_buffer.copy_buffer(target.ref(buffer, 0, 8), target.ref(other, 8, 8))
    command_buffer.execution_barrier()
    command_buffer.advise_buffer(target.ref(buffer))
    command_buffer.update_buffer(b"zz", 0, target.ref(other, 10))
    command_buffer.end_debug_group()
    target.run(command_buffer)
    assert other.read() == bytes(8) + b"aazzaaaa"
    assert len(command_buffer.commands) == 8


def test_command_buffer_is_executed_many_times(target):
    source, destination = target.buffer(np.zeros(4, np.uint8)), target.buffer(4)
    command_buffer = target.recorder()
    command_buffer.copy_buffer(target.ref(source), target.ref(destination))
    command_buffer.finalize()
    for value in range(50):
        source.fill(bytes([value]))
        target.submit(command_buffer).wait(PATIENCE_NS)
        assert destination.read() == bytes([value]) * 4


def test_command_buffer_holds_thousands_of_commands(target):
    buffer = target.buffer(4000)
    command_buffer = target.recorder()
    ref = target.ref(buffer, 0, -1)
    for index in range(2000):
        piece = BufferRef(ref.buffer, ref.slot, 2 * index, 2)
        command_buffer.fill_buffer(piece, index.to_bytes(2, "little"))
    target.run(command_buffer)
    np.testing.assert_array_equal(buffer.view().view(np.uint16), np.arange(2000))


def test_command_buffer_one_shot_is_spent_by_one_submission(target):
    command_buffer = target.recorder(mode=CommandBufferMode.ONE_SHOT)
    target.run(command_buffer)
    with pytest.raises(InvalidArgumentError, match="spent"):
        target.submit(command_buffer)


def test_command_buffer_keeps_what_it_recorded_alive(target):
    buffer = target.buffer(4)
    seen = buffer.subspan(0)
    command_buffer = target.recorder()
    command_buffer.fill_buffer(BufferRef(buffer), b"x")
    buffer.close()
    target.run(command_buffer)
    assert seen.read() == b"xxxx"
    live = target.allocator.statistics.live_count
    del seen, buffer
    assert target.allocator.statistics.live_count == live
    command_buffer.close()
    assert target.allocator.statistics.live_count == live - 1


def test_command_buffer_wrong_state_is_refused(target):
    command_buffer = target.recorder()
    with pytest.raises(InvalidArgumentError, match="recording"):
        target.submit(command_buffer)
    with pytest.raises(InvalidArgumentError, match="no debug group"):
        command_buffer.end_debug_group()
    command_buffer.begin_debug_group("open")
    with pytest.raises(InvalidArgumentError, match="still open"):
        command_buffer.finalize()
    command_buffer.end_debug_group()
    command_buffer.finalize()
    for record in (command_buffer.finalize, command_buffer.execution_barrier):
        with pytest.raises(InvalidArgumentError, match="executable"):
            record()
    command_buffer.close()
    command_buffer.close()
    for use in (command_buffer.execution_barrier, lambda: target.submit(command_buffer)):
        with pytest.raises(ClosedError):
            use()


def test_command_of_another_category_is_refused(target):
    command_buffer = target.recorder(categories=CommandCategory.DISPATCH)
    with pytest.raises(InvalidArgumentError, match="TRANSFER"):
        command_buffer.fill_buffer(target.ref(target.buffer(4)), b"x")


def fill_and_submit(target, command_buffer, reference):
    """Direct references are refused when recorded, indirect ones when submitted."""
    command_buffer.fill_buffer(reference, b"x")
    command_buffer.finalize()
    target.submit(command_buffer)


@pytest.mark.parametrize(("offset", "length"), [(60, 5), (65, 0), (-1, 1), (0, -2), (1 << 40, 1)])
def test_range_outside_of_its_buffer_is_refused(target, offset, length):
    command_buffer = target.recorder()
    command_buffer_refs = target.ref(target.buffer(64), offset, length)
    with pytest.raises(InvalidArgumentError, match=r"fill target|slot"):
        fill_and_submit(target, command_buffer, command_buffer_refs)


def test_buffer_of_another_usage_is_refused(target):
    buffer = target.allocator.allocate(64, usage=BufferUsage.TRANSFER_SOURCE)
    command_buffer = target.recorder()
    reference = target.ref(buffer)
    with pytest.raises(InvalidArgumentError, match="TRANSFER_TARGET"):
        fill_and_submit(target, command_buffer, reference)


def test_buffer_that_is_read_only_is_not_written(target):
    buffer = target.allocator.allocate(64, access=MemoryAccess.READ)
    command_buffer = target.recorder()
    reference = target.ref(buffer)
    with pytest.raises(InvalidArgumentError, match="WRITE"):
        fill_and_submit(target, command_buffer, reference)


def test_binding_table_that_does_not_fit_is_refused(device):
    command_buffer = device.create_command_buffer(binding_capacity=3)
    with pytest.raises(InvalidArgumentError, match="slot 3"):
        command_buffer.fill_buffer(BufferRef(None, 3), b"x")
    command_buffer.fill_buffer(BufferRef(None, 1, 4, 8), b"abcd")
    command_buffer.finalize()
    buffer = device.allocator.allocate(64)
    good = BufferRef(buffer, 0, 8, 16)
    for table, message in [
        ([], "slot 1"),
        ([good], "slot 1"),
        ([good, BufferRef()], "slot 1"),
        ([good, BufferRef(buffer, 0, 60)], "reach 12 bytes"),
        ([good, BufferRef(buffer, 0, 60, 8)], "reach beyond"),
        ([good, BufferRef(buffer, 0, 2)], "multiple of 4"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            device.queue_execute(command_buffer=command_buffer, binding_table=table)
    done = device.create_fence()
    device.queue_execute(command_buffer=command_buffer, binding_table=[BufferRef(), good], signal=done)
    done.wait(PATIENCE_NS)
    assert buffer.read(8, 16) == bytes(4) + b"abcdabcd" + bytes(4)
    buffer.close()
    with pytest.raises(ClosedError):
        device.queue_execute(command_buffer=command_buffer, binding_table=[good, good])


def test_command_buffer_of_another_device_is_refused(device, driver):
    with drivers.create_device("null" if driver != "null" else "local-sync") as other:
        command_buffer = other.create_command_buffer()
        command_buffer.finalize()
        with pytest.raises(InvalidArgumentError, match="another"):
            device.queue_execute(command_buffer=command_buffer)
