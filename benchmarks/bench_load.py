"""``python -m benchmarks.bench_load``: time to load MiniLM, and the memory it takes beyond its weights.

Each sample is a fresh process, sides in turn. The clock starts when everything is imported and the inputs are
there; the file cache of the system is warm. Sylvite's compiler cache, its cache of compiled code and Python's
of bytecode are warm too: what is timed is the second time a user loads a model. Three inferences follow.

Memory is what the system says of the process: resident bytes before loading, and the highest there ever were
(``VmRSS`` and ``VmHWM``, mapped files included). *Beyond weights* is the growth from before loading to the
peak, less the bytes of the model's initializers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .contenders import (
    ContenderUnavailableError,
    OrtWebContender,
    compile_options,
    inline_onnx,
)
from .harness import machine
from .models import MODELS, ROOT, RealModel

SIDES = ("sylvite", "sylvite archive", "onnxruntime", "onnxruntime-web")
INFERENCES = 3


def resident_bytes() -> tuple[int, int]:
    """Resident bytes of this process, now and at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    return tuple(int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def measure_sylvite(model: RealModel, inputs: list[np.ndarray], *, is_archive: bool) -> dict[str, Any]:
    """Loading from the ONNX file, or from the archive that was compiled of it."""
    import sylvite.compile.driver
    import sylvite.drivers.local
    import sylvite.engines.wasmtime
    import sylvite.model.load

    parameters = model.parameters() or None
    options = compile_options(model)
    path = sylvite.compile(model.onnx_path(), **options).path if is_archive else model.onnx_path()
    before, _ = resident_bytes()
    begin = time.perf_counter()
    loaded = (
        sylvite.load(path, parameters=parameters)
        if is_archive
        else sylvite.load(path, parameters=parameters, **options)
    )
    loaded_at = time.perf_counter()
    results = loaded(*inputs)
    first_at = time.perf_counter()
    for _ in range(INFERENCES - 1):
        results = loaded(*inputs)
    return {
        "load_ms": (loaded_at - begin) * 1e3,
        "first_ms": (first_at - loaded_at) * 1e3,
        "before": before,
        "peak": resident_bytes()[1],
        "result": _fingerprint(results),
    }


def measure_onnxruntime(model: RealModel, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Creating a session from a self-contained file, one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    path = str(inline_onnx(model))
    before, _ = resident_bytes()
    begin = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    loaded_at = time.perf_counter()
    feed = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
    results = session.run(None, feed)
    first_at = time.perf_counter()
    for _ in range(INFERENCES - 1):
        results = session.run(None, feed)
    return {
        "load_ms": (loaded_at - begin) * 1e3,
        "first_ms": (first_at - loaded_at) * 1e3,
        "before": before,
        "peak": resident_bytes()[1],
        "result": _fingerprint(results),
    }


def measure_web(model: RealModel) -> dict[str, Any]:
    """The same in Node, one thread; the process measured is Node's."""
    side = OrtWebContender(model)
    try:
        first_ms = side.run()
        for _ in range(INFERENCES - 1):
            side.run()
        return {
            "load_ms": side.load_ms,
            "first_ms": first_ms,
            "before": side.memory_before["resident"],
            "peak": side.ask({"memory": "now"})["peak"],
            "result": _fingerprint(side.outputs()),
        }
    finally:
        side.close()


def _fingerprint(results: Any) -> list[float]:
    arrays = results if isinstance(results, (tuple, list)) else (results,)
    return [float(np.abs(np.asarray(array), dtype=np.float64).mean()) for array in arrays]


def measure(side: str, model: RealModel) -> dict[str, Any]:
    """One sample, in this process."""
    inputs = model.inputs()
    if side == "onnxruntime":
        return measure_onnxruntime(model, inputs)
    if side == "onnxruntime-web":
        return measure_web(model)
    return measure_sylvite(model, inputs, is_archive=side == "sylvite archive")


def sample(side: str, model: str) -> dict[str, Any]:
    """One sample, in a process of its own.

    Raises:
        ContenderUnavailableError: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.bench_load", "--child", side, "--model", model]
    # Installed packages have bytecode, onnxruntime among them; a checkout has what its runs may write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "bytecode")
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ContenderUnavailableError((result.stderr.strip().splitlines() or ["no message"])[-1][:200])
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def collect(name: str, rounds: int, notes: Console) -> dict[str, list[dict[str, Any]]]:
    """Samples of all sides, in turn, after one of each that warms the caches."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for side in SIDES:
        try:
            warm = sample(side, name)
        except ContenderUnavailableError as error:
            notes.print(f"[yellow]{name}: {side} left out: {error}[/]")
            continue
        samples[side] = []
        expected = samples.setdefault("_expected", [warm])[0]["result"]
        np.testing.assert_allclose(warm["result"], expected, rtol=1e-3, err_msg=side)
    samples.pop("_expected", None)
    for _ in range(rounds):
        for side, taken in samples.items():
            taken.append(sample(side, name))
    return samples


def summary(taken: list[dict[str, Any]], weight_bytes: int) -> dict[str, float]:
    """Medians of the samples of one side; memory in MB."""
    median = {key: statistics.median(s[key] for s in taken) for key in taken[0] if key != "result"}
    return {
        "load_ms": median["load_ms"],
        "load_best_ms": min(s["load_ms"] for s in taken),
        "first_ms": median["first_ms"],
        "before_mb": median["before"] / 1e6,
        "peak_mb": median["peak"] / 1e6,
        "beyond_weights_mb": (median["peak"] - median["before"] - weight_bytes) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_load", description=__doc__)
    parser.add_argument("--model", default="minilm-f32", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers there")
    parser.add_argument("--child", choices=SIDES, help="take one sample in this process and print it")
    options = parser.parse_args()
    model = MODELS[options.model]
    if options.child:
        print(json.dumps(measure(options.child, model)))
        return
    samples = collect(options.model, 3 if options.quick else options.rounds, Console(stderr=True))
    weights = model.weight_bytes()
    results = {side: summary(taken, weights) for side, taken in samples.items()}
    table = Table(
        f"{options.model}, weights {weights / 1e6:.1f} MB",
        *("load ms", "best", "first run ms", "MB before", "MB peak", "MB beyond weights"),
    )
    for side, numbers in results.items():
        table.add_row(side, *(f"{value:.1f}" for value in numbers.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json is not None:
        data = {"machine": machine(), "model": options.model, "weight_bytes": weights, "sides": results}
        options.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
