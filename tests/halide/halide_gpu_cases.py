"""GPU pipelines for the oracle tests: each is told whether to schedule for a GPU, and returns what to realize
over which size (Halide's order). Without, Halide's own JIT computes what is expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import halide as hl

CASES: dict[str, Case] = {}
x, y, z, c = (hl.Var(name) for name in "xyzc")
xo, yo, zo, xi, yi, zi = (hl.Var(name) for name in ("xo", "yo", "zo", "xi", "yi", "zi"))
WIDTH, HEIGHT = 70, 50
_kept: list[np.ndarray] = []
"""Halide's buffers do not keep the arrays they lie over."""

TYPES = {
    "u1": hl.UInt(8), "i1": hl.Int(8), "u2": hl.UInt(16), "i2": hl.Int(16), "u4": hl.UInt(32),
    "i4": hl.Int(32), "f4": hl.Float(32),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """How far floats may be from the native ones: ``ulps`` in units of the largest result's last place, and
    beside that ``absolute``."""

    name: str
    make: Callable[[bool], tuple[Any, tuple[int, ...]]]
    ulps: float
    absolute: float


def case(ulps: float = 4.0, absolute: float = 0.0) -> Any:
    def register(make: Any) -> Any:
        CASES[make.__name__] = Case(make.__name__, make, ulps, absolute)
        return make

    return register


def image(dtype: str, *shape: int, name: str = "input") -> Any:
    """A bound ImageParam of noise. The shape is numpy's: (height, width)."""
    rng = np.random.default_rng(11)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        array = rng.standard_normal(shape or (HEIGHT, WIDTH)).astype(kind)
    else:
        info = np.iinfo(kind)
        array = rng.integers(info.min, info.max, shape or (HEIGHT, WIDTH), kind, endpoint=True)
    _kept.append(array)
    parameter = hl.ImageParam(TYPES[dtype], array.ndim, name)
    parameter.set(hl.Buffer(array))
    return parameter


def tile(func: Any, gpu: bool, *, size: int = 8) -> Any:
    if gpu:
        func.gpu_tile(x, y, xo, yo, xi, yi, size, size)
    return func


@case()
def hello_gpu(gpu: bool) -> Any:
    f = hl.Func("f")
    f[x, y] = x * 3 - y * y + x * y
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def one_dimension(gpu: bool) -> Any:
    f = hl.Func("f")
    f[x] = hl.f32(x) * 0.25 + 1.0
    if gpu:
        f.gpu_tile(x, xo, xi, 32)
    return f, (1000,)


@case()
def three_dimensions(gpu: bool) -> Any:
    source = image("f4", 3, HEIGHT, WIDTH)
    f = hl.Func("f")
    f[x, y, c] = source[x, y, c] * (c + 1) + hl.f32(x - y)
    if gpu:
        f.gpu_tile(x, y, c, xo, yo, zo, xi, yi, zi, 8, 4, 1)
    return f, (WIDTH, HEIGHT, 3)


def _copy_of_type(dtype: str) -> Any:
    def make(gpu: bool) -> Any:
        source = image(dtype)
        f = hl.Func("f")
        f[x, y] = hl.cast(TYPES[dtype], source[x, y] * 3 + hl.cast(TYPES[dtype], x))
        return tile(f, gpu), (WIDTH, HEIGHT)

    make.__name__ = f"arithmetic_{np.dtype(dtype).name}"
    return make


for _dtype in TYPES:
    case()(_copy_of_type(_dtype))


@case()
def invert_u8(gpu: bool) -> Any:
    source = image("u1")
    f = hl.Func("f")
    f[x, y] = hl.u8(255) - source[x, y]
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def comparison_gives_bool(gpu: bool) -> Any:
    source = image("i4")
    f = hl.Func("f")
    f[x, y] = hl.cast(hl.UInt(1), (source[x, y] > 0) & (x < y))
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def blur_two_stages(gpu: bool) -> Any:
    source = image("u1")
    edges = hl.BoundaryConditions.repeat_edge(source)
    rows, f = hl.Func("rows"), hl.Func("f")
    rows[x, y] = hl.u16(edges[x - 1, y]) + edges[x, y] + edges[x + 1, y]
    f[x, y] = hl.u8((rows[x, y - 1] + rows[x, y] + rows[x, y + 1]) // 9)
    if gpu:
        tile(f, gpu)
        rows.compute_root()
        tile(rows, gpu)
    return f, (WIDTH, HEIGHT)


@case()
def blur_in_shared_memory(gpu: bool) -> Any:
    source = image("f4")
    edges = hl.BoundaryConditions.mirror_image(source)
    rows, f = hl.Func("rows"), hl.Func("f")
    rows[x, y] = edges[x - 1, y] + 2.0 * edges[x, y] + edges[x + 1, y]
    f[x, y] = (rows[x, y - 1] + 2.0 * rows[x, y] + rows[x, y + 1]) / 16.0
    if gpu:
        tile(f, gpu)
        rows.compute_at(f, xo).gpu_threads(x, y)
    return f, (WIDTH, HEIGHT)


@case()
def scalars_of_all_types(gpu: bool) -> Any:
    source = image("f4")
    params = [
        hl.Param(hl.Int(32), "i", -7),
        hl.Param(hl.UInt(8), "b", 250),
        hl.Param(hl.Int(16), "h", -300),
        hl.Param(hl.Float(32), "g", 1.5),
        hl.Param(hl.UInt(16), "w", 65535),
    ]
    i, b, h, g, w = params
    f = hl.Func("f")
    f[x, y] = source[x, y] * g + hl.f32(i + hl.i32(b) + hl.i32(h) + hl.i32(w))
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def transpose_and_flip(gpu: bool) -> Any:
    source = image("i4")
    f = hl.Func("f")
    f[x, y] = source[WIDTH - 1 - y, HEIGHT - 1 - x]
    return tile(f, gpu), (HEIGHT, WIDTH)


@case(ulps=16)
def row_sums(gpu: bool) -> Any:
    """A sum of 70 terms: the order is the same, a fused multiplication is not."""
    source = image("f4")
    r = hl.RDom([(0, WIDTH)])
    f = hl.Func("f")
    f[y] = 0.0
    f[y] += source[r, y] * source[r, y]
    if gpu:
        f.gpu_tile(y, yo, yi, 16)
        f.update(0).gpu_tile(y, yo, yi, 16)
    return f, (48,)


@case(ulps=32)
def matmul(gpu: bool) -> Any:
    a, b = image("f4", 48, 40, name="a"), image("f4", 40, 56, name="b")
    r = hl.RDom([(0, 40)])
    product, f = hl.Func("product"), hl.Func("f")
    product[x, y] = 0.0
    product[x, y] += a[r, y] * b[x, r]
    f[x, y] = product[x, y]
    if gpu:
        tile(f, gpu)
        product.compute_at(f, xi)
    return f, (56, 48)


@case(ulps=16)
def convolution(gpu: bool) -> Any:
    source, weights = image("f4", 3, 40, 44), image("f4", 4, 3, 3, 3, name="weights")
    r = hl.RDom([(0, 3), (0, 3), (0, 3)])
    f = hl.Func("f")
    f[x, y, c] = 0.0
    f[x, y, c] += weights[r.x, r.y, r.z, c] * source[x + r.x, y + r.y, r.z]
    if gpu:
        f.gpu_tile(x, y, xo, yo, xi, yi, 8, 8)
        f.update(0).gpu_tile(x, y, xo, yo, xi, yi, 8, 8)
    return f, (40, 32, 4)


@case()
def maximum_of_window(gpu: bool) -> Any:
    source = image("u2")
    edges = hl.BoundaryConditions.constant_exterior(source, 0)
    r = hl.RDom([(-2, 5), (-2, 5)])
    f = hl.Func("f")
    f[x, y] = hl.maximum(edges[x + r.x, y + r.y])
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def histogram_by_scan(gpu: bool) -> Any:
    """Each bin counts for itself: no two invocations write one place."""
    source = image("u1")
    r = hl.RDom([(0, WIDTH), (0, HEIGHT)])
    f = hl.Func("f")
    f[x] = 0
    f[x] += hl.select(hl.i32(source[r.x, r.y]) // 16 == x, 1, 0)
    if gpu:
        f.gpu_tile(x, xo, xi, 16)
        f.update(0).gpu_tile(x, xo, xi, 16)
    return f, (16,)


@case(ulps=16, absolute=2**-11)
def special_functions(gpu: bool) -> Any:
    """WGSL promises sin to 2^-11, exp and log to some units in the last place. Source: WGSL, accuracy."""
    source = image("f4")
    f = hl.Func("f")
    value = hl.clamp(source[x, y], -3.0, 3.0)
    f[x, y] = hl.sin(value) + hl.exp(value) + hl.log(value * value + 1.0) + hl.sqrt(hl.abs(value))
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def select_and_clamp(gpu: bool) -> Any:
    source = image("i2")
    f = hl.Func("f")
    f[x, y] = hl.i16(hl.clamp(hl.select(source[x, y] > 100, source[x, y] // 3, source[x, y] % 7), -50, 5000))
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def two_outputs(gpu: bool) -> Any:
    source = image("f4")
    f = hl.Func("f")
    f[x, y] = (source[x, y] + 1.0, hl.i32(x - y))
    return tile(f, gpu), (WIDTH, HEIGHT)


@case()
def processor_after_gpu(gpu: bool) -> Any:
    source = image("f4")
    g, f = hl.Func("g"), hl.Func("f")
    g[x, y] = source[x, y] * 2.0
    f[x, y] = g[x, y] + g[WIDTH - 1 - x, y]
    if gpu:
        g.compute_root()
        tile(g, gpu)
        f.vectorize(x, 4)
    return f, (WIDTH, HEIGHT)


@case()
def gpu_after_processor(gpu: bool) -> Any:
    source = image("f4")
    g, f = hl.Func("g"), hl.Func("f")
    g[x, y] = source[x, y] * source[x, y] + 1.0
    f[x, y] = g[x, y] - g[x, HEIGHT - 1 - y]
    if gpu:
        g.compute_root().vectorize(x, 4)
        tile(f, gpu)
    return f, (WIDTH, HEIGHT)


@case()
def gpu_processor_gpu(gpu: bool) -> Any:
    source = image("i4")
    g, h, f = hl.Func("g"), hl.Func("h"), hl.Func("f")
    g[x, y] = source[x, y] // 2
    h[x, y] = g[x, y] + g[y % WIDTH, x % HEIGHT]
    f[x, y] = h[x, y] * 3 + 1
    if gpu:
        for stage in (g, h):
            stage.compute_root()
        tile(g, gpu)
        tile(f, gpu)
    return f, (WIDTH, HEIGHT)


@case()
def several_kernels_in_a_loop(gpu: bool) -> Any:
    """A stage per row block of the processor's loop: kernels are run many times."""
    source = image("f4")
    g, f = hl.Func("g"), hl.Func("f")
    g[x, y] = source[x, y] * 0.5
    f[x, y] = g[x, y] + 1.0
    if gpu:
        f.split(y, yo, yi, 10)
        g.compute_at(f, yo)
        g.gpu_tile(x, y, xo, zo, xi, zi, 8, 2)
    return f, (WIDTH, HEIGHT)


@case(ulps=16)
def pyramid(gpu: bool) -> Any:
    source = image("f4", 64, 64)
    levels = [hl.BoundaryConditions.repeat_edge(source)]
    for number in range(3):
        level = hl.Func(f"level{number}")
        above = levels[-1]
        even = above[2 * x, 2 * y] + above[2 * x + 1, 2 * y]
        level[x, y] = (even + above[2 * x, 2 * y + 1] + above[2 * x + 1, 2 * y + 1]) / 4.0
        if gpu:
            level.compute_root()
            tile(level, gpu, size=4)
        levels.append(level)
    f = hl.Func("f")
    f[x, y] = levels[1][x // 2, y // 2] + levels[2][x // 4, y // 4] + levels[3][x // 8, y // 8]
    return tile(f, gpu), (64, 64)


@case()
def reorder_and_unroll(gpu: bool) -> Any:
    source = image("f4", 3, HEIGHT, WIDTH)
    f = hl.Func("f")
    f[x, y, c] = source[x, y, 2 - c] + 1.0
    if gpu:
        f.bound(c, 0, 3).reorder(c, x, y).gpu_tile(x, y, xo, yo, xi, yi, 8, 8).unroll(c)
    return f, (WIDTH, HEIGHT, 3)
