"""Layers import only downward, and there are no import cycles (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import sylvite

ROOT = Path(sylvite.__file__).parent

# Lower number = lower layer. A package may import itself and anything of a strictly lower layer.
LAYERS = {
    "errors": 0,
    "trace": 1,
    "own_sources": 1,
    "wasm": 2,
    "vmfb": 2,
    "hal": 2,
    "abi": 3,
    "engines": 3,
    "kernels": 3,
    "spirv": 3,
    "translator": 3,
    "linker": 4,
    "wgsl": 4,
    "drivers": 5,
    "vm": 5,
    "compile": 6,
    "halide": 6,
    "model": 7,
    "onnx": 8,
    "demo": 8,
    "cli": 9,
    "__main__": 10,
}
# Root names are resolved lazily, so the package itself sits on top of everything.
LAYERS["__init__"] = 11


def _component(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imports(path: Path) -> set[str]:
    """Components of sylvite that a module imports when it runs (TYPE_CHECKING blocks excluded)."""
    package = ("sylvite", *path.relative_to(ROOT).parent.parts)
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    parts = alias.name.split(".")
                    if parts[0] == "sylvite" and len(parts) > 1:
                        found.add(parts[1])
            elif isinstance(child, ast.ImportFrom):
                if child.level:
                    base = package[: len(package) - child.level + 1]
                    full = [*base, *(child.module.split(".") if child.module else [])]
                else:
                    full = (child.module or "").split(".")
                if full[0] == "sylvite":
                    if len(full) > 1:
                        found.add(full[1])
                    else:
                        found.update(alias.name for alias in child.names if alias.name != "__version__")
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_layers_every_component_is_declared() -> None:
    components = {_component(path) for path in ROOT.rglob("*.py")}
    assert components <= LAYERS.keys(), components - LAYERS.keys()


def test_layers_imports_go_downward() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = _component(path)
        for other in _imports(path):
            if other != own and LAYERS[other] >= LAYERS[own]:
                wrong.append(f"{path.relative_to(ROOT)} ({LAYERS[own]}) imports {other} ({LAYERS[other]})")
    assert not wrong, "\n".join(wrong)
