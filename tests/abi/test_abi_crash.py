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


RECORDS_OF_INTEGERS = """
typedef struct { int x, y, w, h; } rect; typedef struct { short a; signed char b; } small;
typedef int (*each_fn)(rect r, small s, void *user);
int area(rect r, small s); void each(each_fn fn, void *user);
"""
CALLER = """
#include "records_generic.h"
static int seen(rect r, small s, void *user) {
  *(int *)user = r.x * 1000 + r.y * 100 + r.w * 10 + r.h + s.a * 10000 + s.b * 100000; return r.h == 4;
}
int main(void) {
  rect r = {1, 2, 30, 40}; small s = {5, -6}; int got = 0;
  each(seen, &got);
  return (area(r, s) != 1199) | 2 * (got != -548766);
}
"""
CALLEE = """
#include "records.h"
int area(rect r, small s) { return r.w * r.h + (s.b + s.a) * r.x; }
void each(each_fn fn, void *user) {
  rect r = {1, 2, 3, 4}; small s = {5, -6};
  if (!fn(r, s, user)) *(int *)user = 0;
}
"""


@pytest.mark.parametrize("target", ["arm64-linux", "s390x-linux"])
def test_shimmed_records_of_small_integers_keep_their_byte_order(tmp_path, target):
    """An optimizer that knows the base's byte order would take these records apart the wrong way round."""
    needs_runner(target)
    for name, text in (("records.h", RECORDS_OF_INTEGERS), ("code.c", CALLER), ("library.c", CALLEE)):
        (tmp_path / name).write_text(text)
    query = Query(files=(str(tmp_path / "records.h"),), include_dirs=(str(tmp_path),))
    native, _ = generate_shim(query, select_targets(target), base=BASE, name="records").write(tmp_path)
    sources = [tmp_path / "library.c", native]
    done = run_pair(tmp_path / "code.c", sources, base=BASE, target=find_target(target), query=query)
    assert (done.result, done.status) == ("right", 0)
