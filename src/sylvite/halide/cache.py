"""Linked pipelines by what they were built from, in memory and on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import platformdirs

__all__ = ["ENVIRONMENT_VARIABLE", "ModuleCache", "cache_folder"]

ENVIRONMENT_VARIABLE: Final = "SYLVITE_CACHE_DIR"
_MOST_IN_MEMORY: Final = 256


def cache_folder() -> Path:
    """Where pipelines are kept: below ``$SYLVITE_CACHE_DIR`` or the user's cache directory."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    return (Path(override) if override else Path(platformdirs.user_cache_dir("sylvite"))) / "halide"


class ModuleCache:
    """Keeps modules. A folder that cannot be written only costs speed."""

    def __init__(self) -> None:
        self._modules: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @staticmethod
    def key(*parts: bytes | str) -> str:
        """A digest of everything a module depends on."""
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The module for a key, made when neither memory nor disk has it."""
        data = self._modules.get(key)
        if data is not None:
            return data
        path = cache_folder() / f"{key}.wasm"
        try:
            data = path.read_bytes()
        except OSError:
            data = make()
            _store(path, data)
        with self._lock:
            if len(self._modules) >= _MOST_IN_MEMORY:
                self._modules.pop(next(iter(self._modules)))
            self._modules[key] = data
        return data


def _store(path: Path, data: bytes) -> None:
    """Write beside and rename, so that readers see whole files only."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
