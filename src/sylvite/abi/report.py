"""Reports of a check: as a JSON object, as SARIF for code hosts, as a table for people."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
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
    table = Table(show_lines=True, expand=False)
    table.add_column("verdict")
    table.add_column("what", overflow="fold")
    table.add_column("differs on", overflow="fold")
    table.add_column("why, and the mend", overflow="fold", ratio=1)
    for entity in report.entities:
        if entity.findings or show_safe:
            _add_rows(table, entity, len(report.targets))
    if table.row_count:
        console.print(table)
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


def _add_rows(table: Table, entity: Entity, everyone: int) -> None:
    verdict = Text(entity.verdict.value, style=_COLOURS[entity.verdict])
    place = Text(f"{entity.kind} {entity.name}\n{entity.file}:{entity.line}")
    if not entity.findings:
        table.add_row(verdict, place, "", "")
    for number, finding in enumerate(entity.findings):
        mark = Text(finding.verdict.value, style=_COLOURS[finding.verdict])
        words = Text(f"{finding.reason}\n") + Text(finding.mend, style="dim")
        table.add_row(mark, place if number == 0 else "", _targets_words(finding.differs, everyone), words)
