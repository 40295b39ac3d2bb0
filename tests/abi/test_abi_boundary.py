"""Our own boundary: the struct tables against clang's wasm32 layout."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path

import pytest

from sylvite.abi import structs
from sylvite.abi.boundary import compare_structs
from sylvite.abi.halide_structs import HALIDE_STRUCTS
from sylvite.abi.oracle import Query, examine
from sylvite.abi.targets import select_targets

OWN = Path(__file__).parent / "data" / "boundary.h"
IREE_NAMES = {table.name: table for table in structs.STRUCTS}
HALIDE_OWN = {
    "pipeline_type": "halide_type_t",
    "pipeline_dimension": "halide_dimension_t",
    "pipeline_buffer": "halide_buffer_t",
    "pipeline_metadata": "halide_filter_metadata_t",
    "pipeline_argument": "halide_filter_argument_t",
    "pipeline_semaphore": "halide_semaphore_t",
    "pipeline_acquire": "halide_semaphore_acquire_t",
    "pipeline_task": "halide_parallel_task_t",
    "pipeline_device": "halide_device_interface_t",
}
HALIDE = {table.name: table for table in HALIDE_STRUCTS}


def examined(*files: str, **options):
    return examine(Query(files=files, **options), select_targets("wasm32"))


def test_tables_agree_with_the_declarations_in_our_own_words():
    assert compare_structs(examined(str(OWN)), IREE_NAMES) == []


def test_halide_tables_agree_with_the_declarations_in_our_own_words():
    assert compare_structs(examined(str(OWN)), {own: HALIDE[name] for own, name in HALIDE_OWN.items()}) == []
    assert set(HALIDE_OWN.values()) == set(HALIDE)


def test_tables_agree_with_the_upstream_header():
    root = os.environ.get("SYLVITE_IREE_RUNTIME")
    if not root:
        pytest.skip("set SYLVITE_IREE_RUNTIME to iree's runtime/src to compare with its header")
    header = Path(root) / "iree" / "hal" / "local" / "executable_library.h"
    names = {"executable_library_header": "iree_hal_executable_library_header_t"}
    tables = {names.get(name, f"iree_hal_{name}_v0_t"): table for name, table in IREE_NAMES.items()}
    assert compare_structs(examined(str(header), include_dirs=(root,)), tables) == []


def test_halide_tables_agree_with_the_upstream_header():
    spec = importlib.util.find_spec("halide")
    package = Path(spec.origin).parent / "include" if spec is not None and spec.origin else None
    root = os.environ.get("SYLVITE_HALIDE_INCLUDE") or package
    if root is None:
        pytest.skip("HalideRuntime.h comes with the halide package, which is not installed")
    header = Path(root) / "HalideRuntime.h"
    assert compare_structs(examined(str(header)), HALIDE) == []


def test_dispatch_function_passes_pointers_only():
    view = examined(str(OWN)).views["wasm32"]
    assert str(view.signatures["c:dispatch_function"]) == "i32 (ptr, ptr, ptr)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fields: fields[:-1], "bytes in the table"),
        (lambda fields: (*fields[:1], structs.Field("name", structs.Scalar.U16), *fields[2:]), "members at"),
    ],
)
def test_table_that_drifts_is_named(change, words):
    table = IREE_NAMES["executable_library_header"]
    drifted = structs.Struct(table.name, change(table.fields))
    problems = compare_structs(examined(str(OWN)), {table.name: drifted})
    assert any(words in problem for problem in problems)
    assert compare_structs(examined(str(OWN)), {"no_such_struct": table}) != []


def test_fields_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        structs.STRUCTS[0].fields[0].name = "other"
