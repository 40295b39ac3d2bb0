"""Pipelines in the sandbox against Halide's native JIT: ``python -m benchmarks.bench_halide``.

One thread on all sides, then two: ``local-task://2`` against Halide's own thread pool of two, in another
process, because Halide reads their number once. Each result is checked before it is timed; sides are timed
interleaved. Halide's own wasm JIT (an interpreter) is timed where the wheel has it, once.
"""

from __future__ import annotations

import os

# Before Halide makes its threads.
os.environ.setdefault("HL_NUM_THREADS", "1")

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import halide as hl
from sylvite import drivers
from sylvite import halide as sylvite_halide

from .harness import machine

x, y, c, n, k = (hl.Var(name) for name in "xycnk")
yo, yi, xi = hl.Var("yo"), hl.Var("yi"), hl.Var("xi")
SSE41 = "x86-64-linux-sse41"
INTERPRETER = "wasm-32-wasmrt-wasm_simd128"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A pipeline, made anew for each side because schedules belong to Funcs. ``inputs`` are arrays in
    Halide's reversed order."""

    name: str
    make: Callable[[], tuple[Any, list[Any]]]
    inputs: tuple[np.ndarray, ...]
    size: tuple[int, ...]
    tolerance: float


def _image(kind: str, dimensions: int, name: str) -> Any:
    types = {"u8": hl.UInt(8), "f32": hl.Float(32)}
    return hl.ImageParam(types[kind], dimensions, name)


def blur() -> tuple[Any, list[Any]]:
    source = _image("u8", 2, "input")
    edge = hl.BoundaryConditions.repeat_edge(source)
    across, out = hl.Func("across"), hl.Func("blur")
    across[x, y] = (hl.u16(edge[x - 1, y]) + edge[x, y] + edge[x + 1, y]) / 3
    out[x, y] = hl.u8((across[x, y - 1] + across[x, y] + across[x, y + 1]) / 3)
    out.split(y, yo, yi, 64).parallel(yo).vectorize(x, 16)
    across.store_at(out, yo).compute_at(out, yi).vectorize(x, 16)
    return out, [source]


def bilateral_grid(s_sigma: int = 8, r_sigma: float = 0.1) -> tuple[Any, list[Any]]:
    source = _image("f32", 2, "input")
    edge = hl.BoundaryConditions.repeat_edge(source)
    z = hl.Var("z")
    r = hl.RDom([(0, s_sigma), (0, s_sigma)])
    value = hl.clamp(edge[x * s_sigma + r.x - s_sigma // 2, y * s_sigma + r.y - s_sigma // 2], 0.0, 1.0)
    cell = hl.i32(value * hl.f32(1 / r_sigma) + 0.5)
    grid = hl.Func("grid")
    grid[x, y, z, c] = hl.f32(0.0)
    grid[x, y, cell, c] += hl.mux(c, [value, hl.f32(1.0)])
    blurs = [grid]
    for axis in (2, 0, 1):
        previous, blurred = blurs[-1], hl.Func(f"blur{axis}")

        def at(offset: int, axis: int = axis, previous: Any = previous) -> Any:
            place = [x, y, z]
            place[axis] = place[axis] + offset
            return previous[place[0], place[1], place[2], c]

        blurred[x, y, z, c] = at(-2) + at(-1) * 4 + at(0) * 6 + at(1) * 4 + at(2)
        blurs.append(blurred)
    value = hl.clamp(source[x, y], 0.0, 1.0)
    depth = value * hl.f32(1 / r_sigma)
    zi = hl.i32(depth)
    zf = depth - zi
    xf, yf = hl.f32(x % s_sigma) / s_sigma, hl.f32(y % s_sigma) / s_sigma
    px, py, last = x / s_sigma, y / s_sigma, blurs[-1]

    def plane(level: Any, channel: int) -> Any:
        return hl.lerp(
            hl.lerp(last[px, py, level, channel], last[px + 1, py, level, channel], xf),
            hl.lerp(last[px, py + 1, level, channel], last[px + 1, py + 1, level, channel], xf),
            yf,
        )

    sums = [hl.lerp(plane(zi, channel), plane(zi + 1, channel), zf) for channel in range(2)]
    out = hl.Func("bilateral_grid")
    out[x, y] = sums[0] / sums[1]
    grid.compute_root()
    grid.update().reorder(c, r.x, r.y, x, y).unroll(c)
    grid.reorder(c, z, x, y).bound(c, 0, 2).unroll(c)
    for stage in blurs[1:]:
        stage.compute_root().parallel(z).vectorize(x, 4)
    out.parallel(y, 16).vectorize(x, 4)
    return out, [source]


def conv_layer(channels: int = 32) -> tuple[Any, list[Any]]:
    source, weights = _image("f32", 4, "input"), _image("f32", 4, "filter")
    bias = _image("f32", 1, "bias")
    r = hl.RDom([(0, channels), (0, 3), (0, 3)])
    conv, out = hl.Func("conv"), hl.Func("conv_layer")
    conv[c, x, y, n] = bias[c]
    conv[c, x, y, n] += weights[c, r.x, r.y, r.z] * source[r.x, x + r.y, y + r.z, n]
    out[c, x, y, n] = hl.max(hl.f32(0.0), conv[c, x, y, n])
    xo, co, ci = hl.Var("xo"), hl.Var("co"), hl.Var("ci")
    out.split(c, co, ci, 16).split(x, xo, xi, 4).reorder(ci, xi, xo, y, n, co)
    out.vectorize(ci, 4).unroll(ci).unroll(xi).parallel(y)
    conv.compute_at(out, xo).vectorize(c, 4).unroll(c).unroll(x)
    conv.update().reorder(c, x, y, r.x, r.y, r.z, n).vectorize(c, 4).unroll(c).unroll(x)
    return out, [source, weights, bias]


def matmul(size: int = 512) -> tuple[Any, list[Any]]:
    a, b = _image("f32", 2, "a"), _image("f32", 2, "b")
    r = hl.RDom([(0, size)])
    product, out = hl.Func("product"), hl.Func("matmul")
    product[x, y] = hl.f32(0.0)
    product[x, y] += a[r, y] * b[x, r]
    out[x, y] = product[x, y]
    out.bound(x, 0, size).bound(y, 0, size)
    out.tile(x, y, xi, yi, 16, 4).vectorize(xi, 4).unroll(xi).unroll(yi).parallel(y)
    product.compute_at(out, x).vectorize(x, 4).unroll(x).unroll(y)
    product.update().reorder(x, y, r).vectorize(x, 4).unroll(x).unroll(y).unroll(r, 2)
    return out, [a, b]


def subjects() -> list[Subject]:
    generator = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return generator.random(shape, np.float32)

    return [
        Subject("blur 3x3 u8", blur, (generator.integers(0, 256, (1536, 2560), np.uint8),), (2560, 1536), 0),
        Subject("bilateral grid", bilateral_grid, (floats(768, 1280),), (1280, 768), 1e-4),
        Subject(
            "conv layer",
            conv_layer,
            (floats(1, 66, 66, 32), floats(3, 3, 32, 32), floats(32)),
            (32, 64, 64, 1),
            1e-4,
        ),
        Subject("matmul 512", matmul, (floats(512, 512), floats(512, 512)), (512, 512), 1e-4),
    ]


class Native:
    """Halide's JIT for a target."""

    def __init__(self, subject: Subject, target: Any) -> None:
        func, params = subject.make()
        # Halide's buffers do not keep the arrays alive.
        self.arrays = [array.copy() for array in subject.inputs]
        for param, array in zip(params, self.arrays, strict=True):
            param.set(hl.Buffer(array))
        self.output = hl.Buffer(func.types()[0], list(subject.size))
        self.target = target
        self.func = func
        func.compile_jit(target)

    def run(self) -> None:
        self.func.realize(self.output, self.target)

    def result(self) -> np.ndarray:
        return np.asarray(self.output)


class Sandboxed:
    """Sylvite, with everything in guest memory."""

    def __init__(self, subject: Subject, device: Any) -> None:
        func, params = subject.make()
        self.pipeline = sylvite_halide.compile(func, params, device=device, layout="reversed", name="bench")
        self.inputs = []
        for array in subject.inputs:
            guest = device.allocate(array.shape, array.dtype)
            guest[...] = array
            self.inputs.append(guest)
        output = self.pipeline.signature.outputs[0]
        self.output = device.allocate(tuple(reversed(subject.size)), output.type.dtype)

    def run(self) -> None:
        self.pipeline(*self.inputs, self.output)

    def result(self) -> np.ndarray:
        return self.output


def measure(sides: dict[str, Any], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of every side, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side.run()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(next(iter(times.values()))) < 5:
        for name, side in sides.items():
            begin = time.perf_counter()
            side.run()
            times[name].append((time.perf_counter() - begin) * 1e3)
    return times


def interpreter(subject: Subject) -> Native | None:
    """Halide's own wasm JIT, when the wheel has it."""
    try:
        return Native(subject, hl.Target(INTERPRETER))
    except (hl.HalideError, RuntimeError):
        return None


def bench(subject: Subject, device: Any, seconds: float) -> dict[str, Any]:
    """One subject on all sides: medians, spreads and ratios."""
    sides: dict[str, Any] = {
        "sylvite": Sandboxed(subject, device),
        "native host": Native(subject, hl.get_host_target()),
        "native SSE4.1": Native(subject, hl.Target(SSE41)),
    }
    for side in sides.values():
        side.run()
        np.testing.assert_allclose(
            sides["sylvite"].result(), side.result(), rtol=subject.tolerance, atol=subject.tolerance
        )
    times = measure(sides, seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    report: dict[str, Any] = {
        "name": subject.name,
        "rounds": len(times["sylvite"]),
        "median_ms": medians,
        "best_ms": {name: min(values) for name, values in times.items()},
        "quartiles_ms": {name: statistics.quantiles(values, n=4) for name, values in times.items()},
        "ratio_sse41": medians["sylvite"] / medians["native SSE4.1"],
        "ratio_sse41_best": min(times["sylvite"]) / min(times["native SSE4.1"]),
        "ratio_host": medians["sylvite"] / medians["native host"],
    }
    return report


def overhead(device: Any, calls: int = 5000) -> float:
    """Microseconds of a call that computes 16 bytes, everything in guest memory."""
    source, gain = _image("u8", 1, "input"), hl.Param(hl.Int(32), "gain", 1)
    out = hl.Func("tiny")
    out[x] = source[x] + hl.u8(gain)
    pipeline = sylvite_halide.compile(out, [source, gain], device=device)
    given, target = device.allocate((16,), np.uint8), device.allocate((16,), np.uint8)
    best = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(calls // 7):
            pipeline(given, target, 2)
        best.append((time.perf_counter() - begin) / (calls // 7) * 1e6)
    return min(best)


def run(threads: int, seconds: float) -> dict[str, Any]:
    """All subjects with so many threads; ``HL_NUM_THREADS`` has to say the same."""
    with drivers.create_device("local-sync" if threads == 1 else f"local-task://{threads}") as device:
        reports = [bench(subject, device, seconds) for subject in subjects()]
        call_us = overhead(device)
    if threads == 1:
        for subject, report in zip(subjects(), reports, strict=True):
            slow = interpreter(subject)
            if slow is not None:
                begin = time.perf_counter()
                slow.run()
                report["interpreter_ms"] = (time.perf_counter() - begin) * 1e3
    means = {
        key: statistics.geometric_mean(report[f"ratio_{key}"] for report in reports)
        for key in ("sse41", "sse41_best", "host")
    }
    return {"threads": threads, "subjects": reports, "mean_ratios": means, "call_us": call_us}


def run_apart(threads: int, seconds: float) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "benchmarks.bench_halide", "--threads", str(threads)]
        command += ["--seconds", str(seconds), "--json", str(path)]
        environment = {**os.environ, "HL_NUM_THREADS": str(threads)}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(path.read_text())["runs"][0]
        return found


def show(report: dict[str, Any]) -> None:
    """Print one run."""
    threads = report["threads"]
    titles = ["sylvite ms", "host ms", "SSE4.1 ms", "x SSE4.1", "best x", "x host", "interpreter"]
    table = Table(f"pipeline, {threads} thread{'s' * (threads > 1)}", *titles[: 7 if threads == 1 else 6])
    for row in report["subjects"]:
        medians = row["median_ms"]
        slow = row.get("interpreter_ms")
        cells = [f"{medians[name]:.2f}" for name in ("sylvite", "native host", "native SSE4.1")]
        cells += [f"{row[f'ratio_{key}']:.2f}" for key in ("sse41", "sse41_best", "host")]
        if threads == 1:
            cells.append("not in the wheel" if slow is None else f"{slow / medians['sylvite']:.0f} x slower")
        table.add_row(row["name"], *cells)
    console = Console()
    console.print(table)
    means = report["mean_ratios"]
    console.print(
        f"geometric mean over SSE4.1: {means['sse41']:.2f} (best {means['sse41_best']:.2f}), over the host: "
        f"{means['host']:.2f}; call overhead {report['call_us']:.1f} us"
    )


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time per subject")
    parser.add_argument("--threads", type=int, help="only so many; HL_NUM_THREADS must say the same")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads is not None:
        runs = [run(options.threads, options.seconds)]
    else:
        runs = [run(1, options.seconds), run_apart(2, options.seconds)]
    for report in runs:
        show(report)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
