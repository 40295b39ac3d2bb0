"""``python -m benchmarks.bench_kernels``: the packed matrix kernels against the engine's own peak.

The peak is a loop of independent fused multiply-adds (or multiplications and additions) with nothing
else, run beside the kernels in the same rounds. Times are of the thread's own CPU, best of many rounds,
so that a busy machine disturbs little; the clock may still differ between rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sylvite import engines, kernels
from sylvite.linker import LinkSpace
from sylvite.wasm import ModuleBuilder, ValueType

from .harness import machine

SHAPES = [
    ("f32 512x512x512", "f32", 512, 512, 512),
    ("f32 128x1536x384 (MiniLM up)", "f32", 128, 1536, 384),
    ("f32 128x384x1536 (MiniLM down)", "f32", 128, 384, 1536),
    ("f32 128x128x32 (attention head)", "f32", 128, 128, 32),
    ("f32 3136x64x576 (3x3 convolution)", "f32", 3136, 64, 576),
    ("f16 128x1536x384, packed", "f16", 128, 1536, 384),
    ("i16 128x1536x384, packed", "i16", 128, 1536, 384),
    ("i8 128x1536x384, packed", "i8", 128, 1536, 384),
]
FLAGS = {"f32": 1, "i8": 2, "f16": 3, "i16": 7}
DTYPES = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i16": np.int16}
SOFTMAX_SHAPE = (1536, 128)
SOFTMAX_ROW = "softmax 1536x128, elements"
ACCUMULATORS = 12
PEAK_ROUNDS = 32


def peak_module(*, relaxed: bool) -> bytes:
    """``peak(n)``: n rounds of independent vector operations.

    A way out stands after each round for the reason told in `sylvite.kernels.gemm`: in one long block the
    engine would put the operations of an accumulator one behind the other.
    """
    module = ModuleBuilder("peak")
    function = module.function("peak", [ValueType.I32], [ValueType.I32], export=True)
    sums = [function.local(ValueType.V128) for _ in range(ACCUMULATORS)]
    factor = function.local(ValueType.V128)
    function.f32(0.5).emit("f32x4.splat").set(factor)
    with function.block() as done, function.loop() as again:
        for _ in range(PEAK_ROUNDS):
            for total in sums:
                if relaxed:
                    # The machine's instruction overwrites its first factor, which so needs no copy.
                    function.get(total).get(factor).get(factor).emit("f32x4.relaxed_madd").set(total)
                else:
                    function.get(factor).get(total).emit("f32x4.mul").get(factor).emit("f32x4.add").set(total)
            function.get(0).i32(-1).emit("i32.add").tee(0).emit("i32.eqz").br_if(done)
        function.br(again)
    function.get(sums[0])
    for total in sums[1:]:
        function.get(total).emit("v128.xor")
    function.emit("i32x4.extract_lane", 0)
    return module.build()


class Product:
    """One product in a link space. That of floats includes packing of the left operand; those of other types
    begin with packed operands."""

    def __init__(self, space: LinkSpace, kind: str, m: int, n: int, k: int) -> None:
        rng = np.random.default_rng(7)
        self.space, self.kind, self.m, self.n, self.k = space, kind, m, n, k
        self.inner = 2 if kind.startswith("i") else 1
        self.left, self.right = (
            (rng.standard_normal(shape) if self.inner == 1 else rng.integers(-100, 100, shape)).astype(
                DTYPES[kind]
            )
            for shape in ((m, k), (k, n))
        )
        self.addresses = {
            "left": space.reserve(4 * m * k),
            "packed": space.reserve(4 * m * k),
            "right": space.reserve(4 * n * k),
            "out": space.reserve(4 * m * n),
        }
        space.write(self.addresses["left"], self.left.tobytes())
        space.write(self.addresses["packed"], self._panels(self.left, 8).tobytes())
        space.write(self.addresses["right"], self._panels(self.right.T, 4).tobytes())

    def _panels(self, rows: np.ndarray, width: int) -> np.ndarray:
        panels = rows.reshape(-1, width, self.k // self.inner, self.inner).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(panels)

    def run(self, functions: dict[str, Callable[..., int]]) -> None:
        m, n, k, at = self.m, self.n, self.k, self.addresses
        if self.kind == "f32":
            functions["iree_uk_pack"](
                *(at["left"], 0, k, 1, at["packed"], 0, 8 * k, 8, m, k, m // 8, k, 8, 1, 0, 1, 0)
            )
        functions["iree_uk_mmt4d"](
            *(at["packed"], 0, 8 * k, at["right"], 0, 4 * k, at["out"], 0, 8 * n),
            *(m // 8, n // 4, k // self.inner, 8, 4, self.inner, FLAGS[self.kind], 0),
        )

    def check(self) -> None:
        dtype = np.float32 if self.inner == 1 else np.int32
        data = np.frombuffer(self.space.read(self.addresses["out"], 4 * self.m * self.n), dtype)
        tiles = data.reshape(self.m // 8, self.n // 4, 8, 4).transpose(0, 2, 1, 3)
        want = self.left.astype(np.float64) @ self.right.astype(np.float64)
        np.testing.assert_allclose(tiles.reshape(self.m, self.n), want, rtol=1e-3, atol=1e-3)


class Softmax:
    """The softmax of a matrix of floats, along its rows."""

    def __init__(self, space: LinkSpace) -> None:
        rows, columns = SOFTMAX_SHAPE
        self.space = space
        self.x = np.random.default_rng(7).standard_normal((rows, columns)).astype(np.float32)
        self.source, self.target = space.reserve(self.x.nbytes), space.reserve(self.x.nbytes)
        space.write(self.source, self.x.tobytes())

    def run(self, functions: dict[str, Callable[..., int]]) -> None:
        rows, columns = SOFTMAX_SHAPE
        functions[kernels.SOFTMAX_NAME](self.source, 0, columns, self.target, 0, columns, rows, columns, 0)

    def check(self) -> None:
        got = np.frombuffer(self.space.read(self.target, self.x.nbytes), np.float32).reshape(self.x.shape)
        powers = np.exp(self.x - self.x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=2e-6)


def best_gflops(jobs: dict[str, tuple[Callable[[], None], float]], rounds: int) -> dict[str, float]:
    """Best GFLOP/s of every job, round by round."""
    best = dict.fromkeys(jobs, 0.0)
    for _ in range(rounds):
        for name, (job, operations) in jobs.items():
            begin = time.thread_time()
            job()
            best[name] = max(best[name], operations / (time.thread_time() - begin) / 1e9)
    return best


def jobs_of(space: LinkSpace, products: dict[str, Product], softmax: Softmax, *, relaxed: bool) -> dict:
    engine, label = space.engine, "relaxed" if relaxed else "mul+add"
    peak = space.store.instantiate(engine.compile(peak_module(relaxed=relaxed), name="peak"), {})
    compiled = engine.compile(kernels.assemble(relaxed=relaxed), name="kernels")
    exports = space.store.instantiate(compiled, space.platform).exports
    functions = {name: function.prepare() for name, function in exports.items()}
    count = 100_000
    jobs = {
        f"{label}: peak": (
            lambda: peak.exports["peak"](count),
            float(count * ACCUMULATORS * 8),
        )
    }
    for name, product in products.items():
        product.run(functions)
        product.check()
        jobs[f"{label}: {name}"] = (
            lambda product=product: product.run(functions),
            2.0 * product.m * product.n * product.k,
        )
    softmax.run(functions)
    softmax.check()
    jobs[f"{label}: {SOFTMAX_ROW}"] = (lambda: softmax.run(functions), float(softmax.x.size))
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_kernels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    with LinkSpace(engines.create("wasmtime")) as space:
        products = {name: Product(space, *shape) for name, *shape in SHAPES}
        softmax = Softmax(space)
        results = {}
        for relaxed in (True, False):
            results[relaxed] = best_gflops(jobs_of(space, products, softmax, relaxed=relaxed), options.rounds)
    table = Table("kernel", "GFLOP/s", "of the peak beside it")
    for rates in results.values():
        peak = next(iter(rates.values()))
        for name, rate in rates.items():
            share = "" if name.endswith(SOFTMAX_ROW) else f"{rate / peak:.0%}"
            table.add_row(name, f"{rate:.2f}" if not share else f"{rate:.1f}", share)
    Console().print(table)
    if options.json is not None:
        gflops = {name: rate for rates in results.values() for name, rate in rates.items()}
        options.json.write_text(json.dumps({"machine": machine(), "gflops": gflops}, indent=2))


if __name__ == "__main__":
    main()
