"""What is known of files already: to hash the weights of a model takes longer than to load it.

An entry says what the system told of a file when it was read. A file of which the system says the same now
has the same content, as it has for version control systems: every write changes the time of the last change,
which nobody can set back. Only files that had been left alone for a while are entered, because two changes
within one tick of the clock have the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .cache import cache_root

__all__ = ["known_fact"]

_LEAST_BYTES = 1 << 20
_QUIET_NS = 2_000_000_000
_IDENTIFIES_FILES = sys.platform != "win32"
"""Whether files have numbers, and times that only the system sets."""


Fact = TypeVar("Fact", str, list[str])


def known_fact(path: Path, name: str, find: Callable[[Path], Fact]) -> Fact:
    """What ``find`` says of a file's content, through the cache when it is a large file that does not change.

    Args:
        path: the file.
        name: what is asked; changes when ``find`` does.
        find: reads the file; returns text or a list of texts.

    Raises:
        OSError: it cannot be read.
    """
    before = _identity(path)
    if not _IDENTIFIES_FILES or before[2] < _LEAST_BYTES:
        return find(path)
    place = os.fsencode(path.absolute())
    entry = cache_root() / "files" / f"{hashlib.sha256(place).hexdigest()}-{name}.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(entry.read_text(encoding="utf-8"))
        if isinstance(known, dict) and known.get("identity") == before and "fact" in known:
            fact: Fact = known["fact"]
            return fact
    begin = time.time_ns()
    fact = find(path)
    if _identity(path) == before and begin - max(before[3:]) > _QUIET_NS:
        _write(entry, json.dumps({"identity": before, "fact": fact}))
    return fact


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _write(entry: Path, text: str) -> None:
    """Put an entry in place; a cache that cannot be written is no reason to fail."""
    temporary = None
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=entry.parent, prefix=".new-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, entry)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
