"""Reports of a check: as a JSON object, as SARIF for code hosts, as a table for people."""

from __future__ import annotations

import dataclasses
import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from .mends import MENDS
from .oracle import Rejection
from .rules import Entity, Finding, Report, Verdict

__all__ = ["print_report", "report_from_json", "report_to_json", "report_to_sarif"]

_COLOURS = {
    Verdict.SAFE: "green",
    Verdict.PATCH: "cyan",
    Verdict.RULE: "yellow",
    Verdict.LAYOUT: "magenta",
    Verdict.SHIM: "red",
}
_SARIF_LEVELS = {
    Verdict.PATCH: "note",
    Verdict.RULE: "warning",
    Verdict.LAYOUT: "warning",
    Verdict.SHIM: "error",
}


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value,
        "rule": finding.rule,
        "reason": finding.reason,
        "mend": finding.mend,
        "targets": list(finding.differs),
        "groups": [list(group) for group in finding.groups],
        "base": finding.base,
    }


def _entity_data(entity: Entity, signatures: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": entity.name,
        "kind": entity.kind,
        "verdict": entity.verdict.value,
        "targets": list(entity.targets),
        "reason": entity.reason,
        "file": entity.file,
        "line": entity.line,
        "findings": [_finding_data(finding) for finding in entity.findings],
    }
    if signatures:
        data["signatures"] = dict(entity.signatures)
    return data


def report_to_json(report: Report, *, signatures: bool = False) -> dict[str, Any]:
    """The report as JSON: ``targets``, ``base`` and ``entities``, each with ``name``, ``kind``, ``verdict``,
    ``targets`` that differ, ``reason``, ``file``, ``line`` and all ``findings``; ``rejected`` lists targets
    whose compiler refuses the headers. ``signatures`` adds every lowered signature."""
    return {
        "targets": list(report.targets),
        "base": report.base,
        "entities": [_entity_data(entity, signatures) for entity in report.entities],
        "rejected": [dataclasses.asdict(rejection) for rejection in report.rejections],
        "counts": report.counts(),
    }


def report_from_json(data: Mapping[str, Any]) -> Report:
    """The report that `report_to_json` wrote."""
    return Report(
        targets=tuple(data["targets"]),
        base=data["base"],
        entities=tuple(_entity_from(row) for row in data["entities"]),
        rejections=tuple(Rejection(**row) for row in data["rejected"]),
    )


def _entity_from(row: Mapping[str, Any]) -> Entity:
    findings = tuple(
        Finding(
            verdict=Verdict(f["verdict"]),
            rule=f["rule"],
            reason=f["reason"],
            groups=tuple(tuple(group) for group in f["groups"]),
            differs=tuple(f["targets"]),
            base=f["base"],
        )
        for f in row["findings"]
    )
    return Entity(
        name=row["name"], kind=row["kind"], file=row["file"], line=row["line"], findings=findings,
        signatures=row.get("signatures", {}),
    )  # fmt: skip


# -- SARIF ------------------------------------------------------------------------------------------


def report_to_sarif(report: Report) -> dict[str, Any]:
    """The report as a SARIF 2.1.0 log: one result per finding, at the declaration."""
    rules = [{"id": f"abi/{rule}", "shortDescription": {"text": mend}} for rule, mend in MENDS.items()]
    results = [
        _sarif_result(f"abi/{finding.rule}", _SARIF_LEVELS[finding.verdict], _sentence(entity, finding),
                      entity.file, entity.line)
        for entity in report.entities
        for finding in entity.findings
    ]  # fmt: skip
    results += [
        _sarif_result("abi/rejected", "error", f"{r.target} refuses the headers: {r.message}", r.file, r.line)
        for r in report.rejections
    ]
    driver = {"name": "sylvite abi", "rules": [*rules, {"id": "abi/rejected"}]}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _sentence(entity: Entity, finding: Finding) -> str:
    return f"{entity.kind} {entity.name}: {finding.verdict.value}: {finding.reason}. Mend: {finding.mend}."


def _sarif_result(rule: str, level: str, text: str, file: str, line: int) -> dict[str, Any]:
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": file.replace(os.sep, "/")},
            "region": {"startLine": max(line, 1)},
        }
    }
    return {"ruleId": rule, "level": level, "message": {"text": text}, "locations": [place]}


# -- people -----------------------------------------------------------------------------------------


def counted(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless it is one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _targets_words(names: Sequence[str], everyone: int) -> str:
    if len(names) >= everyone - 1 and len(names) > 3:
        return "all others"
    shown = ", ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def print_report(
    report: Report, console: Console, *, show_safe: bool = False, notes: Sequence[str] = ()
) -> None:
    """Print the findings as a table, then the counts. ``show_safe`` lists what is safe too."""
    rows = [
        row
        for entity in report.entities
        if entity.findings or show_safe
        for row in _rows(entity, len(report.targets))
    ]
    if rows:
        _print_rows(rows, console)
    for rejection in report.rejections:
        console.print(
            Text(f"{rejection.target} refuses the headers: {rejection.message}", style="red"), soft_wrap=True
        )
    for note in notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    compared = f"against {report.base}" if report.base else "all pairs"
    counts = (
        ", ".join(f"{count} {name}" for name, count in report.counts().items() if count) or "nothing found"
    )
    console.print(f"{counted(len(report.targets), 'target')}, {compared}: {counts}", highlight=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One finding as text. ``cells`` are the columns, ``mend`` the dim tail of the last one."""

    cells: tuple[str, str, str, str]
    mend: str
    style: str
    first: bool


_TITLES = ("verdict", "what", "differs on", "why, and the mend")


def _rows(entity: Entity, everyone: int) -> list[_Row]:
    place = f"{entity.kind} {entity.name}\n{entity.file}:{entity.line}"
    if not entity.findings:
        return [_Row(cells=("SAFE", place, "", ""), mend="", style=_COLOURS[Verdict.SAFE], first=True)]
    return [
        _Row(
            cells=(finding.verdict.value, place if number == 0 else "",
                   _targets_words(finding.differs, everyone), finding.reason),
            mend=finding.mend, style=_COLOURS[finding.verdict], first=number == 0,
        )
        for number, finding in enumerate(entity.findings)
    ]  # fmt: skip


def _print_rows(rows: Sequence[_Row], console: Console) -> None:
    """A table written straight to the console: rich's own takes seconds for thousands of cells."""
    widths = _widths(rows, console.width)
    rule = "-" * min(sum(widths) + 6, console.width)
    out = [_line(_TITLES, widths, None if console.no_color or not console.is_terminal else "bold", 4)]
    for row in rows:
        out += [rule] if row.first else []
        columns = [_wrapped(cell, width) for cell, width in zip(row.cells, widths, strict=True)]
        reasons = len(columns[3])
        columns[3] += _wrapped(row.mend, widths[3]) if row.mend else []
        styled = console.is_terminal and not console.no_color
        for number, parts in enumerate(itertools.zip_longest(*columns, fillvalue="")):
            style = (row.style if number == 0 else "") if styled else None
            out.append(_line(parts, widths, style, reasons - number))
    console.file.write("\n".join([*out, rule]) + "\n")


def _widths(rows: Sequence[_Row], total: int) -> tuple[int, ...]:
    """Column widths in characters: what the text needs, the last column taking what is left."""
    longest = [
        max(len(part) for text in (title, *(row.cells[column] for row in rows)) for part in text.split("\n"))
        for column, title in enumerate(_TITLES)
    ]
    what = min(longest[1], max(total * 35 // 100, 12))
    where = min(longest[2], max(total * 20 // 100, 12))
    return (longest[0], what, where, max(total - longest[0] - what - where - 6, 20))


def _wrapped(text: str, width: int) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, width) or [""]]


def _line(parts: Sequence[str], widths: Sequence[int], style: str | None, reasons: int) -> str:
    """One line of the table. ``style`` colours the first column, None nothing at all; from the line
    ``reasons`` on the last column is a mend, and dim."""
    cells = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
    if style is not None:
        cells[0] = Style.parse(style).render(cells[0]) if style else cells[0]
        cells[3] = cells[3] if reasons > 0 else Style.parse("dim").render(cells[3])
    return "  ".join(cells).rstrip()
