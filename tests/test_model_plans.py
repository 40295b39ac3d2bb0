"""Calls done from a recording, against the same calls through the virtual machine: results, errors, counters,
memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mlir_functions import SPIN

import sylvite
from sylvite.errors import ClosedError, DeadlineExceededError, OutOfMemoryError, SylviteError
from sylvite.model import Limits
from sylvite.vm import frames_of

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

WEIGHTS = np.arange(1024).reshape(32, 32) % 7 * 0.25
PROGRAM = """
util.global private mutable @sum = dense<0.0> : tensor<4xf32>

func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @open(%a: tensor<?x?xf32>, %b: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x?xf32>) {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %m = tensor.dim %a, %c0 : tensor<?x?xf32>
  %e = tensor.empty(%m) : tensor<?x4xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x4xf32>)
      outs(%i : tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = arith.addf %a, %a : tensor<?x?xf32>
  return %0, %1 : tensor<?x4xf32>, tensor<?x?xf32>
}
func.func @weights(%a: tensor<8x16xf32>) -> tensor<8x32xf32> {
  %w = arith.constant dense<0.5> : tensor<16x32xf32>
  %v = arith.constant dense<[[WEIGHTS]]> : tensor<32x32xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x32xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
  %0 = linalg.matmul ins(%a, %w : tensor<8x16xf32>, tensor<16x32xf32>)
      outs(%i : tensor<8x32xf32>) -> tensor<8x32xf32>
  %1 = linalg.matmul ins(%0, %v : tensor<8x32xf32>, tensor<32x32xf32>)
      outs(%i : tensor<8x32xf32>) -> tensor<8x32xf32>
  return %1 : tensor<8x32xf32>
}
func.func @slide(%a: tensor<2x64xi8>) -> (tensor<2x64xi8>, tensor<64xi8>) {
  %0 = arith.addi %a, %a : tensor<2x64xi8>
  %1 = tensor.extract_slice %a[1, 0] [1, 64] [1, 1] : tensor<2x64xi8> to tensor<64xi8>
  return %0, %1 : tensor<2x64xi8>, tensor<64xi8>
}
func.func @divide(%a: tensor<4xi32>, %b: tensor<4xi32>) -> tensor<4xi32> {
  %0 = arith.divsi %a, %b : tensor<4xi32>
  return %0 : tensor<4xi32>
}
func.func @same(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
func.func @chosen(%n: tensor<i32>, %a: tensor<8xf32>) -> tensor<?xf32> {
  %m = tensor.extract %n[] : tensor<i32>
  %i = arith.index_cast %m : i32 to index
  %s = tensor.extract_slice %a[0] [%i] [1] : tensor<8xf32> to tensor<?xf32>
  %0 = arith.addf %s, %s : tensor<?xf32>
  return %0 : tensor<?xf32>
}
func.func @gather(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = util.global.load @sum : tensor<4xf32>
  %1 = arith.addf %0, %a : tensor<4xf32>
  util.global.store %1, @sum : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""
PROGRAM += SPIN
DEVICES = ["local-sync", "local-task://2"]
RANDOM = np.random.default_rng(7)
A = np.arange(4, dtype=np.float32)
WHOLE = RANDOM.standard_normal((8, 16)).astype(np.float32)
BYTES = np.arange(128, dtype=np.int8).reshape(2, 64)
ROUNDS = 4


@pytest.fixture(scope="module")
def artifact():
    weights = np.array2string(WEIGHTS, separator=",", threshold=2000)
    return sylvite.compile(PROGRAM.replace("[[WEIGHTS]]", weights))


@pytest.fixture(scope="module", params=DEVICES)
def pair(request, artifact):
    """The same program with recordings and without, each on a device of its own."""
    with (
        sylvite.load(artifact, device=request.param) as planned,
        sylvite.load(artifact, device=request.param, plans=False) as plain,
    ):
        yield planned, plain


def plans_of(model, name):
    return model._source.program(name, ()).entry(name).plans


def is_planned(model, name):
    plans = plans_of(model, name)
    return plans is not None and plans.latest is not None


def on_device(model, arrays):
    placed = []
    for array in arrays:
        target = model.device.allocate(array.shape, array.dtype)
        target[...] = array
        placed.append(target)
    return placed


def outcome(function, arrays):
    """Result or error as something to compare."""
    try:
        results = function(*arrays)
    except SylviteError as error:
        names = [(frame.module, frame.function, frame.pc) for frame in frames_of(error)]
        return type(error), str(error), getattr(error, "kernel", None), names, getattr(error, "__notes__", [])
    results = results if isinstance(results, tuple) else (results,)
    return [(array.dtype, array.shape, array.tobytes(), array.flags.writeable) for array in results]


def observed(model, name, arrays):
    """Outcome of a call, what it counted, and what is allocated after it."""
    function, tracer = model.functions[name], model.device.tracer
    # Ends of storages are counted when somebody asks.
    live = model.device.allocator.statistics
    before = tracer.counters.snapshot()
    result = outcome(function, arrays)
    if isinstance(result, tuple):
        # Errors of calls are in cycles with what they came through.
        gc.collect()
    after = model.device.allocator.statistics
    counted = {key: value - before[key] for key, value in tracer.counters.snapshot().items()}
    return (
        result,
        counted,
        after.live_bytes - live.live_bytes,
        after.allocation_count - live.allocation_count,
        after.live_count - live.live_count,
        dict(after.by_tag),
    )


CASES = {
    "add": [A, A * 3],
    "open": [WHOLE, WHOLE.reshape(-1, 4)[:16].copy()],
    "weights": [WHOLE],
    "slide": [BYTES],
    "divide": [np.array([9, 8, 7, 6], np.int32), np.array([3, 2, 1, 4], np.int32)],
    "same": [A],
    "chosen": [np.array(5, np.int32), np.arange(8, dtype=np.float32)],
    "gather": [A],
}
PLANNED = {"add", "open", "weights", "slide", "divide"}


@pytest.mark.parametrize("placement", ["numpy", "device", "strided", "read-only"])
@pytest.mark.parametrize("name", CASES)
def test_planned_call_is_as_the_plain_one(pair, name, placement):
    planned, plain = pair
    for model in pair:
        gc.collect()
        assert model.device.allocator.statistics.live_bytes == plain.device.allocator.statistics.live_bytes
    for round_number in range(ROUNDS):
        seen = []
        for model in pair:
            arrays = [array + array.dtype.type(round_number) for array in CASES[name]]
            if name == "chosen":
                arrays[0] = np.array(5 - round_number, np.int32)
            if placement == "device":
                arrays = on_device(model, arrays)
            elif placement == "strided":
                arrays = [np.repeat(array[..., None], 2, axis=-1)[..., 0] for array in arrays]
            elif placement == "read-only":
                arrays = on_device(model, arrays)
                for array in arrays:
                    array.flags.writeable = False
            seen.append(observed(model, name, arrays))
        assert seen[0] == seen[1]
    assert is_planned(planned, name) == (name in PLANNED)
    assert not is_planned(plain, name)


def test_planned_call_that_traps_is_as_the_plain_one_and_the_next_is_right(pair):
    planned, plain = pair
    good = CASES["divide"]
    for _ in range(3):
        outcome(planned.divide, good)
    assert is_planned(planned, "divide")
    bad = [good[0], np.zeros(4, np.int32)]
    for arrays in (bad, good, bad, good):
        assert observed(planned, "divide", arrays) == observed(plain, "divide", arrays)
    _, _, kernel, frames, _ = outcome(planned.divide, bad)
    assert kernel is not None
    assert kernel.startswith("divide")
    assert frames


def test_planned_call_past_its_time_is_stopped_and_the_next_is_right(pair):
    for model in pair:
        for _ in range(3):
            assert model.spin(np.array(0, np.int32)) == 0
        for _ in range(2):
            with pytest.raises(DeadlineExceededError) as caught:
                model.spin.run([np.array(1, np.int32)], timeout_s=0.05)
            assert caught.value.kernel.startswith("spin")
            assert model.spin(np.array(0, np.int32)) == 0


def test_planned_results_are_not_touched_by_later_calls(pair):
    planned, _ = pair
    kept = [planned.add(A + index, A) for index in range(20)]
    for index, array in enumerate(kept):
        np.testing.assert_array_equal(array, A + index + A)
        array[0] = -1
    np.testing.assert_array_equal(planned.add(A, A), A + A)
    addresses = {array.ctypes.data for array in kept}
    assert len(addresses) == len(kept)


def test_planned_results_are_inputs_without_a_copy(pair):
    planned, _ = pair
    value = planned.add(A, A)
    before = planned.device.tracer.counters.bytes_copied
    for index in range(5):
        value = planned.add(value, value)
        np.testing.assert_array_equal(value, A * 2 ** (index + 2))
    assert planned.device.tracer.counters.bytes_copied == before


@pytest.mark.parametrize("device", DEVICES)
def test_planned_results_outlive_model_and_device(artifact, device):
    with sylvite.load(artifact, device=device) as model:
        results = [model.add(A, A + index) for index in range(5)]
        assert is_planned(model, "add")
    with pytest.raises(ClosedError):
        model.add(A, A)
    gc.collect()
    for index, result in enumerate(results):
        np.testing.assert_array_equal(result, A + A + index)


@pytest.mark.parametrize("device", DEVICES)
def test_planned_calls_leave_no_memory_behind(artifact, device):
    with sylvite.create_device(device) as shared:
        for _ in range(2):
            with sylvite.load(artifact, device=shared) as model:
                for name in PLANNED:
                    for _ in range(4):
                        model.functions[name](*CASES[name])
                    assert is_planned(model, name)
            gc.collect()
            statistics = shared.allocator.statistics
            assert (statistics.live_bytes, statistics.live_count, dict(statistics.by_tag)) == (0, 0, {})
            assert shared.tracer.counters.allocations == shared.tracer.counters.deallocations


@pytest.mark.parametrize("device", DEVICES)
def test_planned_calls_of_a_closed_device_are_refused(artifact, device):
    shared = sylvite.create_device(device)
    with sylvite.load(artifact, device=shared) as model:
        placed = on_device(model, [A, A])
        for _ in range(4):
            model.add(*placed)
        shared.close()
        for arrays in ([A, A], placed):
            with pytest.raises(ClosedError, match="closed"):
                model.add(*arrays)


def test_planned_calls_without_memory_say_so_and_go_on_after(artifact):
    with sylvite.load(artifact, limits=Limits(memory_bytes=4 << 20)) as model:
        small, large = np.ones((8, 16), np.float32), np.ones((1000, 16), np.float32)
        right = np.ones((16, 4), np.float32)
        for _ in range(4):
            model.open(small, right)
            model.open(large, right)
        assert is_planned(model, "open")
        kept = []
        with pytest.raises(OutOfMemoryError, match="do not fit"):
            kept.extend(model.open(large, right) for _ in range(1000))
        kept.clear()
        np.testing.assert_array_equal(model.open(large, right)[1], large * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_planned_calls_show_the_same_spans(artifact, device):
    with sylvite.load(artifact, device=device) as model:
        names = []
        for _ in range(2):
            spans = []
            with model.device.tracer.listen(spans.append):
                model.add(A, A)
            names.append(sorted((span.category, span.name) for span in spans))
            for _ in range(4):
                model.add(A, A)
            assert is_planned(model, "add")
        assert names[0] == names[1]
        assert ("vm", f"{model._source.program('add', ()).name}.add") in names[0]


@pytest.mark.parametrize("device", DEVICES)
def test_planned_calls_from_several_threads_are_right(artifact, device):
    failures = []
    with sylvite.load(artifact, device=device) as model:

        def work(seed):
            random = np.random.default_rng(seed)
            try:
                for _ in range(150):
                    a = random.integers(0, 100, (int(random.integers(1, 4)), 16)).astype(np.float32)
                    b = random.integers(0, 100, (16, 4)).astype(np.float32)
                    first, second = model.open(a, b)
                    np.testing.assert_array_equal(first, a @ b)
                    np.testing.assert_array_equal(second, a + a)
                    np.testing.assert_array_equal(model.add(b[0], b[1]), b[0] + b[1])
            except BaseException as error:  # noqa: BLE001 - shown by the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_planned(model, "open")
    assert not failures


@pytest.mark.parametrize("device", DEVICES)
def test_closing_waits_for_a_planned_call(artifact, device):
    model = sylvite.load(artifact, device=device, limits=Limits(deadline_ns=300_000_000))
    for _ in range(3):
        model.spin(np.array(0, np.int32))
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(outcome(model.spin, [np.array(1, np.int32)])))
    thread.start()
    time.sleep(0.1)
    model.close()
    thread.join(20)
    assert outcomes[0][0] in (DeadlineExceededError, ClosedError)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("device", DEVICES)
def test_control_c_stops_a_planned_call_and_the_model_goes_on(artifact, device):
    program = """
import os, signal, sys, threading, time, numpy as np, sylvite
with sylvite.load(sys.argv[1], device=sys.argv[2]) as model:
    for _ in range(3):
        model.spin(np.array(0, np.int32))
    assert model._source.program("spin", ()).entry("spin").plans.latest is not None
    for delay in (0.02, 0.3):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            model.spin(np.array(1, np.int32))
        except KeyboardInterrupt:
            print("stopped", model.spin(np.array(0, np.int32)))
    signal.signal(signal.SIGALRM, lambda *_: print("rang"))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        model.spin.run([np.array(1, np.int32)], timeout_s=0.6)
    except sylvite.errors.DeadlineExceededError:
        print("late")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    answer = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, str(artifact.path), device],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["stopped", "0", "stopped", "0", "rang", "late"]
    assert "ignored" not in answer.stderr


def test_planned_calls_and_started_ones_mix(pair):
    planned, _ = pair
    for index in range(6):
        started = planned.add.start(A, A + index)
        np.testing.assert_array_equal(planned.add(A, A - index), A + A - index)
        np.testing.assert_array_equal(started.result(), A + A + index)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    order=st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_planned_calls_of_many_shapes_are_as_plain_ones(pair, shapes, order):
    planned, plain = pair
    for index in order:
        m, k = shapes[index % len(shapes)]
        a = np.arange(m * k, dtype=np.float32).reshape(m, k)
        b = np.arange(k * 4, dtype=np.float32).reshape(k, 4)
        assert observed(planned, "open", [a, b]) == observed(plain, "open", [a, b])
