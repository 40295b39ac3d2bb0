"""A process that loads damaged files through the public interface and runs what loads.

Reads requests from standard input, one a line: kind, first seed, count. Writes a line before each file
(so that whoever reads knows where it ended when it crashes) and one after it: the outcome, the class of
the error, the processor time in seconds. What escapes as anything but a typed error with a place is
reported as ``escaped``.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import malformed_mutations as mutations
import numpy as np

import sylvite
from sylvite import errors
from sylvite.model import Limits, ValueKind

LIMITS = Limits(memory_bytes=48 << 20, deadline_ns=250_000_000)
LARGEST_INPUT_BYTES = 1 << 20
DATA_BYTES = 3 << 30
A = np.arange(4, dtype=np.float32)


def inputs_for(signature: sylvite.model.Signature) -> list[Any] | None:
    """Values that a function should take; ``None`` when it asks for more than we care to make."""
    values: list[Any] = []
    for argument in signature.inputs:
        if argument.kind is ValueKind.TENSOR and argument.dtype is not None:
            shape = [n if isinstance(n, int) else 3 for n in argument.shape or ()]
            count = argument.dtype.itemsize
            for extent in shape:
                count *= extent
            if count > LARGEST_INPUT_BYTES or len(shape) > 32:
                return None
            values.append(np.ones(shape, argument.dtype))
        elif argument.kind in (ValueKind.INTEGER, ValueKind.FLOAT):
            values.append(1)
        else:
            values.append(None)
    return values


def run_functions(model: sylvite.Model) -> str:
    """Call everything once."""
    outcome = "ran"
    for function in model.functions.values():
        values = inputs_for(function.signature)
        if values is None:
            continue
        try:
            results = function.run(values)
        except errors.SylviteError as error:
            check_typed(error)
            outcome = "stopped"
            continue
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, np.ndarray):
                result.sum()  # touches every byte
    return outcome


def check_typed(error: errors.SylviteError) -> None:
    """Our own bugs and errors without a place do not count as refusals."""
    if isinstance(error, errors.InternalError):
        raise RuntimeError("a damaged file is no bug of ours") from error  # noqa: TRY004
    if not str(error) or (isinstance(error, errors.FormatError) and not error.where):
        raise RuntimeError(f"the error names no place: {error!r}") from error


class Judge:
    """Loads damaged files beside a model that must go on."""

    def __init__(self, samples: Path) -> None:
        self.samples = samples
        self.device = sylvite.create_device("local-sync", limits=LIMITS)
        self.control = sylvite.load((samples / "control.module").read_bytes(), cache=False)
        self.neighbour = self.load_neighbour()

    def load_neighbour(self) -> sylvite.Model:
        return sylvite.load((self.samples / "control.module").read_bytes(), device=self.device, cache=False)

    def judge(self, kind: str, seed: int, directory: Path) -> str:
        name, data = mutations.mutant(kind, self.samples, seed)
        if kind == "onnx":
            return self.judge_onnx(data, directory)
        parameters: Any = self.samples / "weights.irpa"
        module = data
        if kind in ("irpa", "safetensors"):
            module = (self.samples / "parametrized.bare").read_bytes()
            parameters = directory / f"damaged.{kind}"
            parameters.write_bytes(data)
        device: Any = self.device if seed % 4 == 0 else "local-sync"
        limits = None if seed % 4 == 0 else LIMITS
        if name != "parametrized" and module is data:
            parameters = None
        elif parameters is not None:
            parameters = {"model": parameters}
        source: Any = module
        if seed % 3 == 0:
            source = directory / "damaged.vmfb"
            source.write_bytes(module)
        try:
            with sylvite.load(
                source, device=device, limits=limits, parameters=parameters, cache=False
            ) as model:
                return run_functions(model)
        except errors.SylviteError as error:
            check_typed(error)
            return f"refused {type(error).__name__}"

    def judge_onnx(self, data: bytes, directory: Path) -> str:
        """The part of `load` that is ours: what it is, its signature, and the front end in this process."""
        from sylvite.compile import frontend
        from sylvite.compile.open_dims import open_function
        from sylvite.compile.options import CompileOptions
        from sylvite.compile.sources import resolve

        path = directory / "damaged.onnx"
        path.write_bytes(data)
        request = {
            **CompileOptions().front_end(),
            "path": str(path),
            "data_directory": str(directory),
            "name": path.name,
        }
        try:
            source = resolve(path)
            open_function(source, {}, None)
            with contextlib.redirect_stdout(sys.stderr):
                frontend.import_onnx(request, directory, lambda phase: None)
        except errors.SylviteError as error:
            check_typed(error)
            return f"refused {type(error).__name__}"
        return "ran"

    def check_others(self) -> None:
        """The process and the model of another device are as they were; the neighbour may have been
        overwritten by code that shares its sandbox, but cannot do more than fail."""
        np.testing.assert_array_equal(self.control(A), A + A)
        try:
            self.neighbour(A)
        except errors.SylviteError as error:
            check_typed(error)
            with contextlib.suppress(errors.SylviteError):
                self.neighbour.close()
            self.device.close()
            self.device = sylvite.create_device("local-sync", limits=LIMITS)
            self.neighbour = self.load_neighbour()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    judge = Judge(Path(sys.argv[1]))
    answers = sys.stdout
    with tempfile.TemporaryDirectory() as directory:
        for line in sys.stdin:
            request = json.loads(line)
            for seed in range(request["first"], request["first"] + request["count"]):
                print(json.dumps({"begin": seed}), file=answers, flush=True)
                begin = time.process_time()
                detail = ""
                try:
                    outcome = judge.judge(request["kind"], seed, Path(directory))
                    seconds = time.process_time() - begin
                    judge.check_others()
                except BaseException:  # noqa: BLE001 - everything that escapes is reported
                    outcome, detail = "escaped", traceback.format_exc()
                    seconds = time.process_time() - begin
                answer = {"seed": seed, "outcome": outcome, "detail": detail, "seconds": seconds}
                print(json.dumps(answer), file=answers, flush=True)
            print(json.dumps({"resident": resident_bytes()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
