"""A cache of examinations on disk. An entry holds the digests of every file it was made from, so a
changed header is never answered from the cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

__all__ = ["ExaminationCache", "default_cache"]


def _digest(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


class ExaminationCache:
    """Examinations by key in one folder. Unreadable entries count as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"

    def load(self, key: str) -> dict[str, Any] | None:
        """The stored data, or None when there is none or a file it was made from has changed."""
        try:
            with gzip.open(self._path(key), "rt", encoding="utf-8") as stream:
                entry = json.load(stream)
            dependencies: dict[str, str] = entry["dependencies"]
            data: dict[str, Any] = entry["data"]
        except (OSError, ValueError, KeyError, EOFError):
            return None
        fresh = all(_digest(file) == digest for file, digest in dependencies.items())
        if not fresh:
            return None
        return data

    def store(self, key: str, data: dict[str, Any], dependencies: Sequence[str]) -> None:
        """Write an entry; a folder that cannot be written to means no caching, not a failure."""
        entry = {"dependencies": {file: _digest(file) for file in dependencies}, "data": data}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder)
            with (
                os.fdopen(handle, "wb") as raw,
                gzip.open(raw, "wt", compresslevel=1, encoding="utf-8") as stream,
            ):
                json.dump(entry, stream, separators=(",", ":"))
            os.replace(name, self._path(key))
        except OSError:
            return


def default_cache() -> ExaminationCache:
    """The cache below the user's cache directory."""
    return ExaminationCache(Path(platformdirs.user_cache_dir("sylvite")) / "abi")
