"""Modules that misuse the parallel runtime of local-task: typed errors, and the device goes on."""

from __future__ import annotations

import time

import numpy as np
import pytest

import halide as hl
from sylvite import drivers, wasm
from sylvite import halide as sylvite_halide
from sylvite.engines.base import Limits
from sylvite.errors import DeadlineExceededError, PipelineError, SylviteError, TrapError
from sylvite.halide import layouts
from sylvite.wasm import FunctionBuilder, ModuleBuilder, ValueType

I32 = ValueType.I32
WORKERS = 3
DEADLINE_NS = 300_000_000
SCRATCH = 4096
"""Bytes of data that a test's module may use, behind its metadata."""


@pytest.fixture(scope="module")
def device():
    limits = Limits(memory_bytes=64 << 20, deadline_ns=DEADLINE_NS)
    with drivers.create_device(f"local-task://{WORKERS}", limits=limits) as device:
        yield device


@pytest.fixture
def healthy(device):
    """A parallel pipeline that must still work after each test, and soon."""
    x, y = hl.vars("x y")
    out = hl.Func("out")
    out[x, y] = x * y
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, device=device)
    yield pipeline
    begin = time.monotonic()
    rows, columns = np.mgrid[:40, :30]
    for _ in range(5):
        np.testing.assert_array_equal(pipeline(shape=(40, 30)), rows * columns)
    assert time.monotonic() - begin < 2
    pipeline.close()


class Evil:
    """A hand-made pipeline: ``tasks`` are in the module's table slots, from ``slot(0)``.

    A loop's function is ``(context, index, closure)``, a task's ``(context, min, extent, closure, parent)``.
    """

    def __init__(self) -> None:
        self.builder = builder = ModuleBuilder("evil")
        builder.import_memory("env", "memory", 0)
        builder.import_table("env", "__indirect_function_table", 0)
        self.base = builder.import_global("env", "__memory_base", I32)
        self.table = builder.import_global("env", "__table_base", I32)
        self.par_for = builder.import_function("env", "halide_do_par_for", [I32] * 5, [I32])
        self.tasks = builder.import_function("env", "halide_do_parallel_tasks", [I32] * 4, [I32])
        self.release = builder.import_function("env", "halide_semaphore_release", [I32] * 2, [I32])
        self.acquire = builder.import_function("env", "halide_semaphore_try_acquire", [I32] * 2, [I32])
        self.lock = builder.import_function("env", "halide_mutex_lock", [I32], [])
        self.free = builder.import_function("env", "halide_free", [I32] * 2, [])
        self._functions: list[FunctionBuilder] = []
        self._data = bytearray(layouts.FILTER_METADATA.pack({"version": 1}).ljust(64, b"\0") + bytes(SCRATCH))
        self._patches: list[tuple[int, int, str]] = []

    def loop_function(self) -> FunctionBuilder:
        self._functions.append(self.builder.function(f"f{len(self._functions)}", [I32] * 3, [I32]))
        return self._functions[-1]

    def task_function(self) -> FunctionBuilder:
        self._functions.append(self.builder.function(f"f{len(self._functions)}", [I32] * 5, [I32]))
        return self._functions[-1]

    def at(self, f: FunctionBuilder, offset: int) -> FunctionBuilder:
        """Push the address of a scratch byte."""
        return f.emit("global.get", self.base).i32(64 + offset).emit("i32.add")

    def slot(self, f: FunctionBuilder, number: int) -> FunctionBuilder:
        return f.emit("global.get", self.table).i32(number).emit("i32.add")

    def store(self, f: FunctionBuilder, offset: int, value: int) -> None:
        self.at(f, offset).i32(value).emit("i32.store")

    def store_task(self, f: FunctionBuilder, offset: int, number: int | None = None, **members: int) -> None:
        """Write a ``halide_parallel_task_t``; ``semaphores`` is an offset in the scratch bytes."""
        offsets = layouts.PARALLEL_TASK.offsets
        for name, value in {"extent": 1, **members}.items():
            if name == "serial":
                self.at(f, offset).i32(value).emit("i32.store8", offset=offsets[name])
            elif name == "semaphores":
                self.at(f, offset)
                self.at(f, value).emit("i32.store", offset=offsets[name])
            else:
                self.at(f, offset).i32(value).emit("i32.store", offset=offsets[name])
        if number is not None:
            self.at(f, offset)
            self.slot(f, number).emit("i32.store", offset=offsets["fn"])

    def argv(self) -> FunctionBuilder:
        return self.builder.function("evil_argv", [I32], [I32], export=True)

    def load(self, device) -> sylvite_halide.Pipeline:
        builder = self.builder
        builder.function("evil_metadata", [], [I32], export=True).emit("global.get", self.base)
        if self._functions:
            builder.add_elements(self._functions, wasm.expression(("global.get", self.table)))
        builder.add_data(bytes(self._data), wasm.expression(("global.get", self.base)))
        builder.dylink(
            wasm.dylink.DylinkInfo(
                memory_size=len(self._data), memory_alignment=6, table_size=len(self._functions)
            )
        )
        return sylvite_halide.load(builder.build(), device=device)


def call(pipeline, error, match=None):
    """Three times, each of them soon."""
    for _ in range(3):
        begin = time.monotonic()
        with pytest.raises(error, match=match) as caught:
            pipeline()
        assert time.monotonic() - begin < 3
    return caught.value


def loop(evil: Evil, f: FunctionBuilder, number: int, extent: int, *, begin: int = 0) -> FunctionBuilder:
    f.i32(0)
    evil.slot(f, number).i32(begin).i32(extent)
    return evil.at(f, 0).call(evil.par_for)


def meet(evil: Evil, f: FunctionBuilder, count: int) -> None:
    """Wait until so many iterations are inside: each on a worker of its own."""
    evil.at(f, 1024).i32(1).emit("i32.atomic.rmw.add").emit("drop")
    with f.loop() as again:
        evil.at(f, 1024).emit("i32.atomic.load").i32(count).emit("i32.lt_s")
        f.br_if(again)


def test_iterations_run_at_the_same_time_on_as_many_workers_as_there_are(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    meet(evil, f, WORKERS)
    f.i32(0)
    argv = evil.argv()
    evil.store(argv, 1024, 0)
    loop(evil, argv, 0, WORKERS)
    assert evil.load(device)() == ()


def test_code_of_the_first_iteration_that_fails_is_returned_and_no_more_begin(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    evil.at(f, 0).i32(1).emit("i32.atomic.rmw.add").emit("drop")
    f.get(1).i32(5000).emit("i32.ge_s")
    with f.if_():
        f.i32(-77).emit("return")
    f.i32(0)
    loop(evil, evil.argv(), 0, 1_000_000_000)
    assert call(evil.load(device), PipelineError, "code -77").code == -77


@pytest.mark.parametrize("worker", ["any", "helper"])
def test_trap_in_a_loop_names_the_pipeline(device, healthy, worker):
    evil = Evil()
    f = evil.loop_function()
    if worker == "helper":
        # Worker 0 is the first to come in, and would stay.
        evil.at(f, 0).i32(1).emit("i32.atomic.rmw.add").emit("i32.eqz")
        with f.if_(), f.loop() as again:
            f.br(again)
    f.emit("unreachable")
    argv = evil.argv()
    evil.store(argv, 0, 0)
    loop(evil, argv, 0, 100)
    error = call(evil.load(device), TrapError)
    assert error.code == "unreachable"
    assert error.kernel


def test_endless_iterations_on_all_workers_meet_the_deadline(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    meet(evil, f, WORKERS + 1)
    f.i32(0)
    argv = evil.argv()
    evil.store(argv, 1024, 0)
    loop(evil, argv, 0, 100)
    assert call(evil.load(device), DeadlineExceededError).kernel


@pytest.mark.parametrize("slot", [0x7FFFFFFF, -1, 0, 100_000])
def test_loop_over_what_is_no_function_traps(device, healthy, slot):
    evil = Evil()
    argv = evil.argv()
    argv.i32(0).i32(slot).i32(0).i32(50)
    evil.at(argv, 0).call(evil.par_for)
    call(evil.load(device), TrapError)


def test_loop_over_a_function_of_another_type_traps(device, healthy):
    evil = Evil()
    evil.task_function().i32(0)
    loop(evil, evil.argv(), 0, 50)
    call(evil.load(device), TrapError)


@pytest.mark.parametrize("extent", [0, -1, -(1 << 31)])
def test_loops_of_no_iterations_run_none(device, healthy, extent):
    evil = Evil()
    evil.loop_function().emit("unreachable")
    loop(evil, evil.argv(), 0, extent)
    assert evil.load(device)() == ()


@pytest.mark.parametrize(("begin", "extent"), [(0, (1 << 31) - 1), ((1 << 31) - 5, (1 << 31) - 1)])
def test_loop_of_all_iterations_there_are_meets_the_deadline(device, healthy, begin, extent):
    evil = Evil()
    f = evil.loop_function()
    spins = f.local(I32)
    f.i32(200).set(spins)
    with f.loop() as again:
        f.get(spins).i32(1).emit("i32.sub").tee(spins)
        f.br_if(again)
    f.i32(0)
    loop(evil, evil.argv(), 0, extent, begin=begin)
    call(evil.load(device), DeadlineExceededError)


@pytest.mark.parametrize("count", [0, -1, -(1 << 31)])
def test_no_tasks_are_no_work(device, healthy, count):
    evil = Evil()
    argv = evil.argv()
    argv.i32(0).i32(count)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    assert evil.load(device)() == ()


@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1, 10_000])
def test_more_tasks_than_a_stack_holds_trap(device, healthy, count):
    evil = Evil()
    argv = evil.argv()
    argv.i32(0).i32(count)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    call(evil.load(device), TrapError)


@pytest.mark.parametrize("address", [-4, 0x7FFFFFF0, (64 << 20) - 8])
def test_tasks_outside_of_memory_trap(device, healthy, address):
    evil = Evil()
    argv = evil.argv()
    argv.i32(0).i32(2).i32(address).i32(0).call(evil.tasks)
    call(evil.load(device), TrapError)


@pytest.mark.parametrize("extent", [1, 3, 1000])
@pytest.mark.parametrize("serial", [0, 1])
def test_semaphores_outside_of_memory_trap(device, healthy, extent, serial):
    evil = Evil()
    evil.task_function().i32(0)
    argv = evil.argv()
    evil.store_task(argv, 0, 0, extent=extent, serial=serial, semaphores=256, num_semaphores=1)
    evil.store(argv, 256, -4)
    evil.store(argv, 260, 1)
    argv.i32(0).i32(1)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    call(evil.load(device), TrapError)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_semaphores_at_odd_addresses_trap(device, healthy, offset):
    evil = Evil()
    argv = evil.argv()
    evil.at(argv, offset).i32(1).call(evil.acquire)
    call(evil.load(device), TrapError)


@pytest.mark.parametrize("count", [-1, -(1 << 31)])
def test_fewer_semaphores_than_none_are_none(device, healthy, count):
    evil = Evil()
    evil.task_function().i32(0)
    argv = evil.argv()
    evil.store_task(argv, 0, 0, extent=30, semaphores=256, num_semaphores=count)
    argv.i32(0).i32(1)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    assert evil.load(device)() == ()


@pytest.mark.parametrize("semaphores", [1, 1000, (1 << 31) - 1])
@pytest.mark.parametrize("min_threads", [0, 1, 7, -3, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("serial", [0, 1])
def test_tasks_that_nobody_lets_go_on_are_reported(device, healthy, semaphores, min_threads, serial):
    evil = Evil()
    evil.task_function().emit("unreachable")
    argv = evil.argv()
    for number in range(3):
        members = {"semaphores": 512, "num_semaphores": semaphores, "min_threads": min_threads}
        evil.store_task(argv, 36 * number, 0, extent=5, serial=serial, **members)
    argv.emit("global.get", evil.base).i32(64 + 520).emit("i32.add").set(0)
    evil.at(argv, 512).get(0).emit("i32.store")
    evil.store(argv, 516, 1)
    evil.store(argv, 520, 0)
    argv.i32(0).i32(3)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    call(evil.load(device), PipelineError, "wait for each other")


@pytest.mark.parametrize("min_threads", [0, 1, 7, -3, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("serial", [0, 1])
def test_tasks_that_ask_for_odd_numbers_of_threads_run(device, healthy, min_threads, serial):
    evil = Evil()
    f = evil.task_function()
    evil.at(f, 1024).get(2).emit("i32.atomic.rmw.add").emit("drop").i32(0)
    argv = evil.argv()
    evil.store(argv, 1024, 0)
    for number in range(3):
        evil.store_task(argv, 36 * number, 0, extent=50, serial=serial, min_threads=min_threads)
    argv.i32(0).i32(3)
    evil.at(argv, 0).i32(0).call(evil.tasks)
    argv.emit("drop")
    evil.at(argv, 1024).emit("i32.load").i32(150).emit("i32.sub")
    assert evil.load(device)() == ()


@pytest.mark.parametrize("parent", [-4, 4, 0x3FFFFF0])
def test_parents_that_are_none_do_no_harm(device, healthy, parent):
    """Outside of memory they trap; inside of it they are but numbers."""
    evil = Evil()
    evil.task_function().i32(0)
    argv = evil.argv()
    evil.store_task(argv, 0, 0, extent=50, min_threads=1)
    argv.i32(0).i32(1)
    evil.at(argv, 0).i32(parent).call(evil.tasks)
    pipeline = evil.load(device)
    for _ in range(3):
        try:
            pipeline()
        except SylviteError as error:
            assert isinstance(error, (TrapError, PipelineError))  # noqa: PT017 - it may also be nothing


def test_loops_without_end_in_loops_run_out_of_stack(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    loop(evil, f, 0, 2)
    loop(evil, evil.argv(), 0, 2)
    call(evil.load(device), (TrapError, DeadlineExceededError))


def test_mutex_that_is_locked_twice_meets_the_deadline(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    evil.at(f, 512).call(evil.lock)
    f.i32(0)
    argv = evil.argv()
    evil.store(argv, 512, 0)
    loop(evil, argv, 0, 100)
    call(evil.load(device), DeadlineExceededError)


def test_semaphore_released_by_a_loop_lets_a_task_go_on(device, healthy):
    """A consumer of 300 in series, a producer that is a plain loop in a task."""
    evil = Evil()
    producer = evil.task_function()
    evil.at(producer, 512).get(2).call(evil.release).emit("drop").i32(0)
    consumer = evil.task_function()
    evil.at(consumer, 1024).get(2).emit("i32.atomic.rmw.add").emit("drop").i32(0)
    argv = evil.argv()
    evil.store(argv, 512, 0)
    evil.store(argv, 1024, 0)
    evil.store_task(argv, 0, 0, extent=300)
    evil.store_task(argv, 36, 1, extent=300, serial=1, semaphores=256, num_semaphores=1)
    evil.at(argv, 256)
    evil.at(argv, 512).emit("i32.store")
    evil.store(argv, 260, 1)
    argv.i32(0).i32(2)
    evil.at(argv, 0).i32(0).call(evil.tasks).emit("drop")
    evil.at(argv, 1024).emit("i32.load").i32(300).emit("i32.sub")
    pipeline = evil.load(device)
    for _ in range(50):
        assert pipeline() == ()


@pytest.mark.parametrize("value", [0, -1, 1 << 30])
def test_guest_that_writes_over_the_memory_around_it_is_stopped(healthy, value):
    """The scheduler's own words, the sequencer's, stacks, jobs: nothing there is trusted by the host."""
    limits = Limits(memory_bytes=64 << 20, deadline_ns=DEADLINE_NS)
    with drivers.create_device(f"local-task://{WORKERS}", limits=limits) as device:
        evil = Evil()
        f = evil.loop_function()
        at = f.local(I32)
        f.i32(64).set(at)
        with f.loop() as again:
            f.get(at).i32(value).emit("i32.store")
            f.get(at).i32(4).emit("i32.add").tee(at).emit("global.get", evil.base).emit("i32.lt_u")
            f.br_if(again)
        f.i32(0)
        loop(evil, evil.argv(), 0, 100)
        pipeline = evil.load(device)
        begin = time.monotonic()
        for _ in range(2):
            try:
                pipeline()
            except SylviteError:
                continue
        assert time.monotonic() - begin < 10


def test_freeing_in_loops_what_was_never_given_is_refused(device, healthy):
    evil = Evil()
    f = evil.loop_function()
    evil.store(f, 512, -1)
    f.i32(0)
    evil.at(f, 512 + 128).call(evil.free).i32(0)
    loop(evil, evil.argv(), 0, 100)
    call(evil.load(device), SylviteError, "never given")
