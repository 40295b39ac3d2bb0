"""Source locations from the debug database."""

from __future__ import annotations

import pytest

from sylvite import vmfb
from sylvite.vmfb.bytecode import decode_function
from sylvite.vmfb.locations import (
    CallSite,
    DebugDatabase,
    FileLineColumn,
    FunctionSourceMap,
    Fused,
    Named,
)

PROGRAM = """vm.module @m {
  vm.export @f
  vm.func @f(%a: i32) -> i32 {
    vm.cond_br %a, ^bad, ^ok
  ^bad:
    vm.fail %a, "bad luck" loc(callsite("inner"("a.c":1:2) at fused<"meta">["b.c":3:4, "d.c":5:6]))
  ^ok:
    vm.return %a : i32
  }
}
"""


@pytest.mark.compiler
def test_locations_of_compiled_function_are_those_of_its_source(compiler):
    module = vmfb.open_archive(compiler("places", PROGRAM, "--compile-mode=vm")).module
    found = {
        instruction.op.name: module.debug.source_location(0, instruction.pc)
        for block in decode_function(module, 0).blocks
        for instruction in block.instructions
    }
    assert found == {
        "cond_br": "places.mlir:4:5",
        "fail": "a.c:1:2 < b.c:3:4 < d.c:5:6",
        "return": "places.mlir:8:5",
    }
    assert module.functions[0].name == "f"


@pytest.mark.compiler
def test_module_without_source_map_has_no_locations(compiler):
    flags = ["--compile-mode=vm", "--iree-vm-bytecode-module-strip-source-map"]
    module = vmfb.open_archive(compiler("stripped", PROGRAM, *flags)).module
    assert module.debug is None
    assert module.functions[0].name == "f"


DATABASE = DebugDatabase(
    locations=(
        FileLineColumn("a", 1, 2),
        None,
        Named("n", 0),
        Fused(None, (0, 2)),
        CallSite(3, 1),
        Named("alone", None),
    ),
    functions=(
        FunctionSourceMap(name="f", locations=((4, 0), (10, 4), (20, 1))),
        FunctionSourceMap(name="", locations=()),
    ),
)


@pytest.mark.parametrize(
    ("ordinal", "pc", "expected"),
    [
        (0, 0, None),
        (0, 3, None),
        (0, 4, "a:1:2"),
        (0, 9, "a:1:2"),
        (0, 10, "a:1:2"),
        (0, 20, None),
        (1, 0, None),
        (2, 0, None),
        (-1, 0, None),
    ],
)
def test_lookup_finds_the_instruction_or_the_one_before(ordinal, pc, expected):
    assert DATABASE.source_location(ordinal, pc) == expected


def test_format_of_locations():
    assert DATABASE.format(4) == "a:1:2"
    assert DATABASE.format(1) == "unknown"
    assert DATABASE.format(5) == "unknown"


def test_function_names():
    assert DATABASE.function_names(len(DATABASE.functions)) == {0: "f"}
    assert DATABASE.function_names(len(DATABASE.functions) + 1) == {}, "it does not describe them all"
    assert DATABASE.function_name(0) == "f"
    assert DATABASE.function_name(1) is None
    assert DATABASE.function_name(7) is None


def test_format_of_many_places_stops():
    leaves = tuple(FileLineColumn("f", i, 0) for i in range(100))
    database = DebugDatabase(locations=(*leaves, Fused(None, tuple(range(100)))), functions=())
    text = database.format(100)
    assert text.startswith("f:0:0 < f:1:0")
    assert text.endswith("f:15:0 < ...")


def test_format_of_exponentially_shared_locations_ends():
    """60 levels that each name the one below twice."""
    locations = [FileLineColumn("f", 1, 1)]
    for i in range(60):
        locations.append(Fused(None, (i, i)))
    assert DebugDatabase(locations=tuple(locations), functions=()).format(60) == "f:1:1"
