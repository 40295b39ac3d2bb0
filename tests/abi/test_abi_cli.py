"""The command line: output forms, exit statuses, the allow list."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest_abi import needs_runner, query_of
from rich.console import Console

from sylvite.abi.cli import abi as command
from sylvite.abi.report import print_report
from sylvite.abi.running import generic_ir
from sylvite.abi.targets import TARGETS, find_target

EXAMPLE = Path(__file__).parents[2] / "examples" / "abi"
DIRTY = "typedef struct { double a, b, c; } S;\nvoid take(S s);\nvoid safe(double d);\nint small(int a);\n"


@pytest.fixture
def run(cache_home):
    def invoke(*arguments: str):
        return CliRunner().invoke(command, list(arguments), catch_exceptions=False)

    return invoke


def test_check_exits_zero_on_clean_and_one_on_findings(run, snippet):
    clean = run("check", snippet("void f(double d, void *p);", "clean.h"))
    assert clean.exit_code == 0, clean.output
    dirty = run("check", snippet(DIRTY), "--targets", "64-bit", "--base", "x86_64-generic")
    assert dirty.exit_code == 1
    assert "SHIM" in dirty.output
    assert "take" in dirty.output


@pytest.mark.parametrize(
    "arguments", [("check",), ("check", "no-such.h"), ("check", "{}", "--targets", "vax"), ("unknown",)]
)
def test_wrong_usage_exits_two(run, snippet, arguments):
    path = snippet("void f(void);")
    assert run(*(part.format(path) for part in arguments)).exit_code == 2


def test_broken_header_exits_two_with_the_place(run, snippet):
    done = run("check", snippet("int f(;"))
    assert done.exit_code == 2
    assert "snippet.h:1:" in done.output


def test_json_has_the_documented_keys(run, snippet):
    path = snippet(DIRTY)
    done = run("check", path, "--targets", "x86_64-linux,arm64-linux", "--base", "x86_64-generic", "--json")
    data = json.loads(done.output)
    assert data["targets"] == ["x86_64-linux", "arm64-linux"]
    assert data["base"] == "x86_64-linux"
    take = next(entity for entity in data["entities"] if entity["name"] == "take")
    assert take["kind"] == "function"
    assert take["verdict"] == "SHIM"
    assert take["targets"] == ["arm64-linux"]
    assert take["reason"]
    assert (take["file"], take["line"]) == (path, 2)
    assert {entity["kind"] for entity in data["entities"]} == {"function", "struct"}


def test_json_without_a_base_says_null(run, snippet):
    data = json.loads(run("check", snippet(DIRTY), "--targets", "desktop", "--json").output)
    assert data["base"] is None


def test_sarif_has_a_result_at_the_line(run, snippet, tmp_path):
    out = tmp_path / "out.sarif"
    run("check", snippet(DIRTY), "--targets", "64-bit", "--base", "x86_64-generic", "--sarif", str(out))
    log = json.loads(out.read_text())
    assert log["version"] == "2.1.0"
    results = log["runs"][0]["results"]
    rules = {rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in results} <= rules
    shim = next(result for result in results if result["level"] == "error")
    assert shim["locations"][0]["physicalLocation"]["region"]["startLine"] == 2


def test_allow_list_covers_findings_and_reports_idle_entries(run, snippet, tmp_path):
    allow = tmp_path / "allow.txt"
    allow.write_text("# looked at\ntake  SHIM  called through shim.c\nsmall *  retargeted\ngone * nobody\n")
    done = run("check", snippet(DIRTY), "--targets", "64-bit", "--base", "generic", "--allow", str(allow))
    assert done.exit_code == 0, done.output
    assert "gone covers nothing" in done.output


@pytest.mark.parametrize("text", ["take SHIM\n", "take NONSENSE because\n", "take\n"])
def test_allow_list_without_a_reason_exits_two(run, snippet, tmp_path, text):
    allow = tmp_path / "allow.txt"
    allow.write_text(text)
    assert run("check", snippet(DIRTY), "--allow", str(allow)).exit_code == 2


def test_retargeted_code_may_have_patches(run, snippet):
    path = snippet("int small(int a);")
    assert run("check", path, "--targets", "64-bit").exit_code == 1
    assert run("check", path, "--targets", "64-bit", "--retargeted").exit_code == 0


def test_diff_of_two_versions_names_what_changed(run, snippet):
    old = snippet("struct s { int a; }; void f(struct s *p); void gone(void);", "old.h")
    new = snippet("struct s { long long a; }; void f(struct s *p, int more); void fresh(void);", "new.h")
    done = run("diff", old, new, "--targets", "x86_64-linux,wasm32", "--json")
    changes = {(change["name"], change["change"]) for change in json.loads(done.output)}
    assert changes == {("s", "layout"), ("f", "signature"), ("gone", "removed"), ("fresh", "added")}
    assert done.exit_code == 1
    assert run("diff", old, old).exit_code == 0


def test_diff_of_two_targets_names_what_differs(run, snippet):
    done = run("diff", "x86_64-linux", "arm64-linux", snippet(DIRTY))
    assert done.exit_code == 1
    assert "take" in done.output
    assert "safe" not in done.output


def test_layout_puts_targets_that_agree_side_by_side(run, snippet):
    done = run("layout", snippet("struct s { void *p; int n; };"), "s", "--targets", "linux", "--json")
    groups = json.loads(done.output)["s"]
    assert [group["size"] for group in groups] == [16, 8]
    assert "size" in run("layout", snippet("struct s { int a : 3; };"), "--targets", "linux").output


def test_targets_lists_the_table(run):
    assert {row["name"] for row in json.loads(run("targets", "--json").output)["targets"]} == set(TARGETS)
    assert run("targets").exit_code == 0


def test_shim_writes_two_files_and_builds(run, tmp_path):
    done = run("shim", str(EXAMPLE / "library.h"), "--name", "library", "--out", str(tmp_path),
               "--targets", "arm64-linux,x86_64-linux", "--build", "object")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} >= {
        "library_native.c", "library_generic.h", "library-arm64-linux.o", "library-x86_64-linux.o",
    }  # fmt: skip


def test_run_shows_the_crash_beside_the_verdict(run):
    needs_runner("arm64-linux")
    done = run("run", str(EXAMPLE / "portable.c"), str(EXAMPLE / "library.c"), "-I", str(EXAMPLE), "--header",
               str(EXAMPLE / "library.h"), "--targets", "x86_64-linux,arm64-linux", "--json")  # fmt: skip
    rows = {row["target"]: row for row in json.loads(done.output)}
    assert rows["arm64-linux"] == {
        "target": "arm64-linux", "verdict": "SHIM", "result": "crash", "status": "SIGSEGV",
    }  # fmt: skip
    assert rows["x86_64-linux"]["result"] == "right"
    assert done.exit_code == 1


def test_ir_and_wasm_go_through_their_gates(run, tmp_path, snippet):
    module = tmp_path / "module.ll"
    module.write_text("declare void @take(ptr byval({double, double, double}))\n")
    done = run("check", str(module), "--targets", "64-bit", "--json")
    assert json.loads(done.output)["entities"][0]["verdict"] == "SHIM"
    refused = run("retarget", str(module), "--target", "arm64-linux")
    assert refused.exit_code == 2
    assert "take" in refused.output
    assert run("retarget", str(module), "--target", "arm64-linux", "--force").exit_code == 0
    empty = tmp_path / "module.wasm"
    empty.write_bytes(b"\0asm\1\0\0\0")
    assert run("check", str(empty), "--header", snippet(DIRTY)).exit_code == 0


def test_pre_commit_hook_and_ci_example_run_commands_that_exist():
    yaml = pytest.importorskip("yaml", reason="reading the examples needs PyYAML")
    root = Path(__file__).parents[2]
    hook = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())[0]
    assert hook["entry"] == "sylvite abi check"
    steps = yaml.safe_load((EXAMPLE / "ci.yml").read_text())["jobs"]["guard"]["steps"]
    options = {option for command_ in command.commands.values() for p in command_.params for option in p.opts}
    lines = [step["run"] for step in steps if "sylvite abi" in step.get("run", "")]
    used = {word for line in lines for word in line.split() if word.startswith("--")}
    assert len(lines) >= 3
    assert used <= options


def test_outputs_that_cannot_be_written_exit_two(run, snippet, tmp_path):
    path = snippet(DIRTY)
    blocked = str(tmp_path / "no-folder" / "out.ll")
    (tmp_path / "code.ll").write_text("define void @f() {\n  ret void\n}\n")
    (tmp_path / "file").write_text("")
    targets = ("--targets", "arm64-linux", "--base", "x86_64-generic")
    for done in (
        run("check", path, *targets, "--sarif", blocked),
        run("retarget", str(tmp_path / "code.ll"), "--target", "arm64-linux", "-o", blocked),
        run("shim", path, *targets, "--out", str(tmp_path / "file" / "sub")),
    ):
        assert done.exit_code == 2, done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("diff", "x86_64-linux", "arm64-linux"), "give the files"),
        (("layout", "{}", "nosuch"), "nosuch"),
        (("run", "--random", "0"), "0"),
        (("run", "{}", "--targets", "wasm32"), "wasm32"),
    ],
)
def test_questions_without_an_answer_exit_two_and_say_why(run, snippet, arguments, words):
    path = snippet(DIRTY)
    done = run(*(part.format(path) for part in arguments))
    assert done.exit_code == 2
    assert words in done.output


def test_changes_of_one_target_are_told_as_before_and_after(run, snippet):
    old, new = (
        snippet("struct s { int a, b; };", "old.h"),
        snippet("struct s { int a; long long b; };", "new.h"),
    )
    done = run("diff", old, new, "--targets", "arm64-linux", "--json")
    assert json.loads(done.output)[0]["detail"] == (
        "member b of struct s lies at 4 bytes before and at 8 bytes after"
    )


def test_cache_entries_of_others_are_not_believed(run, snippet, cache_home):
    path = snippet(DIRTY)
    assert run("check", path, "--targets", "arm64-linux", "--base", "x86_64-generic").exit_code == 1
    for file in cache_home.rglob("*.json.gz"):
        with gzip.open(file, "rt") as stream:
            entry = json.load(stream)
        with gzip.open(file, "wt") as stream:
            json.dump({**entry, "data": {"targets": 1}}, stream)
    assert run("check", path, "--targets", "arm64-linux", "--base", "x86_64-generic").exit_code == 1


@pytest.mark.slow
def test_program_with_the_c_library_is_linked_statically_and_run(run, tmp_path):
    pytest.importorskip("ziglang")
    header = tmp_path / "add.h"
    header.write_text("int add(int a, int b);\n")
    (tmp_path / "caller.c").write_text("""
    #include <stdio.h>
    #include <string.h>
    #include "add.h"
    int main(void) {
      char text[32];
      snprintf(text, sizeof text, "%d", add(40, 2));
      return strcmp(text, "42");
    }
    """)
    (tmp_path / "callee.c").write_text("""
    #include <stdlib.h>
    #include "add.h"
    int add(int a, int b) {
      int *sum = malloc(sizeof *sum);
      *sum = a + b;
      int result = *sum;
      free(sum);
      return result;
    }
    """)
    arguments = ("run", str(tmp_path / "caller.c"), str(tmp_path / "callee.c"), "-I", str(tmp_path))
    arguments += ("--header", str(header), "--targets", "x86_64-linux", "--json")
    needs_runner("x86_64-linux")
    done = run(*arguments, "--libc")
    assert json.loads(done.output)[0]["result"] == "right", done.output
    assert done.exit_code == 0
    without = run(*arguments)
    assert without.exit_code == 2
    # The linker reports the first that any of its threads meets.
    assert re.search("undefined symbol: (snprintf|strcmp|malloc|free)", without.output)


# Members that SARIF 2.1.0 requires, by object; taken from the standard's text, section 3.
def test_sarif_has_every_member_the_standard_requires(run, snippet, tmp_path):
    out = tmp_path / "out.sarif"
    run("check", snippet(DIRTY), "--targets", "64-bit", "--sarif", str(out))
    log = json.loads(out.read_text())
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    assert set(log) <= {"$schema", "version", "runs", "inlineExternalProperties", "properties"}
    for one in log["runs"]:
        driver = one["tool"]["driver"]
        assert isinstance(driver["name"], str)
        assert driver["name"]
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(ids) == len(set(ids))
        assert all(set(rule) <= {"id", "shortDescription"} for rule in driver["rules"])
        assert all(rule["shortDescription"]["text"] for rule in driver["rules"] if "shortDescription" in rule)
        assert one["results"]
        for result in one["results"]:
            assert result["message"]["text"]
            assert result["level"] in ("none", "note", "warning", "error")
            assert result["ruleId"] in ids
            for location in result["locations"]:
                place = location["physicalLocation"]
                assert place["artifactLocation"]["uri"]
                assert "\\" not in place["artifactLocation"]["uri"]
                assert place["region"]["startLine"] >= 1


def test_pre_commit_hook_takes_the_files_it_names_and_fails_on_findings(run, snippet):
    yaml = pytest.importorskip("yaml", reason="reading the hook needs PyYAML")
    hook = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())[0]
    matches = re.compile(hook["files"]).search
    assert all(matches(f"include/a{suffix}") for suffix in (".h", ".hpp", ".c", ".cpp", ".ll", ".bc"))
    assert not any(matches(name) for name in ("a.py", "a.html", "header.h.md"))
    # pre-commit puts the arguments and the staged files behind the entry.
    words = hook["entry"].split()[2:]
    assert run(*words, *hook["args"], snippet(DIRTY)).exit_code == 1
    assert run(*words, *hook["args"], snippet("void f(double d);", "clean.h")).exit_code == 0


def test_walk_of_the_page_ends_in_a_clean_ci(run, tmp_path):
    """docs/abi.md, step by step: findings, a shim, retargeting, an allow list with reasons, exit 0."""
    header = str(EXAMPLE / "library.h")
    first = run("check", header, "--targets", "64-bit", "--base", "x86_64-generic", "--json")
    assert first.exit_code == 1
    found = [e for e in json.loads(first.output)["entities"] if e["verdict"] == "SHIM"]
    assert sorted(e["name"] for e in found) == [
        "length", "make40", "sum24", "sum4", "sum40", "visit", "visit_fn",
    ]  # fmt: skip
    shim = run("shim", header, "--name", "library", "--out", str(tmp_path))
    assert shim.exit_code == 0
    ir = generic_ir(EXAMPLE / "portable.c", find_target("x86_64-generic"),
                    query_of(header, include_dirs=(str(EXAMPLE), str(tmp_path)), defines=("SHIM",)),
                    flags=["-g"])  # fmt: skip
    (tmp_path / "portable.ll").write_text(ir)
    gate = run("check", str(tmp_path / "portable.ll"), "--targets", "64-bit", "--retargeted", "--json")
    assert gate.exit_code == 0, gate.output
    out = tmp_path / "portable.o"
    done = run("retarget", str(tmp_path / "portable.ll"), "--target", "arm64-linux", "-o", str(out))
    assert done.exit_code == 0, done.output
    assert out.stat().st_size > 500
    allow = tmp_path / "abi-allow.txt"
    allow.write_text("".join(f"{e['name']}  SHIM  called through library_native.c\n" for e in found))
    clean = run("check", header, "--targets", "64-bit", "--base", "x86_64-generic", "--retargeted",
                "--allow", str(allow))  # fmt: skip
    assert clean.exit_code == 0, clean.output
    assert "covers nothing" not in clean.output


def test_table_is_coloured_on_terminals_and_plain_elsewhere(judged):
    report = judged(DIRTY)
    plain, coloured = io.StringIO(), io.StringIO()
    print_report(report, Console(file=plain, width=100))
    print_report(report, Console(file=coloured, width=100, force_terminal=True, no_color=False))
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[31mSHIM" in coloured.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured.getvalue()).split() == plain.getvalue().split()
    assert max(map(len, plain.getvalue().splitlines()[:-1])) <= 100
