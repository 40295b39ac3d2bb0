"""Run every ONNX node case on both sides and write docs/onnx-operators.md (about half an hour on 2 cores).

usage: python tools/onnx_node_table.py [--jobs N] [--limit N]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

from onnx_node_runner import CaseResult, cases, run_cases  # noqa: E402
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402

HEADER = """# ONNX operators

Written by `python tools/onnx_node_table.py`. Every node case of the ONNX project is imported once, compiled
for wasm32 and for the host, and both results are compared with the outputs the ONNX project publishes
(relative tolerance 1e-3, absolute 1e-7, or the case's own). *Passes natively* is IREE's own runtime on
the host's code; *passes here* is Sylvite on `local-sync`. Where the compiler refuses a case on both
sides, the first reason is shown.

"""


def table(results: list[CaseResult]) -> str:
    by_operator: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        by_operator[result.operator].append(result)
    lines = [
        "| operator | cases | passes natively | passes here | first reason natively refused |",
        "|---|---|---|---|---|",
    ]
    for operator in sorted(by_operator):
        group = by_operator[operator]
        native = sum(r.native.passed for r in group)
        here = sum(r.sylvite.passed for r in group)
        reasons = [f"{r.native.stage}: {r.native.detail}" for r in group if not r.native.passed]
        reason = reasons[0].replace("|", "\\|").replace("`", "'")[:110] if reasons else ""
        lines.append(f"| {operator} | {len(group)} | {native} | {here} | {reason} |")
    native = sum(r.native.passed for r in results)
    here = sum(r.sylvite.passed for r in results)
    both = sum(r.native.passed and r.sylvite.passed for r in results)
    summary = (
        f"{len(results)} cases: {native} pass natively, {here} pass here, {both} pass on both sides.\n\n"
    )
    differing = [r for r in results if not r.agrees]
    tail = "\n## Cases that pass natively and not here\n\n" + (
        "\n".join(f"* `{r.name}`: {r.sylvite.stage}: {r.sylvite.detail}" for r in differing) or "None."
    )
    return summary + "\n".join(lines) + "\n" + tail + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write every outcome here")
    options = parser.parse_args()
    names = sorted(cases())[: options.limit]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("onnx node cases", total=len(names))
        results = run_cases(names, jobs=options.jobs, progress=lambda _: progress.advance(task))
    if options.json is not None:
        rows = [{"name": r.name, "native": vars(r.native), "sylvite": vars(r.sylvite)} for r in results]
        options.json.write_text(json.dumps(rows, indent=1))
    (ROOT / "docs" / "onnx-operators.md").write_text(HEADER + table(results))


if __name__ == "__main__":
    main()
