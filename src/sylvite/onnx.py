"""The part of onnxruntime's Python interface that most programs use, over Sylvite.

A program switches by changing an import::

    import sylvite.onnx as ort          # was: import onnxruntime as ort

    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {session.get_inputs()[0].name: x})

Differences: a model with symbolic dims is compiled when shapes are first known, so the first `run` of a
new shape takes seconds; dtypes are never cast; options that only tune onnxruntime have no effect.

Source: the onnxruntime Python API reference.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgumentError, NotFoundError, SylviteError
from .hal import Device
from .model import Argument, Model, load

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
]

_PROVIDER = "SylviteExecutionProvider"
_PROVIDER_DEVICES = {_PROVIDER: "local-sync", "CPUExecutionProvider": "local-sync"}

# MLIR's names on the left, onnxruntime's on the right.
_TYPE_NAMES = {
    "i1": "bool",
    "i4": "int4",
    "ui4": "uint4",
    "i8": "int8",
    "si8": "int8",
    "ui8": "uint8",
    "i16": "int16",
    "si16": "int16",
    "ui16": "uint16",
    "i32": "int32",
    "si32": "int32",
    "ui32": "uint32",
    "i64": "int64",
    "si64": "int64",
    "ui64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float",
    "f64": "double",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "f8E4M3FN": "float8e4m3fn",
    "f8E4M3FNUZ": "float8e4m3fnuz",
    "f8E5M2": "float8e5m2",
    "f8E5M2FNUZ": "float8e5m2fnuz",
}


class GraphOptimizationLevel(enum.IntEnum):
    """How much the graph is simplified before it is compiled: not at all, or fully."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Accepted for compatibility; the compiler decides the order of execution."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Options of a session. Those that only tune onnxruntime are kept and have no effect."""

    def __init__(self) -> None:
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.enable_mem_pattern = True
        self.enable_cpu_mem_arena = True
        self.enable_profiling = False
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.free_dimension_overrides: dict[str, int] = {}
        self.config_entries: dict[str, str] = {}

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the symbolic dim ``name`` to ``value``."""
        self.free_dimension_overrides[name] = value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry."""
        self.config_entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """A kept configuration entry.

        Raises:
            NotFoundError: it was never added.
        """
        if key not in self.config_entries:
            raise NotFoundError(f"no session config entry {key!r}")
        return self.config_entries[key]


class RunOptions:
    """Options of one run. ``timeout_s`` is ours; the rest is kept and has no effect."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeArg:
    """An input or output: its name, its extents (an int, a symbol's name, or ``None``), and its type in
    onnxruntime's words, such as ``tensor(float)``."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """What is known about the model."""

    graph_name: str
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = dataclasses.field(default_factory=dict)


def get_device() -> str:
    """The kind of device: guests run on the CPU."""
    return "CPU"


def get_available_providers() -> list[str]:
    """The one provider there is."""
    return [_PROVIDER]


class InferenceSession:
    """A loaded model with onnxruntime's interface.

    Args:
        path_or_bytes: an .onnx or .vmfb file, or the bytes of one.
        sess_options: see `SessionOptions`; free dimension overrides and the optimization level count.
        providers: names (or pairs of name and options) in order of preference. ``CPUExecutionProvider``
            means the local device; unknown ones are skipped with a warning, as onnxruntime does.
        provider_options: accepted; there are none.
        device: a device to share, or a driver's name; wins over ``providers``.
        load_options: further options of `sylvite.load`.

    Raises:
        what `sylvite.load` raises.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        device: str | Device | None = None,
        **load_options: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        overrides = dict(self._options.free_dimension_overrides)
        if overrides:
            load_options["dims"] = {**overrides, **load_options.get("dims", {})}
        if self._options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            load_options.setdefault("simplify", False)
        chosen = _device_of(providers) if device is None else device
        self._model: Model = load(path_or_bytes, device=chosen, copy=True, **load_options)
        try:
            self._function = self._model.main
        except SylviteError:
            self._model.close()
            raise

    @property
    def model(self) -> Model:
        """The model behind the session."""
        return self._model

    def get_inputs(self) -> list[NodeArg]:
        """Inputs in order."""
        return [_node_arg(argument) for argument in self._function.signature.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Outputs in order."""
        return [_node_arg(argument) for argument in self._function.signature.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: initializers are compiled in."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What is known about the model."""
        return ModelMetadata(graph_name=self._function.name)

    def get_session_options(self) -> SessionOptions:
        """The options the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The provider that runs the model."""
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options by provider: the device."""
        return {_PROVIDER: {"device": self._model.device.identifier}}

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Run the model.

        Args:
            output_names: which outputs to return; all of them when ``None`` or empty.
            input_feed: arrays by input name.
            run_options: see `RunOptions`.

        Returns:
            The outputs as arrays of their own, in the order of ``output_names``.

        Raises:
            InvalidArgumentError: unknown outputs, missing or unknown inputs, a wrong dtype or shape.
            GuestError: the model failed.
        """
        indices = self._output_indices(output_names)
        timeout_s = None if run_options is None else run_options.timeout_s
        results = self._function.run((), input_feed, timeout_s=timeout_s)
        values = results if isinstance(results, tuple) else (results,)
        return [np.asarray(values[index]) for index in indices]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[npt.NDArray[Any]], Any, str], None],
        user_data: Any = None,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a thread; then ``callback(outputs, user_data, error_message)``."""
        import threading

        def work() -> None:
            try:
                outputs = self.run(output_names, input_feed, run_options)
            except SylviteError as error:
                callback([], user_data, str(error))
            else:
                callback(outputs, user_data, "")

        threading.Thread(target=work, name="sylvite run_async", daemon=True).start()

    def _output_indices(self, names: Sequence[str] | None) -> list[int]:
        known = [argument.name for argument in self._function.signature.outputs]
        if not names:
            return list(range(len(known)))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidArgumentError(
                f"the model has no output {', '.join(map(repr, unknown))}; it has: {', '.join(known)}"
            )
        return [known.index(name) for name in names]

    def close(self) -> None:
        """Give the model back. Idempotent; onnxruntime leaves this to the garbage collector."""
        self._model.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _device_of(providers: Sequence[Any] | None) -> str:
    """The driver's name for the first provider that is known."""
    if not providers:
        return _PROVIDER_DEVICES[_PROVIDER]
    names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    unknown = [name for name in names if name not in _PROVIDER_DEVICES]
    if unknown:
        warnings.warn(
            f"no execution provider {', '.join(unknown)} here; available: {_PROVIDER}",
            UserWarning,
            stacklevel=3,
        )
    known = [name for name in names if name in _PROVIDER_DEVICES]
    return _PROVIDER_DEVICES[known[0] if known else _PROVIDER]


def _node_arg(argument: Argument) -> NodeArg:
    element_type = "" if argument.element_type is None else argument.element_type.name
    # Axes without a symbol got a name of the form input.axis; onnxruntime says None.
    anonymous = {f"{argument.name}.{axis}" for axis in range(len(argument.shape or ()))}
    return NodeArg(
        name=argument.name,
        shape=[None if extent in anonymous else extent for extent in argument.shape or ()],
        type=f"tensor({_TYPE_NAMES.get(element_type, element_type)})",
    )
