"""Verdicts, one C snippet each."""

from __future__ import annotations

import pytest

from sylvite import errors
from sylvite.abi.rules import Verdict

CASES = [
    ("void f(void *p, double d);", "all", "SAFE", None),
    ("float f(float a, double b, const char *s);", "all", "SAFE", None),
    ("void f(_Bool b);", "64-bit", "PATCH", "extension"),
    ("int f(int a);", "64-bit", "PATCH", "extension"),
    ("typedef struct { double a, b, c; } S; void f(S s);", "64-bit", "SHIM", "shape"),
    ("typedef struct { float x, y, z, w; } S; S f(void);", "64-bit", "SHIM", "shape"),
    ("typedef struct { const char *p; unsigned long long n; } S; void f(S s);", "64-bit", "SHIM", "shape"),
    ("typedef struct { double a, b, c; } S; void f(const S *s);", "64-bit", "SAFE", None),
    ("typedef struct { void *p; int n; } S; void f(const S *s);", "all", "LAYOUT", "layout"),
    ("typedef struct { long n; } S; void f(const S *s);", "64-bit", "LAYOUT", "layout"),
    ("struct n { struct n *next; long v; }; void f(struct n *s);", "64-bit", "LAYOUT", "layout"),
    ("struct n { struct n *next; int v; }; void f(struct n *s);", "64-bit", "SAFE", None),
    ("struct i { long v; }; struct o { struct i *p; }; void f(struct o *s);", "64-bit", "LAYOUT", "layout"),
    ("struct o; void f(struct o *s);", "all", "SAFE", None),
    ("void f(const char *format, ...);", "64-bit", "RULE", "variadic"),
    ("void f();", "64-bit", "RULE", "no-prototype"),
    ("void f(char c);", "x86_64-linux,arm64-linux", "RULE", "plain-char"),
    ("void f(long n);", "64-bit", "SHIM", "shape"),
    ("void f(long *n);", "64-bit", "LAYOUT", "layout"),
    ("void f(long double n);", "64-bit", "SHIM", "shape"),
    ("void f(__WCHAR_TYPE__ *n);", "64-bit", "LAYOUT", "layout"),
    ("typedef float v4 __attribute__((vector_size(16))); void f(v4 v);", "x86_64-linux,arm64-linux", "RULE",
     "vector"),
    ("void f(_Float16 h);", "x86_64-linux,arm64-linux", "RULE", "half-float"),
    ("#include <stdarg.h>\nvoid f(va_list a);", "64-bit", "SHIM", "by-value-layout"),
    ("typedef struct { double a, b, c; } S; typedef void (*C)(S s); void f(C c);", "64-bit", "SHIM",
     "callback"),
    ("typedef void (*C)(int s); void f(C c);", "64-bit", "PATCH", "callback-extension"),
    ("typedef void (*C)(void *s); void f(C c);", "all", "SAFE", None),
    ("typedef struct { double a, b, c; } S; struct ops { void (*go)(S s); }; void f(const struct ops *o);",
     "64-bit", "SHIM", "callback"),
    ("typedef union { short a[3]; int b; } U; void f(U u);", "x86_64-linux,s390x-linux", "SHIM",
     "byte-order"),
    ("struct b { int a : 3; int c : 7; }; void f(struct b *p);", "x86_64-linux,s390x-linux", "LAYOUT",
     "layout"),
    ("typedef struct {} E; void f(E e, int *p);", "all", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "targets", "verdict", "rule"), CASES, ids=[case[0][:60] for case in CASES])
def test_function_gets_the_verdict(judged, text, targets, verdict, rule):
    entity = judged(text, targets).find("f", "function")
    assert entity is not None
    if verdict is not None:
        assert entity.verdict is Verdict(verdict), entity.findings
    if rule is not None:
        assert rule in {finding.rule for finding in entity.findings}
        found = next(finding for finding in entity.findings if finding.rule == rule)
        assert found.reason
        assert found.mend
        assert found.pairs


def test_soft_float_is_named_for_targets_a_linker_would_join(judged):
    report = judged("float f(float x);", "armv7-linux-hard,armv7-linux-soft", None)
    entity = report.find("f")
    assert entity is not None
    assert entity.verdict is Verdict.RULE
    assert entity.findings[0].pairs == (("armv7-linux-hard", "armv7-linux-soft"),)


def test_without_a_base_all_pairs_are_compared(judged):
    report = judged("void f(long n);", "x86_64-linux,arm64-linux,x86_64-windows-msvc", None)
    entity = report.find("f")
    assert report.base is None
    assert entity is not None
    assert set(entity.findings[0].pairs) == {
        ("x86_64-linux", "x86_64-windows-msvc"),
        ("arm64-linux", "x86_64-windows-msvc"),
    }


def test_reason_names_the_member_and_both_places(judged):
    report = judged(
        "struct s { int a; long b; int c; }; void f(struct s *p);", "x86_64-linux,x86_64-windows-msvc"
    )
    entity = report.find("f")
    assert entity is not None
    assert "b" in entity.reason
    assert "8 bytes on x86_64-linux" in entity.reason
    assert entity.line == 1


def test_long_across_llp64_is_explained_beside_the_shape(judged):
    entity = judged("void f(unsigned long n);", "x86_64-linux,x86_64-windows-msvc").find("f")
    assert entity is not None
    assert {finding.rule for finding in entity.findings} >= {"shape", "long"}


def test_function_missing_on_a_target_is_reported_as_absent(judged):
    text = "void everywhere(void);\n#ifndef _WIN32\nvoid posix_only(void);\n#endif\n"
    entity = judged(text, "x86_64-linux,x86_64-windows-gnu").find("posix_only")
    assert entity is not None
    assert entity.findings[0].rule == "absent"
    assert entity.targets == ("x86_64-windows-gnu",)


def test_header_a_target_refuses_is_a_rejection_with_its_place(judged):
    report = judged(
        "#ifdef _WIN32\n#error not here\n#endif\nvoid f(void);\n", "x86_64-linux,x86_64-windows-gnu"
    )
    assert [r.target for r in report.rejections] == ["x86_64-windows-gnu"]
    assert report.rejections[0].line == 2


def test_callback_written_in_place_is_judged(judged):
    report = judged("typedef struct { double a, b, c; } S; void f(void (*go)(S s), void *user);")
    callback = report.find("f.go", "callback")
    assert callback is not None
    assert callback.verdict is Verdict.SHIM


def test_callback_that_takes_a_callback_is_followed(judged):
    report = judged("typedef struct { double a, b, c; } S; void f(void (*go)(void (*inner)(S)));")
    entity = report.find("f")
    assert entity is not None
    assert entity.verdict is Verdict.SHIM


def test_functions_of_system_headers_and_static_ones_are_left_out(judged):
    report = judged("#include <stdio.h>\nstatic inline int g(int a) { return a; }\nvoid f(void);\n")
    assert [entity.name for entity in report.entities] == ["f"]


def test_incomplete_record_by_value_is_not_called_safe(judged):
    report = judged("struct o; struct o make(void); enum e; void take(enum e x); void fine(struct o *p);")
    assert [f.rule for f in report.find("make").findings] == ["incomplete"]
    assert "incomplete" in {f.rule for f in report.find("take").findings}
    assert report.find("fine").verdict is Verdict.SAFE


def test_members_of_two_unnamed_records_are_two_callbacks(judged):
    report = judged(
        "typedef struct { float a, b; } v; typedef struct { double a[3]; } w;"
        "typedef struct { void (*go)(v); } first; typedef struct { void (*go)(w); } second;"
        "void f(second *s);",
        targets="arm64-linux",
    )
    assert {e.name for e in report.entities if e.kind == "callback"} == {"first.go", "second.go"}
    assert "second.go" in report.find("f").reason


def test_nesting_without_end_is_a_typed_error(judged):
    levels = "".join(f"struct s{i} {{ struct s{i - 1} a; }};" for i in range(1, 600))
    with pytest.raises(errors.FormatError, match="nested too deeply"):
        judged(f"struct s0 {{ int x; }};{levels} void f(struct s599 d);", targets="arm64-linux")


def test_record_of_one_pointer_is_not_taken_for_the_hidden_pointer_to_it(judged):
    """Both lower to one ``ptr``: x86-64 Linux hands over the member, s390x and Windows its address."""
    report = judged(
        "typedef struct __attribute__((aligned(16))) { void *p; } s; typedef void (*cb)(s);"
        "void f(s x); void g(cb x);",
        targets="s390x-linux,x86_64-windows-msvc",
    )
    for name in ("f", "cb", "g"):
        entity = report.find(name)
        assert entity.verdict is Verdict.SHIM
        assert set(entity.targets) == {"s390x-linux", "x86_64-windows-msvc"}
