"""Output: results on standard output, progress and notes on standard error."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import rich.box
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..compile import Artifact, Phase, Progress, ProgressEvent

__all__ = [
    "error_console",
    "format_bytes",
    "output_console",
    "print_json",
    "print_notes",
    "print_table",
    "progress_bar",
]

if TYPE_CHECKING:
    # Generic in the type checker's eyes only, for older releases of click.
    _IntegerType = click.ParamType[int]
    _DimType = click.ParamType[tuple[str, int]]
else:
    _IntegerType = _DimType = click.ParamType

_WORDS = {
    Phase.READ: "reading",
    Phase.SIMPLIFY: "simplifying",
    Phase.IMPORT: "importing",
    Phase.COMPILE: "compiling",
    Phase.LINK: "linking",
    Phase.DONE: "done",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m)?", re.IGNORECASE)
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}


def output_console() -> Console:
    """Standard output. Tables are not cut to a terminal's width when it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)


def error_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print JSON values, indented."""
    click.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; nothing when there are no rows."""
    if not rows:
        return
    table = Table(*columns, title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*[cell.replace("[", "\\[") for cell in row])
    output_console().print(table)


def print_notes(artifacts: Sequence[Artifact]) -> None:
    """Say on standard error what a compile did differently, and why."""
    for artifact in artifacts:
        for note in artifact.notes:
            click.echo(f"note: {note}", err=True)


def format_bytes(count: int) -> str:
    """``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{count} B"


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Progress]:
    """A progress callback that shows the phase and the time on a terminal, and nothing elsewhere."""
    console = error_console()
    if not console.is_terminal:
        yield lambda event: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def report(event: ProgressEvent) -> None:
            bar.update(task, description=f"{name}: {_WORDS[event.phase]}")

        yield report


class ByteSize(_IntegerType):
    """``512MiB``, ``1G``, ``65536``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; write 65536, 512MiB or 1G", param, ctx)
        base = 1000 if match[2] and not match[3] and str(value).lower().endswith("b") else 1024
        return int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))


class Duration(_IntegerType):
    """``2s``, ``500ms``; nanoseconds as a value."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a duration; write 2s or 500ms", param, ctx)
        return int(float(match[1]) * _NANOSECONDS[(match[2] or "s").lower()])


class Dim(_DimType):
    """``N=1``."""

    name = "name=extent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, separator, extent = str(value).rpartition("=")
        if not separator or not name or not extent.isdecimal():
            self.fail(f"{value!r} is not of the form NAME=EXTENT, such as N=1", param, ctx)
        return name, int(extent)


def as_rows(values: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    """Cells of a table from dictionaries."""
    return [[str(value.get(column, "")) for column in columns] for value in values]
