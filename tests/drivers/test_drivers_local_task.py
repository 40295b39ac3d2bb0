"""The device with threads: the same bits as local-sync whatever the workers do, and failures that end."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time

import numpy as np
import pytest
from tests.drivers.local_side import (
    BUFFERS,
    FORMAT,
    I32,
    PATIENCE_NS,
    WORDS,
    WORKGROUP,
    Side,
    member,
    push_binding,
    push_linear_id,
)

from sylvite import drivers
from sylvite.abi import structs
from sylvite.drivers.local.sequencer import FILL_PART_BYTES
from sylvite.engines.base import Limits
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    KernelError,
    TrapError,
)
from sylvite.hal import BufferRef, Fence


def mix(function):
    """``target[id] = target[id] * 31 + source[(id * 7 + 3) % WORDS]``."""
    number = function.local(I32, "number")
    push_linear_id(function)
    function.set(number)
    push_binding(function, 0)
    function.get(number).i32(4).emit("i32.mul").emit("i32.add")
    push_binding(function, 0)
    function.get(number).i32(4).emit("i32.mul").emit("i32.add").emit("i32.load")
    function.i32(31).emit("i32.mul")
    push_binding(function, 1)
    function.get(number).i32(7).emit("i32.mul").i32(3).emit("i32.add").i32(WORDS).emit("i32.rem_u")
    function.i32(4).emit("i32.mul").emit("i32.add").emit("i32.load").emit("i32.add")
    function.emit("i32.store").i32(0)


def fail_at(number, then):
    """A kernel whose workgroup ``number`` does ``then``; the others return 0."""

    def body(function):
        push_linear_id(function)
        function.i32(number).emit("i32.eq")
        with function.if_():
            then(function)
        function.i32(0)

    return body


def forever(function):
    with function.loop() as again:
        function.br(again)


def divide_by_zero(function):
    function.i32(1).i32(0).emit("i32.div_s").emit("drop")


def reach_out(function):
    function.i32(-4).emit("i32.load").emit("drop")


def write_worker(function):
    """``target[id] = 1 + the worker's number``, slowly enough that others get some."""
    left = function.local(I32, "left")
    push_binding(function, 0)
    push_linear_id(function)
    function.i32(4).emit("i32.mul").emit("i32.add")
    function.i32(20000).set(left)
    with function.loop() as again:
        function.get(left).i32(1).emit("i32.sub").tee(left)
        function.br_if(again)
    member(function, WORKGROUP, "processor_id", structs.WORKGROUP_STATE).i32(1).emit("i32.add")
    function.emit("i32.store").i32(0)


KERNELS = {
    "mix": mix,
    "trap": fail_at(5, divide_by_zero),
    "reach": fail_at(5, reach_out),
    "code": fail_at(7, lambda function: function.i32(-3).emit("return")),
    "hang": fail_at(3, forever),
    "all_hang": forever,
    "worker": write_worker,
}


@pytest.fixture
def wasm(build_executable):
    def body_of(body):
        def with_end(function):
            body(function)
            if body is forever:
                function.emit("unreachable")

        return with_end

    counts = {"mix": 2, "worker": 1}
    kernels = [
        {"name": name, "body": body_of(body), "attributes": {"binding_count": counts.get(name, 0)}}
        for name, body in KERNELS.items()
    ]
    return build_executable(kernels).build()


def random_grid(chance):
    limit = chance.choice([1, 2, 40, 700, WORDS])
    x = chance.randint(1, limit)
    y = chance.randint(1, max(1, limit // x))
    return x, y, chance.randint(1, max(1, limit // (x * y)))


def record_randomly(side, seed, *, is_indirect):
    """A command buffer of random segments; within a segment commands do not depend on each other."""
    chance = random.Random(seed)
    command_buffer = side.device.create_command_buffer(binding_capacity=BUFFERS)

    def ref(index, offset=0, length=-1):
        return (
            BufferRef(None, index, offset, length)
            if is_indirect
            else BufferRef(side.data[index], 0, offset, length)
        )

    ordinal = side.executable.lookup("mix")
    for _ in range(chance.randint(1, 8)):
        indices = list(range(BUFFERS))
        chance.shuffle(indices)
        sources, targets = indices[:3], indices[3:]
        for target in targets[: chance.randint(1, 3)]:
            source = chance.choice(sources)
            kind = chance.randint(0, 9)
            if kind == 0:
                size = chance.choice([1, 2, 4, 8])
                length = size * chance.randint(0, WORDS // 4)
                pattern = bytes(chance.randrange(256) for _ in range(size))
                command_buffer.fill_buffer(ref(target, size * chance.randint(0, 9), length), pattern)
            elif kind == 1:
                length = chance.randint(0, 4 * WORDS - 64)
                command_buffer.copy_buffer(ref(source, 8, length), ref(target, chance.randint(0, 56), length))
            elif kind == 2:
                data = chance.randbytes(chance.randint(1, 300))
                command_buffer.update_buffer(data, 0, ref(target, chance.randint(0, 99), len(data)))
            else:
                command_buffer.dispatch(
                    side.executable, ordinal, random_grid(chance), bindings=[ref(target), ref(source)]
                )
        command_buffer.execution_barrier()
    command_buffer.finalize()
    return command_buffer


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_submissions_give_the_bits_of_local_sync(wasm, count):
    chance = random.Random(17)
    uris = ["local-task://1", "local-task://2", "local-task://4", "local-sync?commands=interpreted"]
    with Side(wasm, "local-sync") as reference:
        reference.data = reference.buffers(1)
        sides = [Side(wasm, uri) for uri in uris]
        for side in sides:
            side.data = side.buffers(1)
        fences = [None] * len(sides)
        for number in range(count):
            is_indirect = chance.random() < 0.5
            for index, side in enumerate([reference, *sides]):
                commands = record_randomly(side, number, is_indirect=is_indirect)
                table = [BufferRef(buffer) for buffer in side.data] if is_indirect else ()
                wait = fences[index - 1] if index else None
                fence = side.start(commands, wait, table)
                if index:
                    fences[index - 1] = fence
            if number % 10 == 9:
                for side, fence in zip(sides, fences, strict=True):
                    fence.wait(PATIENCE_NS)
                    for expected, got in zip(reference.data, side.data, strict=True):
                        assert expected.read() == got.read(), (number, side.device.name)
        for side in sides:
            side.device.close()


@pytest.mark.parametrize("uri", ["local-sync", "local-task://2", "local-task://3"])
@pytest.mark.parametrize("is_indirect", [False, True])
def test_fills_of_many_parts_write_their_range_and_nothing_else(wasm, uri, is_indirect):
    chance = random.Random(5)
    with Side(wasm, uri) as side:
        mixed = [BufferRef(buffer) for buffer in side.buffers(1)[:2]]
        mix = side.executable.lookup("mix")
        total = 5 * FILL_PART_BYTES
        target = side.device.allocator.allocate(total)
        for length in (FILL_PART_BYTES, FILL_PART_BYTES + 8, 3 * FILL_PART_BYTES - 8, total - 64):
            for size in (1, 2, 4, 8):
                pattern = bytes(chance.randrange(256) for _ in range(size))
                commands = side.device.create_command_buffer(binding_capacity=1)
                place = BufferRef(None, 0, 32, length) if is_indirect else BufferRef(target, 0, 32, length)
                # A dispatch of several workgroups, without which nobody else is woken.
                commands.dispatch(side.executable, mix, (64, 2, 1), bindings=mixed)
                commands.fill_buffer(place, pattern)
                commands.finalize()
                expected = np.zeros(total, np.uint8)
                expected[32 : 32 + length] = np.frombuffer(pattern * (length // size), np.uint8)
                for _ in range(3):
                    target.write(0, bytes(total))
                    fence = side.start(commands, None, [BufferRef(target)] if is_indirect else ())
                    fence.wait(PATIENCE_NS)
                    np.testing.assert_array_equal(np.frombuffer(target.read(), np.uint8), expected)


def test_several_workers_share_a_dispatch(wasm):
    with Side(wasm, "local-task://3") as side:
        target = side.device.allocator.allocate(4 * 256)
        for _ in range(50):
            side.run("worker", (256, 1, 1), [BufferRef(target)])
            seen = set(np.frombuffer(target.read(), np.int32).tolist())
            assert seen <= {1, 2, 3}
            if len(seen) > 1:
                return
        raise AssertionError("only one worker ever did anything")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("trap", TrapError), ("reach", TrapError), ("code", KernelError)],
    ids=["trap", "reach", "code"],
)
def test_failure_in_any_worker_names_the_kernel_and_leaves_the_device_usable(wasm, name, expected):
    with Side(wasm, "local-task://3") as side:
        data = side.buffers(1)
        for _ in range(60):
            with pytest.raises(expected) as caught:
                side.run(name, (40, 1, 1))
            assert caught.value.kernel == name
            # Collecting the workers is bounded; what runs next is not.
            assert side.device.space.store.state.deadline_ns is None
            side.run("mix", (64, 2, 1), [BufferRef(data[0]), BufferRef(data[1])])


@pytest.mark.parametrize("name", ["hang", "all_hang"])
def test_deadline_stops_all_workers_and_leaves_the_device_usable(wasm, name):
    with Side(wasm, "local-task://3", limits=Limits(deadline_ns=40_000_000)) as side:
        data = side.buffers(1)
        for _ in range(4):
            with pytest.raises(DeadlineExceededError) as caught:
                side.run(name, (40, 1, 1))
            assert caught.value.kernel == name
            side.run("mix", (64, 2, 1), [BufferRef(data[0]), BufferRef(data[1])])


def test_submission_returns_before_it_is_done_and_chains_on_a_timeline(wasm):
    with Side(wasm, "local-task://2") as side:
        target = side.device.allocator.allocate(4 * WORDS)
        slow = side.record("worker", (WORDS, 1, 1), [BufferRef(target)])
        semaphore = side.device.create_semaphore()
        for value in range(1, 6):
            side.device.queue_execute(
                command_buffer=slow,
                wait=Fence([(semaphore, value - 1)]) if value > 1 else None,
                signal=Fence([(semaphore, value)]),
            )
        assert semaphore.query() < 5
        semaphore.wait(5, PATIENCE_NS)


def test_close_waits_for_what_runs_and_fails_what_waits(wasm):
    side = Side(wasm, "local-task://2")
    target = side.device.allocator.allocate(4 * WORDS)
    slow = side.record("worker", (WORDS, 1, 1), [BufferRef(target)])
    fences = [side.start(slow) for _ in range(4)]
    side.device.close()
    side.device.close()
    outcomes = []
    for fence in fences:
        try:
            fence.wait(0)
            outcomes.append("done")
        except ClosedError:
            outcomes.append("closed")
    assert outcomes == sorted(outcomes, reverse=True)
    assert outcomes[-1] == "closed"
    with pytest.raises(ClosedError):
        side.start(slow)


def test_close_at_random_moments_never_hangs(wasm):
    chance = random.Random(3)
    for round_number in range(15):
        side = Side(wasm, f"local-task://{chance.randint(1, 4)}", limits=Limits(deadline_ns=20_000_000))
        data = side.buffers(round_number)
        names = [chance.choice(["mix", "trap", "code", "hang"]) for _ in range(chance.randint(1, 5))]
        bindings = [BufferRef(data[0]), BufferRef(data[1])]
        fences = [
            side.start(side.record(name, (50, 1, 1), bindings if name == "mix" else ())) for name in names
        ]
        time.sleep(chance.random() * 0.03)
        closer = threading.Thread(target=side.device.close)
        closer.start()
        closer.join(30)
        assert not closer.is_alive()
        for fence in fences:
            with contextlib.suppress(TrapError, KernelError, DeadlineExceededError, ClosedError):
                fence.wait(0)


def test_threads_end_with_the_device(wasm):
    before = threading.active_count()
    side = Side(wasm, "local-task://3")
    data = side.buffers(1)
    side.run("mix", (64, 1, 1), [BufferRef(data[0]), BufferRef(data[1])])
    assert threading.active_count() >= before + 3
    del side, data
    gc.collect()
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_loading_while_work_is_under_way_waits_for_it(wasm):
    with Side(wasm, "local-task://3") as side:
        target = side.device.allocator.allocate(4 * WORDS)
        slow = side.record("worker", (WORDS, 1, 1), [BufferRef(target)])
        for _ in range(5):
            fence = side.start(slow)
            other = side.device.create_executable(format=FORMAT, data=wasm)
            other.close()
            fence.wait(PATIENCE_NS)


def test_spans_have_a_row_for_each_worker(wasm):
    with Side(wasm, "local-task://2") as side:
        target = side.device.allocator.allocate(4 * WORDS)
        spans = []
        with side.device.tracer.listen(spans.append):
            for _ in range(20):
                side.run("worker", (512, 1, 1), [BufferRef(target)])
        assert {span.name for span in spans} == {"worker"}
        assert {span.track for span in spans} <= {"worker 0", "worker 1"}
        assert sum(span.attributes["done_here"] for span in spans) == 20 * 512
        count = len(spans)
        side.run("worker", (512, 1, 1), [BufferRef(target)])
        assert len(spans) == count


def test_one_submission_is_one_engine_call(wasm):
    for uri in ("local-sync", "local-task://2"):
        with Side(wasm, uri) as side:
            side.data = side.buffers(1)
            commands = record_randomly(side, 5, is_indirect=False)
            before = side.device.tracer.counters.snapshot()
            side.start(commands).wait(PATIENCE_NS)
            after = side.device.tracer.counters.snapshot()
            assert after["engine_calls"] - before["engine_calls"] == 1
            assert after["dispatches"] > before["dispatches"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("local-task://0", "1 to 256 workers"),
        ("local-task://many", "not a number"),
        ("local-task://2?pin=100000", "cannot be used"),
        ("local-sync://2", "takes nothing after"),
        ("local-sync?workers=2", "no options workers"),
        ("local-sync?commands=guessed", "must be one of"),
    ],
)
def test_device_options_that_make_no_sense_are_refused(uri, message):
    with pytest.raises(InvalidArgumentError, match=message):
        drivers.create_device(uri)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not pin threads")
def test_pinned_workers_run(wasm):
    first = min(os.sched_getaffinity(0))
    for options in ({"pin": [first]}, {"pin": True}):
        with Side(wasm, "local-task", workers=2, **options) as side:
            data = side.buffers(1)
            side.run("mix", (64, 1, 1), [BufferRef(data[0]), BufferRef(data[1])])
    assert first in os.sched_getaffinity(0)


def test_overflow_of_any_workers_stack_traps_and_says_so(build_executable):
    # The index of the import is known once something was built with it.
    pointer = build_executable([]).module.import_global("env", "__stack_pointer", I32, mutable=True)

    def take(function):
        function.emit("global.get", pointer).i32((1 << 16) + 16).emit("i32.sub").emit("global.set", pointer)
        function.emit("global.get", pointer).i32(1).emit("i32.store")
        function.i32(0)

    builder = build_executable([{"name": "take", "body": take, "attributes": {}}])
    builder.module.import_global("env", "__stack_pointer", I32, mutable=True)
    with Side(builder.build(), "local-task://3?stack_bytes=65536") as side:
        messages = set()
        for _ in range(40):
            with pytest.raises(TrapError) as caught:
                side.run("take", (WORDS, 1, 1))
            messages.add(caught.value.message)
        assert all("pass a larger stack_bytes" in message for message in messages), messages
