"""The oracle: extraction, layouts, errors, the cache, odd declarations."""

from __future__ import annotations

import sys

import pytest

from sylvite import abi, errors
from sylvite.abi.cache import ExaminationCache
from sylvite.abi.oracle import Query, examine
from sylvite.abi.record_layouts import record_layouts
from sylvite.abi.targets import select_targets

PAIR = select_targets("x86_64-linux,wasm32")


def test_layout_has_bit_fields_unions_arrays_and_anonymous_members(snippet):
    path = snippet(
        """typedef struct {
             unsigned a : 3, b : 7;
             union { float f; int i; };
             struct { char c; } in[2];
             char flexible[];
           } S;"""
    )
    layout = record_layouts(examine(Query(files=(path,)), PAIR))["S"]
    assert len(layout) == 1
    members = {member["name"]: (member["offset_bits"], member["bits"]) for member in layout[0]["members"]}
    assert members == {"a": (0, 3), "b": (3, 7), "": (32, 0), "in": (64, 0), "flexible": (80, 0)}
    assert (layout[0]["size"], layout[0]["align"]) == (12, 4)


def test_alignment_differs_between_targets_that_align_int64_otherwise(snippet):
    path = snippet("struct s { int a; long long b; };")
    groups = record_layouts(examine(Query(files=(path,)), select_targets("armv7-linux-hard,i386-linux")))["s"]
    assert [group["size"] for group in groups] == [16, 12]
    assert [group["align"] for group in groups] == [8, 4]


def test_lowered_signature_is_clangs(snippet):
    view = examine(Query(files=(snippet("struct s { double a, b, c; }; int f(struct s s, _Bool b);"),)), PAIR)
    assert str(view.views["x86_64-linux"].signatures["f:f"]) == "i32 (ptr byval align 8, i1 zeroext)"
    assert str(view.views["wasm32"].signatures["f:f"]) == "i32 (ptr byval align 8, i1 zeroext)"


def test_broken_header_raises_clangs_error_with_file_and_line(snippet):
    path = snippet("int fine(void);\nint broken(;\n")
    with pytest.raises(errors.FormatError, match=r"snippet\.h:2:12: expected"):
        abi.check(path, targets="linux", cache=False)


def test_header_that_ends_early_is_named_not_our_own_file(snippet):
    with pytest.raises(errors.FormatError, match=r"snippet\.h:1: expected"):
        abi.check(snippet("int f("), targets="linux", cache=False)


def test_missing_file_raises_not_found():
    with pytest.raises(errors.NotFoundError):
        abi.check("no/such.h", targets="linux", cache=False)


def test_missing_include_names_it(snippet):
    with pytest.raises(errors.FormatError, match=r"nowhere\.h' file not found"):
        abi.check(snippet('#include "nowhere.h"\n'), targets="linux", cache=False)


def test_absent_ziglang_names_the_extra(snippet, monkeypatch):
    from sylvite.abi import toolchain

    monkeypatch.setitem(sys.modules, "ziglang", None)
    toolchain.default_toolchain.cache_clear()
    try:
        with pytest.raises(errors.UnavailableError, match=r"sylvite\[abi\]"):
            abi.check(snippet("void f(void);"), targets="linux", cache=False)
    finally:
        monkeypatch.undo()
        toolchain.default_toolchain.cache_clear()


def test_cache_answers_until_a_header_changes(snippet, tmp_path):
    inner = snippet("void f(void);\n", "inner.h")
    outer = snippet('#include "inner.h"\n', "outer.h")
    cache = ExaminationCache(tmp_path / "cache")
    first = abi.check(outer, targets="linux", cache=cache)
    again = abi.check(outer, targets="linux", cache=cache)
    assert [e.name for e in again.entities] == [e.name for e in first.entities] == ["f"]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    (tmp_path / "inner.h").write_text("void f(void);\nvoid g(long double x);\n")
    changed = abi.check(outer, targets="linux", cache=cache)
    assert {e.name for e in changed.entities} == {"f", "g"}
    assert inner.endswith("inner.h")


def test_examination_from_the_cache_equals_the_fresh_one(snippet, tmp_path):
    path = snippet("struct n { struct n *next; long v; }; void f(struct n *s, void (*go)(long));")
    cache = ExaminationCache(tmp_path / "cache")
    query, targets = Query(files=(path,)), select_targets("64-bit")
    fresh, stored = (examine(query, targets, cache=cache) for _ in range(2))
    assert stored.declarations == fresh.declarations
    for name, view in fresh.views.items():
        assert stored.views[name].signatures == view.signatures
        assert stored.views[name].graph.nodes == view.graph.nodes


def test_damaged_cache_entry_counts_as_absent(snippet, tmp_path):
    path = snippet("void f(void);")
    cache = ExaminationCache(tmp_path / "cache")
    abi.check(path, targets="linux", cache=cache)
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(b"\x1f\x8bnonsense")
    assert abi.check(path, targets="linux", cache=cache).find("f") is not None


def test_defines_includes_and_directories_reach_clang(snippet, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.h").write_text("typedef struct { double a, b, c; } other_t;\n")
    first = snippet("typedef other_t first_t;\n", "first.h")
    path = snippet("#ifdef WANTED\nvoid f(first_t x);\n#endif\n")
    report = abi.check(
        path, targets="x86_64-linux,arm64-linux", cache=False, defines=["WANTED=1"],
        include_dirs=[str(tmp_path / "sub")], includes=["other.h", first],
    )  # fmt: skip
    entity = report.find("f")
    assert entity is not None
    assert entity.verdict is abi.Verdict.SHIM


def test_extern_c_functions_of_a_cplusplus_header_are_judged(snippet):
    text = """
    #include <stdint.h>
    namespace hidden { int only_cplusplus(int); }
    class C { public: int method(); };
    extern "C" { struct s { double a, b, c; }; void f(s value, bool flag); enum class kind : uint8_t { a }; }
    """
    report = abi.check(snippet(text, "snippet.hpp"), targets="64-bit", base="x86_64-generic", cache=False)
    functions = [entity.name for entity in report.entities if entity.kind == "function"]
    assert functions == ["f"]
    assert report.find("f").verdict is abi.Verdict.SHIM


def test_source_file_is_judged_by_its_exported_functions(snippet):
    text = """
    struct s { double a, b, c; };
    static int inner(struct s s) { return (int)s.a; }
    int f(struct s s) { return inner(s); }
    """
    report = abi.check(snippet(text, "source.c"), targets="64-bit", base="x86_64-generic", cache=False)
    assert [entity.name for entity in report.entities if entity.kind == "function"] == ["f"]
    assert report.find("f").verdict is abi.Verdict.SHIM


@pytest.mark.parametrize(
    "text",
    [
        "struct empty {}; void f(struct empty e, struct empty *p);",
        "typedef struct { int n; char data[]; } flexible; void f(flexible *p);",
        "typedef struct { char data[1 << 28]; } giant; void f(giant *p);",
        "struct a { struct b *b; }; struct b { struct a *a; }; void f(struct a *a);",
        "typedef struct { struct { union { struct { int deep; }; }; }; } nested; void f(nested n);",
        "typedef int (*(*factory)(int))(double); void f(factory make);",
        "int (*f(int which))(double);",
        "typedef struct { int x; } *handle; void f(handle h);",
        "enum { A = 1 }; typedef enum { B } kind; void f(kind k);",
        "void f(int a[3], int (*b)[4], const char *const *c);",
        "_Static_assert(1, \"\"); extern int data; void f(_Atomic int *p);",
        "void f(__attribute__((noreturn)) void (*g)(void));",
        "#define f renamed\nvoid f(int);\n#undef f\nvoid f(double);\n",
        "void f(int) __asm__(\"other_symbol\");",
        "typedef struct { int a; } same; typedef same alias; void f(alias x);",
        "void f(const char *a, ...) __attribute__((format(printf, 1, 2)));",
    ],
)  # fmt: skip
def test_odd_declarations_are_judged_or_refused_in_words(judged, text):
    report = judged(text, "64-bit")
    assert report.find("f", "function") is not None


def test_unspellable_callback_is_flagged_not_passed_over(judged):
    report = judged("struct s { void (*go)(struct { int a; } *p, long double x); }; void f(struct s *p);")
    entity = report.find("f")
    assert entity is not None
    assert entity.verdict is not abi.Verdict.SAFE


@pytest.mark.slow
def test_header_of_ten_thousand_functions_is_complete(snippet):
    text = "\n".join(f"int f{i}(int a, double b);" for i in range(10_000))
    report = abi.check(snippet(text), targets="x86_64-linux,arm64-linux,riscv64-linux", cache=False)
    assert len(report.entities) == 10_000
    assert report.counts()["PATCH"] == 10_000
