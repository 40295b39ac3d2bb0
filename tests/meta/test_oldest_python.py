"""What the oldest supported Python lacks and mypy, set to that version, does not see."""

from __future__ import annotations

import ast
import pathlib

import sylvite

SOURCES = sorted(pathlib.Path(sylvite.__file__).parent.rglob("*.py"))


def unguarded_boundaries(tree: ast.Module) -> list[int]:
    """Lines of enumerations with a boundary (Python 3.11) outside of a test of ``sys.version_info``."""
    guarded = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "sys.version_info" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and id(node) not in guarded
        and any(keyword.arg == "boundary" for keyword in node.keywords)
    ]


def test_enumerations_use_boundaries_only_where_python_has_them():
    assert len(SOURCES) > 50
    found = {path.name: unguarded_boundaries(ast.parse(path.read_text("utf-8"))) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_unguarded_boundary_is_found():
    assert unguarded_boundaries(ast.parse("class A(enum.IntFlag, boundary=enum.STRICT): ...")) == [1]
