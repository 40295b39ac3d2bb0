"""Parallel loops and asynchronous stages on the workers of local-task."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from halide_cases import CASES

import halide as hl
from sylvite import drivers
from sylvite import halide as sylvite_halide
from sylvite.engines.base import Limits
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    PipelineError,
)

pytestmark = pytest.mark.filterwarnings("ignore:The floating-point value:RuntimeWarning")
x, y, z, xo, yo, xi, yi = hl.vars("x y z xo yo xi yi")
WORKERS = 3


@pytest.fixture(scope="module")
def serial():
    with drivers.create_device("local-sync") as device:
        yield device


@pytest.fixture(scope="module")
def device():
    with drivers.create_device(f"local-task://{WORKERS}") as device:
        yield device


@pytest.fixture
def healthy(device):
    """A parallel pipeline that must still work, on every worker, after each test."""
    source = hl.ImageParam(hl.Int(32), 2, "input")
    out = hl.Func("out")
    out[x, y] = source[x, y] + 1
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, [source], device=device)
    yield pipeline
    image = np.arange(1200, dtype=np.int32).reshape(40, 30)
    np.testing.assert_array_equal(pipeline(image), image + 1)
    pipeline.close()


def both(subject, size, serial, device, **options):
    """Results without helpers and with them."""
    results = []
    for place in (serial, device):
        result = sylvite_halide.realize(subject, size, device=place, layout="reversed", **options)
        results.append(result if isinstance(result, tuple) else (result,))
    return results


def assert_same_bits(subject, size, serial, device, **options):
    want, got = both(subject, size, serial, device, **options)
    assert [array.tobytes() for array in got] == [array.tobytes() for array in want]


def rounds(pipeline, expected, until, *, most=200, **arguments):
    """Call a pipeline until something is so; every result has to be right."""
    for _ in range(most):
        np.testing.assert_array_equal(pipeline(**arguments), expected)
        if until():
            return
    raise AssertionError("it never came to that")


def slow_rows(name="out", work=2000):
    """A parallel loop whose iterations take a while, and what it gives for 64 rows."""
    out, total, r = hl.Func(name), hl.Func("total"), hl.RDom([(0, work)])
    total[x, y] = 0
    total[x, y] = total[x, y] * 3 + x + y * r.x
    out[x, y] = total[x, y]
    total.compute_at(out, y)
    out.parallel(y)
    return out


# Who does it


@pytest.mark.parametrize("features", [(), ("wasm_threads",)])
def test_parallel_loops_run_on_several_workers(serial, device, features):
    out = slow_rows()
    pipeline = sylvite_halide.compile(out, device=device, features=features)
    expected = sylvite_halide.compile(out, device=serial, features=features)(shape=(64, 16))
    assert pipeline.is_parallel
    before = pipeline.runtime.worker_iterations
    assert len(before) == WORKERS

    def all_took_part():
        return all(now > then for now, then in zip(pipeline.runtime.worker_iterations, before, strict=True))

    rounds(pipeline, expected, all_took_part, shape=(64, 16))
    after = pipeline.runtime.worker_iterations
    assert (sum(after) - sum(before)) % 64 == 0


def test_serial_pipelines_wake_nobody(device):
    out = hl.Func("out")
    out[x] = x * 2
    pipeline = sylvite_halide.compile(out, device=device)
    assert not pipeline.is_parallel
    before = pipeline.runtime.worker_iterations
    assert pipeline(shape=5).tolist() == [0, 2, 4, 6, 8]
    assert pipeline.runtime.worker_iterations == before


def test_one_worker_does_without_a_team():
    out = hl.Func("out")
    out[x, y] = x + y
    out.parallel(y)
    with drivers.create_device("local-task://1") as device:
        pipeline = sylvite_halide.compile(out, device=device)
        for _ in range(3):
            assert pipeline(shape=(2, 2)).tolist() == [[0, 1], [1, 2]]
        assert pipeline.runtime.worker_iterations == (0,)


def test_pipelines_ask_for_as_many_threads_as_there_are(device, healthy):
    assert healthy.runtime._thread_count() == WORKERS


def test_models_run_between_parallel_pipelines(device, healthy):
    """The helpers serve both; neither leaves them in a state that the other cannot use."""
    from sylvite import compile as compile_model
    from sylvite import load

    source = "func.func @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {\n"
    source += "  %0 = arith.addf %a, %a : tensor<512x512xf32>\n  return %0 : tensor<512x512xf32>\n}\n"
    image = np.arange(1200, dtype=np.int32).reshape(40, 30)
    values = np.ones((512, 512), np.float32)
    with load(compile_model(source), device=device) as model:
        for _ in range(20):
            assert (model(values) == 2).all()
            np.testing.assert_array_equal(healthy(image), image + 1)


# Against the serial runs


SAMPLE = ("schedule_async", "schedule_async_folded", "schedule_nested_parallel", "schedule_memoize",
          "schedule_ring_buffer", "app_histogram", "app_bilateral_grid", "app_conv_layer")  # fmt: skip


def assert_case_has_the_same_bits(name, serial, device):
    case = CASES[name]
    subject, sizes = case.make()
    assert_same_bits(subject, sizes, serial, device, features=case.features)


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in CASES])
def test_cases_on_workers_have_the_bits_of_one_thread(name, serial, device):
    assert_case_has_the_same_bits(name, serial, device)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_cases_on_workers_have_the_bits_of_one_thread(name, count, serial):
    with drivers.create_device(f"local-task://{count}") as device:
        for _ in range(3):
            assert_case_has_the_same_bits(name, serial, device)


def test_nested_parallel_loops_agree(serial, device, healthy):
    inner, out = hl.Func("inner"), hl.Func("out")
    inner[x, y, z] = x * y + z
    out[x, y, z] = inner[x, y, z] * 3 + inner[x + 1, y, z]
    inner.compute_at(out, z).parallel(y).parallel(x)
    out.parallel(z).parallel(y)
    for size in ((3, 4, 5), (40, 9, 17)):
        assert_same_bits(out, size, serial, device)


def _chain(count: int, fold: int | None):
    """Stages, each asynchronous to the one that uses it."""
    stages = [hl.Func(f"stage{i}") for i in range(count + 1)]
    stages[0][x, y] = x * 3 + y
    for before, stage in itertools.pairwise(stages):
        stage[x, y] = before[x, y] + before[x, y + 1] * 2
    for stage in stages[:-1]:
        stage.store_root().compute_at(stages[-1], y)
        if fold:
            stage.fold_storage(y, fold)
        stage.async_()
    return stages[-1]


def _chain_result(count: int, width: int, height: int) -> np.ndarray:
    rows, columns = np.mgrid[: height + count, :width]
    values = columns * 3 + rows
    for _ in range(count):
        values = values[:-1] + values[1:] * 2
    return values


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("fold", [None, 8])
def test_chains_of_asynchronous_stages_run_where_there_are_workers(workers, count, fold):
    """Every stage is a loop that waits in its middle, so each needs a stack of its own."""
    with drivers.create_device(f"local-task://{workers}") as device:
        pipeline = sylvite_halide.compile(_chain(count, fold), device=device)
        for size in ((33, 20), (1, 1), (200, 7)):
            expected = _chain_result(count, size[1], size[0])
            if workers > count:
                for _ in range(5):
                    np.testing.assert_array_equal(pipeline(shape=size), expected)
                continue
            try:
                np.testing.assert_array_equal(pipeline(shape=size), expected)
            except PipelineError as error:
                assert "needs more threads" in str(error)  # noqa: PT017 - it may also do without


def test_asynchronous_stages_inside_of_parallel_loops_agree(serial, device, healthy):
    producer, middle, out = hl.Func("producer"), hl.Func("middle"), hl.Func("out")
    producer[x, y, z] = x + y * z
    middle[x, y, z] = producer[x, y, z] + producer[x, y + 1, z]
    out[x, y, z] = middle[x, y, z] * 2
    out.parallel(z)
    producer.store_at(out, z).compute_at(out, y).fold_storage(y, 4).async_()
    middle.compute_at(out, y).async_()
    for _ in range(10):
        assert_same_bits(out, (16, 24, 12), serial, device)


def test_two_asynchronous_consumers_of_one_producer_agree(serial, device, healthy):
    producer, left, right, out = (hl.Func(name) for name in ("producer", "left", "right", "out"))
    producer[x, y] = x * y
    left[x, y] = producer[x, y] + 1
    right[x, y] = producer[x, y + 1] + 2
    out[x, y] = left[x, y] * right[x, y]
    for stage in (producer, left, right):
        stage.compute_root().async_()
    assert_same_bits(out, (17, 40), serial, device)


def test_atomic_updates_with_mutexes_agree(serial, device, healthy):
    """A tuple cannot be updated by one atomic instruction, so every bin has a mutex."""
    source, r = hl.Func("source"), hl.RDom([(0, 4000)])
    source[x] = (x * 7919) % 64
    sums = hl.Func("sums")
    sums[x] = (hl.i32(0), hl.i32(0))
    at = hl.clamp(source[r.x], 0, 63)
    sums[at] = (sums[at][0] + 1, sums[at][1] + r.x)
    source.compute_root()
    sums.compute_root()
    sums.update(0).atomic().parallel(r.x)
    for _ in range(3):
        assert_same_bits(sums, (64,), serial, device)


def test_memory_inside_of_parallel_loops_comes_from_every_worker(serial, device, healthy):
    parts = [hl.Func(f"part{i}") for i in range(4)]
    size = hl.Param(hl.Int(32), "size", 40)
    out = hl.Func("out")
    for i, part in enumerate(parts):
        part[x, y] = x * (i + 1) + y
    out[x, y] = sum((part[x % size, y] for part in parts[1:]), parts[0][x % (size + 1), y])
    for part in parts:
        part.compute_at(out, y)
    out.parallel(y)
    results = []
    for place in (serial, device):
        pipeline = sylvite_halide.compile(out, [size], device=place)
        results.append([pipeline(s, shape=(60, 50)) for s in (40, 1, 3000, 40)])
        held = pipeline.runtime.held_bytes
    for want, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    for _ in range(30):
        np.testing.assert_array_equal(pipeline(40, shape=(60, 50)), results[0][0])
    # Every worker keeps blocks of its own, and no more than that.
    assert pipeline.runtime.held_bytes <= WORKERS * max(held, 1 << 16)


def test_memoized_stages_in_parallel_loops_agree(serial, device, healthy):
    shift = hl.Param(hl.Int(32), "shift", 3)
    stage, out = hl.Func("stage"), hl.Func("out")
    stage[x, y] = x * y + shift
    out[x, y] = stage[x, y] + stage[x + 1, y]
    stage.compute_at(out, y).memoize()
    out.parallel(y)
    rows, columns = np.mgrid[:40, :30]
    for place in (serial, device):
        pipeline = sylvite_halide.compile(out, [shift], device=place)
        for value in (3, 3, 4, 3):
            expected = rows * (2 * columns + 1) + 2 * value
            np.testing.assert_array_equal(pipeline(value, shape=(40, 30)), expected)
        pipeline.runtime.memoization.limit_bytes = 0
        np.testing.assert_array_equal(pipeline(9, shape=(40, 30)), rows * (2 * columns + 1) + 18)
        assert pipeline.runtime.memoization.live_bytes == 0


def test_prints_from_workers_are_whole_lines(device, healthy):
    out = hl.Func("out")
    out[x, y] = hl.print(x + 100 * y, "at", x, y)
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, device=device)
    lines: list[str] = []
    pipeline.runtime.print_sink, sink = lines.append, pipeline.runtime.print_sink
    try:
        pipeline(shape=(40, 3))
    finally:
        pipeline.runtime.print_sink = sink
    wanted = sorted(f"{column + 100 * row} at {column} {row}\n" for row in range(40) for column in range(3))
    assert sorted(lines) == wanted


def test_profiles_and_traces_of_parallel_pipelines_are_complete(device, healthy):
    stage, out = hl.Func("stage"), hl.Func("out")
    stage[x, y] = x * y
    out[x, y] = stage[x, y] + 1
    stage.compute_at(out, y)
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, device=device, features=("profile", "wasm_threads"))
    pipeline(shape=(200, 3000))
    report = pipeline.runtime.profiler.reports[-1]
    assert sum(part.allocation_count for part in report.stages.values()) == 200
    stage.trace_realizations()
    traced = sylvite_halide.compile(out, device=device)
    spans = []
    with device.tracer.listen(spans.append):
        traced(shape=(50, 20))
    assert sum(span.name.startswith("realize ") for span in spans) == 50


# What goes wrong in a loop


def test_requirement_that_fails_on_any_worker_is_typed(device, healthy):
    limit = hl.Param(hl.Int(32), "limit")
    out = hl.Func("out")
    out[x, y] = hl.require(y < limit, x + y, y)
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, [limit], device=device)
    for _ in range(20):
        with pytest.raises(PipelineError, match="requirement failed") as caught:
            pipeline(90, shape=(100, 8))
        assert caught.value.reason == "requirement_failed"
        assert caught.value.code == -27
        assert pipeline(100, shape=(100, 8)).sum() == (np.mgrid[:100, :8].sum(0)).sum()


def test_failure_in_a_nested_loop_ends_the_outer_ones(device, healthy):
    inner, out = hl.Func("inner"), hl.Func("out")
    limit = hl.Param(hl.Int(32), "limit")
    inner[x, y] = hl.require(x + y < limit, x * y, x + y)
    out[x, y] = inner[x, y] + 1
    inner.compute_at(out, y).parallel(x)
    out.parallel(y)
    pipeline = sylvite_halide.compile(out, [limit], device=device)
    for limit_value in (0, 5, 60, 100):
        with pytest.raises(PipelineError, match="requirement failed"):
            pipeline(limit_value, shape=(80, 40))
    pipeline(1000, shape=(80, 40))


def test_failure_of_an_asynchronous_producer_ends_its_consumer(device, healthy):
    producer, out = hl.Func("producer"), hl.Func("out")
    limit = hl.Param(hl.Int(32), "limit")
    producer[x, y] = hl.require(y < limit, x + y, y)
    out[x, y] = producer[x, y] + producer[x, y + 1]
    producer.store_root().compute_at(out, y).fold_storage(y, 4).async_()
    pipeline = sylvite_halide.compile(out, [limit], device=device)
    for value in (0, 1, 30):
        with pytest.raises(PipelineError, match="requirement failed"):
            pipeline(value, shape=(60, 10))
    assert pipeline(100, shape=(60, 10))[59, 9] == 9 + 59 + 9 + 60


def extern_loop(device, function):
    """A parallel loop whose every row is made by a Python function ``(x values) -> row``."""
    source, stage, out = hl.Func("source"), hl.Func("stage"), hl.Func("out")
    source[x, y] = x + 100 * y
    stage.define_extern("made", [hl.ExternFuncArgument(source)], hl.Int(32), 2)
    out[x, y] = stage[x, y] + 1
    source.compute_at(out, y)
    stage.compute_at(out, y)
    out.parallel(y)
    return sylvite_halide.compile(out, device=device, externs={"made": function})


def test_extern_stages_run_in_the_threads_of_the_workers(device, healthy):
    threads = set()

    def made(values, result):
        threads.add(threading.current_thread().name)
        # Long enough for the others to take part.
        time.sleep(0.001)
        result[...] = values * 2

    pipeline = extern_loop(device, made)
    rows, columns = np.mgrid[:60, :7]
    np.testing.assert_array_equal(pipeline(shape=(60, 7)), 2 * (columns + 100 * rows) + 1)
    assert len(threads) > 1


def test_exception_of_an_extern_stage_in_a_helper_reaches_the_caller(device, healthy):
    main = threading.get_ident()
    raised = threading.Event()

    def made(values, result):
        if threading.get_ident() == main:
            raised.wait(5)
        else:
            raised.set()
            raise KeyError("mine")
        result[...] = values

    pipeline = extern_loop(device, made)
    for _ in range(3):
        raised.clear()
        with pytest.raises(KeyError, match="mine"):
            pipeline(shape=(60, 7))
        assert raised.is_set()
        assert pipeline.runtime.held_bytes == 0


def test_extern_stage_that_returns_a_code_fails_the_loop(device, healthy):
    def made(values, result):
        result[...] = values
        return -5 if values[0, 0] >= 3000 else 0

    pipeline = extern_loop(device, made)
    with pytest.raises(PipelineError, match="extern stage made failed with code -5"):
        pipeline(shape=(60, 7))


def test_helper_that_calls_its_device_is_refused(device, healthy):
    image = np.zeros((2, 2), np.int32)
    main = threading.get_ident()
    seen = threading.Event()

    def made(values, result):
        if threading.get_ident() == main:
            seen.wait(5)
        else:
            seen.set()
            healthy(image)
        result[...] = values

    with pytest.raises(InvalidArgumentError, match="helper"):
        extern_loop(device, made)(shape=(60, 7))


def test_memory_held_by_a_loop_that_failed_is_taken_back(device, healthy):
    main = threading.get_ident()

    def made(values, result):
        if threading.get_ident() != main or values[0, 0] > 1000:
            raise ValueError("mine")
        result[...] = values

    pipeline = extern_loop(device, made)
    live = []
    for _ in range(5):
        with pytest.raises(ValueError, match="mine"):
            pipeline(shape=(60, 3000))
        gc.collect()
        live.append(device.space.heap.statistics.live_bytes)
    assert live[4] <= live[1]


# Time


def endless(device):
    """A parallel loop that never ends for a count that is negative."""
    count = hl.Param(hl.Int(32), "count")
    out, r = hl.Func("out"), hl.RDom([(0, 1 << 30)])
    total = hl.Func("total")
    total[x, y] = hl.u32(0)
    total[x, y] = total[x, y] * hl.u32(1664525) + hl.u32(x + y + r.x)
    out[x, y] = total[x, y] + hl.u32(count)
    total.compute_at(out, y)
    out.parallel(y)
    return sylvite_halide.compile(out, [count], device=device)


def test_deadline_stops_all_workers(healthy):
    with drivers.create_device("local-task://3", limits=Limits(deadline_ns=100_000_000)) as device:
        pipeline = endless(device)
        for _ in range(3):
            begin = time.monotonic()
            with pytest.raises(DeadlineExceededError) as caught:
                pipeline(1, shape=(12, 4))
            assert caught.value.kernel
            assert time.monotonic() - begin < 5
        assert pipeline.runtime.held_bytes == 0


def test_guard_of_the_device_bounds_a_parallel_pipeline(device, healthy):
    pipeline = endless(device)
    for _ in range(3):
        begin = time.monotonic()
        with pytest.raises(DeadlineExceededError), device.guard(50_000_000):
            pipeline(1, shape=(12, 4))
        assert time.monotonic() - begin < 5


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_control_c_stops_all_workers(device, healthy):
    pipeline = endless(device)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pipeline(1, shape=(12, 4))
    assert time.monotonic() - begin < 5
    timer.join()


def test_device_closed_while_a_pipeline_runs_waits_for_it():
    out = slow_rows()
    device = drivers.create_device("local-task://3")
    pipeline = sylvite_halide.compile(out, device=device)
    expected = pipeline(shape=(64, 16))
    results, errors = [], []

    def run():
        try:
            for _ in range(1000):
                results.append(pipeline(shape=(64, 16)))
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while len(results) < 3 and thread.is_alive():
        time.sleep(0.001)
    device.close()
    thread.join(30)
    assert not thread.is_alive()
    assert errors
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_parallel_pipelines_of_several_threads_take_turns(device, healthy):
    subjects = []
    for number in range(3):
        out = hl.Func(f"out{number}")
        stage = hl.Func(f"stage{number}")
        stage[x, y] = x * y + number
        out[x, y] = stage[x, y] + stage[x + 1, y]
        stage.compute_root().parallel(y)
        out.parallel(y)
        subjects.append(sylvite_halide.compile(out, device=device))
    rows, columns = np.mgrid[:50, :20]
    wrong = []

    def run(number):
        try:
            for _ in range(60):
                result = subjects[number](shape=(50, 20))
                if not (result == rows * (2 * columns + 1) + 2 * number).all():
                    wrong.append(number)
        except BaseException as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


# Many


def _random_subject(seed, is_scheduled):
    """A small pipeline, with a random schedule of parallel and asynchronous stages or with none."""
    generator = np.random.default_rng(seed)
    stages = [hl.Func(f"f{i}") for i in range(int(generator.integers(1, 4)))]
    stages[0][x, y] = x * int(generator.integers(1, 9)) + y
    for before, stage in itertools.pairwise(stages):
        dx, dy = (int(value) for value in generator.integers(0, 3, 2))
        stage[x, y] = before[x, y] * 3 + before[x + dx, y + dy]
    out = hl.Func("out")
    out[x, y] = stages[-1][x, y] + stages[-1][x, y + 1]
    if not is_scheduled:
        return out
    kind = int(generator.integers(0, 3))
    if kind == 0:
        out.parallel(y)
    elif kind == 1:
        out.tile(x, y, xo, yo, xi, yi, 4, 4, hl.TailStrategy.GuardWithIf).parallel(yo).parallel(xo)
    for stage in stages:
        choice = int(generator.integers(0, 6))
        is_last = stage is stages[-1]
        if choice == 0:
            stage.compute_root().parallel(y)
        elif choice == 1 and is_last:
            stage.compute_at(out, yo if kind == 1 else y).parallel(x)
        elif choice == 2:
            stage.compute_root().async_()
        elif choice == 3 and is_last and kind == 2:
            stage.store_root().compute_at(out, y).async_()
        elif choice == 4:
            stage.compute_root().parallel(y).async_()
    return out


def _stress(count, sizes, serial, device, seed=0):
    generator = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(seed, seed + count):
            one = sylvite_halide.compile(_random_subject(number, False), device=serial)
            many = sylvite_halide.compile(_random_subject(number, True), device=device)
            for _ in range(sizes):
                shape = tuple(int(value) for value in generator.integers(1, 40, 2))
                for _ in range(3):
                    np.testing.assert_array_equal(many(shape=shape), one(shape=shape), err_msg=f"{number}")
            one.close()
            many.close()


def test_random_parallel_pipelines_agree(serial, device, healthy):
    _stress(12, 10, serial, device)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_thousand_random_parallel_pipelines_agree(serial, workers):
    with drivers.create_device(f"local-task://{workers}") as device:
        _stress(100, 10, serial, device, seed=1000 * workers)
