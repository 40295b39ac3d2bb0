from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from sylvite.compile.sources import resolve
from sylvite.errors import CompileError, InvalidArgumentError, NotFoundError, UnavailableError

MLIR = "func.func @main() {\n  return\n}\n"


@pytest.mark.parametrize(
    "text",
    [
        MLIR,
        "// a comment\nmodule { }",
        "#map = affine_map<(d0) -> (d0)>\nmodule {}",
        "vm.module @m {\n}",
        '"builtin.module"() ({}) : () -> ()\n',
    ],
)
def test_resolve_mlir_text_is_recognized(text):
    source = resolve(text)
    assert source.kind == "mlir"
    assert source.data == text.encode()


def test_resolve_paths_by_suffix_and_content(tmp_path):
    for name, content, kind in [
        ("a.mlir", MLIR.encode(), "mlir"),
        ("a.mlirbc", b"ML\xefRxxxx", "mlir"),
        ("a.onnx", b"\x08\x07", "onnx"),
        ("a.txt", MLIR.encode(), "mlir"),
        ("a", b"\x08\x07\x12\x00", "onnx"),
    ]:
        (tmp_path / name).write_bytes(content)
        source = resolve(tmp_path / name)
        assert (source.kind, source.name) == (kind, name)
        assert source.data_directory == tmp_path


def test_resolve_same_content_has_same_digest(tmp_path):
    (tmp_path / "a.mlir").write_text(MLIR)
    (tmp_path / "b.mlir").write_text(MLIR)
    assert (
        resolve(tmp_path / "a.mlir").digest
        == resolve(str(tmp_path / "b.mlir")).digest
        == resolve(MLIR).digest
    )


def test_resolve_external_data_decides_the_digest(tmp_path, softmax_model):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "m.onnx"
    onnx.save_model(
        softmax_model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (tmp_path / "weights.bin").exists()
    before = resolve(path).digest
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert resolve(path).digest != before


def test_resolve_model_proto_is_serialized(softmax_model):
    model = softmax_model()
    source = resolve(model)
    assert source.kind == "onnx"
    assert source.data == model.SerializeToString()
    assert resolve(source) is source


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("no/such/file.onnx", NotFoundError, "no such file: no/such/file.onnx"),
        (12, InvalidArgumentError, "cannot compile a int"),
        (np.zeros(3), InvalidArgumentError, "cannot compile a ndarray"),
    ],
)
def test_resolve_what_is_no_model_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        resolve(source)


def test_resolve_directory_and_compiled_module_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="not a file"):
        resolve(tmp_path)
    (tmp_path / "m.vmfb").write_bytes(b"PK")
    with pytest.raises(InvalidArgumentError, match=r"compiled already; load it with sylvite\.load"):
        resolve(tmp_path / "m.vmfb")


def test_resolve_torch_program_without_torch_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "m.pt2").write_bytes(b"PK")
    with pytest.raises(UnavailableError, match="pip install torch"):
        resolve(tmp_path / "m.pt2")


class _Torch(types.ModuleType):
    """A stand-in for torch: what `resolve` uses of it."""

    def __init__(self, exported: bytes | Exception) -> None:
        super().__init__("torch")
        self.nn = types.SimpleNamespace(Module=type("Module", (), {}))
        self.calls: list[tuple[object, ...]] = []

        def export(module: object, arguments: tuple[object, ...], file: object) -> None:
            self.calls.append(arguments)
            if isinstance(exported, Exception):
                raise exported
            file.write(exported)

        self.onnx = types.SimpleNamespace(export=export)


def test_resolve_torch_module_goes_through_its_onnx_exporter(monkeypatch):
    torch = _Torch(b"\x08\x07exported")
    monkeypatch.setitem(sys.modules, "torch", torch)
    source = resolve(torch.nn.Module(), example_inputs=(1, 2))
    assert (source.kind, source.data) == ("onnx", b"\x08\x07exported")
    assert torch.calls == [(1, 2)]


def test_resolve_torch_module_needs_example_inputs(monkeypatch):
    torch = _Torch(b"")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(InvalidArgumentError, match="example_inputs"):
        resolve(torch.nn.Module())


def test_resolve_torch_export_failure_is_a_compile_error(monkeypatch):
    torch = _Torch(RuntimeError("cannot trace"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(CompileError, match="cannot trace"):
        resolve(torch.nn.Module(), example_inputs=())
