"""The allow list: findings somebody has looked at, each with the reason it is all right.

One entry a line: a name or glob pattern, the verdicts it covers (``*`` for all), and the reason::

    wgpu*           SHIM         called through gpu_shim.c
    log_message     RULE,PATCH   the generic code calls it through its variadic prototype
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import FormatError
from .rules import Entity, Finding, Verdict

__all__ = ["AllowList", "Allowed", "load_allow_list"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """One entry. ``verdicts`` is empty when all are covered. ``line`` counts from 1."""

    pattern: str
    verdicts: frozenset[Verdict]
    reason: str
    line: int

    def covers(self, name: str, finding: Finding) -> bool:
        """Whether the entry covers a finding about ``name``."""
        matches = fnmatch.fnmatchcase(name, self.pattern)
        return matches and (not self.verdicts or finding.verdict in self.verdicts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """All entries of a file."""

    entries: tuple[Allowed, ...] = ()

    def apply(self, entity: Entity) -> tuple[Entity, tuple[Allowed, ...]]:
        """The entity without the findings that are covered, and the entries that covered them."""
        kept: list[Finding] = []
        used: dict[Allowed, None] = {}
        for finding in entity.findings:
            entry = next((entry for entry in self.entries if entry.covers(entity.name, finding)), None)
            if entry is None:
                kept.append(finding)
            else:
                used[entry] = None
        return dataclasses.replace(entity, findings=tuple(kept)), tuple(used)

    def unused(self, used: Sequence[Allowed]) -> tuple[Allowed, ...]:
        """Entries that covered nothing; they should be removed from the file."""
        return tuple(entry for entry in self.entries if entry not in used)


def load_allow_list(path: str | os.PathLike[str]) -> AllowList:
    """Read an allow list.

    Raises:
        FormatError: a line without verdicts or without a reason, or a verdict that does not exist.
    """
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot read the allow list: {error}", where=where) from error
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            entries.append(_entry(line.split(None, 2), number, where))
    return AllowList(entries=tuple(entries))


def _entry(parts: list[str], number: int, where: str) -> Allowed:
    if len(parts) < 3:
        raise FormatError(f"line {number}: a name, verdicts and a reason were expected", where=where)
    pattern, verdicts, reason = parts
    try:
        chosen = frozenset() if verdicts == "*" else frozenset(Verdict(v) for v in verdicts.split(","))
    except ValueError as error:
        raise FormatError(f"line {number}: {error}", where=where) from error
    return Allowed(pattern=pattern, verdicts=chosen, reason=reason.strip(), line=number)
