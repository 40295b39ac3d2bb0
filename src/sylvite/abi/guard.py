"""The guard's front: check headers and sources in one call."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence

from .cache import ExaminationCache, default_cache
from .oracle import Examination, Query, examine
from .report import report_from_json, report_to_json
from .rules import Report, judge
from .targets import Target, find_target, select_targets
from .toolchain import default_toolchain

__all__ = ["check", "examine_files"]

_FORMAT = 7


def check(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    targets: str | Iterable[str | Target] = "all",
    base: str | Target | None = None,
    include_dirs: Sequence[str] = (),
    defines: Sequence[str] = (),
    includes: Sequence[str] = (),
    language: str = "",
    include_system: bool = False,
    extra_targets: Mapping[str, Target] | None = None,
    cache: ExaminationCache | bool | None = True,
    jobs: int | None = None,
) -> Report:
    """Judge every function, callback type and record that C (or extern "C" C++) files declare.

    ``targets`` names groups and targets; each is compared with ``base``, or all pairs without one.
    ``cache=True`` uses the user's cache directory, False or None none.

    Raises:
        FormatError: the files do not compile; the message is clang's, with file and line.
        NotFoundError: no such file or target.
        InvalidArgumentError: nothing to check.
        UnavailableError: the ``abi`` extra is not installed.
    """
    query = make_query(
        files, include_dirs=include_dirs, defines=defines, includes=includes, language=language,
        include_system=include_system,
    )  # fmt: skip
    chosen = select_targets(targets, extra_targets)
    against = find_target(base, extra_targets) if isinstance(base, str) else base
    store = default_cache() if cache is True else (cache or None)
    key = _report_key(query, chosen, against)
    if store is not None and (stored := store.load(key)) is not None:
        # An entry that something else wrote counts as absent.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return report_from_json(stored)
    examination = examine(query, chosen, base=against, jobs=jobs)
    report = judge(examination, chosen, against)
    if store is not None:
        store.store(key, report_to_json(report, signatures=True), examination.dependencies)
    return report


def make_query(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    include_dirs: Sequence[str] = (),
    defines: Sequence[str] = (),
    includes: Sequence[str] = (),
    language: str = "",
    include_system: bool = False,
) -> Query:
    """A query about one file or several."""
    several = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    return Query(
        files=tuple(str(file) for file in several),
        include_dirs=tuple(include_dirs),
        defines=tuple(defines),
        includes=tuple(includes),
        language=language,
        include_system=include_system,
    )


def examine_files(query: Query, targets: Sequence[Target], base: Target | None = None) -> Examination:
    """`examine` with the user's cache."""
    return examine(query, targets, base=base, cache=default_cache())


def _report_key(query: Query, targets: Sequence[Target], base: Target | None) -> str:
    parts = [
        "report",
        _FORMAT,
        default_toolchain().version,
        query.key_data(),
        [target.key_data() for target in targets],
        base.key_data() if base else None,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
