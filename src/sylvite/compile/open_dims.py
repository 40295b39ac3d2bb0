"""What an ONNX model looks like whose dims stay open: asked at every load, so kept in the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .artifact import FunctionSpec
from .cache import Cache, digest_json, read_manifest
from .sources import Source

__all__ = ["open_function"]

_FORMAT = 1
"""Raised when the same source and dims give another result because of a change in Sylvite."""


def open_function(source: Source, dims: Mapping[str, int], root: Path | None) -> FunctionSpec | None:
    """The function of an ONNX model that leaves dims open after ``dims`` were fixed, else ``None``.

    Args:
        source: the model.
        dims: extents by symbol or by ``input.axis``.
        root: of the cache; with it the answer to an equal question costs no import of onnx.

    Raises:
        InvalidArgumentError: a dim's name is wrong.
        FormatError: the model is malformed.
        UnavailableError: onnx is not installed, or the cache directory cannot be written.
    """
    if source.kind != "onnx":
        return None
    if root is None:
        return _read(source, dims)
    key = digest_json({"format": _FORMAT, "source": source.digest, "dims": dict(dims)})

    def build(workspace: Path) -> Mapping[str, Any]:
        function = _read(source, dims)
        return {"function": None if function is None else function.to_json()}

    entry, _ = Cache(root, "open").get_or_build(key, build)
    known = read_manifest(entry)["function"]
    return None if known is None else FunctionSpec.from_json(known)


def _read(source: Source, dims: Mapping[str, int]) -> FunctionSpec | None:
    from . import onnx_graph

    with tempfile.TemporaryDirectory() as directory:
        path = source.path
        if path is None:
            path = Path(directory) / "model.onnx"
            source.write_to(path)
        model = onnx_graph.load_model(path, source.data_directory, where=source.name, weights=False)
    onnx_graph.fix_dims(model, dims)
    if not onnx_graph.symbolic_dims(model):
        return None
    return onnx_graph.function_spec(model, model.graph.name or "main_graph")
