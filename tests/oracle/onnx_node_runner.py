"""Runs ONNX node cases through Sylvite (wasm32) and through native IREE, and judges both.

A case is compiled twice from one import: for wasm32 and for the host. Each result is compared with the
outputs the ONNX project publishes. Compilers may crash, so cases run in worker processes that are
restarted: `run_cases` is the entry point, ``python onnx_node_runner.py worker`` the worker.

Source: https://github.com/onnx/onnx/tree/main/onnx/backend/test/case/node (Apache-2.0).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

# The ONNX backend suite compares with these unless a case says otherwise (onnx/backend/test/runner).
RTOL, ATOL = 1e-3, 1e-7
CASE_TIMEOUT_S = 150


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What happened to one case on one side. ``stage`` is import, compile, load, run, compare or passed."""

    stage: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.stage == "passed"


@dataclasses.dataclass(frozen=True)
class CaseResult:
    name: str
    operator: str
    native: Outcome
    sylvite: Outcome

    @property
    def agrees(self) -> bool:
        """Whatever passes natively passes here."""
        return self.sylvite.passed or not self.native.passed


@functools.cache
def cases() -> dict[str, Any]:
    """All node cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


class StageError(Exception):
    """Something went wrong in a named stage."""

    def __init__(self, stage: str, detail: str) -> None:
        super().__init__(f"{stage}: {detail}")
        self.outcome = Outcome(stage, detail)


def first_line(error: object) -> str:
    lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines() or [""]
    return lines[0].split("error:")[-1].strip()[:200]


def import_model(model: Any) -> str:
    """ONNX -> MLIR text (torch-onnx dialect) with IREE's importer."""
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        info = onnx_importer.ModelInfo(inferred)
        context = Context()
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        return str(module)
    except Exception as error:
        raise StageError("import", f"{type(error).__name__}: {first_line(error)}") from error


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """What native code writes to file descriptor 2 in the enclosed block."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def read() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield read
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def compile_text(text: str, flags: list[str]) -> bytes:
    """MLIR text -> vmfb, inside this process (a crash is the worker's end)."""
    from iree.compiler.api import Output, Session, Source

    session = Session()
    session.set_flags(*flags)
    invocation = session.invocation()
    source = Source.wrap_buffer(session, text.encode() + b"\0")
    invocation.enable_console_diagnostics()
    with captured_stderr() as read_diagnostics:
        accepted = invocation.parse_source(source) and invocation.execute()
        diagnostics = read_diagnostics()
    if not accepted:
        raise StageError("compile", first_line(diagnostics))
    output = Output.open_membuffer()
    invocation.output_vm_bytecode(output)
    return bytes(output.map_memory())


def compare(actual: list[Any], expected: list[Any], rtol: float, atol: float) -> None:
    import numpy as np

    if len(actual) != len(expected):
        raise StageError("compare", f"{len(actual)} results, expected {len(expected)}")
    for index, (got, want) in enumerate(zip(actual, expected, strict=True)):
        got, want = np.asarray(got), np.asarray(want)
        if {got.dtype.kind, want.dtype.kind} == {"i", "u"} and got.itemsize == want.itemsize:
            got = got.view(want.dtype)  # the compiler's integers carry no sign
        if got.shape != want.shape or got.dtype != want.dtype:
            raise StageError(
                "compare", f"result {index}: {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
            )
        if got.dtype.kind not in "biu":
            got, want = got.astype(np.float64), want.astype(np.float64)
        try:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        except AssertionError as error:
            detail = " ".join(line.strip() for line in str(error).splitlines()[3:8])
            raise StageError("compare", f"result {index}: {detail}"[:200]) from error


def run_native(vmfb: bytes, inputs: list[Any]) -> list[Any]:
    import iree.runtime as rt

    try:
        config = rt.Config("local-sync")
        context = rt.SystemContext(config=config)
        context.add_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb))
        module = (
            context.modules["module"] if "module" in context.modules else list(context.modules.values())[-1]
        )
        names = [n for n in module.vm_module.function_names if "$async" not in n and not n.startswith("__")]
        results = module[names[0]](*inputs)
    except Exception as error:
        raise StageError("run", f"{type(error).__name__}: {first_line(error)}") from error
    results = results if isinstance(results, (tuple, list)) else [results]
    return [result.to_host() if hasattr(result, "to_host") else result for result in results]


def run_sylvite(vmfb: bytes, inputs: list[Any], device: Any) -> list[Any]:
    import sylvite

    try:
        with sylvite.load(vmfb, device=device) as model:
            function = next(iter(model.functions.values()))
            results = function(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            return [result.copy() for result in results]
    except sylvite.errors.SylviteError as error:
        raise StageError("run", f"{type(error).__name__}: {first_line(error)}") from error


def judge(case: Any, make: Callable[[], bytes], run: Callable[[bytes, list[Any]], list[Any]]) -> Outcome:
    import numpy as np

    try:
        vmfb = make()
        for inputs, outputs in case.data_sets:
            if not all(isinstance(x, (np.ndarray, np.generic)) for x in [*inputs, *outputs]):
                raise StageError("import", "sequence, map or optional values")
            rtol = case.rtol if case.rtol is not None else RTOL
            atol = case.atol if case.atol is not None else ATOL
            compare(run(vmfb, [np.asarray(x) for x in inputs]), list(outputs), rtol, atol)
    except StageError as error:
        return error.outcome
    return Outcome("passed")


WASM_FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten",
    "--iree-llvmcpu-target-cpu-features=+simd128",
]
NATIVE_FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
]


def native_outcome(case: Any) -> tuple[Outcome, str]:
    """The outcome on the host, and the imported module's text."""
    try:
        text = import_model(case.model)
    except StageError as error:
        return error.outcome, ""
    return judge(case, lambda: compile_text(text, NATIVE_FLAGS), run_native), text


def sylvite_outcome(case: Any, native: Outcome, text: str, device: Any, linker: str) -> Outcome:
    """The outcome on wasm32; a case the compiler refuses on the host is not compiled again."""
    if not text or native.stage == "compile":
        return native
    flags = [*WASM_FLAGS, f"--iree-llvmcpu-wasm-linker-path={linker}"]
    return judge(
        case, lambda: compile_text(text, flags), lambda vmfb, inputs: run_sylvite(vmfb, inputs, device)
    )


def worker() -> None:
    """Reads case names; writes two JSON lines per case: the native outcome, then ours."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # compilers print on standard output too
    import sylvite
    from sylvite.compile.toolchain import find_toolchain, write_linker

    device = sylvite.create_device("local-sync")
    scratch = tempfile.TemporaryDirectory()
    os.chdir(scratch.name)  # the linker's command is relative to the working directory
    linker = write_linker(Path.cwd(), find_toolchain().linker_path)
    results.write("ready\n")
    for line in sys.stdin:
        case = cases()[line.strip()]
        native, text = native_outcome(case)
        results.write(json.dumps(dataclasses.asdict(native)) + "\n")
        own = sylvite_outcome(case, native, text, device, linker)
        results.write(json.dumps(dataclasses.asdict(own)) + "\n")
    device.close()
    scratch.cleanup()


class _Worker:
    """One worker process, restarted after a crash or time-out."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the worker does not start; run: python {__file__} worker")
        return process

    def run(self, name: str) -> CaseResult:
        if self.process is None:
            self.process = self._start()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(CASE_TIMEOUT_S, process.kill)
        timer.start()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            lines = [process.stdout.readline(), process.stdout.readline()]
        finally:
            timer.cancel()
        if not lines[1]:
            self.close()
        dead = Outcome("crash", "the process died or took too long")
        outcomes = [Outcome(**json.loads(line)) if line else dead for line in lines]
        nodes = cases()[name].model.graph.node
        return CaseResult(name, nodes[0].op_type if nodes else "?", *outcomes)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_cases(
    names: Iterable[str], *, jobs: int = 2, progress: Callable[[CaseResult], None] | None = None
) -> list[CaseResult]:
    """Run the named cases on ``jobs`` worker processes; results in the order of ``names``."""
    return share_out(list(names), _Worker, lambda own, name: own.run(name), jobs=jobs, progress=progress)


class ClosableWorker(Protocol):
    """What `share_out` gives work to."""

    def close(self) -> None: ...


WorkerType = TypeVar("WorkerType", bound=ClosableWorker)
ResultType = TypeVar("ResultType")


def share_out(
    names: Sequence[str],
    make_worker: Callable[[], WorkerType],
    run: Callable[[WorkerType, str], ResultType],
    *,
    jobs: int,
    progress: Callable[[ResultType], None] | None = None,
) -> list[ResultType]:
    """``run`` for each name, by ``jobs`` threads with a worker each; results in the order of ``names``."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(names)):
        todo.put(index)
    results: dict[int, ResultType] = {}

    def serve() -> None:
        with contextlib.closing(make_worker()) as own:
            while True:
                try:
                    index = todo.get_nowait()
                except queue.Empty:
                    return
                results[index] = run(own, names[index])
                if progress is not None:
                    progress(results[index])

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(len(names))]


if __name__ == "__main__" and sys.argv[1:] == ["worker"]:
    worker()
