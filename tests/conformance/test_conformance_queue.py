"""Queue operations: order, deferral, failure, the end of a device."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sylvite.errors import (
    ClosedError,
    InvalidArgumentError,
    KernelError,
    OutOfMemoryError,
)
from sylvite.hal import BufferRef, Fence, File, MemoryAccess

# Devices with threads of their own are not done when submitting returns.
PATIENCE_NS = 30 * 10**9

READ_WRITE = MemoryAccess.READ | MemoryAccess.WRITE


def test_queue_barrier_signals_after_its_wait(device):
    wait, signal = device.create_fence(), device.create_fence()
    device.queue_barrier(wait=wait, signal=signal)
    assert not signal.query()
    wait.signal()
    assert signal.query()
    device.queue_barrier()
    device.queue_flush()


def test_queue_transfers_do_what_command_buffers_do(device):
    source, destination = device.allocator.allocate(32), device.allocator.allocate(32)
    fences = [device.create_fence() for _ in range(4)]
    device.queue_fill(signal=fences[0], target=source, pattern=b"ab")
    device.queue_update(
        wait=fences[0], signal=fences[1], source=b"__hello", source_offset=2, target=source, target_offset=4
    )
    device.queue_copy(
        wait=fences[1],
        signal=fences[2],
        source=source,
        source_offset=2,
        target=destination,
        target_offset=1,
        length=9,
    )
    device.queue_fill(wait=fences[2], signal=fences[3], target=destination, offset=30, length=2, pattern=b"!")
    fences[3].wait(PATIENCE_NS)
    assert source.read() == b"ababhello" + b"bababababababababababab"
    assert destination.read()[1:10] == b"abhelloba"
    assert destination.read()[30:] == b"!!"


def test_queue_update_captures_its_source_though_it_waits(device):
    buffer, source = device.allocator.allocate(4), bytearray(b"good")
    wait, signal = device.create_fence(), device.create_fence()
    device.queue_update(wait=wait, signal=signal, source=source, target=buffer)
    source[:] = b"evil"
    wait.signal()
    signal.wait(PATIENCE_NS)
    assert buffer.read() == b"good"


def test_queue_reads_and_writes_files(device, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(100)))
    buffer = device.allocator.allocate(20)
    with File.from_path(path, access=READ_WRITE) as file:
        first, second = device.create_fence(), device.create_fence()
        device.queue_read(signal=first, file=file, file_offset=10, target=buffer, target_offset=4, length=8)
        device.queue_write(
            wait=first, signal=second, source=buffer, source_offset=5, file=file, file_offset=90, length=3
        )
        second.wait(PATIENCE_NS)
        for operation in (
            lambda: device.queue_read(file=file, file_offset=95, target=buffer, length=6),
            lambda: device.queue_write(source=buffer, file=file, file_offset=90),
            lambda: device.queue_read(file=file, target=buffer, length=21),
        ):
            with pytest.raises(InvalidArgumentError, match="reach beyond"):
                operation()
    assert buffer.read(4, 8) == bytes(range(10, 18))
    assert path.read_bytes() == bytes(range(90)) + bytes([11, 12, 13]) + bytes(range(93, 100))


@pytest.mark.parametrize("close", [False, True], ids=["open", "closed-meanwhile"])
def test_queue_reads_from_files_that_are_only_read(device, tmp_path, close):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)) * 500)
    buffer = device.allocator.allocate(70001)
    wait, signal = device.create_fence(), device.create_fence()
    file = File.from_path(path)
    device.queue_read(
        wait=wait, signal=signal, file=file, file_offset=7, target=buffer, target_offset=1, length=70000
    )
    if close:
        file.close()
    wait.signal()
    signal.wait(PATIENCE_NS)
    assert buffer.read(1, 70000) == path.read_bytes()[7:70007]


@pytest.mark.parametrize("reverse", [False, True], ids=["first-to-last", "last-to-first"])
def test_queue_operations_run_in_the_order_of_their_fences(device, reverse):
    buffer = device.allocator.allocate(1)
    fences = [device.create_fence() for _ in range(201)]
    order = range(200)
    for index in reversed(order) if reverse else order:
        device.queue_fill(
            wait=fences[index], signal=fences[index + 1], target=buffer, pattern=bytes([index % 256])
        )
    assert not fences[-1].query()
    fences[0].signal()
    fences[-1].wait(PATIENCE_NS)
    assert buffer.read() == bytes([199])


def test_queue_chain_of_thousands_needs_no_stack(device):
    semaphore = device.create_semaphore()
    count = 5000
    for value in range(count, 0, -1):
        device.queue_barrier(wait=Fence([(semaphore, value)]), signal=Fence([(semaphore, value + 1)]))
    semaphore.signal(1)
    assert semaphore.query() == count + 1


def test_queue_waits_for_all_of_a_joined_fence_on_one_timeline(device):
    first, second = device.create_semaphore(), device.create_semaphore()
    signal = device.create_fence()
    device.queue_barrier(wait=Fence([(first, 2), (second, 3)]), signal=signal)
    second.signal(7)
    first.signal(1)
    assert not signal.query()
    first.signal(2)
    assert signal.query()


def test_queue_failure_of_a_wait_goes_on_to_the_signal_and_skips_the_work(device):
    buffer = device.allocator.allocate(4)
    buffer.fill(b"\0")
    wait, middle, last, other = (device.create_fence() for _ in range(4))
    device.queue_fill(wait=wait, signal=middle, target=buffer, pattern=b"x")
    device.queue_barrier(wait=middle, signal=last)
    device.queue_barrier(signal=other)
    wait.fail(KernelError("upstream", code=7))
    for fence in (middle, last):
        with pytest.raises(KernelError, match="upstream"):
            fence.wait(PATIENCE_NS)
    assert other.query()
    assert buffer.read() == bytes(4)


def settle(device):
    """Wait for everything submitted before, and report what failed of it."""
    empty = device.create_command_buffer()
    empty.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=empty, signal=fence)
    fence.wait(PATIENCE_NS)
    device.queue_flush()


def execute_and_settle(device, **arguments):
    device.queue_execute(**arguments)
    settle(device)


def test_queue_failure_without_a_fence_is_raised_where_it_can_be(device):
    buffer = device.allocator.allocate(4)
    command_buffer = device.create_command_buffer(binding_capacity=1)
    command_buffer.fill_buffer(BufferRef(None, 0), b"abcd")
    command_buffer.finalize()
    bad = [BufferRef(buffer, 0, 0, 3)]
    with pytest.raises(InvalidArgumentError, match="fill target"):
        execute_and_settle(device, command_buffer=command_buffer, binding_table=bad)
    wait = device.create_fence()
    device.queue_execute(wait=wait, command_buffer=command_buffer, binding_table=bad)
    device.queue_flush()
    wait.signal()
    with pytest.raises(InvalidArgumentError, match="fill target"):
        settle(device)
    device.queue_flush()


def test_queue_signal_that_is_past_already_fails_its_fence(device):
    semaphore = device.create_semaphore(5)
    device.queue_barrier(signal=Fence([(semaphore, 3)]))
    with pytest.raises(InvalidArgumentError, match="cannot be signalled"):
        semaphore.query()


def test_queue_alloca_gives_a_buffer_to_use_after_its_signal(device):
    wait, ready, filled = (device.create_fence() for _ in range(3))
    buffer = device.queue_alloca(wait=wait, signal=ready, byte_length=64)
    assert buffer.byte_length == 64
    with pytest.raises(InvalidArgumentError, match="not allocated yet"):
        buffer.map()
    device.queue_fill(wait=ready, signal=filled, target=buffer.subspan(8, 4), pattern=b"z")
    before = device.allocator.statistics.live_bytes
    wait.signal()
    filled.wait(PATIENCE_NS)
    assert device.allocator.statistics.live_bytes == before + 64
    assert buffer.read(8, 4) == b"zzzz"


def test_queue_dealloca_frees_once_no_view_is_left(device):
    ready, gone = device.create_fence(), device.create_fence()
    buffer = device.queue_alloca(signal=ready, byte_length=64)
    ready.wait(PATIENCE_NS)
    buffer.fill(b"q")
    view = buffer.view(0, 4)
    before = device.allocator.statistics.live_bytes
    device.queue_dealloca(wait=ready, signal=gone, buffer=buffer)
    gone.wait(PATIENCE_NS)
    assert device.allocator.statistics.live_bytes == before
    assert view.tobytes() == b"qqqq"
    with pytest.raises(ClosedError, match="deallocated"):
        buffer.read()
    del view
    assert device.allocator.statistics.live_bytes == before - 64


def test_queue_dealloca_whose_wait_fails_frees_nothing(device):
    ready, wait, gone = (device.create_fence() for _ in range(3))
    buffer = device.queue_alloca(signal=ready, byte_length=16)
    device.queue_dealloca(wait=wait, signal=gone, buffer=buffer)
    wait.fail(KernelError("no", code=1))
    with pytest.raises(KernelError):
        gone.wait(PATIENCE_NS)
    buffer.write(0, b"still")


def test_queue_dealloca_of_another_buffer_leaves_it(device):
    buffer, gone = device.allocator.allocate(4), device.create_fence()
    device.queue_dealloca(signal=gone, buffer=buffer)
    gone.wait(PATIENCE_NS)
    buffer.write(0, b"here")
    assert buffer.read() == b"here"


def test_queue_alloca_execute_dealloca_cycle_does_not_grow(device, driver):
    destination = device.allocator.allocate(64)
    command_buffer = device.create_command_buffer(binding_capacity=2)
    command_buffer.fill_buffer(BufferRef(None, 0), b"k")
    command_buffer.copy_buffer(BufferRef(None, 0, 0, 64), BufferRef(None, 1, 0, 64))
    command_buffer.finalize()
    semaphore, value = device.create_semaphore(), 0
    for _ in range(30):
        point = [Fence([(semaphore, value + step)]) for step in range(4)]
        transient = device.queue_alloca(wait=point[0], signal=point[1], byte_length=64)
        table = [BufferRef(transient), BufferRef(destination)]
        device.queue_execute(
            wait=point[1], signal=point[2], command_buffer=command_buffer, binding_table=table
        )
        device.queue_dealloca(wait=point[2], signal=point[3], buffer=transient)
        value += 3
    semaphore.wait(value, PATIENCE_NS)
    assert destination.read() == b"k" * 64
    assert device.allocator.statistics.live_bytes == 64
    # Devices that run things later may have promised all of it before the first is given back.
    assert device.allocator.statistics.peak_bytes <= 64 * (
        3 if driver.startswith(("null", "local-sync")) else 31
    )


def test_queue_executes_with_buffers_that_were_closed_meanwhile(device):
    command_buffer = device.create_command_buffer(binding_capacity=1)
    command_buffer.fill_buffer(BufferRef(None, 0), b"y")
    command_buffer.finalize()
    buffer = device.allocator.allocate(4)
    seen, wait, signal = buffer.subspan(0), device.create_fence(), device.create_fence()
    device.queue_execute(
        wait=wait, signal=signal, command_buffer=command_buffer, binding_table=[BufferRef(buffer)]
    )
    buffer.close()
    wait.signal()
    signal.wait(PATIENCE_NS)
    assert seen.read() == b"yyyy"


def test_command_buffer_recorded_before_its_transient_exists_executes(target):
    device = target.device
    wait, ready = device.create_fence(), device.create_fence()
    transient = device.queue_alloca(wait=wait, signal=ready, byte_length=16)
    destination = target.buffer(16)
    command_buffer = target.recorder()
    command_buffer.fill_buffer(target.ref(transient, 0, 16), b"t")
    command_buffer.copy_buffer(target.ref(transient, 0, 16), target.ref(destination, 0, 16))
    command_buffer.finalize()
    done = target.submit(command_buffer, wait=ready)
    assert not done.query()
    wait.signal()
    done.wait(PATIENCE_NS)
    assert destination.read() == b"t" * 16


def test_queue_from_several_threads_gets_everything_right(device):
    errors = []

    def work(seed):
        try:
            for round_number in range(25):
                value = (seed * 25 + round_number) % 256
                buffer, other = device.allocator.allocate(256), device.allocator.allocate(256)
                first, second = device.create_fence(), device.create_fence()
                device.queue_copy(wait=first, signal=second, source=buffer, target=other)
                device.queue_fill(signal=first, target=buffer, pattern=bytes([value]))
                second.wait(10_000_000_000)
                np.testing.assert_array_equal(other.view(), value)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert device.allocator.statistics.live_count == 0


def test_device_close_fails_what_waits_and_refuses_the_rest(device):
    buffer = device.allocator.allocate(8)
    buffer.fill(b"v")
    view = buffer.view()
    executed = device.create_command_buffer()
    executed.finalize()
    recording = device.create_command_buffer()
    wait, signal = device.create_fence(), device.create_fence()
    device.queue_fill(wait=wait, signal=signal, target=buffer, pattern=b"w")
    device.close()
    device.close()
    assert device.closed
    with pytest.raises(ClosedError):
        signal.wait(PATIENCE_NS)
    wait.signal()
    assert view.tobytes() == b"v" * 8
    assert buffer.read() == b"v" * 8
    for use in (
        lambda: device.allocator.allocate(1),
        lambda: device.allocator.import_host(b"x"),
        lambda: device.create_command_buffer(),
        lambda: device.create_fence(),
        lambda: device.create_executable(format="x", data=b""),
        lambda: device.queue_barrier(),
        lambda: device.queue_flush(),
        lambda: device.queue_execute(command_buffer=executed),
        lambda: device.query_i64("hal.device.id", "*"),
        lambda: device.queue_alloca(byte_length=1),
    ):
        with pytest.raises(ClosedError):
            use()
    recording.close()


def test_device_close_in_a_callback_of_its_own_queue_is_survived(device):
    signal, later = device.create_fence(), device.create_fence()
    signal.on_reached(lambda _: device.close())
    device.queue_barrier(wait=signal, signal=later)
    device.queue_barrier(signal=signal)
    assert device.closed
    with pytest.raises(ClosedError):
        later.wait(PATIENCE_NS)


def test_allocation_that_is_too_large_names_its_size(device, driver):
    if driver == "null":
        pytest.skip("null devices take what the host gives")
    with pytest.raises(OutOfMemoryError, match=str(1 << 40)) as caught:
        device.allocator.allocate(1 << 40)
    assert caught.value.requested_bytes == 1 << 40
    fence = device.create_fence()
    device.queue_alloca(signal=fence, byte_length=1 << 40)
    with pytest.raises(OutOfMemoryError):
        fence.wait(PATIENCE_NS)
    device.allocator.allocate(64).write(0, b"fine")
