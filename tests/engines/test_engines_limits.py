"""Deadlines, interruption, memory growth, caps and views of the wasmtime engine."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sylvite import engines
from sylvite.engines.base import Limits
from sylvite.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, OutOfMemoryError

PAGE = 65536
MILLISECOND = 1_000_000

SPIN = '(module (func $spin (export "spin") (loop br 0)) (func (export "quick")))'


# Deadlines


def test_deadline_stops_an_endless_loop_and_the_store_goes_on(engine, wat):
    with engine.create_store(Limits(deadline_ns=50 * MILLISECOND)) as store:
        exports = store.instantiate(engine.compile(wat(SPIN)), {}).exports
        for function in (exports["spin"], exports["spin"].prepare()):
            begin = time.monotonic()
            with pytest.raises(DeadlineExceededError, match="longer than 50 ms in spin"):
                function()
            assert 0.045 < time.monotonic() - begin < 5
        exports["quick"]()


def test_deadline_of_one_store_leaves_others_running(engine, wat):
    module = engine.compile(wat(SPIN))
    with engine.create_store() as patient, engine.create_store() as hasty:
        hasty.set_deadline(50 * MILLISECOND)
        outcome = []

        def run():
            try:
                patient.instantiate(module, {}).exports["spin"]()
            except DeadlineExceededError as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(3):
            with pytest.raises(DeadlineExceededError):
                hasty.instantiate(module, {}).exports["spin"]()
        assert thread.is_alive()
        while thread.is_alive():
            patient.interrupt()
            thread.join(0.05)
        assert "interrupted" in str(outcome[0])


def test_deadline_counts_every_call_anew(engine, wat):
    with engine.create_store(Limits(deadline_ns=100 * MILLISECOND)) as store:
        quick = store.instantiate(engine.compile(wat(SPIN)), {}).exports["quick"].prepare()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            quick()
            time.sleep(0.002)


def test_deadline_can_be_lifted(engine, store, wat):
    exports = store.instantiate(engine.compile(wat(SPIN)), {}).exports
    store.set_deadline(20 * MILLISECOND)
    with pytest.raises(DeadlineExceededError):
        exports["spin"]()
    store.set_deadline(None)
    exports["quick"]()


def test_deadline_covers_the_start_function(engine, wat):
    module = engine.compile(wat("(module (func $s (loop br 0)) (start $s))"))
    with (
        engine.create_store(Limits(deadline_ns=30 * MILLISECOND)) as store,
        pytest.raises(DeadlineExceededError),
    ):
        store.instantiate(module, {})


def test_deadline_watchdog_thread_ends_when_nothing_runs(wat):
    with engines.create("wasmtime") as engine, engine.create_store() as store:
        exports = store.instantiate(engine.compile(wat(SPIN)), {}).exports
        assert not engine.watchdog.running
        store.set_deadline(30 * MILLISECOND)
        exports["quick"]()
        assert engine.watchdog.running
        end = time.monotonic() + 10
        while engine.watchdog.running and time.monotonic() < end:
            time.sleep(0.01)
        assert not engine.watchdog.running
        with pytest.raises(DeadlineExceededError):
            exports["spin"]()


def test_interrupt_without_a_call_does_not_stick(engine, store, wat):
    exports = store.instantiate(engine.compile(wat(SPIN)), {}).exports
    store.interrupt()
    exports["quick"]()


@pytest.mark.parametrize("deadline_ns", [0, -5])
def test_deadline_not_positive_is_refused(store, deadline_ns):
    with pytest.raises(InvalidArgumentError):
        store.set_deadline(deadline_ns)


def test_deadline_of_an_uninterruptible_engine_is_refused(wat):
    with engines.create("wasmtime", interruptible=False) as engine:
        assert not engine.capabilities.deadlines
        with engine.create_store() as store:
            store.instantiate(engine.compile(wat(SPIN)), {}).exports["quick"]()
            with pytest.raises(InvalidArgumentError, match="interruptible"):
                store.set_deadline(5)
            with pytest.raises(InvalidArgumentError, match="interruptible"):
                store.interrupt()
        with pytest.raises(InvalidArgumentError, match="interruptible"):
            engine.create_store(Limits(deadline_ns=5))


# Memory


def test_memory_growth_does_not_move_the_base(store):
    memory = store.create_memory(minimum_pages=1, maximum_pages=65536)
    base = memory.base_address
    view = memory.view(0, 16)
    view[:] = bytes(range(16))
    for delta in (1, 100, 5000, 20000):
        memory.grow(delta)
        assert memory.base_address == base
    assert memory.byte_length == (1 + 1 + 100 + 5000 + 20000) * PAGE
    assert bytes(memory.view(0, 16)) == bytes(view) == bytes(range(16))
    last = memory.view(memory.byte_length - 4, 4)
    last[:] = b"last"
    view[0] = 99
    assert memory.view(0, 1)[0] == 99


def test_memory_growth_by_the_guest_is_seen(engine, store, wat):
    memory = store.create_memory(minimum_pages=1, maximum_pages=3)
    text = (
        '(module (import "e" "m" (memory 1))'
        ' (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))'
    )
    grow = store.instantiate(engine.compile(wat(text)), {("e", "m"): memory}).exports["grow"]
    base = memory.base_address
    assert grow(2) == 1
    assert memory.byte_length == 3 * PAGE
    memory.view(3 * PAGE - 1, 1)[0] = 1
    assert grow(1) == -1
    assert memory.base_address == base


def test_memory_cap_stops_host_and_guest(engine, wat):
    with engine.create_store(Limits(memory_bytes=4 * PAGE + 5)) as store:
        memory = store.create_memory(minimum_pages=1, maximum_pages=100)
        assert memory.maximum_pages == 4
        with pytest.raises(OutOfMemoryError) as caught:
            memory.grow(4)
        assert caught.value.requested_bytes == 4 * PAGE
        assert caught.value.limit_bytes == 4 * PAGE
        text = (
            '(module (import "e" "m" (memory 1))'
            ' (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))'
        )
        grow = store.instantiate(engine.compile(wat(text)), {("e", "m"): memory}).exports["grow"]
        assert grow(4) == -1
        assert grow(3) == 1
        with pytest.raises(OutOfMemoryError) as caught:
            store.create_memory(minimum_pages=5, maximum_pages=None)
        assert caught.value.limit_bytes == 4 * PAGE + 5
        with pytest.raises(OutOfMemoryError):
            store.instantiate(engine.compile(wat("(module (memory 50))")), {})


@pytest.mark.parametrize(("minimum", "maximum"), [(-1, 5), (6, 5), (0, 65537), (65537, None)])
def test_memory_sizes_out_of_range_are_refused(store, minimum, maximum):
    with pytest.raises(InvalidArgumentError):
        store.create_memory(minimum_pages=minimum, maximum_pages=maximum)


@pytest.mark.parametrize(
    ("address", "length"), [(-1, 4), (0, -1), (PAGE, 1), (PAGE - 3, 4), (0, PAGE + 1), (1 << 40, 0)]
)
def test_memory_view_outside_is_refused(store, address, length):
    memory = store.create_memory(minimum_pages=1, maximum_pages=4)
    with pytest.raises(InvalidArgumentError, match="outside the memory"):
        memory.view(address, length)
    with pytest.raises(InvalidArgumentError):
        memory.discard(address, length)


def test_memory_empty_view_at_the_end_is_fine(store):
    assert len(store.create_memory(minimum_pages=1).view(PAGE, 0)) == 0


def test_memory_view_outlives_the_closed_store(engine):
    store = engine.create_store()
    memory = store.create_memory(minimum_pages=1)
    view = memory.view(8, 4)
    view[:] = b"kept"
    store.close()
    gc.collect()
    with pytest.raises(ClosedError):
        memory.view(0, 1)
    with pytest.raises(ClosedError):
        memory.grow(1)
    assert bytes(view) == b"kept"
    view[0:1] = b"K"
    part = view[1:3]
    del view, memory, store
    gc.collect()
    assert bytes(part) == b"ep"


def test_memory_native_store_goes_with_the_last_view(engine):
    store = engine.create_store()
    memory = store.create_memory(minimum_pages=1)
    views = [memory.view(0, 4), memory.view(4, 4)]
    store.close()
    with pytest.raises(ClosedError):
        memory.view(0, 1)
    store.retain()  # still possible: the native store is there
    store.release()
    views.pop()
    store.retain()
    store.release()
    views.pop()
    gc.collect()
    with pytest.raises(ClosedError):
        store.retain()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems are not told")
def test_memory_discard_gives_whole_pages_back(store):
    memory = store.create_memory(minimum_pages=16)
    memory.view(0, 16 * PAGE)[:] = b"x" * (16 * PAGE)
    assert memory.discard(100, 8 * PAGE) == 8 * PAGE - 4096
    assert bytes(memory.view(0, 100)) == b"x" * 100
    assert bytes(memory.view(4096, 4)) == b"\0" * 4
    assert memory.discard(5, 10) == 0


def test_memory_many_stores_do_not_pile_up(engine):
    # Each reserves 4 GiB of addresses: without release this ends at the address space's limit (128 TiB).
    for _ in range(200):
        store = engine.create_store()
        store.create_memory(minimum_pages=1).view(0, 1)[0] = 1
        store.close()


@pytest.mark.parametrize(("address", "length"), [(3, 0), (100, 5000), (100, 5 << 20), (4096, 2 << 20)])
def test_memory_clear_zeroes_exactly_the_range(store, address, length):
    memory = store.create_memory(minimum_pages=128)
    size = memory.byte_length
    memory.view(0, size)[:] = b"x" * size
    memory.clear(address, length)
    expected = b"x" * address + b"\0" * length + b"x" * (size - address - length)
    assert memory.view(0, size) == expected
    with pytest.raises(InvalidArgumentError):
        memory.clear(size - 1, 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets a Linux resource limit")
def test_memory_without_address_space_is_out_of_memory():
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from sylvite import engines
from sylvite.errors import OutOfMemoryError
for shared in (False, True):
    with engines.create("wasmtime") as engine, engine.create_store() as store:
        try:
            store.create_memory(minimum_pages=1, maximum_pages=9, shared=shared)
        except OutOfMemoryError as error:
            assert "Cannot allocate" in str(error), error
            continue
        raise SystemExit("made")
with engines.create("wasmtime", reservation_bytes=1 << 28) as engine, engine.create_store() as store:
    memory = store.create_memory(minimum_pages=1, maximum_pages=65536)
    base = memory.base_address
    memory.grow(4000)
    assert memory.base_address == base
    try:
        memory.grow(200)
    except OutOfMemoryError:
        raise SystemExit(0)
    raise SystemExit("grew beyond its reservation")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("reservation_bytes", [0, 1 << 33])
def test_memory_reservation_out_of_range_is_refused(reservation_bytes):
    with pytest.raises(InvalidArgumentError, match="reservation_bytes"):
        engines.create("wasmtime", reservation_bytes=reservation_bytes)


def _repeat(function, *arguments):
    while True:
        function(*arguments)


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
def test_interrupted_by_the_keyboard_the_store_goes_on(engine, store, wat):
    text = (
        '(module (func (export "count") (param i32)'
        " (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"
    )
    function = store.instantiate(engine.compile(wat(text)), {}).exports["count"]
    for count in (function.prepare(), function):
        # Not long: the interpreter sees the signal when the guest returns.
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            _repeat(count, 10_000_000)
        count(5)
    store.close()
