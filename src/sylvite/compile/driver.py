"""`compile`: from a model to an `Artifact`, through the cache.

Two stages, each with its own cache entries: the ONNX front end (shared by all targets), and iree-compile.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import CompileError, InvalidArgumentError, NotFoundError, SylviteError
from . import frontend, toolchain, webgpu
from .artifact import Artifact, FunctionSpec
from .cache import Cache, cache_root, digest_json, read_manifest
from .diagnostics import explain
from .options import PARAMETER_SCOPE, TUNING_VERSION, CompileOptions, make_options
from .progress import Phase, Progress, ProgressEvent, ignore
from .sources import Source, resolve

__all__ = ["compile", "symbolic_dims"]

_FORMAT = 6
"""Raised when the same source and options give another result because of a change in Sylvite."""

LOWEST_SURE_OPSET = 17
"""Operators of sets below this one are lowered in part only by the compiler's ONNX front end."""

_MODULE = "module.vmfb"
_FRONT_END = "the ONNX front end"
_uncached_directories: list[tempfile.TemporaryDirectory[str]] = []


def compile(
    source: Any,
    target: str = "wasm32",
    *,
    features: Sequence[str] | None = None,
    dims: Mapping[str, int] | None = None,
    output: str | os.PathLike[str] | None = None,
    cache: bool = True,
    progress: Progress | None = None,
    simplify: bool = True,
    external_parameters: bool | Literal["in-place"] | None = None,
    opset: int | None = None,
    img2col: bool | None = None,
    tuning: Literal["auto", "off"] = "auto",
    contraction: bool = True,
    optimization: str | None = None,
    flags: Sequence[str] = (),
    example_inputs: Sequence[Any] | None = None,
    timeout_s: float | None = None,
    isolate: bool = True,
) -> Artifact:
    """Compile ``source`` for ``target``; ``docs/compile.md`` has the background.

    Args:
        source: a path (.onnx, .mlir, .mlirbc, .pt2), MLIR text, bytes of ONNX or MLIR, an ONNX
            ModelProto, or a ``torch.nn.Module`` (which is traced with ``example_inputs``).
        target: ``wasm32``, ``webgpu``, ``wasm32,webgpu`` for both in one module, or ``native`` for this
            machine's CPU (to compare with iree.runtime).
        features: WebAssembly features the code may use; ``None`` means ``("simd128",)``.
        dims: extents for symbolic dims of an ONNX model, by symbol or by ``input.axis``.
        output: where to put the .vmfb, with parameters beside it; ``None``: they stay in the cache.
        cache: whether results of earlier calls may be used, and this one kept.
        progress: called when a phase begins.
        simplify, external_parameters, opset, img2col, tuning, contraction, optimization, flags: see
            `CompileOptions`.
        timeout_s: stop after so many seconds.
        isolate: run the ONNX front end in a child process, where native code cannot take this one down.

    Raises:
        InvalidArgumentError: an option or a dim's name is wrong.
        FormatError: the ONNX file is malformed.
        CompileError: the model was refused; the message holds the cause, advice and the log's path.
        DeadlineExceededError: ``timeout_s`` passed.
        UnavailableError: the compiler is not installed.
    """
    destination = _checked_output(output)
    options = make_options(
        target=target,
        features=features,
        dims=dims,
        optimization=optimization,
        flags=flags,
        simplify=simplify,
        external_parameters=external_parameters,
        opset=opset,
        img2col=img2col,
        tuning=tuning,
        contraction=contraction,
    )
    resolved = resolve(source, example_inputs=example_inputs, cache=cache)
    if resolved.kind != "onnx" and options.dims:
        raise InvalidArgumentError("dims can be fixed in ONNX models only; write the extents into the MLIR")
    job = _Job(
        source=resolved,
        options=options,
        tools=toolchain.find_toolchain(),
        root=cache_root() if cache else _uncached_root(),
        progress=progress or ignore,
        deadline=None if timeout_s is None else time.monotonic() + timeout_s,
        isolate=isolate,
    )
    artifact = job.run()
    return artifact if destination is None else _copy_out(artifact, destination)


def _checked_output(output: str | os.PathLike[str] | None) -> Path | None:
    if output is None:
        return None
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"no such directory: {path.absolute().parent}")
    return path


def symbolic_dims(source: Any) -> tuple[str, ...]:
    """Names of the symbolic dims of an ONNX model; empty for MLIR.

    Raises:
        FormatError: the model is malformed.
        UnavailableError: the onnx package is not installed.
    """
    resolved = resolve(source)
    if resolved.kind != "onnx":
        return ()
    from . import onnx_graph

    with tempfile.TemporaryDirectory() as directory:
        path = resolved.path
        if path is None:
            path = Path(directory) / "model.onnx"
            resolved.write_to(path)
        model = onnx_graph.load_model(path, resolved.data_directory, where=resolved.name, weights=False)
    return tuple(dict.fromkeys(dim.name for dim in onnx_graph.symbolic_dims(model)))


@dataclasses.dataclass(kw_only=True)
class _Job:
    """One call of `compile`."""

    source: Source
    options: CompileOptions
    tools: toolchain.Toolchain
    root: Path
    progress: Progress
    deadline: float | None
    isolate: bool
    begin: float = dataclasses.field(default_factory=time.monotonic)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    _tuning_notes: tuple[str, ...] = ()
    _phase: tuple[Phase, float] | None = None

    def run(self) -> Artifact:
        import_key = self._import_key(self.options) if self.source.kind == "onnx" else ""
        key = digest_json(
            {
                "format": _FORMAT,
                "import": import_key or self.source.digest,
                "compiler": self.tools.version,
                "flags": self.options.back_end_flags(),
                "img2col": self.options.img2col,
                "tuning": f"{self.options.tuning} {TUNING_VERSION}",
                "contraction": self.options.contraction,
                "target": self.options.target,
                "webgpu": "" if self.options.webgpu_device is None else webgpu.VERSION,
            }
        )
        entry, cached = Cache(self.root, "modules").get_or_build(
            key, lambda workspace: self._build(workspace, key)
        )
        self._enter(Phase.DONE, cached=cached)
        return self._artifact(entry, key, cached)

    def _import_key(self, options: CompileOptions) -> str:
        return digest_json(
            {
                "format": _FORMAT,
                "source": self.source.digest,
                "options": options.front_end(),
                "compiler": self.tools.version,
                "onnx": toolchain.package_version("onnx"),
                "onnxslim": toolchain.package_version("onnxslim") if options.simplify else "",
            }
        )

    def _enter(self, phase: Phase, *, detail: str = "", cached: bool = False) -> None:
        now = time.monotonic()
        if self._phase is not None:
            name = self._phase[0].value
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._phase[1]
        self._phase = (phase, now)
        self.progress(ProgressEvent(phase=phase, elapsed_s=now - self.begin, detail=detail, cached=cached))

    def _log_path(self, key: str) -> Path:
        # Kept in the cache directory even for uncached compiles, so that a message can name it.
        directory = cache_root() / "logs"
        directory.mkdir(parents=True, exist_ok=True)
        return directory / f"{key[:24]}.log"

    def _build(self, workspace: Path, key: str) -> Mapping[str, Any]:
        """Compile in ``workspace``; leave the module and the parameters there."""
        log_path = self._log_path(key)
        log_path.write_bytes(b"")
        if self.source.kind == "onnx":
            imported = self._build_onnx(workspace, log_path)
        else:
            imported = {"notes": [], "function": None}
            # A relative name, because it ends up in source locations inside the module.
            self.source.write_to(workspace / "model.mlir")
            self._compile(
                workspace,
                Path("model.mlir"),
                log_path,
                keep_f64=self.source.mentions(b"f64"),
                img2col=bool(self.options.img2col),
            )
        keep = {_MODULE, frontend.PARAMETERS_FILE}
        for file in workspace.iterdir():
            if file.name not in keep:
                file.unlink() if file.is_file() else shutil.rmtree(file)
        return {
            "notes": [*imported["notes"], *self._tuning_notes],
            "functions": [imported["function"]] if imported["function"] else [],
            "seconds": dict(self.seconds),
            "log": log_path.name,
        }

    def _build_onnx(self, workspace: Path, log_path: Path) -> Mapping[str, Any]:
        """Compile an ONNX model; one that fails is tried again in forms that are likelier to pass."""
        first_error: CompileError | None = None
        for opset, img2col in self._attempts(log_path):
            try:
                entry = self._imported(dataclasses.replace(self.options, opset=opset), log_path)
                self._compile_imported(workspace, entry, log_path, img2col=img2col)
            except CompileError as error:
                first_error = first_error or error
                continue
            imported = read_manifest(entry)
            return {**imported, "notes": [*imported["notes"], *self._attempt_notes(opset, img2col, log_path)]}
        raise first_error or CompileError("the model was not compiled")

    def _attempts(self, log_path: Path) -> Iterator[tuple[int | None, bool]]:
        """Operator sets to raise the model to, and whether to turn convolutions into products."""
        wanted = self.options
        imported = read_manifest(self._imported(wanted, log_path))
        opsets = [wanted.opset]
        if wanted.opset is None and imported["opset"] < LOWEST_SURE_OPSET:
            opsets.append(LOWEST_SURE_OPSET)
        forms = [True, False] if wanted.img2col is None else [wanted.img2col]
        if not imported["has_convolutions"]:
            forms = [False]
        yield from ((opset, form) for form in forms for opset in opsets)

    def _attempt_notes(self, opset: int | None, img2col: bool, log_path: Path) -> Iterator[str]:
        """What was done differently from what was asked."""
        asked = read_manifest(self._imported(self.options, log_path))
        if opset != self.options.opset:
            yield f"raised from operator set {asked['opset']} to {opset}, as it did not compile"
        if asked["has_convolutions"] and not img2col and self.options.img2col is None:
            yield "convolutions left as they are, as it did not compile with matrix products instead"

    def _imported(self, options: CompileOptions, log_path: Path) -> Path:
        """The cache entry of the front end's result."""
        entry, _ = Cache(self.root, "imports").get_or_build(
            self._import_key(options), lambda directory: self._import(options, directory, log_path)
        )
        return entry

    def _compile_imported(self, workspace: Path, entry: Path, log_path: Path, *, img2col: bool) -> None:
        imported = read_manifest(entry)
        self._compile(
            workspace,
            entry / frontend.MODULE_FILE,
            log_path,
            symbolic=imported["symbolic"],
            keep_f64=imported["uses_double"],
            img2col=img2col,
            quantized=imported["quantized"],
        )
        if (entry / frontend.PARAMETERS_FILE).exists():
            _link_or_copy(entry / frontend.PARAMETERS_FILE, workspace / frontend.PARAMETERS_FILE)

    def _import(self, options: CompileOptions, directory: Path, log_path: Path) -> Mapping[str, Any]:
        """Run the ONNX front end in ``directory``."""
        path = self.source.path
        if path is None:
            path = directory / "source.onnx"
            self.source.write_to(path)
        request = {
            **options.front_end(),
            "path": str(path),
            "data_directory": str(self.source.data_directory),
            "name": self.source.name,
        }
        answer = (
            self._import_isolated(request, directory, log_path)
            if self.isolate
            else self._import_here(request, directory, log_path)
        )
        for name in ("source.onnx", frontend.REQUEST_FILE, frontend.PHASE_FILE, frontend.RESULT_FILE):
            (directory / name).unlink(missing_ok=True)
        return answer

    def _import_here(self, request: Mapping[str, Any], directory: Path, log_path: Path) -> dict[str, Any]:
        try:
            return frontend.import_onnx(request, directory, self._enter)
        except CompileError as error:
            log_path.write_text(str(error), encoding="utf-8")
            raise CompileError(str(error), log_path=str(log_path)) from error

    def _import_isolated(self, request: Mapping[str, Any], directory: Path, log_path: Path) -> dict[str, Any]:
        (directory / frontend.REQUEST_FILE).write_text(json.dumps(request), encoding="utf-8")
        command, environment = toolchain.python_command("sylvite.compile.frontend", str(directory))
        seen = 0

        def follow() -> None:
            nonlocal seen
            phases = _lines(directory / frontend.PHASE_FILE)
            for name in phases[seen:]:
                self._enter(Phase(name))
            seen = len(phases)

        tool = toolchain.run_tool(
            command,
            name=_FRONT_END,
            directory=directory,
            log_path=log_path,
            deadline=self.deadline,
            on_poll=follow,
            environment=environment,
        )
        follow()
        result_path = directory / frontend.RESULT_FILE
        if tool.exit_code != 0 or not result_path.exists():
            message = explain(_FRONT_END, tool.exit_code, tool.output)
            raise CompileError(message, log_path=str(log_path))
        answer: dict[str, Any] = json.loads(result_path.read_text(encoding="utf-8"))
        if "error" in answer:
            frontend.raise_described(answer["error"], log_path)
        return answer

    def _compile(
        self,
        workspace: Path,
        input_path: Path,
        log_path: Path,
        *,
        symbolic: Sequence[str] = (),
        keep_f64: bool,
        img2col: bool,
        quantized: bool = False,
    ) -> None:
        """Run iree-compile, with tuning when that is wanted and passes."""
        self._enter(Phase.COMPILE)
        self._tuning_notes = ()
        flags = self.options.back_end_flags(keep_f64=keep_f64, img2col=img2col, quantized=quantized)
        device = self.options.webgpu_device
        if device is not None:
            parameters = input_path.parent / frontend.PARAMETERS_FILE

            def run(source: Path, name: str, stage: Sequence[str]) -> None:
                self._run_compiler(workspace, source, name, log_path, stage, symbolic)

            stages = webgpu.Stages(
                workspace=workspace, run=run, parameters=parameters if parameters.exists() else None
            )
            stages.compile(input_path, _MODULE, flags=flags, device=device)
            return
        if self.options.target == "wasm32" and self.options.tuning == "auto":
            try:
                if self._compile_tuned(workspace, input_path, log_path, flags):
                    return
            except CompileError as error:
                reason = str(error).partition("\n")[0]
                self._tuning_notes = (f"compiled without tuning, as it did not compile with it: {reason}",)
        self._run_compiler(workspace, input_path, _MODULE, log_path, flags, symbolic)

    def _compile_tuned(
        self, workspace: Path, input_path: Path, log_path: Path, flags: tuple[str, ...]
    ) -> bool:
        """Compile in two halves, see `tuning`; False when the model has no matrix products."""
        # Loading what is in the cache does without its many patterns.
        from . import tuning

        halves = Path("first-half.mlir"), Path("second-half.mlir")
        first = tuning.first_half_flags(flags)
        self._run_compiler(workspace, input_path, halves[0].name, log_path, first)
        result = tuning.retarget(workspace / halves[0], workspace / halves[1], flags=flags)
        if result.products == 0:
            return False
        self._run_compiler(workspace, halves[1], _MODULE, log_path, tuning.second_half_flags(flags))
        return True

    def _run_compiler(
        self,
        workspace: Path,
        input_path: Path,
        output: str,
        log_path: Path,
        flags: Sequence[str],
        symbolic: Sequence[str] = (),
    ) -> None:
        """Run iree-compile once."""
        command = [str(self.tools.compile_path), str(input_path), "-o", output, *flags]
        linking = workspace / toolchain.LINK_STARTED
        if self.options.links_wasm:
            linker = toolchain.write_linker(
                workspace, self.tools.linker_path, contraction=self.options.contraction
            )
            command.append(f"--iree-llvmcpu-wasm-linker-path={linker}")

        def follow() -> None:
            if self._phase is not None and self._phase[0] is Phase.COMPILE and linking.exists():
                self._enter(Phase.LINK)

        tool = toolchain.run_tool(
            command,
            name="iree-compile",
            directory=workspace,
            log_path=log_path,
            deadline=self.deadline,
            on_poll=follow,
        )
        if tool.exit_code != 0 or not (workspace / output).exists():
            message = explain("iree-compile", tool.exit_code, tool.output, symbolic)
            raise CompileError(f"{self.source.name}: {message}", log_path=str(log_path))

    def _artifact(self, entry: Path, key: str, cached: bool) -> Artifact:
        manifest = read_manifest(entry)
        parameters = entry / frontend.PARAMETERS_FILE
        return Artifact(
            path=entry / _MODULE,
            parameters=(parameters,) if parameters.exists() else (),
            parameter_scope=PARAMETER_SCOPE,
            target=self.options.target,
            features=self.options.features,
            functions=tuple(FunctionSpec.from_json(value) for value in manifest["functions"]),
            notes=tuple(manifest["notes"]),
            log_path=cache_root() / "logs" / manifest["log"],
            cached=cached,
            seconds=manifest["seconds"],
            compiler=f"iree-base-compiler {self.tools.version}",
            key=key,
        )


def _uncached_root() -> Path:
    """A directory that lives until the process ends."""
    directory = tempfile.TemporaryDirectory(prefix="sylvite-")
    _uncached_directories.append(directory)
    return Path(directory.name)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _link_or_copy(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _copy_out(artifact: Artifact, output: Path) -> Artifact:
    """Copy the module and its parameters to where the caller wants them, each atomically."""
    parameters = tuple(output.with_suffix(path.suffix) for path in artifact.parameters)
    for source, destination in ((artifact.path, output), *zip(artifact.parameters, parameters, strict=True)):
        try:
            with tempfile.NamedTemporaryFile(dir=destination.absolute().parent, delete=False) as file:
                temporary = Path(file.name)
            shutil.copyfile(source, temporary)
            temporary.replace(destination)
        except OSError as error:
            raise SylviteError(f"cannot write {destination}: {error.strerror}") from error
    return dataclasses.replace(artifact, path=output, parameters=parameters)
