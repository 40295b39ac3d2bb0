"""Pipelines for the oracle tests: each returns what to realize and over which size (Halide's order).

Inputs are bound to the parameters, so Halide's own JIT and Sylvite see the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import halide as hl

CASES: dict[str, Case] = {}
x, y, c, n, k = (hl.Var(name) for name in "xycnk")
xo, yo, xi, yi = (hl.Var(name) for name in ("xo", "yo", "xi", "yi"))
TYPES = {
    "u8": hl.UInt(8), "i8": hl.Int(8), "u16": hl.UInt(16), "i16": hl.Int(16), "u32": hl.UInt(32),
    "i32": hl.Int(32), "u64": hl.UInt(64), "i64": hl.Int(64), "f32": hl.Float(32), "f64": hl.Float(64),
}  # fmt: skip
WIDTH, HEIGHT = 64, 48


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], tuple[Any, tuple[int, ...]]]
    ulps: float
    features: tuple[str, ...]


def case(name: str | None = None, *, ulps: float = 2.0, features: tuple[str, ...] = ()) -> Any:
    def register(make: Any) -> Any:
        title = name or make.__name__
        CASES[title] = Case(title, make, ulps, features)
        return make

    return register


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def noise(dtype: str, *shape: int) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng().standard_normal(shape).astype(kind)
    info = np.iinfo(kind)
    return rng().integers(info.min, info.max, shape, kind, endpoint=True)


def image(dtype: str = "u1", *shape: int, name: str = "input") -> Any:
    """A bound ImageParam. The shape is in Halide's own reversed order: (height, width)."""
    array = noise(dtype, *(shape or (HEIGHT, WIDTH)))
    parameter = hl.ImageParam(TYPES[f"{array.dtype.kind}{array.itemsize * 8}"], array.ndim, name)
    parameter.set(buffer_of(array))
    return parameter


def buffer_of(array: np.ndarray) -> Any:
    """A Halide buffer with a copy: Halide does not keep an array alive."""
    if array.dtype != np.uint64:
        return hl.Buffer(array).copy()
    # numpy's name for the type is not the one that Halide looks for.
    buffer = hl.Buffer(hl.UInt(64), list(reversed(array.shape)))
    np.asarray(buffer)[...] = array
    return buffer


def smooth(height: int = HEIGHT, width: int = WIDTH) -> Any:
    """A bound float image of soft gradients with a little noise."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    array = 0.5 + 0.4 * np.sin(columns / 9) * np.cos(rows / 7) + rng().random((height, width)) * 0.05
    parameter = hl.ImageParam(hl.Float(32), 2, "input")
    parameter.set(buffer_of(array.astype(np.float32)))
    return parameter


def edge(source: Any) -> Any:
    return hl.BoundaryConditions.repeat_edge(source)


def func(name: str) -> Any:
    return hl.Func(name)


# Types


def _arithmetic(label: str) -> Callable[[], tuple[Any, tuple[int, ...]]]:
    def make() -> tuple[Any, tuple[int, ...]]:
        kind = label[0].replace("f", "f") + str(int(label[1:]) // 8)
        a, b = image(kind, name="a"), image(kind, name="b")
        f = func("types_" + label)
        left, right = a[x, y], b[WIDTH - 1 - x, y]
        one = hl.cast(TYPES[label], 1)
        if label[0] == "f":
            f[x, y] = left * right + hl.sqrt(hl.abs(left)) / (hl.abs(right) + one) - hl.floor(left)
        else:
            f[x, y] = (left * right + (left >> one)) ^ (left / (right | one)) + hl.max(left, right) % (
                left | one
            )
        f.vectorize(x, 8)
        return f, (WIDTH, HEIGHT)

    return make


for _label in TYPES:
    case(f"type_{_label}")(_arithmetic(_label))


@case()
def type_bool():
    a = image()
    f = func("bits")
    f[x, y] = (a[x, y] > 100) & ((x + y) % 3 != 0)
    return f, (WIDTH, HEIGHT)


@case()
def type_f16():
    array = noise("f2", HEIGHT, WIDTH)
    a = hl.ImageParam(hl.Float(16), 2, "a")
    a.set(buffer_of(array))
    f = func("half")
    f[x, y] = hl.cast(hl.Float(16), hl.f32(a[x, y]) * 1.5 + 2.0)
    return f, (WIDTH, HEIGHT)


@case()
def type_f16_arithmetic():
    a = hl.ImageParam(hl.Float(16), 2, "a")
    a.set(buffer_of(noise("f2", HEIGHT, WIDTH)))
    f = func("half_arithmetic")
    f[x, y] = a[x, y] * a[x, y] + hl.cast(hl.Float(16), 0.5)
    f.vectorize(x, 8)
    return f, (WIDTH, HEIGHT)


@case()
def type_conversions():
    a = image("f4")
    f = func("conversions")
    scaled = a[x, y] * 100.0
    f[x, y] = hl.i64(hl.i8_sat(scaled)) + hl.i64(hl.u16_sat(scaled)) * 3 + hl.i64(hl.i32(scaled)) * 7
    f.vectorize(x, 4)
    return f, (WIDTH, HEIGHT)


@case()
def type_fixed_point():
    a, b = image("i2", name="a"), image("i2", name="b")
    f = func("fixed")
    u, v = a[x, y], b[x, y]
    f[x, y] = (
        hl.saturating_add(u, v) + hl.rounding_halving_add(u, v) + hl.absd(u, v) + hl.mul_shift_right(u, v, 12)
    )
    f.vectorize(x, 8)
    return f, (WIDTH, HEIGHT)


@case()
def type_bit_operations():
    a = image("u4")
    f = func("bit_operations")
    v = a[x, y]
    f[x, y] = hl.popcount(v) + hl.count_leading_zeros(v) * 3 + hl.count_trailing_zeros(v) * 5 + (v << 3)
    f.vectorize(x, 4)
    return f, (WIDTH, HEIGHT)


# Mathematics


@case(ulps=4)
def math_exponentials():
    a = smooth()
    f = func("exponentials")
    v = a[x, y] + 0.25
    f[x, y] = hl.exp(v) + hl.log(v) + hl.pow(v, 2.5) + hl.sqrt(v)
    f.vectorize(x, 4)
    return f, (WIDTH, HEIGHT)


@case(ulps=4)
def math_trigonometry():
    a = smooth()
    f = func("trigonometry")
    v = a[x, y] * 0.9
    f[x, y] = hl.sin(v) + hl.cos(v) * hl.tan(v) + hl.atan2(v, 2.0) + hl.asin(v * 0.5) + hl.tanh(v)
    return f, (WIDTH, HEIGHT)


@case(ulps=4)
def math_double():
    a = image("f8")
    f = func("double")
    v = a[x, y]
    f[x, y] = hl.sin(v) * hl.exp(v * 0.1) + hl.floor(v) + hl.round(v * 3) + hl.sqrt(hl.abs(v))
    return f, (16, 16)


@case(ulps=2048)  # approximations by design: x86's reciprocal estimate is not what wasm computes
def math_fast():
    a = smooth()
    f = func("fast")
    v = a[x, y] + 0.5
    f[x, y] = hl.fast_exp(v) + hl.fast_log(v) + hl.fast_pow(v, 1.5) + hl.fast_inverse(v)
    f.vectorize(x, 4)
    return f, (WIDTH, HEIGHT)


@case()
def math_random():
    f = func("random")
    f[x, y] = hl.random_int(3) ^ hl.i32(hl.random_uint(5))
    return f, (WIDTH, HEIGHT)


# Boundary conditions


def _boundary(name: str) -> Callable[[], tuple[Any, tuple[int, ...]]]:
    def make() -> tuple[Any, tuple[int, ...]]:
        a = image()
        if name == "constant_exterior":
            source = hl.BoundaryConditions.constant_exterior(a, 17)
        else:
            source = getattr(hl.BoundaryConditions, name)(a)
        f = func("boundary")
        f[x, y] = hl.u16(source[x - 9, y + 7]) + source[x + 5, y - 3]
        f.vectorize(x, 8)
        return f, (WIDTH, HEIGHT)

    return make


for _name in ("repeat_edge", "repeat_image", "mirror_image", "mirror_interior", "constant_exterior"):
    case(f"boundary_{_name}")(_boundary(_name))


# Schedules of one blur


def _blur() -> tuple[Any, Any]:
    source = edge(image())
    across, blur = func("across"), func("blur")
    across[x, y] = (hl.u16(source[x - 1, y]) + source[x, y] + source[x + 1, y]) / 3
    blur[x, y] = hl.u8((across[x, y - 1] + across[x, y] + across[x, y + 1]) / 3)
    return across, blur


def _inline(across: Any, blur: Any) -> None:
    pass


def _root(across: Any, blur: Any) -> None:
    across.compute_root().vectorize(x, 8)
    blur.vectorize(x, 16)


def _tiled(across: Any, blur: Any) -> None:
    blur.tile(x, y, xo, yo, xi, yi, 16, 8).vectorize(xi, 8).parallel(yo)
    across.compute_at(blur, xo).vectorize(x, 8)


def _folded(across: Any, blur: Any) -> None:
    blur.vectorize(x, 8)
    across.store_root().compute_at(blur, y).fold_storage(y, 4).vectorize(x, 8)


def _sliding(across: Any, blur: Any) -> None:
    blur.split(y, yo, yi, 16).parallel(yo).vectorize(x, 16)
    across.store_at(blur, yo).compute_at(blur, yi).vectorize(x, 16)


def _async(across: Any, blur: Any) -> None:
    across.compute_root().async_()


def _async_folded(across: Any, blur: Any) -> None:
    across.store_root().compute_at(blur, y).fold_storage(y, 8).async_()


def _unrolled(across: Any, blur: Any) -> None:
    blur.unroll(x, 4).reorder(y, x)
    across.compute_at(blur, x)


def _fused(across: Any, blur: Any) -> None:
    fused = hl.Var("fused")
    blur.fuse(x, y, fused).parallel(fused, 64)
    across.compute_root().parallel(y)


def _guarded(across: Any, blur: Any) -> None:
    blur.split(x, xo, xi, 24, hl.TailStrategy.GuardWithIf).vectorize(xi, 8)
    across.compute_at(blur, xo)


def _aligned(across: Any, blur: Any) -> None:
    across.compute_root().align_storage(x, 32).bound_extent(x, WIDTH).vectorize(x, 8)
    blur.vectorize(x, 8)


def _hoisted(across: Any, blur: Any) -> None:
    blur.split(y, yo, yi, 8).vectorize(x, 8)
    across.compute_at(blur, yo).hoist_storage(blur, hl.Var.outermost()).vectorize(x, 8)


def _stack(across: Any, blur: Any) -> None:
    blur.tile(x, y, xo, yo, xi, yi, 16, 8)
    across.compute_at(blur, xo).store_in(hl.MemoryType.Stack)


def _prefetched(across: Any, blur: Any) -> None:
    across.compute_root()
    blur.prefetch(across, y, y, 2)


def _partitioned(across: Any, blur: Any) -> None:
    blur.vectorize(x, 8).never_partition_all()
    across.compute_at(blur, y)


def _nested_parallel(across: Any, blur: Any) -> None:
    blur.tile(x, y, xo, yo, xi, yi, 16, 16).parallel(yo).parallel(xo)
    across.compute_at(blur, xo).parallel(y)


def _schedule(schedule: Callable[[Any, Any], None]) -> Callable[[], tuple[Any, tuple[int, ...]]]:
    def make() -> tuple[Any, tuple[int, ...]]:
        across, blur = _blur()
        schedule(across, blur)
        return blur, (WIDTH, HEIGHT)

    return make


for _plan in (
    _inline, _root, _tiled, _folded, _sliding, _async, _async_folded, _unrolled, _fused, _guarded, _aligned,
    _hoisted, _stack, _prefetched, _partitioned, _nested_parallel,
):  # fmt: skip
    case(f"schedule{_plan.__name__}")(_schedule(_plan))
case("schedule_threads_object", features=("wasm_threads",))(_schedule(_tiled))


@case()
def schedule_specialize():
    a = image()
    wide = hl.Param(hl.Bool(), "wide", True)
    f = func("specialize")
    f[x, y] = hl.select(wide, a[x, y] + 1, a[x, y] - 1)
    f.specialize(wide).vectorize(x, 16)
    return f, (WIDTH, HEIGHT)


@case()
def schedule_compute_with():
    a = image()
    f, g, h = func("one"), func("two"), func("both")
    f[x, y] = hl.u16(a[x, y]) * 3
    g[x, y] = hl.u16(a[x, y]) + 5
    h[x, y] = f[x, y] ^ g[x, y]
    f.compute_root()
    g.compute_root().compute_with(f, y)
    return h, (WIDTH, HEIGHT)


@case()
def schedule_in_wrapper():
    a = image()
    f, g = func("producer"), func("consumer")
    f[x, y] = hl.u16(a[x, y]) * 2
    g[x, y] = f[x, y] + f[WIDTH - 1 - x, y]
    f.compute_root()
    f.in_(g).compute_at(g, y).vectorize(x, 8)
    return g, (WIDTH, HEIGHT)


@case()
def schedule_rfactor():
    a = image()
    r = hl.RDom([(0, WIDTH), (0, HEIGHT)])
    u = hl.Var("u")
    total = func("total")
    total[()] = hl.u32(0)
    total[()] += hl.u32(a[r.x, r.y])
    partial = total.update().rfactor(r.y, u)
    partial.compute_root().update().parallel(u)
    return total, ()


@case()
def schedule_atomic_vectorized_reduction():
    a, b = image("i2", name="a"), image("i2", name="b")
    r = hl.RDom([(0, WIDTH)])
    dot = func("dot")
    dot[y] = 0
    dot[y] += hl.i32(a[r, y]) * b[r, y]
    dot.compute_root().update().atomic().vectorize(r, 8)
    return dot, (HEIGHT,)


@case()
def schedule_memoize():
    shift = hl.Param(hl.Int(32), "shift", 3)
    f, g = func("slow"), func("user")
    f[x, y] = x * y + shift
    g[x, y] = f[x, y] + f[x + 1, y]
    f.compute_root().memoize()
    return g, (WIDTH, HEIGHT)


@case()
def schedule_ring_buffer():
    a = image()
    f, g = func("ring"), func("ring_user")
    f[x, y] = hl.u16(a[x, y]) * 5
    g[x, y] = f[x, y] + 1
    g.tile(x, y, xo, yo, xi, yi, 16, 16)
    f.compute_at(g, xo).hoist_storage(g, yo).ring_buffer(2).async_()
    return g, (WIDTH, HEIGHT)


# Several outputs


@case()
def outputs_tuple():
    a = image()
    f = func("pair")
    f[x, y] = (hl.u16(a[x, y]) * 2, hl.f32(a[x, y]) / 2, hl.u8(x))
    f.vectorize(x, 8)
    return f, (WIDTH, HEIGHT)


@case()
def outputs_pipeline():
    a = image()
    f, g = func("dark"), func("light")
    f[x, y] = a[x, y] / 2
    g[x, y] = hl.u16(a[x, y]) * 2
    return hl.Pipeline([f, g]), (WIDTH, HEIGHT)


@case()
def outputs_argmax():
    a = image()
    r = hl.RDom([(0, WIDTH)])
    f = func("peak")
    best = hl.argmax(a[r, y])
    f[y] = (best[0], best[1])
    return f, (HEIGHT,)


# Applications


@case(ulps=8)
def app_unsharp():
    a = smooth()
    source = edge(a)
    weights = [0.0545, 0.2442, 0.4026, 0.2442, 0.0545]
    down, across, out = func("down"), func("across"), func("unsharp")
    down[x, y] = sum(w * source[x, y + i - 2] for i, w in enumerate(weights))
    across[x, y] = sum(w * down[x + i - 2, y] for i, w in enumerate(weights))
    out[x, y] = hl.clamp(2 * source[x, y] - across[x, y], 0.0, 1.0)
    out.split(y, yo, yi, 8).vectorize(x, 4).parallel(yo)
    down.compute_at(out, yi).vectorize(x, 4)
    return out, (WIDTH, HEIGHT)


@case(ulps=64)
def app_bilateral_grid():
    s_sigma, r_sigma = 8, 0.1
    a = smooth()
    clamped = edge(a)
    r = hl.RDom([(0, s_sigma), (0, s_sigma)])
    z = hl.Var("z")
    value = hl.clamp(clamped[x * s_sigma + r.x - s_sigma // 2, y * s_sigma + r.y - s_sigma // 2], 0.0, 1.0)
    zi = hl.i32(value * (1.0 / r_sigma) + 0.5)
    grid = func("grid")
    grid[x, y, z, c] = 0.0
    grid[x, y, zi, c] += hl.mux(c, [value, hl.f32(1.0)])
    blurs = [grid]
    for axis in range(3):
        previous, blurred = blurs[-1], func(f"blur{axis}")

        def at(offset: int, axis: int = axis, previous: Any = previous) -> Any:
            place = [x, y, z]
            place[axis] = place[axis] + offset
            return previous[place[0], place[1], place[2], c]

        blurred[x, y, z, c] = at(-2) + at(-1) * 4 + at(0) * 6 + at(1) * 4 + at(2)
        blurs.append(blurred)
    value = hl.clamp(a[x, y], 0.0, 1.0)
    zv = value * (1.0 / r_sigma)
    zi = hl.i32(zv)
    zf = zv - zi
    xf, yf = hl.f32(x % s_sigma) / s_sigma, hl.f32(y % s_sigma) / s_sigma
    px, py = x / s_sigma, y / s_sigma
    last = blurs[-1]
    sliced, out = func("interpolated"), func("bilateral_grid")
    sliced[x, y, c] = hl.lerp(
        hl.lerp(
            hl.lerp(last[px, py, zi, c], last[px + 1, py, zi, c], xf),
            hl.lerp(last[px, py + 1, zi, c], last[px + 1, py + 1, zi, c], xf),
            yf,
        ),
        hl.lerp(
            hl.lerp(last[px, py, zi + 1, c], last[px + 1, py, zi + 1, c], xf),
            hl.lerp(last[px, py + 1, zi + 1, c], last[px + 1, py + 1, zi + 1, c], xf),
            yf,
        ),
        zf,
    )
    out[x, y] = sliced[x, y, 0] / sliced[x, y, 1]
    for stage in blurs:
        stage.compute_root().parallel(z)
    out.parallel(y).vectorize(x, 4)
    return out, (WIDTH, HEIGHT)


@case(ulps=128)
def app_local_laplacian():
    levels, steps = 3, 4
    a = smooth()
    source = edge(a)
    gray = func("gray")
    gray[x, y] = source[x, y]

    def down(f: Any, name: str, *rest: Any) -> Any:
        half, result = func(name + "_x"), func(name)
        half[(x, y, *rest)] = (
            f[(2 * x - 1, y, *rest)]
            + 3.0 * (f[(2 * x, y, *rest)] + f[(2 * x + 1, y, *rest)])
            + f[(2 * x + 2, y, *rest)]
        ) / 8.0
        result[(x, y, *rest)] = (
            half[(x, 2 * y - 1, *rest)]
            + 3.0 * (half[(x, 2 * y, *rest)] + half[(x, 2 * y + 1, *rest)])
            + half[(x, 2 * y + 2, *rest)]
        ) / 8.0
        return result

    def up(f: Any, name: str, *rest: Any) -> Any:
        wide, result = func(name + "_x"), func(name)
        wide[(x, y, *rest)] = hl.lerp(
            f[((x + 1) / 2 - 1 + (x % 2) * 0, y, *rest)], f[((x + 1) / 2, y, *rest)], 0.75 - (x % 2) * 0.5
        )
        result[(x, y, *rest)] = hl.lerp(
            wide[(x, (y + 1) / 2 - 1 + (y % 2) * 0, *rest)],
            wide[(x, (y + 1) / 2, *rest)],
            0.75 - (y % 2) * 0.5,
        )
        return result

    guide = [func("guide0")]
    level = k * (1.0 / (steps - 1))
    delta = gray[x, y] - level
    guide[0][x, y, k] = level + delta * 1.5 * hl.exp(-delta * delta * 8.0)
    pyramid = [gray]
    for j in range(1, levels):
        guide.append(down(guide[-1], f"guide{j}", k))
        pyramid.append(down(pyramid[-1], f"in{j}"))
        guide[-1].compute_root()
        pyramid[-1].compute_root().parallel(y)
    out = None
    for j in reversed(range(levels)):
        position = hl.clamp(pyramid[j][x, y] * float(steps - 1), 0.0, steps - 1.001)
        low = hl.clamp(hl.i32(position), 0, steps - 2)
        part = position - hl.f32(low)
        detail = guide[j][x, y, low] * (1.0 - part) + guide[j][x, y, low + 1] * part
        here = func(f"out{j}")
        if out is None:
            here[x, y] = detail
        else:
            coarse = up(guide[j + 1], f"coarse{j}", k)
            base = coarse[x, y, low] * (1.0 - part) + coarse[x, y, low + 1] * part
            here[x, y] = up(out, f"up{j}")[x, y] + detail - base
        here.compute_root()
        out = here
    return out, (WIDTH, HEIGHT)


@case()
def app_camera_pipe():
    raw = image("u2", HEIGHT * 2 + 8, WIDTH * 2 + 8, name="raw")
    denoised, deinterleaved, demosaiced = func("denoised"), func("deinterleaved"), func("demosaiced")
    source = hl.BoundaryConditions.repeat_edge(raw)

    def pixel(dx: Any, dy: Any) -> Any:
        return hl.i32(source[dx, dy] >> 6)

    around = [pixel(x - 2, y), pixel(x + 2, y), pixel(x, y - 2), pixel(x, y + 2)]
    most = hl.max(hl.max(around[0], around[1]), hl.max(around[2], around[3]))
    least = hl.min(hl.min(around[0], around[1]), hl.min(around[2], around[3]))
    denoised[x, y] = hl.clamp(pixel(x, y), least, most)
    deinterleaved[x, y, c] = hl.mux(
        c,
        [
            denoised[2 * x, 2 * y], denoised[2 * x + 1, 2 * y], denoised[2 * x, 2 * y + 1],
            denoised[2 * x + 1, 2 * y + 1],
        ],
    )  # fmt: skip
    green = (deinterleaved[x, y, 0] + deinterleaved[x, y, 3]) / 2
    red, blue = deinterleaved[x, y, 1], deinterleaved[x, y, 2]
    demosaiced[x, y, c] = hl.mux(c, [red, green, blue])
    corrected, curve, out = func("corrected"), func("curve"), func("camera")
    matrix = [[410, -120, -34], [-80, 400, -64], [-20, -130, 406]]
    corrected[x, y, c] = hl.mux(
        c, [sum(row[i] * demosaiced[x, y, i] for i in range(3)) / 256 for row in matrix]
    )
    value = hl.f32(x) / 1024.0
    curve[x] = hl.u8_sat(hl.clamp(value * (2.0 - value), 0.0, 1.0) * 255.0 + 0.5)
    out[x, y, c] = curve[hl.clamp(corrected[x, y, c], 0, 1023)]
    curve.compute_root()
    denoised.compute_root().parallel(y)
    out.bound(c, 0, 3).unroll(c).parallel(y)
    demosaiced.compute_at(out, y)
    return out, (WIDTH, HEIGHT, 3)


@case()
def app_histogram():
    a = image()
    r = hl.RDom([(0, WIDTH), (0, HEIGHT)])
    h = func("histogram")
    h[x] = hl.u32(0)
    h[hl.i32(a[r.x, r.y])] += hl.u32(1)
    return h, (256,)


@case()
def app_histogram_equalise():
    a = image()
    r, b = hl.RDom([(0, WIDTH), (0, HEIGHT)]), hl.RDom([(1, 255)])
    h, cdf, out = func("histogram"), func("cdf"), func("equalised")
    h[x] = 0
    h[hl.i32(a[r.x, r.y] / 3)] += 1
    cdf[x] = h[0]
    cdf[b.x] = cdf[b.x - 1] + h[b.x]
    out[x, y] = hl.u8_sat(cdf[hl.i32(a[x, y] / 3)] * 255 / (WIDTH * HEIGHT))
    h.compute_root()
    cdf.compute_root()
    out.vectorize(x, 8).parallel(y)
    return out, (WIDTH, HEIGHT)


@case(ulps=64)
def app_conv_layer():
    channels_in, channels_out = 8, 16
    a = image("f4", 2, 18, 18, channels_in)
    w = image("f4", channels_out, 3, 3, channels_in, name="filter")
    bias = image("f4", channels_out, name="bias")
    r = hl.RDom([(0, channels_in), (0, 3), (0, 3)])
    conv, relu = func("conv"), func("relu")
    conv[c, x, y, n] = bias[c]
    conv[c, x, y, n] += w[r.x, r.y, r.z, c] * a[r.x, x + r.y, y + r.z, n]
    relu[c, x, y, n] = hl.max(0.0, conv[c, x, y, n])
    relu.vectorize(c, 4).parallel(n)
    conv.compute_at(relu, x).vectorize(c, 4).update().vectorize(c, 4)
    return relu, (channels_out, 16, 16, 2)


@case(ulps=64)
def app_matmul():
    size = 32
    a, b = image("f4", size, size, name="a"), image("f4", size, size, name="b")
    r = hl.RDom([(0, size)])
    product, out = func("product"), func("matmul")
    product[x, y] = 0.0
    product[x, y] += a[r, y] * b[x, r]
    out[x, y] = product[x, y]
    out.tile(x, y, xi, yi, 8, 8).vectorize(xi, 4).parallel(y)
    product.compute_at(out, x).vectorize(x, 4).update().reorder(x, y, r).vectorize(x, 4).unroll(y)
    return out, (size, size)


@case()
def app_matmul_int8():
    size = 32
    a, b = image("i1", size, size, name="a"), image("i1", size, size, name="b")
    r = hl.RDom([(0, size)])
    out = func("matmul_int8")
    out[x, y] = 0
    out[x, y] += hl.i32(a[r, y]) * hl.i32(b[x, r])
    out.update().reorder(x, r, y).vectorize(x, 4)
    return out, (size, size)


@case(ulps=64)
def app_fft_like():
    size = 16
    a = image("f4", 2, size)
    stages = [func("stage0")]
    reversed_bits = [int(f"{i:04b}"[::-1], 2) for i in range(size)]
    stages[0][x] = (
        a[hl.mux(x, [hl.Expr(i) for i in reversed_bits]), 0],
        a[hl.mux(x, [hl.Expr(i) for i in reversed_bits]), 1],
    )
    for s in range(4):
        half = 1 << s
        previous, here = stages[-1], func(f"stage{s + 1}")
        base, j = (x / (2 * half)) * (2 * half), x % half
        angle = hl.f32(j) * float(-np.pi / half)
        re, im = hl.cos(angle), hl.sin(angle)
        low, high = base + j, base + j + half
        tr = previous[high][0] * re - previous[high][1] * im
        ti = previous[high][0] * im + previous[high][1] * re
        sign = hl.select((x / half) % 2 == 0, 1.0, -1.0)
        here[x] = (previous[low][0] + sign * tr, previous[low][1] + sign * ti)
        previous.compute_root()
        stages.append(here)
    return stages[-1], (size,)


@case(ulps=64)
def app_iir_blur():
    a = smooth()
    alpha = 0.3
    f, out = func("iir"), func("iir_blur")
    f[x, y] = a[x, y]
    down, back = hl.RDom([(1, HEIGHT - 1)]), hl.RDom([(1, HEIGHT - 1)])
    f[x, down] = (1 - alpha) * f[x, down - 1] + alpha * f[x, down]
    flipped = HEIGHT - 1 - back
    f[x, flipped] = (1 - alpha) * f[x, flipped + 1] + alpha * f[x, flipped]
    f.compute_root().vectorize(x, 4)
    f.update(0).vectorize(x, 4)
    f.update(1).vectorize(x, 4)
    out[x, y] = f[y, x]
    return out, (HEIGHT, WIDTH)


def _resize(kernel: str) -> Callable[[], tuple[Any, tuple[int, ...]]]:
    def weight(distance: Any) -> Any:
        d = hl.abs(distance)
        if kernel == "box":
            return hl.select(d <= 0.5, hl.f32(1.0), hl.f32(0.0))
        if kernel == "linear":
            return hl.max(1.0 - d, 0.0)
        d2, d3 = d * d, d * d * d
        near, far = 1.5 * d3 - 2.5 * d2 + 1.0, -0.5 * d3 + 2.5 * d2 - 4.0 * d + 2.0
        return hl.select(d < 1.0, near, hl.select(d < 2.0, far, hl.f32(0.0)))

    def make() -> tuple[Any, tuple[int, ...]]:
        a = smooth()
        source = edge(a)
        scale = 1.5
        taps = {"box": 1, "linear": 2, "cubic": 4}[kernel]
        r = hl.RDom([(0, taps)])
        position = (hl.f32(x) + 0.5) / scale
        begin = hl.i32(hl.ceil(position - taps / 2.0))
        kernel_x, across, out = func("kernel"), func("across"), func("resize")
        kernel_x[x, k] = weight(hl.f32(k + begin) + 0.5 - position)
        across[x, y] = hl.sum(kernel_x[x, r] * source[r + begin, y])
        begin_y = hl.i32(hl.ceil((hl.f32(y) + 0.5) / scale - taps / 2.0))
        out[x, y] = hl.sum(kernel_x[y, r] * across[x, r + begin_y])
        kernel_x.compute_root()
        across.compute_root().vectorize(x, 4)
        out.vectorize(x, 4).parallel(y)
        return out, (WIDTH * 3 // 2, HEIGHT * 3 // 2)

    return make


for _kernel in ("box", "linear", "cubic"):
    case(f"app_resize_{_kernel}", ulps=64)(_resize(_kernel))


@case()
def app_max_filter():
    a = image()
    source = edge(a)
    r = hl.RDom([(-3, 7)])
    down, out = func("max_down"), func("max_filter")
    down[x, y] = hl.maximum(source[x, y + r])
    out[x, y] = hl.maximum(down[x + r, y])
    down.compute_root().vectorize(x, 16)
    out.vectorize(x, 16).parallel(y, 8)
    return out, (WIDTH, HEIGHT)


@case()
def app_median():
    source = edge(image())
    values = [source[x + i, y + j] for i in (-1, 0, 1) for j in (-1, 0, 1)]

    def order(i: int, j: int) -> None:
        values[i], values[j] = hl.min(values[i], values[j]), hl.max(values[i], values[j])

    for i, j in ((1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8),
                 (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)):  # fmt: skip
        order(i, j)
    out = func("median")
    out[x, y] = values[4]
    out.vectorize(x, 16)
    return out, (WIDTH, HEIGHT)


@case(ulps=16)
def app_wavelet():
    a = image("f4", 8, WIDTH)
    source = edge(a)
    d0, d1, d2, d3 = 0.4829629131, 0.8365163037, 0.2241438680, -0.1294095226
    out = func("wavelet")
    even = (
        d0 * source[2 * x - 1, y]
        + d1 * source[2 * x, y]
        + d2 * source[2 * x + 1, y]
        + d3 * source[2 * x + 2, y]
    )
    odd = (
        d3 * source[2 * x - 1, y]
        - d2 * source[2 * x, y]
        + d1 * source[2 * x + 1, y]
        - d0 * source[2 * x + 2, y]
    )
    out[x, y, c] = hl.select(c == 0, even, odd)
    out.unroll(c, 2)
    return out, (WIDTH // 2, 8, 2)


@case()
def app_sobel():
    a = image()
    source = edge(a)
    signed = func("signed")
    signed[x, y] = hl.i16(source[x, y])
    gx = signed[x + 1, y - 1] + 2 * signed[x + 1, y] + signed[x + 1, y + 1]
    gx -= signed[x - 1, y - 1] + 2 * signed[x - 1, y] + signed[x - 1, y + 1]
    gy = signed[x - 1, y + 1] + 2 * signed[x, y + 1] + signed[x + 1, y + 1]
    gy -= signed[x - 1, y - 1] + 2 * signed[x, y - 1] + signed[x + 1, y - 1]
    out = func("sobel")
    out[x, y] = hl.u8_sat((hl.abs(gx) + hl.abs(gy)) / 4)
    out.vectorize(x, 16)
    return out, (WIDTH, HEIGHT)


@case()
def app_interleave_rgb():
    planes = image("u1", 3, HEIGHT, WIDTH)
    out = func("swap")
    out[x, y, c] = hl.mux(c, [planes[x, y, 2], planes[x, y, 1], planes[x, y, 0]])
    out.bound(c, 0, 3).unroll(c)
    return out, (WIDTH, HEIGHT, 3)


@case()
def app_prefix_sum():
    a = image("i4", WIDTH)
    r = hl.RDom([(1, WIDTH - 1)])
    out = func("prefix")
    out[x] = hl.i64(a[x])
    out[r.x] = out[r.x - 1] + out[r.x]
    return out, (WIDTH,)


@case()
def app_game_of_life():
    cells = hl.BoundaryConditions.repeat_image(image())
    alive = func("alive")
    alive[x, y] = hl.u8(cells[x, y] > 127)
    around = sum((alive[x + i, y + j] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j), hl.u8(0))
    out = func("life")
    out[x, y] = hl.u8((around == 3) | ((alive[x, y] == 1) & (around == 2)))
    alive.compute_root().vectorize(x, 16)
    out.vectorize(x, 16)
    return out, (WIDTH, HEIGHT)


@case()
def app_mandelbrot():
    t = hl.Var("t")
    z = func("z")
    r = hl.RDom([(1, 20)])
    cr, ci = hl.f32(x) / 24.0 - 2.0, hl.f32(y) / 20.0 - 1.2
    z[x, y, t] = (hl.f32(0.0), hl.f32(0.0))
    re, im = z[x, y, r - 1][0], z[x, y, r - 1][1]
    z[x, y, r] = (hl.clamp(re * re - im * im + cr, -4.0, 4.0), hl.clamp(2 * re * im + ci, -4.0, 4.0))
    inside = hl.sum(hl.select(z[x, y, r][0] * z[x, y, r][0] + z[x, y, r][1] * z[x, y, r][1] < 4.0, 1, 0))
    out = func("mandelbrot")
    out[x, y] = hl.u8(inside)
    z.compute_at(out, x)
    return out, (32, 24)


@case()
def app_scan_segments():
    a = image()
    r = hl.RDom([(0, WIDTH), (0, HEIGHT)])
    r.where(r.x + r.y < 40)
    out = func("triangle")
    out[x] = hl.i32(0)
    out[r.x % 8] += hl.i32(a[r.x, r.y])
    return out, (8,)


@case()
def app_gather():
    a, lookup = image(), image("u1", HEIGHT, WIDTH, name="lookup")
    out = func("warp")
    out[x, y] = a[
        hl.clamp(hl.i32(lookup[x, y]), 0, WIDTH - 1), hl.clamp(hl.i32(lookup[x, y]) / 4, 0, HEIGHT - 1)
    ]
    out.vectorize(x, 8)
    return out, (WIDTH, HEIGHT)


@case(features=("no_asserts",))
def target_no_asserts():
    across, blur = _blur()
    _root(across, blur)
    return blur, (WIDTH, HEIGHT)


@case(features=("no_bounds_query",))
def target_no_bounds_query():
    across, blur = _blur()
    _root(across, blur)
    return blur, (WIDTH, HEIGHT)


@case(features=("user_context",))
def target_user_context():
    across, blur = _blur()
    _tiled(across, blur)
    return blur, (WIDTH, HEIGHT)


@case(features=("strict_float",), ulps=0)
def target_strict_float():
    a = smooth()
    out = func("strict")
    out[x, y] = (a[x, y] + 1e-3) * a[x, y] - 0.1 / (a[x, y] + 1.0)
    return out, (WIDTH, HEIGHT)
