"""Halide pipelines with kernels on WebGPU, against Halide's own native JIT."""

from __future__ import annotations

import numpy as np
import pytest
from tests import software_gpu

hl = pytest.importorskip("halide")

from tests.halide.halide_gpu_cases import CASES, Case  # noqa: E402

import sylvite  # noqa: E402
from sylvite import halide  # noqa: E402
from sylvite.cli import main  # noqa: E402
from sylvite.errors import (  # noqa: E402
    ClosedError,
    DeviceLostError,
    InvalidArgumentError,
    KernelError,
    SylviteError,
)
from sylvite.halide.device_runtime import DEVICE_SYMBOLS  # noqa: E402
from sylvite.halide.place import GpuPlace  # noqa: E402

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", params=software_gpu.PROVIDERS)
def device(request):
    missing = software_gpu.find(request.param)
    if missing is not None:
        pytest.skip(missing)
    with sylvite.create_device(f"webgpu://{request.param}") as device:
        yield device


def native(case: Case):
    func, size = case.make(False)
    found = func.realize(list(size))
    return [np.array(item) for item in (found if isinstance(found, (tuple, list)) else [found])]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gpu_pipeline_gives_what_native_halide_gives(device, case):
    func, size = case.make(True)
    found = halide.realize(func, size, device=device, layout="reversed")
    expected = native(case)
    got = list(found) if isinstance(found, tuple) else [found]
    assert len(got) == len(expected)
    for want, have in zip(expected, got, strict=True):
        assert have.shape == want.shape
        if want.dtype.kind == "f":
            # Kernels may fuse multiplications and additions where the native code does not.
            tolerance = case.ulps * np.spacing(np.abs(want).max()) + case.absolute
            assert np.abs(have - want).max() <= tolerance
        else:
            assert (have == want).all(), np.argwhere(have != want)[:5]
    assert device.tracer.counters.dispatches


def blur(threads=8):
    """Two stages, the first in workgroup memory."""
    x, y, xo, yo, xi, yi = (hl.Var(name) for name in ("x", "y", "xo", "yo", "xi", "yi"))
    source = hl.ImageParam(hl.Float(32), 2, "source")
    rows, f = hl.Func("rows"), hl.Func("f")
    rows[x, y] = source[x, y] + source[x + 1, y]
    f[x, y] = rows[x, y] + rows[x, y + 1] + rows[x, y + 2]
    f.gpu_tile(x, y, xo, yo, xi, yi, threads, threads)
    rows.compute_at(f, xo).gpu_threads(x, y)
    return f, source


def scale():
    x, y, xo, yo, xi, yi = (hl.Var(name) for name in ("x", "y", "xo", "yo", "xi", "yi"))
    source, factor = hl.ImageParam(hl.Float(32), 2, "source"), hl.Param(hl.Float(32), "factor", 2.0)
    f = hl.Func("f")
    f[x, y] = source[x, y] * factor
    f.gpu_tile(x, y, xo, yo, xi, yi, 8, 8)
    return f, [source, factor]


@pytest.fixture
def image():
    return np.random.default_rng(3).standard_normal((48, 64), np.float32)


@pytest.fixture
def scaled(device):
    func, args = scale()
    with halide.compile(func, args, device=device) as pipeline:
        yield pipeline


def test_strided_arrays_and_crops_come_back_whole(scaled, image):
    wide = np.zeros((60, 100), np.float32)
    wide[5:53, 10:74] = image
    assert (scaled(wide[5:53, 10:74], factor=3.0) == image * np.float32(3)).all()
    assert (scaled(image[::-1, ::2]) == image[::-1, ::2] * 2).all()
    target = np.full((60, 100), -1, np.float32)
    scaled(image, out=target[5:53, 10:74])
    assert (target[5:53, 10:74] == image * 2).all()
    target[5:53, 10:74] = -1
    assert (target == -1).all()


def test_windows_with_other_minima_are_computed_there(scaled, image):
    out = np.zeros((16, 16), np.float32)
    window = halide.Window(out, (8, 16))
    scaled(image, out=window)
    assert (out == image[8:24, 16:32] * 2).all()


def test_arrays_of_the_device_are_not_copied(device, scaled, image):
    source, target = device.allocate((48, 64)), device.allocate((48, 64))
    source[...] = image
    scaled(source, out=target)
    before = device.tracer.counters.bytes_copied
    del source
    other = device.allocate((48, 64))
    scaled(target, out=other, factor=4.0)
    # No copy to the sandbox and none back. Arrays that live can be written to, so they are uploaded.
    assert device.tracer.counters.bytes_copied - before <= 3 * image.nbytes
    assert (other == image * 8).all()


@pytest.mark.compiler
def test_pipeline_and_model_share_memory_of_the_device(device, scaled, image):
    text = """func.func @main(%x: tensor<48x64xf32>) -> tensor<48x64xf32> {
      %y = arith.addf %x, %x : tensor<48x64xf32>
      return %y : tensor<48x64xf32>
    }"""
    with sylvite.load(sylvite.compile(text, target="webgpu").path, device=device) as model:
        halfway = device.allocate((48, 64))
        scaled(image, out=halfway)
        assert np.allclose(model(halfway), image * 4)
        assert (scaled(model(image)) == image * 4).all()


def test_workgroup_that_is_too_large_names_the_limit(device):
    func, source = blur(16)
    with halide.compile(func, [source], device=device) as pipeline:
        with pytest.raises(InvalidArgumentError) as caught:
            pipeline(np.zeros((64, 64), np.float32), shape=(48, 48))
        assert "288 of max-compute-invocations-per-workgroup" in str(caught.value)
        assert str(device.limits["max-compute-invocations-per-workgroup"]) in str(caught.value)
    func, source = blur(8)
    with halide.compile(func, [source], device=device) as pipeline:
        ones = np.ones((64, 64), np.float32)
        assert (pipeline(ones, shape=(48, 48)) == 6).all()


def test_autoscheduler_for_gpus_makes_kernels(device, image):
    x, y = hl.vars("x y")
    source, f = hl.ImageParam(hl.Float(32), 2, "source"), hl.Func("f")
    f[x, y] = source[x, y] * 2.0 + source[x + 1, y]
    source.set_estimates([(0, 64), (0, 48)])
    f.set_estimates([(0, 63), (0, 48)])
    before = device.tracer.counters.dispatches
    with halide.compile(f, [source], device=device, autoscheduler="Anderson2021") as pipeline:
        assert (pipeline(image) == image[:, :-1] * 2 + image[:, 1:]).all()
    assert device.tracer.counters.dispatches > before


def test_pipeline_with_kernels_needs_a_device_for_them(tmp_path):
    func, args = scale()
    built = halide.build(func, args, features=["webgpu"])
    for device in (None, "local-sync"):
        with pytest.raises(InvalidArgumentError, match="device='webgpu'"):
            halide.load(built.data, device=device)


def test_names_of_devices_open_them(image):
    missing = software_gpu.find("wgpu")
    if missing is not None:
        pytest.skip(missing)
    func, args = scale()
    built = halide.build(func, args, features=["webgpu"])
    with halide.load(built.data, device="webgpu://wgpu") as pipeline:
        assert (pipeline(image) == image * 2).all()
        device = pipeline.place.device
    assert device.closed
    plain = hl.Func("plain")
    plain[hl.Var("x")] = 5
    with halide.compile(plain, device="local-task://2") as pipeline:
        assert (pipeline(shape=(9,)) == 5).all()
        device = pipeline.place.device
    assert device.closed


def test_kernels_are_made_once(device, scaled, image):
    scaled(image)
    made = []
    create = device.create_executable
    device.create_executable = lambda **options: made.append(1) or create(**options)
    try:
        for _ in range(3):
            scaled(image)
    finally:
        del device.create_executable
    assert not made


def test_closing_the_device_or_the_pipeline_is_said(provider_device, image):
    func, args = scale()
    pipeline = halide.compile(func, args, device=provider_device)
    assert (pipeline(image) == image * 2).all()
    provider_device.close()
    with pytest.raises(ClosedError):
        pipeline(image)
    pipeline.close()
    with pytest.raises(ClosedError):
        pipeline(image)


@pytest.fixture(params=software_gpu.PROVIDERS)
def provider_device(request):
    missing = software_gpu.find(request.param)
    if missing is not None:
        pytest.skip(missing)
    with sylvite.create_device(f"webgpu://{request.param}") as device:
        yield device


def test_device_lost_in_between_is_an_error(provider_device, image):
    func, args = scale()
    pipeline = halide.compile(func, args, device=provider_device)
    assert (pipeline(image) == image * 2).all()
    provider_device.gpu.device.destroy()
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            pipeline(image)
    pipeline.close()


def test_malformed_kernels_are_an_error(provider_device, image):
    func, args = scale()
    built = halide.build(func, args, features=["webgpu"])
    for before, after in ((b"let _", b"lett "), (b"float_from_bits", b"float_from_bitz")):
        damaged = built.data.replace(before, after, 1)
        pipeline = halide.load(damaged, device=provider_device)
        with pipeline, pytest.raises(KernelError, match="refuses"):
            pipeline(image)
    with halide.load(built.data, device=provider_device) as pipeline:
        assert (pipeline(image) == image * 2).all()


SOURCE = """
import halide as hl

x, y, xo, yo, xi, yi = hl.vars("x y xo yo xi yi")
photo, gain = hl.ImageParam(hl.Float(32), 2, "photo"), hl.Param(hl.Float(32), "gain", 2.0)
brighter = hl.Func("brighter")
brighter[x, y] = photo[x, y] * gain
brighter.gpu_tile(x, y, xo, yo, xi, yi, 8, 8)
"""


def test_commands_run_kernels(tmp_path, image, capsys):
    missing = software_gpu.find("dawn")
    if missing is not None:
        pytest.skip(missing)
    (tmp_path / "app.py").write_text(SOURCE)
    np.save(tmp_path / "in.npy", image)
    module, result = str(tmp_path / "b.wasm"), str(tmp_path / "out.npy")
    assert (
        main(["halide", "build", f"{tmp_path / 'app.py'}:brighter", "--feature", "webgpu", "-o", module]) == 0
    )
    assert main(["inspect", module]) == 0
    assert "webgpu" in capsys.readouterr().out
    arguments = [f"photo={tmp_path / 'in.npy'}", f"output={result}", "gain=3"]
    assert main(["halide", "run", module, *arguments, "--device", "webgpu://dawn"]) == 0
    assert (np.load(result) == image * np.float32(3)).all()
    capsys.readouterr()
    assert main(["halide", "run", module, *arguments]) != 0
    assert "device='webgpu'" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(8))
def test_kernels_entries_survive_whatever_guests_say(device, seed):
    """Random words for pointers, structs and counts: every failure is one of Sylvite's, and noted."""
    chance = np.random.default_rng(seed)
    place = GpuPlace(device)
    runtime = place.device_runtime
    space = place.space
    base = space.reserve(1 << 16)
    small = np.array([0, 1, 2, 3, 4, 8, 16, 255, -1, 1 << 20], np.int32)
    kinds = sorted(DEVICE_SYMBOLS)
    failures = 0
    for _ in range(150):
        words = chance.choice(small, 1 << 10)
        pointers = chance.random(words.shape) < 0.3
        words[pointers] = base + 4 * chance.integers(0, 1 << 10, pointers.sum())
        space.write(base, words.tobytes())
        symbol = kinds[chance.integers(len(kinds))]
        count, has_result, method = DEVICE_SYMBOLS[symbol]
        values = [base + 4 * int(chance.integers(0, 1 << 10)) for _ in range(count)]
        for index in np.flatnonzero(chance.random(count) < 0.2):
            values[index] = int(chance.choice(small))
        result = runtime._guarded(method, has_result=has_result)(*values)
        assert result is None or type(result) is int
        failure = runtime.take_failure()
        failures += failure is not None
        assert failure is None or isinstance(failure, SylviteError)
        if chance.random() < 0.2:
            runtime.release()
    assert failures
    runtime.release()
    place.close()
    func, args = scale()
    with halide.compile(func, args, device=device) as pipeline:
        assert (pipeline(np.ones((8, 8), np.float32)) == 2).all()
