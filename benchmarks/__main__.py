"""``make bench``, ``python -m benchmarks``: every benchmark, one after another; tables, and one JSON file.

Each runs in a process of its own and can be run alone: ``python -m benchmarks.bench_models --help``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from .harness import machine
from .models import ROOT

# Arguments of a full and of a quick run.
BENCHMARKS: dict[str, tuple[list[str], list[str]]] = {
    "models": (["--markdown"], ["--quick"]),
    "load": ([], ["--quick"]),
    "kernels": ([], ["--rounds", "5"]),
    "overhead": ([], ["--rounds", "10"]),
    "halide": ([], ["--seconds", "0.5"]),
    "vm": ([], []),
    "webgpu": (["--seconds", "5"], ["--rows", "mnist"]),
}
QUICK = ("models", "load", "kernels", "overhead", "halide")


def run(name: str, arguments: list[str], folder: Path) -> Any:
    """Run one benchmark; its tables go to the terminal.

    Returns:
        Its numbers, or ``None`` when it failed, which it has said.
    """
    file = folder / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", "--json", str(file), *arguments]
    result = subprocess.run(command, cwd=ROOT, check=False)
    return None if result.returncode else json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=None, help=f"with commas, of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rows, sides and rounds: under 3 minutes")
    parser.add_argument("--rows", default=None, help="of models: patterns, with commas")
    parser.add_argument("--seconds", type=float, default=None, help="time per row of models")
    parser.add_argument("--json", type=Path, default=None, help="write all numbers there")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(QUICK if options.quick else BENCHMARKS)
    unknown = sorted(set(chosen) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    notes = Console(stderr=True)
    results: dict[str, Any] = {"machine": machine()}
    notes.print(results["machine"])
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            arguments = list(BENCHMARKS[name][options.quick])
            if name == "models":
                arguments += [] if options.rows is None else ["--rows", options.rows]
                arguments += [] if options.seconds is None else ["--seconds", str(options.seconds)]
            notes.rule(name)
            results[name] = run(name, arguments, Path(folder))
            if results[name] is None:
                failed.append(name)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
        notes.print(f"numbers: {options.json}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
