"""WebAssembly modules against a header's wasm32 lowering."""

from __future__ import annotations

import pytest

from sylvite import abi, errors, wasm
from sylvite.abi.oracle import Query
from sylvite.abi.toolchain import default_toolchain
from sylvite.abi.wasm_gate import check_wasm, check_wasm_file

HEADER = """
typedef struct { double a, b; } pair;
int scale(int count, double factor);
void put(pair p);
long long tell(const char *name, float f, _Bool b);
double half(double x);
"""


def built(tmp_path, source: str, *exports: str) -> bytes:
    (tmp_path / "module.c").write_text(source)
    toolchain = default_toolchain()
    toolchain.check(
        [
            "-target",
            "wasm32-unknown-unknown",
            "-O1",
            "-c",
            str(tmp_path / "module.c"),
            "-o",
            str(tmp_path / "m.o"),
        ],
        where="module.c",
    )
    toolchain.check(
        ["--no-entry", "--allow-undefined", *(f"--export={name}" for name in exports), str(tmp_path / "m.o"),
         "-o", str(tmp_path / "m.wasm")],
        where="m.wasm", tool="wasm-ld",
    )  # fmt: skip
    return (tmp_path / "m.wasm").read_bytes()


@pytest.fixture
def query(tmp_path):
    path = tmp_path / "api.h"
    path.write_text(HEADER)
    return Query(files=(str(path),))


def test_module_of_the_same_header_is_clean(tmp_path, query):
    source = HEADER + 'double half(double x) { return x / 2 + scale(1, x) + tell("a", 1, 1); }'
    report = check_wasm(built(tmp_path, source, "half"), query)
    assert {entity.name for entity in report.entities} == {"scale", "tell", "half"}
    assert all(entity.verdict is abi.Verdict.SAFE for entity in report.entities)


def test_swapped_parameter_of_an_import_is_named(tmp_path, query):
    source = "int scale(double factor, int count);\nint go(void) { return scale(2.0, 3); }"
    entity = check_wasm(built(tmp_path, source, "go"), query).find("scale")
    assert entity.verdict is abi.Verdict.SHIM
    assert "parameter 1 (count) and parameter 2 (factor) swapped" in entity.reason


def test_record_by_value_is_named_where_it_does_not_match(tmp_path, query):
    source = "void put(double a, double b);\nvoid go(void) { put(1, 2); }"
    entity = check_wasm(built(tmp_path, source, "go"), query).find("put")
    assert entity.verdict is abi.Verdict.SHIM
    assert "p is pair by value" in entity.reason


def test_record_by_value_is_mentioned_where_it_matches(tmp_path, query):
    source = HEADER + "void go(void) { pair p = {1, 2}; put(p); }"
    entity = check_wasm(built(tmp_path, source, "go"), query).find("put")
    assert entity.verdict is abi.Verdict.RULE


def test_wrong_result_of_an_export_is_named(tmp_path, query):
    entity = check_wasm(built(tmp_path, "float half(double x) { return x; }", "half"), query).find("half")
    assert "returns f32, the header says f64" in entity.reason


def test_import_no_header_declares_is_reported(tmp_path, query):
    entity = check_wasm(built(tmp_path, "void other(int); void go(void) { other(1); }", "go"), query).find(
        "other"
    )
    assert entity.findings[0].rule == "wasm-unknown"


def test_malformed_module_raises_format_error(tmp_path, query):
    (tmp_path / "bad.wasm").write_bytes(b"\0asm\1\0\0\0\1\xff")
    with pytest.raises(errors.FormatError):
        check_wasm_file(tmp_path / "bad.wasm", query)
    with pytest.raises(errors.InvalidArgumentError, match="--header"):
        check_wasm_file(tmp_path / "bad.wasm", None)
    assert wasm.decode(b"\0asm\1\0\0\0").imports == ()
