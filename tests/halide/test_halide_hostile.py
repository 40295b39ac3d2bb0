"""Pipelines and modules that misbehave: typed errors, and the device goes on."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import halide as hl
from sylvite import drivers, wasm
from sylvite import halide as sylvite_halide
from sylvite.engines.base import Limits
from sylvite.errors import (
    DeadlineExceededError,
    FormatError,
    GuestError,
    InvalidArgumentError,
    LinkError,
    NotFoundError,
    OutOfMemoryError,
    PipelineError,
    SylviteError,
    TrapError,
    UnsupportedVersionError,
)
from sylvite.halide import Region, layouts
from sylvite.wasm import ModuleBuilder, ValueType

x, y = hl.vars("x y")
I32 = ValueType.I32


@pytest.fixture(scope="module")
def device():
    with drivers.create_device("local-sync", limits=Limits(memory_bytes=64 << 20)) as device:
        yield device


@pytest.fixture
def healthy(device):
    """A pipeline that must still work after each test."""
    source = hl.ImageParam(hl.Int(32), 1, "input")
    out = hl.Func("out")
    out[x] = source[x] + 1
    pipeline = sylvite_halide.compile(out, [source], device=device)
    yield pipeline
    assert pipeline(np.arange(4, dtype=np.int32)).tolist() == [1, 2, 3, 4]
    pipeline.close()


def module(
    metadata: bytes | None = None, body=None, *, import_name: str | None = None, arguments: int = 0
) -> bytes:
    """A hand-made pipeline ``evil`` whose metadata and body are what a test wants."""
    builder = ModuleBuilder("evil")
    builder.import_memory("env", "memory", 0)
    builder.import_table("env", "__indirect_function_table", 0)
    base = builder.import_global("env", "__memory_base", I32)
    imported = builder.import_function("env", import_name, [I32], [I32]) if import_name else None
    argv = builder.function("evil_argv", [I32], [I32], export=True)
    if body is not None:
        body(argv, imported)
    else:
        argv.i32(0)
    builder.function("evil_metadata", [], [I32], export=True).emit("global.get", base)
    data = metadata if metadata is not None else head(arguments)
    builder.add_data(data, wasm.expression(("global.get", base)))
    builder.dylink(wasm.dylink.DylinkInfo(memory_size=max(len(data), 64), memory_alignment=4))
    return builder.build()


def head(count: int = 0, version: int = 1, arguments: int = 0, name: int = 0) -> bytes:
    return layouts.FILTER_METADATA.pack(
        {"version": version, "num_arguments": count & 0x7FFFFFFF, "arguments": arguments, "name": name}
    )


def test_pipeline_that_divides_by_zero_traps_and_the_device_goes_on(device, healthy):
    def unreachable(argv, _):
        argv.emit("unreachable")

    pipeline = sylvite_halide.load(module(body=unreachable), device=device)
    for _ in range(3):
        with pytest.raises(TrapError) as caught:
            pipeline()
    assert caught.value.code == "unreachable"
    assert caught.value.kernel


def test_endless_pipeline_meets_its_deadline(healthy):
    def endless(argv, _):
        with argv.loop() as again:
            argv.br(again)
        argv.i32(0)

    limits = Limits(deadline_ns=50_000_000)
    with sylvite_halide.load(module(body=endless), limits=limits) as pipeline:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                pipeline()


def test_memory_held_by_a_pipeline_that_trapped_is_taken_back(device, healthy):
    source = hl.ImageParam(hl.Int(32), 1, "input")
    stage, out = hl.Func("stage"), hl.Func("out")
    held, stage = hl.Func("held"), hl.Func("stage")
    held[x] = source[x] * 2
    stage.define_extern("explode", [hl.ExternFuncArgument(held)], hl.Int(32), 1)
    out[x] = stage[x] + held[x]
    held.compute_root()
    stage.compute_root()

    def explode(values, result):
        raise KeyError("mine")

    pipeline = sylvite_halide.compile(out, [source], device=device, externs={"explode": explode})
    values = np.zeros(500_000, np.int32)
    live = []
    for _ in range(4):
        with pytest.raises(KeyError, match="mine"):
            pipeline(values)
        # The traceback holds the output that was not finished.
        gc.collect()
        live.append(device.space.heap.statistics.live_bytes)
    assert live[3] <= live[1]
    assert pipeline.runtime.held_bytes == 0


def test_intermediate_larger_than_memory_is_out_of_memory(device, healthy):
    stage, out = hl.Func("stage"), hl.Func("out")
    size = hl.Param(hl.Int(32), "size")
    stage[x] = hl.u8(x)
    out[x] = stage[x * size]
    stage.compute_root()
    pipeline = sylvite_halide.compile(out, [size], device=device)
    assert pipeline(2, shape=4).tolist() == [0, 2, 4, 6]
    with pytest.raises(PipelineError) as caught:
        pipeline(400 << 20, shape=4)
    assert caught.value.reason in ("out_of_memory", "buffer_allocation_too_large")
    with pytest.raises((OutOfMemoryError, PipelineError)):
        pipeline(1, shape=1 << 28)


def test_missing_imports_are_all_named(device, healthy):
    with pytest.raises(LinkError, match="halide_unheard_of") as caught:
        sylvite_halide.load(module(import_name="halide_unheard_of"), device=device)
    assert caught.value.symbols == ("halide_unheard_of",)
    out = hl.Func("out")
    tile = hl.Var("tile")
    out[x] = x
    out.gpu_tile(x, tile, 8)
    with pytest.raises(SylviteError, match="webgpu"):
        sylvite_halide.compile(out, device=device, features=("webgpu",))


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (head(version=2), UnsupportedVersionError),
        (head(count=-1), FormatError),
        (head(count=100_000), FormatError),
        (head(count=1, arguments=0xFFFFFFF0), FormatError),
        (head(name=0xFFFFFF00), FormatError),
        (head(count=1, arguments=0) + bytes(60), FormatError),
    ],
)
def test_metadata_that_lies_is_malformed(device, healthy, metadata, error):
    modules = len(device.space.modules)
    live = device.space.heap.statistics.live_bytes
    with pytest.raises(error):
        sylvite_halide.load(module(metadata), device=device)
    assert len(device.space.modules) == modules
    assert device.space.heap.statistics.live_bytes == live


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.3, 0.5, 0.9])
def test_truncated_modules_are_refused(device, healthy, part):
    out = hl.Func("out")
    out[x] = x
    data = sylvite_halide.build(out).data
    with pytest.raises((FormatError, NotFoundError)):
        sylvite_halide.load(data[: int(part * len(data))], device=device)


def test_module_without_pipelines_is_not_found(device, healthy):
    with pytest.raises(NotFoundError, match="no Halide pipeline"):
        sylvite_halide.load(ModuleBuilder("empty").build(), device=device)


def test_failure_code_without_words_is_still_typed(device, healthy):
    pipeline = sylvite_halide.load(module(body=lambda argv, _: argv.i32(-77)), device=device)
    with pytest.raises(PipelineError, match="code -77") as caught:
        pipeline()
    assert caught.value.code == -77


def test_freeing_what_was_never_given_is_refused(device, healthy):
    def free(argv, imported):
        # The header before the pointer says: a large block.
        argv.get(0).i32(-1).emit("i32.store")
        argv.i32(0).get(0).i32(128).emit("i32.add").call(imported).i32(0)

    builder = ModuleBuilder("evil")
    builder.import_memory("env", "memory", 0)
    base = builder.import_global("env", "__memory_base", I32)
    imported = builder.import_function("env", "halide_free", [I32, I32], [])
    argv = builder.function("evil_argv", [I32], [I32], export=True)
    free(argv, imported)
    builder.function("evil_metadata", [], [I32], export=True).emit("global.get", base)
    builder.add_data(head(), wasm.expression(("global.get", base)))
    builder.dylink(wasm.dylink.DylinkInfo(memory_size=64, memory_alignment=4))
    pipeline = sylvite_halide.load(builder.build(), device=device)
    with pytest.raises(GuestError, match="never given"):
        pipeline()


@pytest.mark.parametrize(
    "region",
    [
        Region((2**31 - 1,), (0,)),
        Region((10,), (2**31 - 5,)),
        Region((2**31 - 1,), (2**31 - 1,)),
        Region((10,), (-(2**31),)),
        Region((2**40,), (0,)),
    ],
)
def test_outputs_of_overflowing_size_are_refused(device, healthy, region):
    with pytest.raises((InvalidArgumentError, PipelineError, OutOfMemoryError)):
        healthy(np.zeros(8, np.int32), shape=region)


def test_async_stages_that_need_threads_are_reported(device, healthy):
    """Two producers that wait for each other in turn cannot run in one thread."""
    from sylvite.halide.tasks import DEADLOCK, TaskRunner

    runtime = healthy.runtime
    space = device.space
    address = space.reserve(256)
    try:
        semaphore = address + 128
        space.write(address, bytes(256))
        acquire = address + 192
        space.write(acquire, layouts.SEMAPHORE_ACQUIRE.pack({"semaphore": semaphore, "count": 1}))
        task = {"semaphores": acquire, "num_semaphores": 1, "extent": 1}
        space.write(address, layouts.PARALLEL_TASK.pack(task))
        runner = TaskRunner(runtime.memory, lambda *_: 0)
        assert runner.run(0, 1, address, 0) == DEADLOCK
        space.write(semaphore, (1).to_bytes(4, "little"))
        assert runner.run(0, 1, address, 0) == 0
    finally:
        space.release(address)
