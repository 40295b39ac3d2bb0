"""What a model may come as: files, texts, protos, PyTorch modules."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import CompileError, FormatError, InvalidArgumentError, NotFoundError, UnavailableError
from ..vmfb.recognize import recognize
from .cache import digest_bytes, digest_file
from .file_facts import Fact, known_fact

__all__ = ["Source", "resolve"]

_MLIR_BYTECODE_MAGIC = b"ML\xefR"
_ONNX_SUFFIXES = frozenset({".onnx", ".pb", ".onnxtxt", ".textproto"})
_MLIR_SUFFIXES = frozenset({".mlir", ".mlirbc"})
_TORCH_SUFFIXES = frozenset({".pt2"})
_MLIR_TEXT = re.compile(
    r"^\s*(?://[^\n]*\n\s*)*(?:#|!|\"?builtin\.module|module\b|func\.func|func\b|util\.|vm\.|hal\.|\w+\.\w+)"
)
_EXTERNAL_LOCATION = re.compile(rb"\n\x08location\x12", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model to compile.

    Args:
        kind: ``onnx`` or ``mlir``.
        name: what messages call it.
        path: the file, or ``None`` when ``data`` holds it.
        data: its bytes, or ``None``.
        data_directory: where external data of an ONNX model is.
        digest: hash of all of its content.
    """

    kind: str
    name: str
    path: Path | None
    data: bytes | None
    data_directory: Path
    digest: str

    @property
    def suffix(self) -> str:
        """A file suffix that tells the compiler what it reads."""
        return ".onnx" if self.kind == "onnx" else ".mlir"

    def mentions(self, word: bytes) -> bool:
        """Whether ``word`` occurs in the content."""
        return word in (self.data if self.data is not None else self._read())

    def write_to(self, path: Path) -> None:
        """Write the content to ``path``."""
        path.write_bytes(self.data if self.data is not None else self._read())

    def _read(self) -> bytes:
        if self.path is None:
            raise InvalidArgumentError(f"{self.name} has no content")
        return self.path.read_bytes()


def resolve(source: Any, *, example_inputs: Sequence[Any] | None = None, cache: bool = True) -> Source:
    """Find out what ``source`` is.

    Args:
        source: the model.
        example_inputs: what a torch module is traced with.
        cache: whether files that have not changed since they were hashed last need not be hashed again.

    Raises:
        InvalidArgumentError: it is nothing that can be compiled.
        NotFoundError: a path that does not exist.
        UnavailableError: PyTorch is needed and not installed.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str) and _looks_like_mlir(source):
        return _from_bytes("mlir", source.encode(), "<mlir text>")
    if isinstance(source, str | os.PathLike):
        return _from_path(Path(source), example_inputs, known_fact if cache else _found_fact)
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        name = f"<{len(data)} bytes>"
        return _from_bytes(_kind_of_bytes(data, name), data, name)
    if hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        return _from_bytes(
            "onnx", source.SerializeToString(), f"<ModelProto {source.graph.name or 'unnamed'}>"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, _torch_types(torch)):
        return _from_torch(torch, source, example_inputs)
    raise InvalidArgumentError(
        f"cannot compile a {type(source).__name__}; pass a path (.onnx, .mlir, .pt2), MLIR text, bytes, "
        "an ONNX ModelProto or a torch.nn.Module"
    )


def _looks_like_mlir(text: str) -> bool:
    return ("\n" in text or "{" in text) and _MLIR_TEXT.match(text) is not None


def _kind_of_bytes(data: bytes, name: str) -> str:
    if data.startswith(_MLIR_BYTECODE_MAGIC):
        return "mlir"
    try:
        if _looks_like_mlir(data[:65536].decode("utf-8", errors="strict")):
            return "mlir"
    except UnicodeDecodeError:
        return "onnx"
    kind = recognize(data[:64])
    if kind is not None:
        raise FormatError(
            f"neither ONNX nor MLIR nor a compiled module (.vmfb): the content is {kind}", where=name
        )
    return "onnx"


def _from_bytes(kind: str, data: bytes, name: str) -> Source:
    return Source(
        kind=kind, name=name, path=None, data=data, data_directory=Path.cwd(), digest=digest_bytes(data)
    )


class _Facts(Protocol):
    """`known_fact`, or the same without the cache."""

    def __call__(self, path: Path, name: str, find: Callable[[Path], Fact]) -> Fact: ...


def _found_fact(path: Path, name: str, find: Callable[[Path], Fact]) -> Fact:
    return find(path)


def _from_path(path: Path, example_inputs: Sequence[Any] | None, fact: _Facts) -> Source:
    try:
        if not path.exists():
            raise NotFoundError(f"no such file: {path}")
    except OSError as error:
        raise NotFoundError(f"cannot open {str(path)[:200]}: {error.strerror}") from error
    if not path.is_file():
        raise InvalidArgumentError(f"not a file: {path}")
    suffix = path.suffix.lower()
    if suffix in _TORCH_SUFFIXES:
        torch = _require_torch()
        return _from_torch(torch, torch.export.load(str(path)), example_inputs)
    if suffix == ".vmfb":
        raise InvalidArgumentError(f"{path} is compiled already; load it with sylvite.load")
    if suffix in _MLIR_SUFFIXES:
        kind = "mlir"
    elif suffix in _ONNX_SUFFIXES:
        kind = "onnx"
    else:
        with path.open("rb") as file:
            kind = _kind_of_bytes(file.read(65536), path.name)
    digest = fact(path, "sha256", digest_file)
    if kind == "onnx":
        digest = _with_external_data(path, digest, fact)
    return Source(
        kind=kind,
        name=path.name,
        path=path.absolute(),
        data=None,
        data_directory=path.absolute().parent,
        digest=digest,
    )


def _with_external_data(path: Path, digest: str, fact: _Facts) -> str:
    """Fold the content of external data files into ``digest``."""
    root = path.absolute().parent
    parts = [digest]
    for name in fact(path, "locations", _external_locations):
        file = root / name
        if "\0" not in name and file.is_file() and root in file.resolve().parents:
            parts.append(f"{name}={fact(file, 'sha256', digest_file)}")
    return digest_bytes("\n".join(parts).encode()) if len(parts) > 1 else digest


def _external_locations(path: Path) -> list[str]:
    """Names of external data files in an ONNX model.

    They are found by the bytes of their ``location`` entries, without the onnx package: a hit in the cache
    must not cost its import. A chance match that names a file only makes the key more specific.
    """
    content = path.read_bytes()
    names: set[str] = set()
    for match in _EXTERNAL_LOCATION.finditer(content):
        start = match.end()
        length, shift = 0, 0
        while start < len(content) and shift <= 14:
            byte = content[start]
            start += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        names.add(content[start : start + length].decode("utf-8", errors="replace"))
    return sorted(names)


def _require_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(
            "compiling PyTorch modules needs torch: pip install torch onnxscript"
        ) from error
    return torch


def _torch_types(torch: Any) -> tuple[type, ...]:
    found = [torch.nn.Module]
    program = getattr(getattr(torch, "export", None), "ExportedProgram", None)
    if program is not None:
        found.append(program)
    return tuple(found)


def _from_torch(torch: Any, module: Any, example_inputs: Sequence[Any] | None) -> Source:
    """Export ``module`` through torch.onnx and go on with the ONNX model."""
    name = type(module).__name__
    is_program = not isinstance(module, torch.nn.Module)
    if example_inputs is None and not is_program:
        raise InvalidArgumentError(f"exporting the torch module {name} needs example_inputs=(tensor, ...)")
    buffer = io.BytesIO()
    try:
        if is_program:
            proto = torch.onnx.export(module).model_proto
            return _from_bytes("onnx", proto.SerializeToString(), f"<torch {name}>")
        torch.onnx.export(module, tuple(example_inputs or ()), buffer)
    except Exception as error:
        raise CompileError(f"torch.onnx could not export {name}: {str(error)[:1000]}") from error
    return _from_bytes("onnx", buffer.getvalue(), f"<torch {name}>")
