"""The IR gate, retargeting and running in this process."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
from conftest_abi import needs_runner

from sylvite import abi, errors
from sylvite.abi.ir_gate import check_ir, check_ir_file
from sylvite.abi.ir_text import load_ir, parse_ir
from sylvite.abi.oracle import Query
from sylvite.abi.retarget import HostProgram, compile_ir, data_layout, extension_tables, retarget
from sylvite.abi.rules import Verdict
from sylvite.abi.running import Program, generic_ir
from sylvite.abi.targets import find_target, select_targets
from sylvite.abi.toolchain import default_toolchain

BASE = find_target("x86_64-generic")
HEAD = f'target datalayout = "{data_layout(BASE)}"\ntarget triple = "{BASE.triple}"\n'
ARM = find_target("arm64-linux")
TARGETS = select_targets("arm64-linux,riscv64-linux,s390x-linux,x86_64-linux")

HAZARDS = [
    ("declare void @f(ptr byval({i64, i64, i64}) align 8)", "SHIM", "byval"),
    ("declare void @f(ptr sret({i64, i64, i64}) align 8)", "SHIM", "sret"),
    ("declare void @f(ptr inreg)", "SHIM", "inreg"),
    ("declare void @f(ptr inalloca({i32}))", "SHIM", "inalloca"),
    ("declare void @f(ptr preallocated({i32}))", "SHIM", "preallocated"),
    ("declare {i64, i64} @f()", "SHIM", "aggregate"),
    ("declare void @f([2 x i64])", "SHIM", "aggregate"),
    ("declare void @f(<4 x float>)", "SHIM", "vector"),
    ("declare void @f(i24)", "SHIM", "24 bits"),
    ("declare void @f(i128)", "SHIM", "128-bit"),
    ("declare void @f(x86_fp80)", "SHIM", "80-bit"),
    ("declare void @f(fp128)", "SHIM", "128-bit float"),
    ("declare void @f(half)", "RULE", "16-bit float"),
    ("declare void @f(ptr, ...)", "RULE", "variadic"),
    ("declare fastcc void @f(ptr)", "SHIM", "fastcc"),
    ("declare void @f(i8 signext)", "PATCH", "extension"),
    ("declare void @f(i32)", "RULE", "sign"),
    ("declare void @f(ptr, double, float, i64)", "SAFE", ""),
    ("define void @f() { call void asm sideeffect \"nop\", \"\"() ret void }", "SHIM", "inline assembly"),
    ("declare void @llvm.x86.sse2.pause()\ndefine void @f() { call void @llvm.x86.sse2.pause() ret void }",
     "SHIM", "llvm.x86.sse2.pause"),
    ("declare void @llvm.va_start.p0(ptr)\n"
     "define void @f(ptr %p, ...) { call void @llvm.va_start.p0(ptr %p) ret void }", "RULE", "va_start"),
    ("define i32 @f(ptr %p) { %x = va_arg ptr %p, i32 ret i32 %x }", "RULE", "va_arg"),
    ("@f = external thread_local global i32", "RULE", "thread-local"),
    ("$f = comdat any\ndefine void @f() comdat { ret void }", "RULE", "comdat"),
    ('define void @f() "target-cpu"="skylake" { ret void }', "PATCH", "skylake"),
    ('module asm "nop"', "SHIM", "assembly"),
    ("define void @f(ptr %g) { call void %g(ptr byval({i64, i64, i64}) %g) ret void }", "SHIM", "byval"),
    ("define internal void @f({i64, i64} %x) { ret void }\n@table = global ptr @f", "SHIM", "aggregate"),
    ("define internal void @f({i64, i64} %x) { ret void }\n"
     "define void @g() { call void @f({i64, i64} zeroinitializer) ret void }", "SAFE", ""),
]  # fmt: skip


def lines(text: str) -> str:
    """One instruction a line, as clang writes it."""
    if "define" not in text:
        return text
    for before in ("call", "ret", "%x"):
        text = text.replace(f"{{ {before}", f"{{\n  {before}")
    return text.replace(" ret ", "\n  ret ").replace(" }", "\n}")


@pytest.mark.parametrize(("text", "verdict", "word"), HAZARDS, ids=[case[0][:50] for case in HAZARDS])
def test_hazard_in_ir_is_named(tmp_path, text, verdict, word):
    path = tmp_path / "module.ll"
    path.write_text(HEAD + lines(text) + "\n")
    report = check_ir_file(path, TARGETS)
    worst = max((entity for entity in report.entities), key=lambda e: e.verdict.severity, default=None)
    found = worst.verdict.value if worst is not None else "SAFE"
    assert found == verdict, report.entities
    if word:
        reasons = " ".join(finding.reason for entity in report.entities for finding in entity.findings)
        assert word in reasons


def test_pointer_width_of_the_target_must_fit(tmp_path):
    path = tmp_path / "module.ll"
    path.write_text(HEAD + "%s = type { ptr, i64 }\ndeclare void @f(ptr)\n")
    report = check_ir_file(path, select_targets("arm64-linux,wasm32,i386-linux"))
    assert report.find("module.ll").targets == ("i386-linux", "wasm32") or set(
        report.find("module.ll").targets
    ) == {"i386-linux", "wasm32"}
    assert report.find("%s").verdict is abi.Verdict.LAYOUT


def test_malformed_ir_raises_clangs_error_with_the_line(tmp_path):
    path = tmp_path / "module.ll"
    path.write_text(HEAD + "declare void @f(\ndefine nonsense\n")
    with pytest.raises(errors.FormatError, match=r"module\.ll:\d+:\d+"):
        check_ir_file(path, TARGETS)
    (tmp_path / "module.bc").write_bytes(b"BC\xc0\xde" + bytes(range(64)))
    with pytest.raises(errors.FormatError):
        check_ir_file(tmp_path / "module.bc", TARGETS)
    with pytest.raises(errors.NotFoundError):
        check_ir_file(tmp_path / "none.ll", TARGETS)


PAIR = """typedef struct { const char *data; unsigned long long length; } view;
unsigned long long take(view v); int small(int a, unsigned char b);"""


def compiled(tmp_path: Path, body: str, *flags: str) -> tuple[str, Query]:
    (tmp_path / "api.h").write_text(PAIR)
    (tmp_path / "code.c").write_text(f'#include "api.h"\n{body}\n')
    query = Query(files=(str(tmp_path / "api.h"),), include_dirs=(str(tmp_path),))
    return generic_ir(tmp_path / "code.c", BASE, query, flags=list(flags)), query


CALL = 'unsigned long long go(void) { view v = {"x", 1}; return take(v); }'


def test_scalars_that_were_a_record_are_found_with_the_header_only(tmp_path):
    ir, query = compiled(tmp_path, CALL)
    module = parse_ir(ir)
    assert check_ir(module, TARGETS).find("take").verdict is abi.Verdict.SAFE
    assert check_ir(module, TARGETS, query=query).find("take").verdict is abi.Verdict.SHIM


def test_scalars_that_were_a_record_are_found_with_debug_information(tmp_path):
    ir, _ = compiled(tmp_path, CALL, "-g")
    entity = check_ir(parse_ir(ir), TARGETS).find("take")
    assert entity.verdict is abi.Verdict.SHIM
    assert "by value" in entity.reason


def test_call_that_does_not_match_its_header_is_named(tmp_path):
    ir, _ = compiled(tmp_path, CALL)
    (tmp_path / "other.h").write_text("unsigned long long take(double x);")
    report = check_ir(parse_ir(ir), TARGETS, query=Query(files=(str(tmp_path / "other.h"),)))
    assert any(finding.rule == "ir-mismatch" for finding in report.find("take").findings)


def test_retarget_refuses_what_the_gate_found_and_names_it(tmp_path):
    ir, query = compiled(tmp_path, CALL)
    with pytest.raises(errors.LinkError, match="take") as caught:
        retarget(ir, find_target("arm64-linux"), query=query)
    assert caught.value.symbols == ("take",)
    assert "aarch64" in retarget(ir, find_target("arm64-linux"), query=query, force=True)


SMALL = "int go(int a) { return small(a, 200) + 1; }"


@pytest.mark.parametrize(
    "target", ["s390x-linux", "riscv64-linux", "ppc64le-linux", "arm64-macos", "arm64-linux"]
)
def test_retarget_writes_the_extension_attributes_clang_writes(tmp_path, target):
    ir, query = compiled(tmp_path, SMALL)
    row = find_target(target)
    native = generic_ir(tmp_path / "code.c", row, query)
    mine = parse_ir(retarget(ir, row, query=query, force=True)).functions["small"].signature
    assert str(mine) == str(parse_ir(native).functions["small"].signature)
    calls = [
        call for call in parse_ir(retarget(ir, row, query=query, force=True)).calls if call.callee == "small"
    ]
    assert [str(call.signature) for call in calls] == [str(mine)]


def test_retarget_strips_the_base_and_states_the_abi(tmp_path):
    ir, query = compiled(tmp_path, SMALL, "-march=haswell")
    text = retarget(ir, find_target("riscv64-linux"), query=query)
    assert "haswell" not in text
    assert '!"target-abi", !"lp64d"' in text
    assert "x86_64" not in text.split("source_filename")[0].split("target triple")[1].splitlines()[0]


@pytest.mark.parametrize(
    "target", ["arm64-linux", "riscv64-linux", "s390x-linux", "x86_64-windows-msvc", "arm64-macos"]
)
def test_retargeted_ir_compiles_to_an_object(tmp_path, target):
    ir, query = compiled(tmp_path, SMALL, "-g")
    row = find_target(target)
    output = compile_ir(retarget(ir, row, query=query), row, tmp_path / "out.o")
    assert output.stat().st_size > 100


def test_retargeted_ir_runs_in_this_process(tmp_path):
    pytest.importorskip("llvmlite", reason="running IR here needs the abi extra")
    ir, query = compiled(tmp_path, SMALL)
    host = find_target("x86_64-linux")
    if shutil.which("qemu-x86_64-static") is None and not _is_x86():
        pytest.skip("this machine is not x86-64")
    small = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_ubyte)(lambda a, b: a * 1000 + b)
    address = ctypes.cast(small, ctypes.c_void_p).value or 0
    with HostProgram(retarget(ir, host, query=query), {"small": address}) as program:
        go = program.function("go", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int))
        assert go(7) == 7201
        with pytest.raises(errors.LinkError):
            program.function("nothing", ctypes.CFUNCTYPE(None))


def _is_x86() -> bool:
    import platform

    return platform.machine() in ("x86_64", "AMD64")


def test_bitcode_is_read_like_text(tmp_path):
    ir, query = compiled(tmp_path, CALL)
    (tmp_path / "module.ll").write_text(ir)
    default_toolchain().check(
        [
            "-target",
            BASE.triple,
            "-x",
            "ir",
            "-c",
            "-emit-llvm",
            str(tmp_path / "module.ll"),
            "-o",
            str(tmp_path / "module.bc"),
        ],
        where="module",
    )
    report = check_ir_file(tmp_path / "module.bc", TARGETS, query=query)
    assert report.find("take").verdict is abi.Verdict.SHIM
    assert load_ir(tmp_path / "module.bc").triple == BASE.triple


def test_extension_table_knows_who_extends():
    tables = extension_tables(select_targets("x86_64-linux,arm64-linux,s390x-linux,riscv64-linux"))
    assert tables["x86_64-linux"]["bool"] == "zeroext"
    assert tables["arm64-linux"]["s8"] == ""
    assert (tables["s390x-linux"]["s32"], tables["s390x-linux"]["u32"]) == ("signext", "zeroext")
    assert (tables["riscv64-linux"]["s32"], tables["riscv64-linux"]["u32"]) == ("signext", "signext")


def test_debug_information_gives_findings_the_names_of_the_source(tmp_path):
    (tmp_path / "code.c").write_text(
        "typedef struct { double a, b, c; } big; struct pair { long long a, b, c; };"
        "void take(struct pair p, big b); int main(void) { take((struct pair){1}, (big){1}); return 0; }"
    )
    ir = generic_ir(tmp_path / "code.c", BASE, None, flags=["-g"])
    report = check_ir(parse_ir(ir), [ARM])
    assert "struct pair" in report.find("take").reason
    assert "struct big" in report.find("take").reason
    # `int main(void)` is as good a main as the other one.
    assert report.find("main").verdict is not Verdict.SHIM


def test_triple_like_no_target_needs_a_base(tmp_path):
    text = 'target triple = "nonsense-foo-bar"\ndefine void @f() {\n  ret void\n}\n'
    with pytest.raises(errors.InvalidArgumentError, match="nonsense"):
        check_ir(parse_ir(text), [ARM])
    assert check_ir(parse_ir(text), [ARM], base=BASE).find("f").verdict is Verdict.SAFE


# -- byte order -------------------------------------------------------------------------------------

FOLDED = """
typedef struct { short a, b; } pair;
unsigned join(const unsigned char *b) { return b[0] | b[1] << 8 | b[2] << 16 | (unsigned)b[3] << 24; }
static int second(pair p) { return p.b; }
int through(pair *p) { return second(*p); }
int neutral(int a, int b) { return a + b; }
double scale(double x) { return x * 2; }
"""
PORTABLE = ("-O1", "-Xclang", "-disable-llvm-passes")


def translated(folder, text: str, *flags: str):
    (folder / "code.c").write_text(text)
    arguments = ["-target", "x86_64-unknown-linux-gnu", *flags, "-S", "-emit-llvm", str(folder / "code.c")]
    default_toolchain().check([*arguments, "-o", str(folder / "code.ll")], where="code.c")
    return folder / "code.ll"


def order_findings(path, targets: str) -> set[tuple[str, str]]:
    report = check_ir_file(path, select_targets(targets))
    return {
        (entity.name, finding.verdict.value)
        for entity in report.entities
        for finding in entity.findings
        if finding.rule == "ir-byte-order"
    }


def test_optimized_code_for_the_other_byte_order_is_named_function_by_function(tmp_path):
    path = translated(tmp_path, FOLDED, "-O2")
    assert order_findings(path, "s390x-linux,arm64-linux") == {
        ("body of join", "RULE"), ("body of through", "RULE"),
    }  # fmt: skip
    assert order_findings(path, "arm64-linux,riscv64-linux") == set()
    with pytest.raises(errors.LinkError, match="optimized for little-endian memory"):
        retarget(load_ir(path), find_target("s390x-linux"))


@pytest.mark.parametrize("flags", [PORTABLE, ("-O0",)])
def test_code_from_the_front_end_alone_has_no_byte_order(tmp_path, flags):
    assert order_findings(translated(tmp_path, FOLDED, *flags), "s390x-linux") == set()


def test_bit_fields_are_named_where_the_byte_order_differs(tmp_path):
    text = "struct bits { unsigned x : 3, y : 29; }; unsigned f(struct bits *b) { return b->y; }"
    path = translated(tmp_path, text, "-g", *PORTABLE)
    assert order_findings(path, "s390x-linux") == {("bits", "LAYOUT")}
    assert order_findings(path, "arm64-linux") == set()


@pytest.mark.parametrize(("flags", "result"), [(("-O2",), "wrong"), (PORTABLE, "right")])
def test_what_the_byte_order_gate_names_is_wrong_when_run(tmp_path, flags, result):
    needs_runner("s390x-linux")
    # A pair that only the optimizer takes apart, in its own order.
    text = """
    typedef struct { short a, b; } pair;
    __attribute__((noinline)) static int second(pair p) { return p.b; }
    __attribute__((noinline)) static int through(pair *p) { return second(*p); }
    int main(int argc, char **argv) { pair p = {(short)argc, 7}; return through(&p) != 7; }
    """
    ir = translated(tmp_path, text, *flags).read_text()
    program = Program(find_target("s390x-linux"), tmp_path)
    program.add_generic(ir, force=True)
    assert program.run(program.link()).result == result
