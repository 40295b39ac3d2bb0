"""Submissions that run at the same time: those that need one worker, and do not wait for each other."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from tests.drivers.local_side import (
    FORMAT,
    I32,
    PATIENCE_NS,
    STATE,
    WORDS,
    Side,
    member,
    push_binding,
    push_linear_id,
)

from sylvite.abi import structs
from sylvite.engines.base import Limits
from sylvite.errors import ClosedError, DeadlineExceededError, KernelError, TrapError
from sylvite.hal import BufferRef

ALONE = (1, 1, 1)


def push_flag(function, index):
    push_binding(function, index)
    function.emit("i32.atomic.load")


def wait_until_set(function, index):
    with function.loop() as again:
        push_flag(function, index)
        function.emit("i32.eqz")
        function.br_if(again)


def meet(function):
    """Set the first flag, wait for the second."""
    push_binding(function, 0)
    function.i32(1).emit("i32.atomic.store")
    wait_until_set(function, 1)
    function.i32(0)


def await_flag(function):
    """Wait for the flag."""
    wait_until_set(function, 0)
    function.i32(0)


def exclude(function):
    """Count who is inside; set the second flag when there are two."""
    left = function.local(I32, "left")
    push_binding(function, 0)
    function.i32(1).emit("i32.atomic.rmw.add")
    with function.if_():
        push_binding(function, 1)
        function.i32(1).emit("i32.atomic.store")
    function.i32(300_000).set(left)
    with function.loop() as again:
        function.get(left).i32(1).emit("i32.sub").tee(left)
        function.br_if(again)
    push_binding(function, 0)
    function.i32(1).emit("i32.atomic.rmw.sub").emit("drop")
    function.i32(0)


def trap(function):
    function.i32(1).i32(0).emit("i32.div_s")


def code(function):
    function.i32(-3)


def hang(function):
    with function.loop() as again:
        function.br(again)
    function.emit("unreachable")


def reach(function):
    function.i32(-4).emit("i32.load")


def mix(function):
    """``target[i] = target[i] * 31 + source[i]``; workgroups take turns."""
    number = function.local(I32, "number")
    push_linear_id(function)
    function.set(number)
    with function.loop() as again:
        push_binding(function, 0)
        function.get(number).i32(2).emit("i32.shl").emit("i32.add")
        push_binding(function, 0)
        function.get(number).i32(2).emit("i32.shl").emit("i32.add").emit("i32.load")
        function.i32(31).emit("i32.mul")
        push_binding(function, 1)
        function.get(number).i32(2).emit("i32.shl").emit("i32.add").emit("i32.load").emit("i32.add")
        function.emit("i32.store")
        member(function.get(number), STATE, "workgroup_count_x", structs.DISPATCH_STATE).emit("i32.add")
        function.tee(number).i32(WORDS).emit("i32.lt_u")
        function.br_if(again)
    function.i32(0)


BINDINGS = {meet: 2, await_flag: 1, exclude: 2, mix: 2, trap: 0, code: 0, hang: 0, reach: 0}


@pytest.fixture
def wasm(build_executable):
    kernels = [
        {"name": body.__name__, "body": body, "attributes": {"binding_count": count}}
        for body, count in BINDINGS.items()
    ]
    return build_executable(kernels).build()


def flags(side, count):
    """Buffers of one word that is 0; what runs first has linked the sequencer."""
    found = [side.device.allocator.allocate(64) for _ in range(count)]
    for buffer in found:
        buffer.write(0, np.zeros(16, np.int32))
    data = side.buffers(0)
    side.run("mix", ALONE, [BufferRef(data[0]), BufferRef(data[1])])
    return found


def start_waiting(side, flag):
    """A submission that keeps the lane busy until the flag is set."""
    fence = side.start(side.record("await_flag", ALONE, [BufferRef(flag)]))
    time.sleep(0.02)
    return fence


def raise_flag(flag):
    flag.write(0, np.ones(16, np.int32))


@pytest.mark.parametrize("workers", [2, 4])
def test_independent_submissions_run_at_the_same_time(wasm, workers):
    with Side(wasm, f"local-task://{workers}", limits=Limits(deadline_ns=20 * 10**9)) as side:
        for _ in range(20):
            ring = flags(side, workers)
            commands = [
                side.record("meet", ALONE, [BufferRef(flag), BufferRef(ring[index - 1])])
                for index, flag in enumerate(ring)
            ]
            for fence in [side.start(command) for command in commands]:
                fence.wait(PATIENCE_NS)


def test_one_worker_runs_one_submission_after_another(wasm):
    with Side(wasm, "local-task://1", limits=Limits(deadline_ns=50_000_000)) as side:
        first, second = flags(side, 2)
        fences = [
            side.start(side.record("meet", ALONE, [BufferRef(own), BufferRef(other)]))
            for own, other in ((first, second), (second, first))
        ]
        with pytest.raises(DeadlineExceededError):
            fences[0].wait(PATIENCE_NS)
        fences[1].wait(PATIENCE_NS)


def test_a_command_buffer_never_runs_twice_at_a_time(wasm):
    with Side(wasm, "local-task://4") as side:
        inside, is_broken = flags(side, 2)
        command = side.record("exclude", ALONE, [BufferRef(inside), BufferRef(is_broken)])
        for fence in [side.start(command) for _ in range(40)]:
            fence.wait(PATIENCE_NS)
        assert not np.frombuffer(is_broken.read(), np.int32).any()


@pytest.mark.parametrize(
    ("name", "expected"), [("trap", TrapError), ("reach", TrapError), ("code", KernelError)]
)
def test_failure_aside_is_its_own(wasm, name, expected):
    with Side(wasm, "local-task://2") as side:
        for _ in range(20):
            (flag,) = flags(side, 1)
            slow = start_waiting(side, flag)
            failing = side.start(side.record(name, ALONE))
            with pytest.raises(expected) as caught:
                failing.wait(PATIENCE_NS)
            assert caught.value.kernel == name
            raise_flag(flag)
            slow.wait(PATIENCE_NS)


def test_deadline_aside_stops_nothing_else(wasm):
    with Side(wasm, "local-task://2") as side:
        (flag,) = flags(side, 1)
        slow = start_waiting(side, flag)
        with side.device.guard(30_000_000):
            endless = side.start(side.record("hang", ALONE))
        with pytest.raises(DeadlineExceededError) as caught:
            endless.wait(PATIENCE_NS)
        assert caught.value.kernel == "hang"
        raise_flag(flag)
        slow.wait(PATIENCE_NS)


def test_device_deadline_holds_aside(wasm):
    with Side(wasm, "local-task://3", limits=Limits(deadline_ns=60_000_000)) as side:
        flags(side, 1)
        for fence in [side.start(side.record("hang", ALONE)) for _ in range(3)]:
            with pytest.raises(DeadlineExceededError):
                fence.wait(PATIENCE_NS)


def test_loading_waits_for_what_runs_aside(wasm):
    with Side(wasm, "local-task://2") as side:
        first, second = flags(side, 2)
        fences = [start_waiting(side, flag) for flag in (first, second)]
        loaded = threading.Event()

        def load():
            side.device.create_executable(format=FORMAT, data=wasm).close()
            loaded.set()

        thread = threading.Thread(target=load)
        thread.start()
        raise_flag(first)
        fences[0].wait(PATIENCE_NS)
        assert not loaded.wait(0.05)
        raise_flag(second)
        thread.join(60)
        assert loaded.is_set()
        fences[1].wait(PATIENCE_NS)


def test_close_waits_for_what_runs_aside(wasm):
    side = Side(wasm, "local-task://2")
    first, second = flags(side, 2)
    fences = [start_waiting(side, flag) for flag in (first, second)]
    late = side.start(side.record("await_flag", ALONE, [BufferRef(first)]))
    words = [flag.view() for flag in (first, second)]
    closer = threading.Thread(target=side.device.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    for word in words:
        word[:] = 1
    closer.join(60)
    assert not closer.is_alive()
    for fence in fences:
        fence.wait(0)
    with pytest.raises(ClosedError):
        late.wait(0)


def test_spans_have_a_row_for_the_side_worker(wasm):
    with Side(wasm, "local-task://2") as side:
        first, second = flags(side, 2)
        spans = []
        with side.device.tracer.listen(spans.append):
            fences = [
                side.start(side.record("meet", ALONE, [BufferRef(own), BufferRef(other)]))
                for own, other in ((first, second), (second, first))
            ]
            for fence in fences:
                fence.wait(PATIENCE_NS)
        assert sorted(span.track for span in spans) == ["worker 0", "worker 2"]
        assert {span.name for span in spans} == {"meet"}
        (one, other) = spans
        assert max(one.begin_ns, other.begin_ns) < min(one.end_ns, other.end_ns)


@pytest.mark.parametrize("rounds", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_random_chains_side_by_side_give_the_bits_of_local_sync(wasm, rounds):
    """Each chain has buffers of its own and waits for itself only; failures in between are nobody else's."""
    chance = random.Random(5)
    uris = ["local-sync", "local-task://2", "local-task://4"]
    sides = [Side(wasm, uri) for uri in uris]
    try:
        for side in sides:
            side.chains = [side.buffers(number) for number in range(3)]
        for _ in range(rounds):
            plan = [
                (
                    chance.randrange(3),
                    chance.sample(range(6), 2),
                    chance.choice([1, 1, 1, 30]),
                    chance.random(),
                )
                for _ in range(30)
            ]
            for side in sides:
                last = {}
                failing = []
                for chain, (target, source), count, fails in plan:
                    if fails:
                        failing.append(side.start(side.record("trap", ALONE)))
                    data = side.chains[chain]
                    commands = side.record(
                        "mix", (count, 1, 1), [BufferRef(data[target]), BufferRef(data[source])]
                    )
                    last[chain] = side.start(commands, last.get(chain))
                for fence in last.values():
                    fence.wait(PATIENCE_NS)
                for fence in failing:
                    with pytest.raises(TrapError):
                        fence.wait(PATIENCE_NS)
            for side in sides[1:]:
                for expected, got in zip(sides[0].chains, side.chains, strict=True):
                    assert [buffer.read() for buffer in expected] == [buffer.read() for buffer in got]
    finally:
        for side in sides:
            side.device.close()
