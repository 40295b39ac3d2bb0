"""Runs ONNX node cases on WebGPU, through both providers, and judges them by what the ONNX project publishes.

A case is compiled once. One that does not pass is run on ``local-sync`` as well, since only what passes there
is asked of WebGPU. Compilers and Dawn may end their process, so cases run in worker processes, which are
started again: `run_cases` is the entry point, ``python webgpu_node_runner.py worker`` the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import software_gpu
from tests.oracle import onnx_node_runner as nodes
from tests.oracle.onnx_node_runner import Outcome, StageError

from sylvite.compile import webgpu
from sylvite.errors import CompileError

CASE_TIMEOUT_S = 150


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """Outcomes of a case: by provider, and on ``local-sync`` when a provider did not pass."""

    name: str
    operator: str
    providers: dict[str, Outcome]
    local: Outcome | None

    def agrees(self, provider: str) -> bool:
        """Whatever passes on local-sync passes on the provider."""
        return self.providers[provider].passed or (self.local is not None and not self.local.passed)


class InProcessCompiler:
    """iree-compile's library, with the face that `sylvite.compile.webgpu.Stages` wants."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def __call__(self, source: Path, name: str, flags: Sequence[str]) -> None:
        """See `Stages`: phases are flags there, and calls of the library here."""
        from iree.compiler.api import Output, Session, Source
        from iree.compiler.api.ctypes_dl import _dylib

        phases = dict(flag.split("=", 1) for flag in flags if flag.startswith("--compile-"))
        own = [flag for flag in flags if not flag.startswith(("--compile-", *webgpu.LAYOUT_FLAGS))]
        session = Session()
        session.set_flags(*own)
        invocation = session.invocation()
        for option, set_phase in (
            ("--compile-from", _dylib.ireeCompilerInvocationSetCompileFromPhase),
            ("--compile-to", _dylib.ireeCompilerInvocationSetCompileToPhase),
        ):
            if option in phases:
                set_phase(ctypes.c_void_p(invocation._inv_p), phases[option].encode())
        text = (self.workspace / source).read_bytes()
        invocation.enable_console_diagnostics()
        with nodes.captured_stderr() as read_diagnostics:
            accepted = invocation.parse_source(Source.wrap_buffer(session, text + b"\0"))
            accepted = accepted and invocation.execute()
            diagnostics = read_diagnostics()
        if not accepted:
            raise StageError("compile", nodes.first_line(diagnostics))
        output = Output.open_membuffer()
        if "--compile-to" in phases:
            invocation.output_ir(output)
        else:
            invocation.output_vm_bytecode(output)
        (self.workspace / name).write_bytes(bytes(output.map_memory()))


def compile_for_webgpu(text: str, workspace: Path) -> bytes:
    """MLIR text to a module for WebGPU, by the stages that `sylvite.compile` runs."""
    (workspace / "model.mlir").write_text(text)
    stages = webgpu.Stages(workspace=workspace, run=InProcessCompiler(workspace), parameters=None)
    try:
        stages.compile(
            Path("model.mlir"), "module.vmfb", flags=(), device=webgpu.device_attribute(wasm_features=None)
        )
    except CompileError as error:
        raise StageError("compile", f"CompileError: {nodes.first_line(error)}") from error
    return (workspace / "module.vmfb").read_bytes()


def outcomes(case: Any, devices: dict[str, Any], local: Callable[[str], Outcome]) -> dict[str, Any]:
    """Outcomes of a case on devices by provider, and under ``local`` when it does not pass."""
    try:
        text = nodes.import_model(case.model)
    except StageError as error:
        found = dict.fromkeys(devices, error.outcome)
        return {**found, "local": error.outcome}
    found = {}
    with tempfile.TemporaryDirectory() as workspace:
        try:
            vmfb = compile_for_webgpu(text, Path(workspace))
        except StageError as error:
            found = dict.fromkeys(devices, error.outcome)
        else:
            for provider, device in devices.items():
                found[provider] = nodes.judge(
                    case, lambda: vmfb, lambda data, inputs, to=device: nodes.run_sylvite(data, inputs, to)
                )
    # Where the front end refuses a case it does so for every target.
    is_front_end = all("torch." in outcome.detail for outcome in found.values())
    if all(outcome.passed for outcome in found.values()):
        return {**found, "local": None}
    return {**found, "local": next(iter(found.values())) if is_front_end else local(text)}


def worker(providers: Sequence[str]) -> None:
    """Reads case names; writes a JSON line for each: outcomes by provider and on ``local``."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # compilers print on standard output too
    from iree.compiler.api.ctypes_dl import _initializeGlobalCL

    import sylvite
    from sylvite.compile.toolchain import find_toolchain, write_linker

    # Flags that the library takes for the process, not for a session.
    _initializeGlobalCL("worker", *webgpu.LAYOUT_FLAGS)

    with contextlib.ExitStack() as stack:
        os.chdir(stack.enter_context(tempfile.TemporaryDirectory()))
        devices = {
            provider: stack.enter_context(sylvite.create_device(f"webgpu://{provider}"))
            for provider in providers
        }
        cpu = stack.enter_context(sylvite.create_device("local-sync"))
        linker = write_linker(Path.cwd(), find_toolchain().linker_path)
        results.write("ready\n")
        for line in sys.stdin:
            case = nodes.cases()[line.strip()]

            def local(text: str, case: Any = case) -> Outcome:
                return nodes.sylvite_outcome(case, Outcome("run"), text, cpu, linker)

            found = outcomes(case, devices, local)
            plain = {key: value and dataclasses.asdict(value) for key, value in found.items()}
            results.write(json.dumps(plain) + "\n")


class _Worker:
    """One worker process, started again after a crash or when it takes too long."""

    def __init__(self, providers: Sequence[str]) -> None:
        self.providers = tuple(providers)
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "worker", *self.providers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the worker does not start; run: python {__file__} worker wgpu")
        return process

    def run(self, name: str) -> dict[str, Outcome | None] | None:
        """The outcomes of a case, or None when the process died."""
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
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.close()
            return None
        return {key: value and Outcome(**value) for key, value in json.loads(line).items()}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _run_case(name: str, worker: _Worker) -> NodeResult:
    found = worker.run(name)
    if found is None:
        dead = Outcome("crash", "the process died or took too long")
        # One provider must not be blamed for the other.
        found = {"local": Outcome("passed")}
        for provider in worker.providers:
            alone = _Worker([provider])
            answer = alone.run(name) or {provider: dead}
            alone.close()
            found[provider] = answer[provider]
    operators = nodes.cases()[name].model.graph.node
    return NodeResult(
        name=name,
        operator=operators[0].op_type if operators else "?",
        providers={provider: found[provider] or Outcome("crash") for provider in worker.providers},
        local=found["local"],
    )


def run_cases(
    names: Iterable[str],
    providers: Sequence[str],
    *,
    jobs: int = 2,
    progress: Callable[[NodeResult], None] | None = None,
) -> list[NodeResult]:
    """Run the named cases on ``jobs`` worker processes; results in the order of ``names``."""
    return nodes.share_out(
        list(names),
        lambda: _Worker(providers),
        lambda own, name: _run_case(name, own),
        jobs=jobs,
        progress=progress,
    )


if __name__ == "__main__" and sys.argv[1:2] == ["worker"]:
    software_gpu.prepare()
    worker(sys.argv[2:])
