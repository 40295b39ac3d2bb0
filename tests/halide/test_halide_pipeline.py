"""Calling pipelines with numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

import halide as hl
from sylvite import drivers
from sylvite import halide as sylvite_halide
from sylvite.errors import (
    ClosedError,
    CompileError,
    InvalidArgumentError,
    LinkError,
    NotFoundError,
    PipelineError,
)
from sylvite.halide import ExternStage, Region, Window
from sylvite.halide.place import place_of

pytestmark = pytest.mark.filterwarnings("ignore:The floating-point value:RuntimeWarning")
x, y, c = hl.vars("x y c")


@pytest.fixture(scope="module")
def device():
    with drivers.create_device("local-sync") as device:
        yield device


def stencil():
    """Unclamped: the output is smaller than the input by 1 on the left and 2 on the right, 1 and 1 in y."""
    source = hl.ImageParam(hl.UInt(8), 2, "input")
    scale = hl.Param(hl.Int(32), "scale", 2)
    scale.set_range(1, 10)
    out = hl.Func("out")
    out[x, y] = (hl.i32(source[x - 1, y]) + source[x + 2, y] + source[x, y - 1] + source[x, y + 1]) * scale
    return out, [source, scale]


def stencil_reference(image: np.ndarray, scale: int = 2) -> np.ndarray:
    i = image.astype(np.int32)
    return (i[1:-1, :-3] + i[1:-1, 3:] + i[:-2, 1:-2] + i[2:, 1:-2]) * scale


@pytest.fixture(scope="module")
def pipeline(device):
    func, args = stencil()
    return sylvite_halide.compile(func, args, device=device, name="stencil")


@pytest.fixture(scope="module")
def colour(device):
    source = hl.ImageParam(hl.UInt(8), 3, "input")
    out = hl.Func("out")
    out[x, y, c] = 255 - source[x, y, c]
    return sylvite_halide.compile(out, [source], device=device, name="invert")


@pytest.fixture
def image():
    return np.random.default_rng(3).integers(0, 256, (20, 30), np.uint8)


def test_signature_of_compiled_pipeline_has_names_defaults_and_limits(pipeline):
    assert str(pipeline.signature) == (
        "stencil(input: uint8[2d], scale: int32 in 1..10 = 2) -> out: int32[2d]"
    )


def test_output_not_given_is_as_large_as_the_input_allows(pipeline, image):
    result = pipeline(image)
    assert result.shape == (18, 27)
    np.testing.assert_array_equal(result, stencil_reference(image))


def test_output_given_gets_the_region_from_its_window(pipeline, image):
    out = np.zeros((18, 27), np.int32)
    assert pipeline(image, Window(out, (1, 1)), scale=3) is out
    np.testing.assert_array_equal(out, stencil_reference(image, 3))


def test_shape_given_places_the_output(pipeline, image):
    result = pipeline(image, shape=Region((4, 5), (2, 3)))
    np.testing.assert_array_equal(result, stencil_reference(image)[1:5, 2:7])


def test_input_window_moves_the_coordinates(pipeline, image):
    result = pipeline(Window(image, (100, -50)), shape=Region((18, 27), (101, -49)))
    np.testing.assert_array_equal(result, stencil_reference(image))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2, ::3], lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a.T,
        lambda a: np.asfortranarray(a), lambda a: a[3:, 5:], lambda a: np.broadcast_to(a[0], (20, 30)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_guest", [False, True])
def test_strides_of_any_kind_are_respected(pipeline, device, image, view, in_guest):
    if in_guest:
        guest = device.allocate(image.shape, np.uint8)
        guest[...] = image
        image = guest
    viewed = view(image)
    np.testing.assert_array_equal(pipeline(viewed), stencil_reference(np.array(viewed)))


def test_array_in_guest_memory_is_not_copied(pipeline, device, image):
    guest = device.allocate(image.shape, np.uint8)
    guest[...] = image
    out = device.allocate((18, 27), np.int32)
    before = device.tracer.counters.bytes_copied
    for _ in range(3):
        pipeline(guest, Window(out, (1, 1)))
        pipeline(guest)
    assert device.tracer.counters.bytes_copied == before
    np.testing.assert_array_equal(out, stencil_reference(image))


def test_repeated_calls_see_new_contents_and_new_scalars(pipeline, device):
    generator = np.random.default_rng(5)
    out = np.zeros((18, 27), np.int32)
    target = Window(out, (1, 1))
    for scale in (1, 2, 3, 3, 1):
        image = generator.integers(0, 256, (20, 30), np.uint8)
        np.testing.assert_array_equal(pipeline(image, scale), stencil_reference(image, scale))
        np.testing.assert_array_equal(pipeline(image, target, scale), stencil_reference(image, scale))
        np.testing.assert_array_equal(pipeline(input=image), stencil_reference(image))


@pytest.mark.parametrize("interleaved", [False, True])
def test_three_axes_are_y_x_c_whatever_the_layout(colour, interleaved):
    image = np.random.default_rng(1).integers(0, 256, (6, 7, 3), np.uint8)
    if not interleaved:
        image = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    np.testing.assert_array_equal(colour(image), 255 - image)
    out = np.zeros_like(image)
    colour(image, out)
    np.testing.assert_array_equal(out, 255 - image)


def test_interleaved_array_in_guest_memory_goes_through_a_copy(colour, device):
    image = device.allocate((6, 7, 3), np.uint8)
    image[...] = np.arange(126).reshape(6, 7, 3)
    before = device.tracer.counters.bytes_copied
    for _ in range(2):
        np.testing.assert_array_equal(colour(image), 255 - image)
    assert device.tracer.counters.bytes_copied == before + 2 * image.nbytes


def test_pipeline_built_for_interleaved_layout_takes_interleaved_in_place(device):
    source = hl.ImageParam(hl.UInt(8), 3, "input")
    source.dim(0).set_stride(3)
    source.dim(2).set_stride(1).set_bounds(0, 3)
    out = hl.Func("out")
    out[x, y, c] = source[x, y, c] + 1
    out.output_buffer().dim(0).set_stride(3)
    out.output_buffer().dim(2).set_stride(1)
    pipeline = sylvite_halide.compile(out, [source], device=device)
    image = device.allocate((5, 4, 3), np.uint8)
    image[...] = np.arange(60).reshape(5, 4, 3)
    before = device.tracer.counters.bytes_copied
    result = pipeline(image)
    assert device.tracer.counters.bytes_copied == before
    assert result.strides == (12, 3, 1)
    np.testing.assert_array_equal(result, image + 1)
    planar = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    np.testing.assert_array_equal(pipeline(planar), image + 1)


def test_layout_reversed_takes_arrays_as_halide_s_own_buffers(device):
    source = hl.ImageParam(hl.Int(32), 3, "input")
    out = hl.Func("out")
    out[x, y, c] = source[x, y, c] * 100 + x + 10 * c
    pipeline = sylvite_halide.compile(out, [source], device=device, layout="reversed")
    image = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    expected = image * 100 + np.arange(4) + 10 * np.arange(2)[:, None, None]
    np.testing.assert_array_equal(pipeline(image), expected)


def test_output_overlapping_input_gives_what_separate_arrays_give(pipeline, device, image):
    memory = device.allocate((20 * 30 * 4,), np.uint8)
    guest = memory[: image.size].reshape(image.shape)
    guest[...] = image
    out = memory[: 18 * 27 * 4].view(np.int32).reshape(18, 27)
    for _ in range(2):
        guest[...] = image
        pipeline(guest, Window(out, (1, 1)))
        np.testing.assert_array_equal(out, stencil_reference(image))


def test_two_outputs_over_the_same_memory_are_refused(device):
    out = hl.Func("pair")
    out[x] = (x, x + 1)
    pipeline = sylvite_halide.compile(out, device=device)
    memory = device.allocate((9,), np.int32)
    with pytest.raises(InvalidArgumentError, match="share memory"):
        pipeline(out=(memory[:8], memory[1:]))
    first, second = pipeline(out=(memory[:4], memory[4:8]))
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [1, 2, 3, 4]


def test_down_and_upsampling_find_the_largest_output(device):
    source = hl.ImageParam(hl.UInt(8), 2, "input")
    half = hl.Func("half")
    half[x, y] = source[2 * x, 2 * y] / 2 + source[2 * x + 1, 2 * y + 1] / 2
    pipeline = sylvite_halide.compile(half, [source], device=device)
    image = np.random.default_rng(0).integers(0, 256, (21, 30), np.uint8)
    result = pipeline(image)
    assert result.shape == (10, 15)
    np.testing.assert_array_equal(result, image[:20:2, ::2] // 2 + image[1::2, 1::2] // 2)


def test_output_rounded_up_by_the_schedule_is_cropped(device):
    out = hl.Func("out")
    out[x, y] = x + 100 * y
    out.align_bounds(x, 16)
    pipeline = sylvite_halide.compile(out, device=device)
    np.testing.assert_array_equal(pipeline(shape=(2, 5)), [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]])


def test_required_says_what_would_be_read(pipeline):
    assert pipeline.required(shape=(10, 12)) == {"input": Region((12, 15), (-1, -1))}


def test_scalar_types_and_defaults_reach_the_pipeline(device):
    kinds = [hl.UInt(8), hl.Int(16), hl.UInt(32), hl.Int(64), hl.Float(32), hl.Float(64), hl.Bool()]
    params = [hl.Param(kind, f"p{i}") for i, kind in enumerate(kinds)]
    out = hl.Func("out")
    out[x] = hl.f64(0.0)
    for i, param in enumerate(params):
        out[i] = hl.f64(hl.i32(param) if i == 6 else param)
    pipeline = sylvite_halide.compile(out, params, device=device)
    values = [200, -300, 4_000_000_000, -(1 << 40), 1.5, 2.25, True]
    expected = [200, -300, 4e9, -float(1 << 40), 1.5, 2.25, 1]
    assert pipeline(*values, shape=7).tolist() == expected
    assert pipeline(shape=7, **{f"p{i}": v for i, v in enumerate(values)}).tolist() == expected
    with pytest.raises(InvalidArgumentError, match="p0 is of type uint8"):
        pipeline(256, *values[1:], shape=7)
    with pytest.raises(InvalidArgumentError, match="p3: int64 needs a value"):
        pipeline(*values[:3], shape=7)


def test_zero_dimensional_and_empty_buffers_work(device):
    total = hl.Func("total")
    total[()] = hl.i32(42)
    assert sylvite_halide.compile(total, device=device)()[()] == 42
    source = hl.ImageParam(hl.Int(32), 1, "input")
    copy = hl.Func("copy")
    copy[x] = source[x]
    result = sylvite_halide.compile(copy, [source], device=device)(np.zeros(0, np.int32))
    assert result.shape == (0,)


# What the caller gets wrong


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, i: p(), "needs the input input: uint8"),
        (lambda p, i: p(i.astype(np.int16)), "input has elements of type uint8 .* has int16"),
        (lambda p, i: p(i[0]), "input has 2 dimensions, the array given has 1"),
        (lambda p, i: p(i, radius=3), "no argument 'radius'"),
        (lambda p, i: p(i, 2, 3), "too many arguments"),
        (lambda p, i: p(i, "2"), "needs an array, got str"),
        (lambda p, i: p(i, scale=1.5), "scale is of type int32"),
        (lambda p, i: p(i, scale=1 << 40), "does not fit"),
        (lambda p, i: p(i, shape=(3,)), "out has 2 dimensions, the shape given has 1"),
        (lambda p, i: p(i, shape=(-3, 4)), "negative extent"),
        (lambda p, i: p(i, shape={"other": (3, 4)}), "no output other"),
        (lambda p, i: p(i, out=(i, i)), "has 1 outputs, out= holds 2"),
        (lambda p, i: p(Window(i, (1 << 40, 0))), "does not fit 32 bits"),
        (lambda p, i: p(Window(i, (1,))), "needs as many minima"),
        (lambda p, i: p(i, shape=(1 << 16, 1 << 16)), "takes .* bytes, the most is"),
        (lambda p, i: p(i, out=np.broadcast_to(np.int32(0), (18, 27))), "read-only"),
    ],
)
def test_wrong_arguments_are_refused_by_name(pipeline, image, call, text):
    with pytest.raises(InvalidArgumentError, match=text):
        call(pipeline, image)
    np.testing.assert_array_equal(pipeline(image), stencil_reference(image))


def test_input_too_small_says_which_bound_of_which_dimension(pipeline, image):
    with pytest.raises(PipelineError, match="input is accessed at -1 to 31 in dimension 0") as caught:
        pipeline(image, shape=(10, 30))
    error = caught.value
    assert (error.reason, error.code, error.buffer, error.dimension) == (
        "access_out_of_bounds", -4, "input", 0,
    )  # fmt: skip
    assert error.details["max_valid"] == 29


def test_scalar_outside_its_range_is_refused_by_the_pipeline(pipeline, image):
    with pytest.raises(PipelineError, match="scale is 11, the most allowed is 10") as caught:
        pipeline(image, 11, shape=Region((2, 2), (1, 1)))
    assert caught.value.reason == "param_too_large_i64"


def test_negative_and_overflowing_geometry_is_refused(pipeline, device):
    huge = Window(np.zeros((4, 4), np.uint8), (2**31 - 2, 2**31 - 2))
    with pytest.raises((PipelineError, InvalidArgumentError)):
        pipeline(huge, shape=Region((2, 2), (2**31 - 1, 2**31 - 1)))
    lying = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 20, 1 << 20), (0, 0))
    with pytest.raises((PipelineError, InvalidArgumentError, MemoryError)):
        pipeline(lying)


def test_guest_array_whose_strides_leave_the_memory_cannot_be_read(device):
    """A lie about strides: the sandbox traps or the bounds are refused, and the device goes on."""
    source = hl.ImageParam(hl.UInt(8), 2, "input")
    out = hl.Func("out")
    out[x, y] = source[x, y]
    pipeline = sylvite_halide.compile(out, [source], device=device)
    guest = device.allocate((64,), np.uint8)
    lying = np.lib.stride_tricks.as_strided(guest, (8, 8), (1 << 30, 1))
    with pytest.raises((PipelineError, InvalidArgumentError)):
        pipeline(lying)
    assert pipeline(np.ones((3, 3), np.uint8)).sum() == 9


# JIT


def test_build_of_equal_pipelines_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(tmp_path))
    func, args = stencil()
    first = sylvite_halide.build(func, args)
    assert sylvite_halide.build(func, args).data is first.data
    assert [p.suffix for p in (tmp_path / "halide").iterdir()] == [".wasm"]
    assert sylvite_halide.build(func, args, name="other").key != first.key


def test_load_takes_paths_bytes_and_objects(tmp_path, image, device):
    func, args = stencil()
    target = hl.Target("wasm-32-wasmrt-wasm_simd128-no_runtime")
    func.compile_to_object(str(tmp_path / "a.o"), args, "stencil", target)
    path = sylvite_halide.build(func, args, name="stencil").save(tmp_path / "a.wasm")
    for source in (path, str(path), path.read_bytes(), tmp_path / "a.o"):
        with sylvite_halide.load(source, device=device) as pipeline:
            assert pipeline.name == "stencil"
            np.testing.assert_array_equal(pipeline(image, 2), stencil_reference(image))


def test_load_without_a_device_has_a_sandbox_of_its_own(tmp_path, image):
    func, args = stencil()
    pipeline = sylvite_halide.load(sylvite_halide.build(func, args).data)
    result = pipeline(image)
    pipeline.close()
    pipeline.close()
    np.testing.assert_array_equal(result, stencil_reference(image))
    with pytest.raises(ClosedError):
        pipeline(image)


def test_load_of_other_things_is_refused(tmp_path, device):
    with pytest.raises(NotFoundError):
        sylvite_halide.load(tmp_path / "none.wasm", device=device)
    func, args = stencil()
    data = sylvite_halide.build(func, args, name="stencil").data
    with pytest.raises(NotFoundError, match="no pipeline 'blur': it has stencil"):
        sylvite_halide.load(data, device=device, name="blur")
    with pytest.raises(InvalidArgumentError, match="layout 'odd'"):
        sylvite_halide.load(data, device=device, layout="odd")


def test_compile_refuses_what_halide_refuses(device):
    with pytest.raises(InvalidArgumentError, match="not defined"):
        sylvite_halide.compile(hl.Func("empty"), device=device)
    with pytest.raises(InvalidArgumentError, match="not int"):
        sylvite_halide.compile(3, device=device)
    with pytest.raises(InvalidArgumentError, match="no target"):
        sylvite_halide.compile(stencil()[0], device=device, target="wasm-33")
    with pytest.raises(InvalidArgumentError, match="not on"):
        sylvite_halide.compile(stencil()[0], device=device, target="x86-64-linux")
    func, _ = stencil()
    with pytest.raises(CompileError, match="Halide refused"):
        sylvite_halide.compile(func, [], device=device)


def test_generator_in_python_compiles_with_parameters(device):
    @hl.generator(name="sylvite_brighten")
    class Brighten:
        offset = hl.GeneratorParam(1)
        source = hl.InputBuffer(hl.UInt(8), 2)
        factor = hl.InputScalar(hl.UInt(8))
        result = hl.OutputBuffer(hl.UInt(8), 2)

        def generate(self):
            g = self
            g.result[x, y] = g.source[x, y] * g.factor + hl.u8(g.offset)

    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    pipeline = sylvite_halide.compile(Brighten, device=device, generator_params={"offset": 5})
    assert pipeline.name == "sylvite_brighten"
    np.testing.assert_array_equal(pipeline(image, 3), image * 3 + 5)


@pytest.mark.parametrize("name", ["Mullapudi2016", "Adams2019", "Li2018"])
def test_autoscheduler_schedules_and_results_stay(device, name):
    source = hl.ImageParam(hl.Float(32), 2, "input")
    edge = hl.BoundaryConditions.repeat_edge(source)
    across, out = hl.Func("across"), hl.Func("out")
    across[x, y] = edge[x - 1, y] + edge[x, y] * 2 + edge[x + 1, y]
    out[x, y] = across[x, y - 1] + across[x, y] * 2 + across[x, y + 1]
    source.set_estimates([(0, 256), (0, 256)])
    out.set_estimates([(0, 256), (0, 256)])
    pipeline = sylvite_halide.compile(out, [source], device=device, autoscheduler=name)
    image = np.random.default_rng(0).integers(0, 9, (256, 256)).astype(np.float32)
    padded = np.pad(image, 1, mode="edge")
    rows = padded[:, :-2] + padded[:, 1:-1] * 2 + padded[:, 2:]
    np.testing.assert_array_equal(pipeline(image), rows[:-2] + rows[1:-1] * 2 + rows[2:])


def test_autoscheduler_unknown_or_for_gpus_is_refused(device):
    func, args = stencil()
    with pytest.raises(InvalidArgumentError, match="no autoscheduler 'Mine'"):
        sylvite_halide.compile(func, args, device=device, autoscheduler="Mine")
    with pytest.raises(CompileError, match="does not support GPU"):
        sylvite_halide.compile(func, args, device=device, autoscheduler="Anderson2021")


def test_extern_stage_in_python_is_called_with_arrays(device):
    source = hl.ImageParam(hl.Int(32), 2, "input")
    first, stage, out = hl.Func("first"), hl.Func("stage"), hl.Func("out")
    first[x, y] = source[x, y] + 1
    stage.define_extern("transform", [hl.ExternFuncArgument(first), hl.ExternFuncArgument(7)], hl.Int(32), 2)
    out[x, y] = stage[x, y] * 10
    first.compute_root()
    stage.compute_root()

    def transform(values, offset: int, result):
        result[...] = values[:, ::-1] + offset

    image = np.arange(12, dtype=np.int32).reshape(3, 4)
    pipeline = sylvite_halide.compile(out, [source], device=device, externs={"transform": transform})
    np.testing.assert_array_equal(pipeline(image), ((image + 1)[:, ::-1] + 7) * 10)

    def failing(values, offset: int, result):
        return 5

    pipeline = sylvite_halide.compile(out, [source], device=device, externs={"transform": failing})
    with pytest.raises(PipelineError, match="transform failed with code 5"):
        pipeline(image)

    def raising(values, offset: int, result):
        result[...] = 1 // (offset - 7)

    pipeline = sylvite_halide.compile(out, [source], device=device, externs={"transform": raising})
    with pytest.raises(ZeroDivisionError):
        pipeline(image)
    with pytest.raises(LinkError, match="transform"):
        sylvite_halide.compile(out, [source], device=device)


def test_extern_stage_with_bounds_asks_for_more(device):
    source = hl.ImageParam(hl.Int(32), 1, "input")
    stage = hl.Func("stage")
    stage.define_extern("pairs", [hl.ExternFuncArgument(source)], hl.Int(32), 1)

    def pairs(values, result):
        result[...] = values[0 : 2 * len(result) : 2] + values[1 : 2 * len(result) : 2]

    def bounds(outputs):
        return [Region((2 * outputs[0].shape[0],), (2 * outputs[0].min[0],))]

    externs = {"pairs": ExternStage(pairs, bounds=bounds)}
    pipeline = sylvite_halide.compile(stage, [source], device=device, externs=externs)
    assert pipeline(np.arange(10, dtype=np.int32)).tolist() == [1, 5, 9, 13, 17]


# The runtime


def test_print_reaches_the_sink(device):
    out = hl.Func("out")
    out[x] = hl.print(x, "of", hl.f32(2.5), hl.u64(7), hl.i64(-3))
    pipeline = sylvite_halide.compile(out, device=device)
    lines: list[str] = []
    pipeline.runtime.print_sink, sink = lines.append, pipeline.runtime.print_sink
    try:
        pipeline(shape=2)
    finally:
        pipeline.runtime.print_sink = sink
    assert "".join(lines).split("\n")[:2] == ["0 of 2.500000 7 -3", "1 of 2.500000 7 -3"]


def test_trace_becomes_spans(device):
    first, out = hl.Func("first"), hl.Func("out")
    first[x] = x * 2
    out[x] = first[x] + 1
    first.compute_root().trace_stores()
    pipeline = sylvite_halide.compile(out, device=device, features=("trace_realizations", "trace_pipeline"))
    spans = []
    with device.tracer.listen(spans.append):
        pipeline(shape=3)
    names = [span.name for span in spans if span.category == "halide"]
    assert sum(name.startswith("store first") for name in names) == 3
    assert any(name.startswith("produce out") for name in names)
    stored = [s.attributes for s in spans if s.name.startswith("store first")]
    assert [(a["coordinates"], a["value"]) for a in stored] == [((0,), [0]), ((1,), [2]), ((2,), [4])]


def test_profile_feature_reports_stages(device):
    first, out = hl.Func("first"), hl.Func("out")
    first[x, y] = hl.sqrt(hl.f32(x * y))
    out[x, y] = first[x, y] + first[x + 1, y]
    first.compute_root()
    pipeline = sylvite_halide.compile(out, device=device, features=("wasm_threads", "profile"))
    pipeline(shape=(300, 300))
    report = pipeline.runtime.profiler.reports[-1]
    assert any("first" in name for name in report.stages), report
    assert report.time_ns > 0
    assert report.peak_bytes >= 300 * 301 * 4


def test_memoized_stage_is_computed_once_per_value():
    shift = hl.Param(hl.Int(32), "shift")
    slow, out = hl.Func("slow"), hl.Func("out")
    slow[x] = hl.print(x + shift)
    out[x] = slow[x] * 2
    slow.compute_root().memoize()
    with sylvite_halide.compile(out, [shift]) as pipeline:
        lines: list[str] = []
        pipeline.runtime.print_sink = lines.append
        for value in (1, 1, 5, 1):
            assert pipeline(value, shape=3).tolist() == [2 * (i + value) for i in range(3)]
        assert len(lines) == 6
        cache = pipeline.runtime.memoization
        assert (cache.hits, cache.misses) == (2, 2)
        cache.limit_bytes = 0
        pipeline(9, shape=3)
        assert cache.live_bytes == 0
        cache.clear()


def test_require_failure_carries_its_message(device):
    source = hl.ImageParam(hl.Int(32), 1, "input")
    out = hl.Func("out")
    out[x] = hl.require(source[0] > 0, source[x], source[0])
    pipeline = sylvite_halide.compile(out, [source], device=device)
    with pytest.raises(PipelineError, match="requirement failed") as caught:
        pipeline(np.zeros(3, np.int32))
    assert caught.value.reason == "requirement_failed"


def test_specialize_fail_and_bad_fold_are_reported(device):
    wide = hl.Param(hl.Bool(), "wide")
    out = hl.Func("out")
    out[x] = x
    out.specialize(wide)
    out.specialize_fail("only wide")
    pipeline = sylvite_halide.compile(out, [wide], device=device)
    assert pipeline(True, shape=2).tolist() == [0, 1]
    with pytest.raises(PipelineError, match="only wide"):
        pipeline(False, shape=2)


def test_intermediates_are_reused_between_calls(device):
    first, out = hl.Func("first"), hl.Func("out")
    first[x, y] = x * y
    out[x, y] = first[x, y] + first[x + 1, y]
    first.compute_at(out, y)
    pipeline = sylvite_halide.compile(out, device=device)
    pipeline(shape=(50, 300))
    held = pipeline.runtime.held_bytes
    callbacks = device.tracer.counters.host_callbacks
    for _ in range(10):
        pipeline(shape=(50, 300))
    assert pipeline.runtime.held_bytes == held
    assert device.tracer.counters.host_callbacks == callbacks


def test_place_of_other_things_is_refused():
    with drivers.create_device("null") as null, pytest.raises(InvalidArgumentError, match="no WebAssembly"):
        place_of(null)


@pytest.mark.parametrize("features", [(), ("wasm_threads",)])
def test_parallel_loops_on_a_device_with_workers_give_the_same_results(features):
    stage, out = hl.Func("stage"), hl.Func("out")
    stage[x, y] = x * y
    out[x, y] = stage[x, y] + stage[x + 1, y]
    stage.compute_root().parallel(y)
    out.parallel(y)
    rows, columns = np.mgrid[:300, :400]
    with drivers.create_device("local-task://3") as device:
        pipeline = sylvite_halide.compile(out, device=device, features=features)
        for _ in range(200):
            np.testing.assert_array_equal(pipeline(shape=(300, 400)), rows * (2 * columns + 1))
            if sum(count > 0 for count in pipeline.runtime.worker_iterations) > 1:
                break
        assert sum(count > 0 for count in pipeline.runtime.worker_iterations) > 1
