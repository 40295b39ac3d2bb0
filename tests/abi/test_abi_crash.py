"""The crash, before and after: a generic caller, a native library that passes records by value."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest_abi import needs_runner

from sylvite import abi
from sylvite.abi.oracle import Query
from sylvite.abi.running import Program, generic_ir, run_pair
from sylvite.abi.shim import generate_shim
from sylvite.abi.targets import find_target, select_targets

EXAMPLE = Path(__file__).parents[2] / "examples" / "abi"
BASE = find_target("x86_64-generic")
QUERY = Query(files=(str(EXAMPLE / "library.h"),), include_dirs=(str(EXAMPLE),))
BY_VALUE = {"sum24", "sum40", "sum4", "length", "make40", "visit"}
EVERYWHERE = ["x86_64-linux", "arm64-linux", "riscv64-linux", "ppc64le-linux", "s390x-linux"]
ALSO = ["arm64-macos", "x86_64-windows-msvc", "x86_64-macos"]


def build(
    target_name: str, folder: Path, *defines: str, extra: tuple[Path, ...] = (), query=QUERY
) -> Program:
    target = find_target(target_name)
    compile_query = Query(
        files=QUERY.files, include_dirs=(*QUERY.include_dirs, str(folder)), defines=tuple(defines)
    )
    program = Program(target, folder)
    program.add_generic(generic_ir(EXAMPLE / "portable.c", BASE, compile_query), query=QUERY, force=not extra)
    for source in (EXAMPLE / "library.c", *extra):
        program.add_source(source, QUERY)
    return program


def test_check_names_exactly_the_functions_that_will_fail():
    report = abi.check(QUERY.files[0], targets="arm64-linux", base=BASE, cache=False)
    flagged = {e.name for e in report.entities if e.kind == "function" and e.verdict is abi.Verdict.SHIM}
    # arm64 returns 40 bytes through a hidden pointer, as x86-64 does: that one call is the same.
    assert flagged == BY_VALUE - {"make40"}
    assert report.find("plain").verdict is abi.Verdict.SAFE
    assert report.find("visit_fn", "callback").verdict is abi.Verdict.SHIM


def test_before_calls_with_records_by_value_fail_on_arm64(tmp_path):
    needs_runner("arm64-linux")
    program = build("arm64-linux", tmp_path)
    binary = program.link()
    names = ["sum24", "sum40", "sum4", "length", "make40", "plain", "visit"]
    results = {
        name: program.run(binary, letter).result for letter, name in zip("abcdefg", names, strict=True)
    }
    assert results["sum24"] != "right"
    assert results["sum40"] == "crash"
    assert results["sum4"] == "wrong"
    assert results["visit"] != "right"
    assert results["plain"] == "right"
    assert {name for name, result in results.items() if result != "right"} <= BY_VALUE


@pytest.mark.parametrize("target", EVERYWHERE + ALSO)
def test_after_the_shim_all_calls_and_callbacks_are_right(tmp_path, target):
    needs_runner(target)
    shim = generate_shim(QUERY, select_targets(",".join(EVERYWHERE + ALSO)), base=BASE, name="library")
    assert set(shim.functions) == BY_VALUE
    assert shim.callbacks == ("visit_fn",)
    native, _ = shim.write(tmp_path)
    program = build(target, tmp_path, "SHIM", extra=(native,))
    binary = program.link()
    for letter in "abcdefg":
        assert program.run(binary, letter).result == "right", letter


def test_run_pair_reports_what_the_example_shows():
    needs_runner("arm64-linux")
    pair = {"base": BASE, "query": QUERY}
    arm = run_pair(EXAMPLE / "portable.c", [EXAMPLE / "library.c"], target=find_target("arm64-linux"), **pair)
    assert (arm.result, arm.signal_name) == ("crash", "SIGSEGV")
    home = run_pair(EXAMPLE / "portable.c", [EXAMPLE / "library.c"], target=BASE, **pair)
    assert home.result == "right"
