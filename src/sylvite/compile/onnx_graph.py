"""Reading ONNX models and fixing their symbolic dims. Runs where the ``onnx`` package is."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, InvalidArgumentError, UnavailableError, UnsupportedFeatureError
from ..vm.parameters import resolve_parameter_path
from .artifact import ArgumentSpec, FunctionSpec

__all__ = [
    "LARGE_MODEL_BYTES",
    "SymbolicDim",
    "fix_dims",
    "function_spec",
    "graph_inputs",
    "initializer_bytes",
    "load_model",
    "require_onnx",
    "symbolic_dims",
    "tensor_array",
    "tensor_bytes",
    "uses_double",
]

LARGE_MODEL_BYTES = 1 << 30
"""Models above this size keep their weights on disk during import; protobuf's own limit is 2 GiB."""

# Names follow numpy and ml_dtypes.
_DTYPE_NAMES = {
    "FLOAT": "float32",
    "UINT8": "uint8",
    "INT8": "int8",
    "UINT16": "uint16",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "STRING": "string",
    "BOOL": "bool",
    "FLOAT16": "float16",
    "DOUBLE": "float64",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "UINT4": "uint4",
    "INT4": "int4",
    "FLOAT4E2M1": "float4_e2m1fn",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SymbolicDim:
    """One axis of one input whose extent the model leaves open.

    ``name`` is the symbol of the graph, or ``input.axis`` when it has none.
    """

    name: str
    input: str
    axis: int


def require_onnx() -> Any:
    """The ``onnx`` package.

    Raises:
        UnavailableError: it is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise UnavailableError("reading ONNX models needs the onnx package", extra="compile") from error
    return onnx


def load_model(path: Path, data_directory: Path, *, where: str, weights: bool = True) -> Any:
    """Parse and check the ModelProto at ``path``; with ``weights`` external data is read into it.

    Raises:
        FormatError: it does not parse, or breaks the rules of ONNX.
    """
    onnx = require_onnx()
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    try:
        model = onnx.load_model(str(path), load_external_data=False)
        if weights:
            onnx.external_data_helper.load_external_data_for_model(model, str(data_directory))
    except decode_error as error:
        raise FormatError("not an ONNX model: the protocol buffer does not parse", where=where) from error
    except (OSError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise FormatError(f"the model's external data cannot be read: {error}", where=where) from error
    if not model.HasField("graph"):
        raise FormatError("not an ONNX model: it has no graph", where=where)
    if weights:
        _check(onnx, model, where)
    return model


def _check(onnx: Any, model: Any, where: str) -> None:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()
        raise FormatError(f"invalid ONNX model: {reason[0] if reason else 'unknown'}", where=where) from error
    except ValueError as error:
        if "2GB" not in str(error) and "2GiB" not in str(error):
            raise FormatError(f"invalid ONNX model: {error}", where=where) from error


def graph_inputs(model: Any) -> list[Any]:
    """The ValueInfoProtos that a caller must feed: inputs without an initializer of the same name."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    initialized.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    return [value for value in model.graph.input if value.name not in initialized]


def initializer_bytes(model: Any) -> int:
    """Sum of the initializers' sizes in bytes, external ones included."""
    return sum(tensor_bytes(tensor) for tensor in model.graph.initializer)


def tensor_bytes(tensor: Any) -> int:
    """Size of a TensorProto's content in bytes, from its shape and type (strings count 0)."""
    onnx = require_onnx()
    try:
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError, ValueError):
        return 0
    count = 1
    for extent in tensor.dims:
        count *= extent
    return int(count * itemsize)


def tensor_array(tensor: Any, data_directory: Path) -> Any:
    """The content of a TensorProto as a numpy array; external data is mapped, not read.

    Raises:
        FormatError: content that does not fit its shape, external data that is not there, or a path that
            leaves the model's directory.
    """
    onnx = require_onnx()
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        try:
            return onnx.numpy_helper.to_array(tensor)
        except (TypeError, ValueError) as error:
            message = f"the content of initializer {tensor.name!r:.100} is not what its shape and type say"
            raise FormatError(f"{message}: {error}", where="the graph") from error
    entries = {entry.key: entry.value for entry in tensor.external_data}
    where = f"external data of {tensor.name!r:.100}"
    path = resolve_parameter_path(data_directory, entries.get("location", ""), where=where)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        offset = int(entries.get("offset", 0))
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(tensor.dims))
    except (OSError, ValueError) as error:
        raise FormatError(
            f"external data of {tensor.name!r} cannot be mapped: {error}", where=path.name
        ) from error


def symbolic_dims(model: Any) -> list[SymbolicDim]:
    """Every axis of the inputs without a fixed extent, in order."""
    found = []
    for value in graph_inputs(model):
        for axis, dim in enumerate(_dims(value)):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                name = _symbol(dim) or f"{value.name}.{axis}"
                found.append(SymbolicDim(name=name, input=value.name, axis=axis))
    return found


def fix_dims(model: Any, dims: Mapping[str, int]) -> None:
    """Give symbolic dims the extents of ``dims``, in place. Keys are symbols or ``input.axis``.

    Raises:
        InvalidArgumentError: a key names no symbolic dim; the message lists those there are.
    """
    symbolic = symbolic_dims(model)
    known = {dim.name for dim in symbolic} | {f"{dim.input}.{dim.axis}" for dim in symbolic}
    unknown = [name for name in dims if name not in known]
    if unknown:
        there = ", ".join(dict.fromkeys(dim.name for dim in symbolic)) or "none"
        raise InvalidArgumentError(f"no symbolic dim named {', '.join(unknown)}; the model has: {there}")
    # A symbol means one extent wherever it stands; values of shapes that were inferred from it are stale.
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for axis, dim in enumerate(_dims(value)):
            extent = dims.get(f"{value.name}.{axis}", dims.get(_symbol(dim)))
            if extent is not None and (not dim.HasField("dim_value") or dim.dim_value < 0):
                dim.dim_value = extent
    if dims:
        _forget_inferred_shapes(
            model, {dim.dim_param for value in graph_inputs(model) for dim in _dims(value)}
        )


def _forget_inferred_shapes(model: Any, input_symbols: set[str]) -> None:
    """Drop intermediate shapes, and symbols of outputs that no input has: inference finds them anew."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in _dims(value):
            if dim.dim_param and dim.dim_param not in input_symbols:
                dim.ClearField("dim_param")


def _dims(value: Any) -> Iterator[Any]:
    tensor = value.type.tensor_type
    return iter(tensor.shape.dim)


def uses_double(model: Any) -> bool:
    """Whether any value of the model is (or holds) 64-bit floats."""
    onnx = require_onnx()
    double = {onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128}
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(value.type.tensor_type.elem_type in double for value in values)
        or any(tensor.data_type in double for tensor in graph.initializer)
        or any(_mentions(node, double) for node in graph.node)
    )


def _mentions(node: Any, types: set[int]) -> bool:
    """Whether an attribute of a node is a tensor of one of ``types`` or names one."""
    return any(
        attribute.t.data_type in types or (attribute.name in ("to", "dtype") and attribute.i in types)
        for attribute in node.attribute
    )


def _symbol(dim: Any) -> str:
    """The symbol of a dim; exporters write a question mark for "unknown", which is no symbol."""
    symbol = str(dim.dim_param)
    return "" if symbol == "?" else symbol


def function_spec(model: Any, name: str) -> FunctionSpec:
    """Names, dtypes and shapes of the main graph.

    Raises:
        UnsupportedFeatureError: an input or output is not a tensor of numbers.
    """
    return FunctionSpec(
        name=name,
        inputs=tuple(_argument(value, "input") for value in graph_inputs(model)),
        outputs=tuple(_argument(value, "output") for value in model.graph.output),
    )


def _argument(value: Any, role: str) -> ArgumentSpec:
    onnx = require_onnx()
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "untyped value").removesuffix("_type")
        raise UnsupportedFeatureError(
            f"graph {role} {value.name!r} is a {what}; only tensors can be passed", where="the graph"
        )
    tensor = value.type.tensor_type
    try:
        dtype = _DTYPE_NAMES[onnx.TensorProto.DataType.Name(tensor.elem_type)]
    except (ValueError, KeyError) as error:
        raise UnsupportedFeatureError(
            f"graph {role} {value.name!r} has element type {tensor.elem_type}, which is not known",
            where="the graph",
        ) from error
    if dtype == "string":
        raise UnsupportedFeatureError(
            f"graph {role} {value.name!r} is a tensor of strings; only numbers can be passed",
            where="the graph",
        )
    return ArgumentSpec(name=value.name, dtype=dtype, shape=_shape(value))


def _shape(value: Any) -> tuple[int | str, ...] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else _symbol(dim) or f"{value.name}.{axis}"
        for axis, dim in enumerate(_dims(value))
    )
