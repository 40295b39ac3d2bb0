"""The cost of a call: four numbers added through ``model(x)``, beside iree.runtime's Python call.

Run with ``python -m benchmarks.bench_overhead``. Results are checked first; all sides are timed interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .harness import machine

SOURCE = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
SIDES = {
    "local-sync": ("local-sync", True),
    "local-sync through the VM": ("local-sync", False),
    "local-sync?commands=interpreted": ("local-sync?commands=interpreted", True),
    "local-task://2": ("local-task://2", True),
}
"""Name -> device, and whether calls are done from a recording."""


def sylvite_sides(path: Path, inputs: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """Calls with numpy inputs, and with inputs that lie in device memory."""
    import sylvite

    sides: dict[str, Callable[[], Any]] = {}
    for name, (device, plans) in SIDES.items():
        model = sylvite.load(sylvite.compile(path), device=device, plans=plans)
        resident = [model.device.allocate(array.shape, array.dtype) for array in inputs]
        for target, array in zip(resident, inputs, strict=True):
            target[:] = array
        sides[f"sylvite {name}, numpy"] = lambda model=model: model(*inputs)
        sides[f"sylvite {name}, device"] = lambda model=model, held=resident: model(*held)
    return sides


def iree_sides(inputs: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """The same through iree.runtime; results are brought to numpy, as Sylvite's are views of numpy's kind."""
    import iree.compiler as compiler
    import iree.runtime as rt

    config = rt.Config("local-sync")
    context = rt.SystemContext(config=config)
    flatbuffer = compiler.compile_str(
        SOURCE, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"]
    )
    module = rt.VmModule.copy_buffer(config.vm_instance, flatbuffer)
    context.add_vm_module(module)
    function = context.modules[module.name]["main"]
    resident = [rt.asdevicearray(config.device, array) for array in inputs]
    return {
        "iree.runtime, numpy": lambda: function(*inputs).to_host(),
        "iree.runtime, device": lambda: function(*resident).to_host(),
    }


def measure(sides: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Microseconds per call, of the clock and of this thread's processor."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            wall, own = time.perf_counter(), time.thread_time()
            for _ in range(calls):
                call()
            samples[name].append(
                ((time.perf_counter() - wall) / calls * 1e6, (time.thread_time() - own) / calls * 1e6)
            )
    return {
        name: {
            "median_us": statistics.median(wall for wall, _ in taken),
            "best_us": min(wall for wall, _ in taken),
            "processor_us": statistics.median(own for _, own in taken),
        }
        for name, taken in samples.items()
    }


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    arguments = parser.parse_args()
    inputs = [np.arange(4, dtype=np.float32), np.ones(4, np.float32)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "add.mlir"
        path.write_text(SOURCE)
        sides = {**sylvite_sides(path, inputs), **iree_sides(inputs)}
        for name, call in sides.items():
            np.testing.assert_array_equal(np.asarray(call()), inputs[0] + inputs[1], err_msg=name)
        results = measure(sides, arguments.rounds, arguments.calls)
    for name, result in results.items():
        base = results[f"iree.runtime, {name.rpartition(', ')[2]}"]
        result["ratio"] = result["median_us"] / base["median_us"]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=2))
    for name, result in results.items():
        print(
            f"{name:44} {result['median_us']:8.1f} us  best {result['best_us']:7.1f}  "
            f"processor {result['processor_us']:7.1f}  {result['ratio']:5.2f} x iree.runtime"
        )


if __name__ == "__main__":
    main()
