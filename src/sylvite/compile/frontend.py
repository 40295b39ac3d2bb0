"""The ONNX front end: read, fix dims, simplify, import to MLIR, write parameters.

It normally runs in a child process (``python -m sylvite.compile.frontend DIRECTORY``), because it feeds
files of strangers to native code. The directory holds ``request.json``; the front end leaves there

* ``model.mlirbc``: the imported module as MLIR bytecode,
* ``parameters.irpa``: external parameters, if any,
* ``import.json``: the function, the open symbolic dims, notes -- or the error,
* ``phase``: the names of the phases entered so far, one a line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import errors
from ..vm.parameters import write_archive
from . import onnx_graph, onnx_rewrites, onnx_upsampling
from .artifact import SIGNATURE_ATTRIBUTE, FunctionSpec
from .options import IN_PLACE, PARAMETER_SCOPE
from .progress import Phase

__all__ = [
    "MODULE_FILE",
    "PARAMETERS_FILE",
    "PHASE_FILE",
    "REQUEST_FILE",
    "RESULT_FILE",
    "import_onnx",
    "main",
]

REQUEST_FILE = "request.json"
RESULT_FILE = "import.json"
PHASE_FILE = "phase"
MODULE_FILE = "model.mlirbc"
PARAMETERS_FILE = "parameters.irpa"

AUTOMATIC_EXTERNAL_BYTES = 64 << 20
"""Initializers above this total go to a parameter file unless the caller decides."""

_MINIMUM_EXTERNAL_ELEMENTS = 100
_FOLD_LIMIT_BYTES = 4 << 20
_FALLBACK_NAME = "main_graph"

Report = Callable[[Phase], None]


def import_onnx(request: Mapping[str, Any], directory: Path, report: Report) -> dict[str, Any]:
    """Do what ``request`` asks, leaving files in ``directory``; return the content of ``import.json``.

    Raises:
        FormatError, UnsupportedFeatureError, InvalidArgumentError, UnavailableError, CompileError
    """
    report(Phase.READ)
    notes: list[str] = []
    path, data_directory = Path(request["path"]), Path(request["data_directory"])
    in_place = request["external_parameters"] == IN_PLACE
    model = onnx_graph.load_model(path, data_directory, where=request["name"], weights=False)
    size = onnx_graph.initializer_bytes(model)
    large = size > onnx_graph.LARGE_MODEL_BYTES
    if not large and not in_place:
        model = onnx_graph.load_model(path, data_directory, where=request["name"])
    model = _raise_opset(model, request["opset"])
    onnx_graph.fix_dims(model, request["dims"])
    if request["simplify"] and in_place:
        notes.append("not simplified: its weights stay in the model's external data files")
    elif request["simplify"] and not large:
        report(Phase.SIMPLIFY)
        model = _simplify(model, notes)
    elif request["simplify"]:
        notes.append(f"not simplified: {size / 2**30:.1f} GiB of initializers are too many to fold in memory")

    report(Phase.IMPORT)
    if not large:
        model = _infer_shapes(model, notes)
        model = _enlarge_images(model, notes)
        model = _prepare_convolutions(model, request["img2col"], notes)
        if onnx_rewrites.flatten_products(model):
            model = _infer_shapes(model, notes)
    if not model.graph.name:
        model.graph.name = _FALLBACK_NAME
    function = onnx_graph.function_spec(model, model.graph.name)
    external = request["external_parameters"]
    if external is None:
        external = size > AUTOMATIC_EXTERNAL_BYTES
    settings = _ParameterSettings(
        external=bool(external) or large, in_place=in_place, data_directory=data_directory
    )
    _write_module(model, function, directory, settings)
    return {
        "function": function.to_json(),
        "symbolic": list(dict.fromkeys(dim.name for dim in onnx_graph.symbolic_dims(model))),
        "opset": _opset(model),
        "has_convolutions": onnx_rewrites.has_convolutions(model),
        "uses_double": onnx_graph.uses_double(model),
        "quantized": _is_quantized(model),
        "notes": notes,
    }


def _opset(model: Any) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _raise_opset(model: Any, wanted: int | None) -> Any:
    if wanted is None or _opset(model) >= wanted:
        return model
    onnx = onnx_graph.require_onnx()
    from onnx import version_converter

    try:
        return version_converter.convert_version(model, wanted)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise errors.CompileError(f"the model cannot be raised to operator set {wanted}: {error}") from error


def _simplify(model: Any, notes: list[str]) -> Any:
    """``model`` simplified, or ``model`` itself and a note when that fails or changes the interface."""
    onnx = onnx_graph.require_onnx()
    if _is_quantized(model):
        notes.append("not simplified: folding would turn the quantized weights into floats")
        return model
    try:
        import onnxslim
    except ImportError:
        notes.append("not simplified: onnxslim is not installed (pip install 'sylvite[compile]')")
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        slim = onnxslim.slim(copy, size_threshold=_FOLD_LIMIT_BYTES)
    except Exception as error:  # noqa: BLE001 - it fails in many ways on models that compile without it
        notes.append(f"not simplified: onnxslim failed with {type(error).__name__}: {str(error)[:200]}")
        return model
    if slim is None or _interface(slim) != _interface(model):
        notes.append("not simplified: onnxslim changed the inputs or outputs of the graph")
        return model
    return slim


def _is_quantized(model: Any) -> bool:
    """Whether most of the weights are 8-bit integers, or the graph dequantizes."""
    onnx = onnx_graph.require_onnx()
    if any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        return True
    narrow = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    weights = [tensor for tensor in model.graph.initializer if tensor.data_type in narrow]
    return 2 * sum(map(onnx_graph.tensor_bytes, weights)) > max(onnx_graph.initializer_bytes(model), 1)


def _interface(model: Any) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    def described(values: Any) -> list[tuple[str, int]]:
        return [(value.name, value.type.tensor_type.elem_type) for value in values]

    return described(onnx_graph.graph_inputs(model)), described(model.graph.output)


def _infer_shapes(model: Any, notes: list[str]) -> Any:
    onnx = onnx_graph.require_onnx()
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        notes.append(f"shapes not inferred: {str(error).strip().splitlines()[0][:200]}")
        return model


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ParameterSettings:
    """Whether initializers stay out of the module, and whether they stay even in their own files."""

    external: bool
    in_place: bool
    data_directory: Path


def _enlarge_images(model: Any, notes: list[str]) -> Any:
    """Turn what makes images larger by whole factors into products and copies."""
    turned = onnx_upsampling.repeat_pixels(model, _opset(model))
    turned += onnx_upsampling.spread_pixels(model, _opset(model))
    return _infer_shapes(model, notes) if turned else model


def _prepare_convolutions(model: Any, img2col: bool | None, notes: list[str]) -> Any:
    """Turn convolutions into products where the rewrite to products of patches would fail."""
    if img2col is False or not onnx_rewrites.pixel_convolutions_to_products(model, _opset(model)):
        return model
    return _infer_shapes(model, notes)


def _write_module(
    model: Any, function: FunctionSpec, directory: Path, parameters: _ParameterSettings
) -> None:
    """Import ``model`` and write it as MLIR bytecode, with its parameters aside when they are external."""
    try:
        from iree.compiler import ir
        from iree.compiler.extras import onnx_importer
        from iree.compiler.tools.import_onnx import importer_externalization_overrides as overrides
    except ImportError as error:
        raise errors.UnavailableError("importing ONNX needs the IREE compiler", extra="compile") from error

    context = ir.Context()
    info = onnx_importer.ModelInfo(model)
    module = info.create_module(context=context).operation
    try:
        if parameters.external:
            settings = overrides.ParamData(
                param_bit_threshold=None,
                num_elements_threshold=0 if parameters.in_place else _MINIMUM_EXTERNAL_ELEMENTS,
                params_scope=PARAMETER_SCOPE,
                data_dir=str(parameters.data_directory),
                param_path="",
                input_index_threshold=None,
            )
            importer = _external_importer(overrides, onnx_importer, parameters.in_place).define_function(
                info.main_graph, module, settings
            )
        else:
            importer = onnx_importer.NodeImporter.define_function(info.main_graph, module)
        importer.import_all()
        _attach_signature(ir, module, function)
        module.verify()
    except errors.SylviteError:
        raise
    except Exception as error:
        # The importer reports unknown operators, types and attributes with many exception classes.
        reason = str(error).strip() or type(error).__name__
        raise errors.CompileError(f"the ONNX importer refused the model: {reason[:1000]}") from error
    with (directory / MODULE_FILE).open("wb") as file:
        module.write_bytecode(file)
    if parameters.external and not parameters.in_place and importer.globals:
        _write_parameters(importer, directory / PARAMETERS_FILE, parameters.data_directory)


def _external_importer(overrides: Any, onnx_importer: Any, in_place: bool) -> Any:
    """IREE's externalizing importer, restricted to element types of whole bytes, and with ``in_place`` to
    initializers that are in external data files."""
    onnx = onnx_graph.require_onnx()
    types = onnx.TensorProto
    inline = {types.BOOL, types.STRING, types.UINT4, types.INT4, getattr(types, "FLOAT4E2M1", types.INT4)}

    class Importer(overrides.IREENodeImporter):  # type: ignore[misc]
        def import_initializer(self, initializer: Any, extern_name: str | None = None) -> Any:
            kept = in_place and initializer.data_location != types.EXTERNAL
            if kept or initializer.data_type in inline:
                value = onnx_importer.NodeImporter.import_initializer(self, initializer)
                self._nv_map[extern_name or initializer.name] = value
                return value
            return super().import_initializer(initializer, extern_name)

    # define_function of the base class constructs the base class by name; adopt the result instead.
    class Adopting:
        @staticmethod
        def define_function(graph: Any, module: Any, settings: Any) -> Any:
            importer = overrides.IREENodeImporter.define_function(graph, module, settings)
            importer.__class__ = Importer
            return importer

    return Adopting


def _attach_signature(ir: Any, module: Any, function: FunctionSpec) -> None:
    """Record names, dtypes and shapes as a reflection attribute; it survives into the .vmfb."""
    with module.context:
        text = ir.StringAttr.get(json.dumps(function.to_json(), separators=(",", ":")))
        reflection = ir.DictAttr.get({SIGNATURE_ATTRIBUTE: text})
        for operation in module.regions[0].blocks[0]:
            attributes = operation.operation.attributes
            if operation.operation.name == "func.func" and "sym_visibility" not in attributes:
                attributes["iree.reflection"] = reflection


def _write_parameters(importer: Any, path: Path, data_directory: Path) -> None:
    """Write the initializers that the importer left out, by the keys it gave them."""
    tensors = importer._gi.initializer_map
    write_archive(
        path, {key: onnx_graph.tensor_array(tensors[name], data_directory) for name, key in importer.globals}
    )


def describe_error(error: errors.SylviteError) -> dict[str, Any]:
    """An error as JSON values, for the parent process."""
    return {
        "class": type(error).__name__,
        "message": getattr(error, "message", None) or str(error),
        "where": getattr(error, "where", None),
        "extra": getattr(error, "extra", None),
    }


def raise_described(value: Mapping[str, Any], log_path: Path) -> None:
    """Raise the error that `describe_error` described."""
    name, message = value.get("class"), str(value.get("message", ""))
    if name in ("FormatError", "UnsupportedFeatureError"):
        kind = errors.FormatError if name == "FormatError" else errors.UnsupportedFeatureError
        raise kind(message, where=value.get("where"))
    if name == "InvalidArgumentError":
        raise errors.InvalidArgumentError(message)
    if name == "UnavailableError":
        raise errors.UnavailableError(message.split("; install it with")[0], extra=value.get("extra"))
    raise errors.CompileError(message, log_path=str(log_path))


def main(arguments: list[str]) -> int:
    """Entry point of the child process; the answer is in ``import.json``."""
    directory = Path(arguments[0])
    request = json.loads((directory / REQUEST_FILE).read_text(encoding="utf-8"))

    def report(phase: Phase) -> None:
        with (directory / PHASE_FILE).open("a", encoding="utf-8") as file:
            file.write(phase.value + "\n")

    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = import_onnx(request, directory, report)
    except errors.SylviteError as error:
        answer = {"error": describe_error(error)}
    (directory / RESULT_FILE).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
