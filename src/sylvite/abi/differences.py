"""What changed between two versions of a header, or between two targets, entity by entity."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .layouts import Interner, LayoutReader, own_difference
from .nesting import refuse_deep_nesting
from .oracle import Examination
from .targets import Target

__all__ = ["Change", "diff_examinations", "diff_targets"]

_KINDS = {"f": "function", "c": "callback", "s": "struct"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entity that is not the same on both sides. ``change`` is added, removed, signature or layout."""

    name: str
    kind: str
    change: str
    target: str
    detail: str


def diff_examinations(old: Examination, new: Examination, targets: Sequence[Target]) -> list[Change]:
    """Changes from one set of headers to another on every target both were examined for."""
    changes: list[Change] = []
    for target in targets:
        if target.name in old.views and target.name in new.views:
            changes += _one_target(old, new, target, target)
    return changes


def diff_targets(examination: Examination, a: Target, b: Target) -> list[Change]:
    """What differs between two targets of one examination."""
    return _one_target(examination, examination, a, b)


@refuse_deep_nesting
def _one_target(old: Examination, new: Examination, a: Target, b: Target) -> list[Change]:
    intern = Interner()
    left = LayoutReader(a, old.view(a.name), intern)
    right = LayoutReader(b, new.view(b.name), intern)
    where = a.name if a.name == b.name else f"{a.name} / {b.name}"
    changes = []
    keys = dict.fromkeys([*left.graph.roots, *right.graph.roots])
    for key in keys:
        change = _change(key, left, right)
        if change is not None:
            kind, detail = change
            changes.append(
                Change(name=key[2:], kind=_KINDS[key[0]], change=kind, target=where, detail=detail)
            )
    return changes


def _change(key: str, left: LayoutReader, right: LayoutReader) -> tuple[str, str] | None:
    mine, other = left.graph.roots.get(key), right.graph.roots.get(key)
    if mine is None:
        return "added", ""
    if other is None:
        return "removed", ""
    if key[0] == "s":
        if left.own(mine) == right.own(other):
            return None
        words = own_difference(left, right, mine, other, left.graph.name(mine))
        if left.target.name == right.target.name:
            words = _before_and_after(words, left.target.name)
        return "layout", words
    before, after = left.view.signatures.get(key), right.view.signatures.get(key)
    if str(before) != str(after):
        if left.target.name == right.target.name:
            return "signature", f"{before} became {after}"
        return "signature", f"{before} on {left.target.name}, {after} on {right.target.name}"
    return None


def _before_and_after(words: str, target: str) -> str:
    """A sentence about two sides that are one target, before and after a change."""
    return words.replace(f" on {target}", " before", 1).replace(f" on {target}", " after", 1)
