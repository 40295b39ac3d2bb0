"""``sylvite abi``: check, diff, layout, shim, retarget, run.

Exit status: 0 nothing found, 1 findings, 2 wrong usage (also files that cannot be read).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from ..errors import SylviteError, UnavailableError
from .allowlist import Allowed, AllowList, load_allow_list
from .differences import Change, diff_examinations, diff_targets
from .guard import check as check_files
from .guard import examine_files, make_query
from .ir_gate import check_ir_file
from .ir_text import load_ir
from .record_layouts import record_layouts
from .report import counted, print_report, report_to_json, report_to_sarif
from .retarget import compile_ir, retarget
from .rules import Entity, Report, Verdict
from .running import Program, generic_ir
from .shim import build_shim, generate_shim
from .targets import GROUPS, TARGETS, Target, find_target, load_targets_file, runner, select_targets
from .wasm_gate import check_wasm_file

__all__ = ["abi"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Group(click.Group):
    """Errors of ours end the command with status 2 and one message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SylviteError as error:
            click.echo(f"sylvite abi: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            # What is read is checked before; this is an output that cannot be written.
            click.echo(f"sylvite abi: {error.filename or 'output'}: {error.strerror}", err=True)
            sys.exit(2)


@click.group(cls=_Group)
def abi() -> None:
    """Prove that portable code depends on no platform's calling convention, and shim the rest."""


def _compile_options(command: _Command) -> _Command:
    for option in (
        click.option("-I", "include_dirs", multiple=True, metavar="DIR", help="Search DIR for headers."),
        click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro."),
        click.option("--include", "includes", multiple=True, metavar="FILE", help="Include FILE first."),
        click.option("--language", type=click.Choice(["c", "c++"]), help="Default: by suffix."),
        click.option("--system", "include_system", is_flag=True, help="Judge system headers too."),
    ):
        command = option(command)
    return command


def _target_options(command: _Command) -> _Command:
    for option in (
        click.option("--targets", default="all", show_default=True, help="Groups and targets, by comma."),
        click.option("--base", help="Compare every target with this one (default: all pairs)."),
        click.option(
            "--targets-file",
            type=click.Path(exists=True, dir_okay=False),
            help="JSON list of targets of your own.",
        ),
    ):
        command = option(command)
    return command


def _extra(targets_file: str | None) -> dict[str, Target]:
    return load_targets_file(targets_file) if targets_file else {}


# -- check ------------------------------------------------------------------------------------------


@abi.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@_compile_options
@_target_options
@click.option(
    "--header",
    "headers",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="With .ll, .bc or .wasm: the header that declares what it imports.",
)
@click.option("--allow", type=click.Path(exists=True, dir_okay=False), help="Allow list, with reasons.")
@click.option("--retargeted", is_flag=True, help="The code goes through `abi retarget`: PATCH is no finding.")
@click.option("--match", help="Only names that match this pattern.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--sarif", type=click.Path(dir_okay=False, writable=True), help="Write SARIF here.")
@click.option("--show-safe", is_flag=True, help="List what is safe, too.")
@click.option("--signatures", is_flag=True, help="With --json: every lowered signature.")
@click.option("--no-cache", is_flag=True, help="Ask clang again.")
def check(files: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Judge C headers and sources, LLVM IR (.ll, .bc) or WebAssembly modules (.wasm)."""
    report = _checked(files, options)
    allow = load_allow_list(options["allow"]) if options["allow"] else AllowList()
    report, notes = _filtered(report, allow, options)
    if options["sarif"]:
        Path(options["sarif"]).write_text(json.dumps(report_to_sarif(report), indent=1), encoding="utf-8")
    if options["as_json"]:
        click.echo(json.dumps(report_to_json(report, signatures=options["signatures"]), indent=1))
    else:
        print_report(report, Console(), show_safe=options["show_safe"], notes=notes)
    sys.exit(1 if _found(report, options["retargeted"]) else 0)


def _checked(files: Sequence[str], options: Mapping[str, Any]) -> Report:
    extra = _extra(options["targets_file"])
    binary = [file for file in files if Path(file).suffix in (".ll", ".bc", ".wasm")]
    sources = [file for file in files if file not in binary]
    reports = []
    if sources:
        reports.append(
            check_files(
                sources, targets=options["targets"], base=options["base"], extra_targets=extra,
                **_query_options(options), cache=not options["no_cache"],
            )
        )  # fmt: skip
    for file in binary:
        reports.append(_checked_binary(file, options, extra))
    return functools.reduce(_joined, reports)


def _checked_binary(file: str, options: Mapping[str, Any], extra: Mapping[str, Target]) -> Report:
    targets = select_targets(options["targets"], extra)
    query = None
    if options["headers"]:
        query = make_query(
            options["headers"], include_dirs=options["include_dirs"], defines=options["defines"],
            includes=options["includes"], language=options["language"] or "",
        )  # fmt: skip
    if Path(file).suffix == ".wasm":
        return check_wasm_file(file, query)
    base = find_target(options["base"], extra) if options["base"] else None
    return check_ir_file(file, targets, base=base, query=query)


def _joined(a: Report, b: Report) -> Report:
    return Report(
        targets=tuple(dict.fromkeys((*a.targets, *b.targets))),
        base=a.base or b.base,
        entities=(*a.entities, *b.entities),
        rejections=(*a.rejections, *b.rejections),
    )


def _filtered(report: Report, allow: AllowList, options: Mapping[str, Any]) -> tuple[Report, list[str]]:
    entities: list[Entity] = []
    used: list[Allowed] = []
    for entity in report.entities:
        if options["match"] and not fnmatch.fnmatchcase(entity.name, options["match"]):
            continue
        kept, covered = allow.apply(entity)
        entities.append(kept)
        used += covered
    notes = [
        f"{options['allow']}:{entry.line}: {entry.pattern} covers nothing any more"
        for entry in allow.unused(used)
    ]
    return dataclasses.replace(report, entities=tuple(entities)), notes


def _found(report: Report, retargeted: bool) -> bool:
    harmless = (Verdict.SAFE, Verdict.PATCH) if retargeted else (Verdict.SAFE,)
    return bool(report.rejections) or any(entity.verdict not in harmless for entity in report.entities)


# -- targets, diff, layout --------------------------------------------------------------------------


@abi.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def targets(as_json: bool) -> None:
    """List the targets, their groups, and which can be run here."""
    runnable = {name: runner(target) is not None for name, target in TARGETS.items()}
    if as_json:
        rows = [{**target.key_data(), "runs_here": runnable[name]} for name, target in TARGETS.items()]
        click.echo(json.dumps({"targets": rows, "groups": {k: list(v) for k, v in GROUPS.items()}}, indent=1))
        return
    table = Table()
    for title in ("name", "triple", "pointer", "groups", "runs here"):
        table.add_column(title)
    for name, target in TARGETS.items():
        groups = " ".join(group for group, members in GROUPS.items() if name in members and group != "all")
        table.add_row(name, target.triple, str(target.pointer_bits), groups, "yes" if runnable[name] else "")
    Console().print(table)


@abi.command()
@click.argument("a")
@click.argument("b")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@_compile_options
@click.option("--targets", default="all", show_default=True, help="With two files: where to compare.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def diff(a: str, b: str, files: tuple[str, ...], targets: str, as_json: bool, **options: Any) -> None:
    """What changed: between two versions of a header (A and B are files), or between two targets (A and B
    are targets, followed by FILES)."""
    if not files and not Path(a).exists() and a in TARGETS:
        raise click.UsageError(f"{a} and {b} are targets: give the files to compare, too")
    changes = _target_changes(a, b, files, options) if files else _file_changes(a, b, targets, options)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(change) for change in changes], indent=1))
    else:
        _print_changes(changes)
    sys.exit(1 if changes else 0)


def _query_options(options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("include_dirs", "defines", "includes", "include_system")
    return {**{name: options[name] for name in names}, "language": options["language"] or ""}


def _file_changes(a: str, b: str, targets: str, options: Mapping[str, Any]) -> list[Change]:
    chosen = select_targets(targets)
    old = examine_files(make_query(a, **_query_options(options)), chosen)
    new = examine_files(make_query(b, **_query_options(options)), chosen)
    return diff_examinations(old, new, chosen)


def _target_changes(a: str, b: str, files: Sequence[str], options: Mapping[str, Any]) -> list[Change]:
    pair = (find_target(a), find_target(b))
    return diff_targets(examine_files(make_query(files, **_query_options(options)), pair), *pair)


def _print_changes(changes: Sequence[Change]) -> None:
    console = Console()
    if not changes:
        console.print("no difference")
        return
    table = Table(show_lines=True)
    for title in ("change", "what", "target", "detail"):
        table.add_column(title, overflow="fold")
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for change in changes:
        merged.setdefault((change.change, change.kind, change.name, change.detail), []).append(change.target)
    for (word, kind, name, detail), where in merged.items():
        table.add_row(word, f"{kind} {name}", ", ".join(where), detail)
    console.print(table)


@abi.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("names", nargs=-1)
@_compile_options
@click.option("--targets", default="all", show_default=True, help="Groups and targets, by comma.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def layout(file: str, names: tuple[str, ...], targets: str, as_json: bool, **options: Any) -> None:
    """Size, alignment and offsets of records, targets that agree side by side."""
    examination = examine_files(make_query(file, **_query_options(options)), select_targets(targets))
    data = record_layouts(examination, names)
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    console = Console()
    for name, groups in data.items():
        table = Table(title=name, title_justify="left")
        table.add_column("member")
        for group in groups:
            table.add_column("\n".join(group["targets"]), justify="right")
        members = dict.fromkeys(member["name"] for group in groups for member in group["members"])
        for member in members:
            table.add_row(member or "(unnamed)", *(_offset_words(group, member) for group in groups))
        table.add_row("size", *(str(group["size"]) for group in groups))
        table.add_row("alignment", *(str(group["align"]) for group in groups))
        console.print(table)


def _offset_words(group: Mapping[str, Any], name: str) -> str:
    member = next((m for m in group["members"] if m["name"] == name), None)
    if member is None:
        return "-"
    whole, bit = divmod(member["offset_bits"], 8)
    return str(whole) if not member["bits"] else f"{whole}.{bit}:{member['bits']}"


# -- shim, retarget, run -----------------------------------------------------------------------------


@abi.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@_compile_options
@click.option("--targets", default="64-bit", show_default=True, help="Where the shim is needed.")
@click.option("--base", default="x86_64-generic", show_default=True, help="Base of the generic code.")
@click.option("--name", default="shim", show_default=True, help="Prefix of the files; a C identifier.")
@click.option("--out", default=".", show_default=True, type=click.Path(file_okay=False), help="Folder.")
@click.option("--everything", is_flag=True, help="Wrap what is safe, too.")
@click.option("--slots", default=16, show_default=True, help="Callbacks of one type at a time.")
@click.option("--build", type=click.Choice(["object", "library", "ir"]), help="Compile it for every target.")
def shim(files: tuple[str, ...], targets: str, base: str, name: str, out: str, **options: Any) -> None:
    """Generate pointer-only wrappers and trampolines for what cannot be called directly."""
    query = make_query(files, **_query_options(options))
    chosen = select_targets(targets)
    made = generate_shim(
        query, chosen, base=find_target(base), name=name, everything=options["everything"],
        slots=options["slots"],
    )  # fmt: skip
    for path in made.write(out):
        click.echo(str(path))
    click.echo(
        f"{counted(len(made.functions), 'function')}, {counted(len(made.callbacks), 'callback')}", err=True
    )
    for item in made.skipped:
        click.echo(f"not covered: {item.name}: {item.reason}", err=True)
    if options["build"]:
        for target in chosen:
            click.echo(str(build_shim(made, target, out, query=query, kind=options["build"])))


@abi.command(name="retarget")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@_compile_options
@click.option("--target", "target_name", required=True, help="Where the code is to run.")
@click.option("--base", help="What it was compiled for (default: what its triple says).")
@click.option(
    "--header",
    "headers",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Declares what the code calls.",
)
@click.option("-o", "--output", default="-", help="A .ll or .o file; - is standard output (IR).")
@click.option("--force", is_flag=True, help="Skip the gate.")
def retarget_command(
    file: str, target_name: str, base: str | None, headers: tuple[str, ...], output: str, force: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Take generic IR (.ll, .bc) to a concrete target; refuse what the gate finds."""
    target = find_target(target_name)
    query = make_query(headers, **_query_options(options)) if headers else None
    text = retarget(load_ir(file), target, query=query, base=find_target(base) if base else None, force=force)
    if output.endswith((".o", ".obj")):
        compile_ir(text, target, Path(output), position_independent=True)
    elif output == "-":
        click.echo(text, nl=False)
    else:
        Path(output).write_text(text, encoding="utf-8")


@abi.command(name="run")
@click.argument("caller", required=False, type=click.Path(exists=True, dir_okay=False))
@click.argument("callees", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@_compile_options
@click.option("--targets", default="runnable", show_default=True, help="Where to run.")
@click.option("--base", default="x86_64-generic", show_default=True, help="What the caller is compiled for.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Declares what the caller calls: the verdicts to compare with.",
)
@click.option("--libc", is_flag=True, help="Link with musl (built on first use) instead of no C library.")
@click.option(
    "--random", "count", type=click.IntRange(min=1), help="Run N random signatures instead of files."
)
@click.option("--seed", default=1, show_default=True, help="With --random.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def run_command(
    caller: str | None, callees: tuple[str, ...], targets: str, base: str, count: int | None, seed: int,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run a generic CALLER (compiled for the base, retargeted without the gate) with native CALLEES under
    qemu-user: right, wrong or crash, beside the guard's verdict. CALLER has main; it returns 0 when all is
    right."""
    chosen = [target for target in select_targets(targets) if runner(target) is not None]
    if not chosen:
        raise UnavailableError(f"no program for {targets} can be run here: install qemu-user")
    if count is not None:
        rows = _random_rows(find_target(base), chosen, seed, count)
    elif caller is not None:
        rows = _run_rows(Path(caller), callees, find_target(base), chosen, options)
    else:
        raise click.UsageError("give a caller, or --random")
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        table = Table()
        for title in rows[0] if rows else ():
            table.add_column(_TITLES.get(title, title), overflow="fold")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        Console().print(table)
    bad = any(row.get("result", "right") != "right" or row.get("missed") for row in rows)
    sys.exit(1 if bad else 0)


_TITLES = {"flagged_harmless": "of them right", "harmless_share": "share"}


def _random_rows(base: Target, chosen: Sequence[Target], seed: int, count: int) -> list[dict[str, Any]]:
    from .differential import run_differentials

    rows = []
    for tally in run_differentials(base, chosen, seed=seed, count=count):
        row = dataclasses.asdict(tally)
        row["missed"] = " ".join(tally.missed)
        row["harmless_share"] = round(tally.harmless_share, 3)
        rows.append(row)
    return rows


def _run_rows(
    caller: Path, callees: Sequence[str], base: Target, chosen: Sequence[Target], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    query = make_query(options["headers"] or [str(caller)], **_query_options(options))
    ir = generic_ir(caller, base, query)
    used = set(re.findall(r"@([A-Za-z_]\w*)\(", ir))
    rows = []
    for target in chosen:
        verdict = "-"
        if options["headers"]:
            report = check_files(options["headers"], targets=[target], base=base, **_query_options(options))
            found = [e.verdict for e in report.entities if e.kind == "function" and e.name in used]
            verdict = max(found, key=lambda v: v.severity, default=Verdict.SAFE).value
        with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
            program = Program(target, Path(folder), libc=options["libc"])
            program.add_generic(ir, query=query if options["headers"] else None, force=True)
            for callee in callees:
                program.add_source(Path(callee), query)
            outcome = program.run(program.link())
        rows.append({"target": target.name, "verdict": verdict, "result": outcome.result,
                     "status": outcome.signal_name or outcome.status})  # fmt: skip
    return rows
