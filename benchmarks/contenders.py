"""The sides of a benchmark: each loads one model, checks in with its outputs, and times single runs."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .models import ROOT, RealModel

NODE_MODULES = ROOT / ".cache" / "node"
ORT_WEB = "onnxruntime-web@1.30.0"
NODE_WEBGPU = "webgpu@0.6.2"
TFJS = ("@tensorflow/tfjs-core@4.22.0", "@tensorflow/tfjs-backend-wasm@4.22.0")


class ContenderUnavailableError(RuntimeError):
    """This side cannot run here; the message says why."""


class Contender(Protocol):
    """One side. ``run`` returns the milliseconds of one inference."""

    name: str
    load_ms: float

    def run(self) -> float: ...

    def outputs(self) -> list[np.ndarray]: ...

    def close(self) -> None: ...


def inline_onnx(model: RealModel) -> Path:
    """The model as one self-contained ONNX file with its weights inside."""
    import onnx

    source = model.onnx_path()
    target = ROOT / ".cache" / "models" / f"{model.name}-inline.onnx"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        onnx.save(onnx.load(source), target)
    return target


class SylviteContender:
    """Sylvite on ``local-sync`` or ``local-task``; timing covers model(inputs), numpy in and out."""

    def __init__(self, model: RealModel, *, threads: int = 1) -> None:
        import sylvite

        self.name = f"sylvite{_suffix(threads)}"
        device = "local-sync" if threads == 1 else f"local-task://{threads}"
        self.inputs = model.inputs()
        artifact = compile_model(model, "wasm32")
        begin = time.perf_counter()
        self.model = sylvite.load(artifact, device=device, parameters=model.parameters() or None)
        self.load_ms = (time.perf_counter() - begin) * 1e3
        self.results: Any = None

    def run(self) -> float:
        begin = time.perf_counter()
        self.results = self.model(*self.inputs)
        return (time.perf_counter() - begin) * 1e3

    def outputs(self) -> list[np.ndarray]:
        results = self.results if isinstance(self.results, tuple) else (self.results,)
        return [np.array(result) for result in results]

    def close(self) -> None:
        self.results = None
        self.model.close()


class WebGpuContender:
    """Sylvite on a WebGPU device; timing covers model(inputs), numpy in and out."""

    def __init__(self, model: RealModel, *, provider: str) -> None:
        import sylvite

        self.name = f"sylvite webgpu://{provider}"
        self.inputs = model.inputs()
        artifact = compile_model(model, "webgpu")
        begin = time.perf_counter()
        self.device = sylvite.create_device(f"webgpu://{provider}")
        self.model = sylvite.load(artifact, device=self.device, parameters=model.parameters() or None)
        self.load_ms = (time.perf_counter() - begin) * 1e3
        self.results: Any = None
        self.waited_ms: list[float] = []
        self._wait = self.device.gpu.wait  # type: ignore[attr-defined]
        self.device.gpu.wait = self._timed_wait  # type: ignore[attr-defined]

    def _timed_wait(self, *arguments: Any) -> bool:
        begin = time.perf_counter()
        try:
            return bool(self._wait(*arguments))
        finally:
            self.waited_ms[-1] += (time.perf_counter() - begin) * 1e3

    def run(self) -> float:
        self.waited_ms.append(0.0)
        begin = time.perf_counter()
        results = self.model(*self.inputs)
        results = results if isinstance(results, tuple) else (results,)
        self.results = [np.array(result) for result in results]
        return (time.perf_counter() - begin) * 1e3

    def outputs(self) -> list[np.ndarray]:
        return list(self.results)

    def close(self) -> None:
        self.results = None
        self.model.close()
        self.device.close()


class IreeContender:
    """iree.runtime on ``local-sync`` over code for a host CPU."""

    def __init__(self, model: RealModel, *, cpu: str, label: str) -> None:
        import iree.runtime as rt

        self.name = f"iree native {label}"
        artifact = compile_model(model, "native", features=(cpu,))
        begin = time.perf_counter()
        self.config = rt.Config("local-sync")
        self.context = rt.SystemContext(config=self.config)
        for scope, path in model.parameters().items():
            index = rt.ParameterIndex()
            index.load(str(path))
            provider = index.create_provider(scope=scope)
            self.context.add_vm_module(rt.create_io_parameters_module(self.config.vm_instance, provider))
        vm_module = rt.VmModule.copy_buffer(self.config.vm_instance, artifact.path.read_bytes())
        self.context.add_vm_module(vm_module)
        module = self.context.modules[vm_module.name]
        names = [n for n in vm_module.function_names if "$async" not in n and not n.startswith("__")]
        self.function = module[names[0]]
        self.load_ms = (time.perf_counter() - begin) * 1e3
        self.inputs = model.inputs()
        self.results: Any = None

    def run(self) -> float:
        begin = time.perf_counter()
        results = self.function(*self.inputs)
        results = results if isinstance(results, (tuple, list)) else [results]
        self.results = [result.to_host() for result in results]
        return (time.perf_counter() - begin) * 1e3

    def outputs(self) -> list[np.ndarray]:
        return [np.array(result) for result in self.results]

    def close(self) -> None:
        self.results = self.function = self.context = None


class OnnxRuntimeContender:
    """onnxruntime, CPU provider. Its threads are told to stop spinning when a run ends: on a machine with as
    many cores as threads they would otherwise spin into the time of the side that runs next."""

    def __init__(self, model: RealModel, *, threads: int = 1) -> None:
        import onnxruntime as ort

        self.name = f"onnxruntime{_suffix(threads)}"
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        path = inline_onnx(model)
        begin = time.perf_counter()
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.load_ms = (time.perf_counter() - begin) * 1e3
        self.feed = dict(zip([i.name for i in self.session.get_inputs()], model.inputs(), strict=True))
        self.results: list[np.ndarray] = []

    def run(self) -> float:
        begin = time.perf_counter()
        self.results = self.session.run(None, self.feed)
        return (time.perf_counter() - begin) * 1e3

    def outputs(self) -> list[np.ndarray]:
        return self.results

    def close(self) -> None:
        self.session = None


class NodeContender:
    """A side in a Node process of its own, which times itself. Requests and answers are lines of JSON.

    Args:
        name: of the side.
        script: in this folder; it gets the folder with ``node_modules`` as its argument.
        packages: npm requirements.
        arguments: further ones of the script.
    """

    def __init__(self, name: str, script: str, packages: Sequence[str], *arguments: str) -> None:
        self.name = name
        modules = install_node_packages(packages)
        if shutil.which("node") is None:
            raise ContenderUnavailableError("node is not installed")
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            ["node", str(Path(__file__).with_name(script)), str(modules), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request.

        Raises:
            ContenderUnavailableError: the process ended, or answered with an error.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ContenderUnavailableError(f"{self.name}: no pipe to node")
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise ContenderUnavailableError(f"{self.name}: node ended") from error
        line = stdout.readline()
        if not line:
            raise ContenderUnavailableError(f"{self.name}: node ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderUnavailableError(f"{self.name}: {answer['error'][:200]}")
        return answer

    def write(self, name: str, array: np.ndarray) -> dict[str, Any]:
        """Put an array into a file; returns how a request tells of it."""
        file = Path(self.folder.name) / f"{name}.bin"
        file.write_bytes(np.ascontiguousarray(array).tobytes())
        return {"type": str(array.dtype), "dims": list(array.shape), "file": str(file)}

    def run(self) -> float:
        return float(self.ask({"run": 1})["milliseconds"])

    def outputs(self) -> list[np.ndarray]:
        outputs = self.ask({"outputs": self.folder.name})["outputs"]
        return [np.fromfile(o["file"], dtype=o["type"]).reshape(o["dims"]) for o in outputs]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class OrtWebContender(NodeContender):
    """onnxruntime-web's wasm backend, or its WebGPU one (over Dawn, in Node)."""

    def __init__(self, model: RealModel, *, threads: int = 1, provider: str = "wasm") -> None:
        name = f"onnxruntime-web{_suffix(threads)}" if provider == "wasm" else f"onnxruntime-web {provider}"
        packages = [ORT_WEB] if provider == "wasm" else [ORT_WEB, NODE_WEBGPU]
        super().__init__(name, "ort_web.mjs", packages, provider)
        path = inline_onnx(model)
        try:
            self.memory_before = self.ask({"memory": "now"})
            self.load_ms = self.ask({"load": str(path), "threads": threads})["milliseconds"]
            self.ask({"feed": self._feed(path, model.inputs())})
        except ContenderUnavailableError:
            self.close()
            raise

    def _feed(self, path: Path, inputs: list[np.ndarray]) -> list[dict[str, Any]]:
        import onnx

        graph = onnx.load(path, load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        names = [value.name for value in graph.input if value.name not in weights]
        return [
            {"name": name, **self.write(f"input{index}", array)}
            for index, (name, array) in enumerate(zip(names, inputs, strict=True))
        ]


class TfjsContender(NodeContender):
    """tfjs-backend-wasm (XNNPACK) on one operator, in the layout that it has of its own: NHWC."""

    def __init__(self, model: RealModel, *, threads: int = 1) -> None:
        import onnx
        from onnx import numpy_helper

        super().__init__(f"tfjs-wasm{_suffix(threads)}", "tfjs.mjs", TFJS)
        graph = onnx.load(model.onnx_path()).graph
        self.operator = graph.node[0].op_type
        x, weight = model.inputs()[0], numpy_helper.to_array(graph.initializer[0])
        if self.operator == "Conv":
            x, weight = x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0)
        request = {
            "operator": self.operator,
            "threads": threads,
            "inputs": [self.write("x", x), self.write("weight", weight)],
        }
        try:
            self.load_ms = self.ask(request)["milliseconds"]
        except ContenderUnavailableError:
            self.close()
            raise

    def outputs(self) -> list[np.ndarray]:
        results = super().outputs()
        return [r.transpose(0, 3, 1, 2) if self.operator == "Conv" else r for r in results]


def _suffix(threads: int) -> str:
    return "" if threads == 1 else f" ({threads} threads)"


def install_node_packages(requirements: Sequence[str]) -> Path:
    """Install npm packages under ``.cache/node`` once; returns the folder with ``node_modules``.

    Raises:
        ContenderUnavailableError: there is no npm, or it fails.
    """
    missing = [r for r in requirements if not _is_installed(r)]
    if missing:
        if shutil.which("npm") is None:
            raise ContenderUnavailableError(f"{', '.join(missing)}: npm is not installed")
        NODE_MODULES.mkdir(parents=True, exist_ok=True)
        manifest = NODE_MODULES / "package.json"
        if not manifest.exists():
            manifest.write_text('{"private": true}')
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *missing]
        result = subprocess.run(command, cwd=NODE_MODULES, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ContenderUnavailableError(
                f"npm install {' '.join(missing)} failed: {result.stderr.strip()[:200]}"
            )
    return NODE_MODULES


def _is_installed(requirement: str) -> bool:
    name, _, version = requirement.rpartition("@")
    manifest = NODE_MODULES / "node_modules" / name / "package.json"
    return manifest.exists() and json.loads(manifest.read_text())["version"] == version


def fixed_dims(model: RealModel) -> dict[str, int]:
    """Every axis of every input that has no extent (or a negative one), as the seeded inputs have it, by
    ``input.axis``."""
    import onnx

    graph = onnx.load(model.onnx_path(), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in weights]
    return {
        f"{value.name}.{axis}": array.shape[axis]
        for value, array in zip(values, model.inputs(), strict=True)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_value < 1
    }


def compile_options(model: RealModel) -> dict[str, Any]:
    """Fixed dims, and weights left in their own file when the model has one."""
    options: dict[str, Any] = {"dims": fixed_dims(model)}
    if model.parameters():
        options["external_parameters"] = "in-place"
    return options


def compile_model(model: RealModel, target: str, **options: Any) -> Any:
    """Compile for ``target`` through the cache."""
    import sylvite

    return sylvite.compile(model.onnx_path(), target=target, **compile_options(model), **options)
