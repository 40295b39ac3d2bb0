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
    """Sylvite on a device; timing covers model(inputs) with numpy inputs and outputs."""

    def __init__(
        self, model: RealModel, *, device: str = "local-sync", features: Sequence[str] = ("simd128",)
    ) -> None:
        import sylvite

        self.name = f"sylvite {device}" + (" relaxed" if "relaxed-simd" in features else "")
        self.inputs = model.inputs()
        artifact = compile_model(model, "wasm32", features=features)
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
    """onnxruntime, CPU provider."""

    def __init__(self, model: RealModel, *, threads: int = 1) -> None:
        import onnxruntime as ort

        self.name = "onnxruntime"
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
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


class OrtWebContender:
    """onnxruntime-web's wasm backend in Node, in its own process; timing happens inside it."""

    def __init__(self, model: RealModel, *, threads: int = 1) -> None:
        self.name = "onnxruntime-web"
        folder = install_node_package(ORT_WEB)
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            ["node", str(Path(__file__).with_name("ort_web.mjs")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        path = inline_onnx(model)
        self.load_ms = self._ask({"load": str(path), "threads": threads})["milliseconds"]
        self._ask({"feed": self._feed(path, model.inputs())})

    def _feed(self, path: Path, inputs: list[np.ndarray]) -> list[dict[str, Any]]:
        import onnx

        graph = onnx.load(path, load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        names = [value.name for value in graph.input if value.name not in weights]
        feed = []
        for index, (name, array) in enumerate(zip(names, inputs, strict=True)):
            file = Path(self.folder.name) / f"input{index}.bin"
            file.write_bytes(np.ascontiguousarray(array).tobytes())
            feed.append(
                {"name": name, "type": str(array.dtype), "dims": list(array.shape), "file": str(file)}
            )
        return feed

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ContenderUnavailableError("onnxruntime-web: no pipe to node")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ContenderUnavailableError("onnxruntime-web: node ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderUnavailableError(f"onnxruntime-web: {answer['error'][:200]}")
        return answer

    def run(self) -> float:
        return float(self._ask({"run": 1})["milliseconds"])

    def outputs(self) -> list[np.ndarray]:
        outputs = self._ask({"outputs": self.folder.name})["outputs"]
        return [np.fromfile(o["file"], dtype=o["type"]).reshape(o["dims"]) for o in outputs]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def install_node_package(requirement: str) -> Path:
    """Install an npm package under ``.cache/node`` once; returns the folder with ``node_modules``."""
    name = requirement.rsplit("@", 1)[0]
    if not (NODE_MODULES / "node_modules" / name).exists():
        if shutil.which("npm") is None:
            raise ContenderUnavailableError(f"{name}: npm is not installed")
        NODE_MODULES.mkdir(parents=True, exist_ok=True)
        (NODE_MODULES / "package.json").write_text('{"private": true}')
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", requirement]
        result = subprocess.run(command, cwd=NODE_MODULES, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ContenderUnavailableError(
                f"npm install {requirement} failed: {result.stderr.strip()[:200]}"
            )
    return NODE_MODULES


def fixed_dims(model: RealModel) -> dict[str, int]:
    """Every axis of every input, as the seeded inputs have it, by ``input.axis``."""
    import onnx

    graph = onnx.load(model.onnx_path(), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in weights]
    return {
        f"{value.name}.{axis}": array.shape[axis]
        for value, array in zip(values, model.inputs(), strict=True)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not dim.dim_value
    }


def compile_model(model: RealModel, target: str, **options: Any) -> Any:
    """Compile for ``target`` through the cache, weights in their own file when the model has one."""
    import sylvite

    if model.parameters():
        options["external_parameters"] = "in-place"
    return sylvite.compile(model.onnx_path(), target=target, dims=fixed_dims(model), **options)
