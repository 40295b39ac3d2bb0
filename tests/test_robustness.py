"""What clumsy and hostile callers do: every answer is a right result or a typed error, and everything else
goes on."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zipfile
from io import BytesIO

import numpy as np
import pytest
from tests.mlir_functions import SPIN

import sylvite
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    SylviteError,
    TrapError,
    UnavailableError,
    UnsupportedFeatureError,
)
from sylvite.model import Limits

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

PROGRAM = """
func.func @add(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @long(%a: tensor<2xi64>) -> tensor<2xi64> {
  %0 = arith.addi %a, %a : tensor<2xi64>
  return %0 : tensor<2xi64>
}
func.func @brain(%a: tensor<2xbf16>) -> tensor<2xbf16> {
  %0 = arith.addf %a, %a : tensor<2xbf16>
  return %0 : tensor<2xbf16>
}
func.func @complex(%a: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
  return %a : tensor<2xcomplex<f32>>
}
func.func @scalar(%a: tensor<f32>) -> tensor<f32> {
  %0 = arith.addf %a, %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func @open(%a: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = arith.addf %a, %a : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @numbers(%a: i64, %b: f64, %c: i8) -> (i64, f64, i8) {
  return %a, %b, %c : i64, f64, i8
}
func.func @filled(%n: index) -> tensor<?xf32> {
  %c = arith.constant 1.0 : f32
  %e = tensor.empty(%n) : tensor<?xf32>
  %0 = linalg.fill ins(%c : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
func.func @divide(%a: tensor<4xi32>, %b: tensor<4xi32>) -> tensor<4xi32> {
  %0 = arith.divsi %a, %b : tensor<4xi32>
  return %0 : tensor<4xi32>
}
"""
PROGRAM += SPIN
A = np.arange(4, dtype=np.float32)
ENDLESS = np.array(1, np.int32)


@pytest.fixture(scope="module")
def artifact():
    return sylvite.compile(PROGRAM)


@pytest.fixture(scope="module")
def model(artifact):
    with sylvite.load(artifact) as model:
        yield model


def goes_on(model):
    np.testing.assert_array_equal(model.add(A), A + A)


# Arrays.


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (A.astype(">f4"), "big endian"),
        (A.astype(object), r"got object\[4\]"),
        (np.ones(4, bool), r"got bool\[4\]"),
        (np.ones(4, complex), r"got complex128\[4\]"),
        (np.array(list("abcd")), "got <U1"),
        (np.zeros(4, "M8[s]"), "got datetime64"),
        (np.zeros(4, [("a", "f4")]), "expected float32"),
        (np.float32(1), r"got float32\[\]"),
        (A[:0], r"got float32\[0\]"),
        (np.broadcast_to(np.float32(1), (1 << 40,)), "got float32"),
        (b"\0" * 16, "expected float32"),
        ({1, 2, 3, 4}, "cannot take a set"),
        (None, "cannot take a NoneType"),
        (np.float32, "cannot take a type"),
        ([[1], [2, 3]], "input 'input0' of add"),
    ],
)
def test_array_that_does_not_fit_is_refused(model, array, message):
    with pytest.raises(InvalidArgumentError, match=message):
        model.add(array)
    goes_on(model)


def test_array_lists_that_contain_themselves_are_refused(model):
    endless: list = []
    endless.append(endless)
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(InvalidArgumentError):
            model.add(value)


@pytest.mark.parametrize(
    "array",
    [
        A[::-1],
        np.broadcast_to(np.float32(3), (4,)),
        np.full(4, np.nan, np.float32),
        A.reshape(2, 2).T.reshape(4),
    ],
    ids=["negative stride", "stride of zero", "nan", "transposed"],
)
def test_array_of_any_layout_and_value_is_right(model, array):
    np.testing.assert_array_equal(model.add(array), array + array)


def test_array_read_only_is_accepted_and_not_changed(model):
    array = A.copy()
    array.flags.writeable = False
    result = model.add(array)
    result[:] = 0
    np.testing.assert_array_equal(array, A)


def test_array_wide_integers_are_exact(model):
    wide = np.array([(1 << 40) + 1, -(1 << 61)])
    np.testing.assert_array_equal(model.long(wide), wide * 2)
    np.testing.assert_array_equal(model.long(wide.tolist()), wide * 2)
    with pytest.raises(InvalidArgumentError):
        model.long([1 << 64, 0])


def test_array_small_and_odd_types(model):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    brain = np.array([1, -2.5], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(model.brain(brain), brain + brain)
    with pytest.raises(InvalidArgumentError, match="got uint16"):
        model.brain(brain.view(np.uint16))
    numbers = np.array([1 + 2j, -3j], np.complex64)
    np.testing.assert_array_equal(model.complex(numbers), numbers)
    assert model.scalar(np.array(2, np.float32)) == 4
    with pytest.raises(InvalidArgumentError, match=r"got float32\[1\]"):
        model.scalar(np.ones(1, np.float32))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1 << 40, 0)])
def test_array_without_elements_keeps_its_shape(model, shape):
    result = model.open(np.broadcast_to(np.float32(1), shape))
    assert result.shape == shape
    assert result.dtype == np.float32


def test_array_larger_than_guest_memory_is_refused(model):
    with pytest.raises(OutOfMemoryError, match="do not fit"):
        model.open(np.broadcast_to(np.float32(1), (1 << 20, 1 << 20)))
    goes_on(model)


@pytest.mark.parametrize("extent", [-1, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1])
def test_program_that_asks_for_too_much_is_refused(model, extent):
    with pytest.raises((OutOfMemoryError, InvalidArgumentError)):
        model.filled(extent)
    goes_on(model)


@pytest.mark.parametrize(
    "arguments", [(1 << 64, 0, 0), (0, 1j, 0), (0, "1", 0), (0, None, 0), (0, 0, 300), (0.5, 0, 0)]
)
def test_number_that_does_not_fit_is_refused(model, arguments):
    with pytest.raises(InvalidArgumentError, match="of numbers"):
        model.numbers(*arguments)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ("a", "f4"),
        (1.5, "f4"),
        (-1, "f4"),
        ((1,) * 70, "f4"),
        (4, "nonsense"),
        (4, object),
        (4, ">f4"),
        (None, "f4"),
    ],
)
def test_allocate_of_no_array_is_refused(model, shape, dtype):
    with pytest.raises(InvalidArgumentError):
        model.device.allocate(shape, dtype)


@pytest.mark.parametrize("shape", [1 << 40, (1 << 33, 1 << 33)])
def test_allocate_of_too_much_is_refused(model, shape):
    with pytest.raises(OutOfMemoryError):
        model.device.allocate(shape)


@pytest.mark.parametrize("timeout_s", [float("nan"), -1, "1", True])
def test_timeout_that_is_none_is_refused(model, timeout_s):
    with pytest.raises(InvalidArgumentError, match="timeout_s must be a number of seconds"):
        model.functions["add"].run([A], timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 5, np.float32(5)])
def test_timeout_that_is_long_is_accepted(model, timeout_s):
    np.testing.assert_array_equal(model.functions["add"].run([A], timeout_s=timeout_s), A + A)


# Objects.


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_model_cannot_be_pickled_or_copied(model, duplicate):
    for value in (model, model.functions["add"]):
        with pytest.raises(InvalidArgumentError, match="cannot be pickled or copied"):
            duplicate(value)


def test_outputs_can_be_pickled_and_copied(model):
    result = model.add(A)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(result)), A + A)
    np.testing.assert_array_equal(copy.deepcopy(result), A + A)


@pytest.mark.parametrize(
    "options",
    [
        {"limits": 3},
        {"dims": [1]},
        {"variants": "a"},
        {"variants": -1},
        {"modules": 3},
        {"modules": [3]},
        {"parameters": 3},
        {"parameters": [3]},
        {"parameters": b"a"},
    ],
)
def test_load_option_of_wrong_type_is_refused(artifact, options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))[:9]):
        sylvite.load(artifact, **options)


@pytest.mark.parametrize(
    "limit",
    [
        {"memory_bytes": -1},
        {"memory_bytes": "a"},
        {"deadline_ns": 0},
        {"deadline_ns": 1.5},
        {"stack_bytes": -1},
    ],
)
def test_limit_that_is_none_is_refused(limit):
    with pytest.raises(InvalidArgumentError, match=next(iter(limit))):
        Limits(**limit)


def test_limit_too_small_for_anything_is_out_of_memory(artifact):
    with pytest.raises(OutOfMemoryError):
        sylvite.load(artifact, limits=Limits(memory_bytes=1))


# Files.


def zip_of(name, **options):
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as file:
        file.writestr(name, "hello" * 100)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello world, this is a text\n" * 4, "text"),
        (zip_of("a.txt"), "a zip file that holds 'a.txt'"),
        (zip_of("a.txt", compression=zipfile.ZIP_DEFLATED), "not plainly stored"),
        (b"\0asm\1\0\0\0" + bytes(64), "WebAssembly module"),
        (b"\x7fELF" + bytes(100), "ELF"),
        (b"IRPA" + bytes(100), "parameter file; pass it as parameters="),
        (b"GGUF" + bytes(100), "parameter file; pass it as parameters="),
        (bytes(4096), "offset"),
    ],
)
def test_file_that_is_no_module_is_called_what_it_is(tmp_path, content, message):
    path = tmp_path / "model.vmfb"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        sylvite.load(path)
    assert caught.value.where == str(path)
    if content[:2] != b"PK":
        for other in ("model.unknown", "model"):
            renamed = tmp_path / other
            renamed.write_bytes(content)
            with pytest.raises(FormatError):
                sylvite.load(renamed)


def test_file_without_name_of_a_module_is_recognized(tmp_path, artifact):
    module = artifact.path.read_bytes()
    path = tmp_path / "model"
    path.write_bytes(module)
    for source in (
        path,
        module,
        bytearray(module),
        memoryview(bytes(2) + module)[2:],
        np.frombuffer(module, np.uint8).data,
    ):
        with sylvite.load(source) as model:
            goes_on(model)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", InvalidArgumentError),
        (".", InvalidArgumentError),
        ("a\0b.vmfb", NotFoundError),
        ("a" * 5000, NotFoundError),
        ("a" * 5000 + ".vmfb", NotFoundError),
        ("a" * 5000 + ".onnx", NotFoundError),
        (None, InvalidArgumentError),
        (3, InvalidArgumentError),
        ([1, 2], InvalidArgumentError),
        (memoryview(bytearray(100))[::2], FormatError),
        (os.devnull, InvalidArgumentError),
    ],
)
def test_source_that_is_none_is_refused(source, error):
    with pytest.raises(error):
        sylvite.load(source)


@pytest.mark.parametrize("suffix", ["", ".vmfb", ".onnx", ".mlir"])
def test_directory_is_refused(tmp_path, suffix):
    directory = tmp_path / f"directory{suffix}"
    directory.mkdir()
    with pytest.raises(InvalidArgumentError, match=r"not a file|directory"):
        sylvite.load(directory)


def test_module_of_another_target_is_named_with_what_to_do():
    native = sylvite.compile(PROGRAM[: PROGRAM.index("func.func @long")], target="native")
    with pytest.raises(UnsupportedFeatureError, match=r"compiled for embedded-elf-.*sylvite compile"):
        sylvite.load(native)


def test_missing_engine_or_compiler_names_what_to_install(monkeypatch, artifact):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UnavailableError, match=r"pip install 'sylvite\[compile\]'"):
        sylvite.load(b"\x08\x08\x12\x04test:\x00")


# Guests that fail.


def test_division_by_zero_names_the_kernel_and_the_model_goes_on(model):
    ones = np.ones(4, np.int32)
    with pytest.raises(TrapError) as caught:
        model.divide(ones, ones * 0)
    assert caught.value.code == "integer_divide_by_zero"
    assert "divide" in (caught.value.kernel or "")
    with pytest.raises(TrapError) as caught:
        model.divide(np.full(4, -(1 << 31), np.int32), -ones)
    assert caught.value.code == "integer_overflow"
    np.testing.assert_array_equal(model.divide(ones * 6, ones * 3), ones * 2)


def test_endless_kernel_is_stopped_by_the_limit_and_neighbours_go_on(artifact):
    with (
        sylvite.create_device("local-sync", limits=Limits(deadline_ns=100_000_000)) as device,
        sylvite.load(artifact, device=device) as model,
        sylvite.load(artifact, device=device) as neighbour,
        sylvite.load(artifact) as other,
    ):
        before = neighbour.add(A)
        for _ in range(2):
            with pytest.raises(DeadlineExceededError) as caught:
                model.spin(ENDLESS)
            assert "spin" in (caught.value.kernel or "")
            for one in (model, neighbour, other):
                goes_on(one)
        np.testing.assert_array_equal(before, A + A)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_endless_kernel_is_stopped_by_the_timeout_of_the_call(artifact, device):
    with sylvite.load(artifact, device=device) as model:
        begin = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="the guest ran longer than") as caught:
            model.functions["spin"].run([ENDLESS], timeout_s=0.1)
        assert "spin" in (caught.value.kernel or "")
        assert time.monotonic() - begin < 10
        goes_on(model)


def test_endless_kernel_on_a_shared_device_obeys_the_limits_of_its_model(artifact):
    with (
        sylvite.create_device("local-sync") as device,
        sylvite.load(artifact, device=device, limits=Limits(deadline_ns=100_000_000)) as model,
    ):
        with pytest.raises(DeadlineExceededError):
            model.spin(ENDLESS)
        goes_on(model)


def test_endless_kernel_of_one_thread_leaves_another_its_time(artifact, model):
    failures = []
    with sylvite.load(artifact) as other:

        def spin():
            try:
                other.functions["spin"].run([ENDLESS], timeout_s=0.5)
            except DeadlineExceededError as error:
                failures.append(error)

        thread = threading.Thread(target=spin)
        thread.start()
        while thread.is_alive():
            goes_on(model)
        thread.join()
    assert len(failures) == 1


def test_close_waits_for_a_call_of_another_thread(artifact):
    model = sylvite.load(artifact)
    outcome = []

    def spin():
        try:
            model.functions["spin"].run([ENDLESS], timeout_s=0.5)
        except SylviteError as error:
            outcome.append(error)

    thread = threading.Thread(target=spin)
    thread.start()
    time.sleep(0.1)
    model.close()
    thread.join(20)
    assert isinstance(outcome[0], (DeadlineExceededError, ClosedError))
    with pytest.raises(ClosedError):
        model.add(A)


# Control-C and fork, in processes of their own.


def run_python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_control_c_stops_an_endless_kernel_and_the_model_goes_on(artifact, device):
    program = """
import os, signal, sys, threading, numpy as np, sylvite
with sylvite.load(sys.argv[1], device=sys.argv[2]) as model:
    for _ in range(3):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            model.spin(np.array(1, np.int32))
        except KeyboardInterrupt:
            print("stopped", model.add(np.ones(4, np.float32)).sum())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    answer = run_python(program, artifact.path, device)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["stopped", "8.0"] * 3
    assert "ignored" not in answer.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or not hasattr(os, "fork"), reason="forks")
def test_fork_gives_both_processes_a_working_model(artifact):
    program = """
import os, sys, numpy as np, sylvite
a = np.arange(4, dtype=np.float32)
model = sylvite.load(sys.argv[1])
before = model.add(a)
child = os.fork()
if not child:
    mine = model.add(a + 1)
    with sylvite.load(sys.argv[1]) as other:
        ok = (other.add(a) == 2 * a).all() and (mine == 2 * a + 2).all() and (before == 2 * a).all()
    os._exit(0 if ok else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert (model.add(a) == 2 * a).all() and (before == 2 * a).all()
"""
    answer = run_python(program, artifact.path)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("device", ["local-sync", "local-task://2"])
@pytest.mark.parametrize("end", ["gc.collect()", "del load", "raise SystemExit"])
def test_model_that_nobody_closes_ends_with_its_process_or_before(artifact, device, end):
    program = f"""
import gc, sys, numpy as np, sylvite
gc.disable()
def load():
    model = sylvite.load(sys.argv[1], device=sys.argv[2])
    for _ in range(4):
        result = model.open(np.ones((512, 512), np.float32))
    cycle = [model]
    cycle.append(cycle)
load()
{end}
"""
    answer = run_python(program, artifact.path, device)
    assert answer.returncode == 0, answer.stderr
    assert not answer.stderr
