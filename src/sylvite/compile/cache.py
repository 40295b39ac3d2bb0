"""The content-addressed cache of compiled models.

An entry is a directory named by a hash of everything that decides its content. It is built aside and
renamed into place, so readers see whole entries only. A lock file per key keeps two processes from doing
the same work twice; correctness does not depend on it. Nothing in an entry changes after publication.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from ..errors import UnavailableError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "MANIFEST",
    "Cache",
    "cache_root",
    "digest_bytes",
    "digest_file",
    "digest_json",
]

ENVIRONMENT_VARIABLE = "SYLVITE_CACHE_DIR"
"""Environment variable that names another cache directory; read at each call."""

MANIFEST = "manifest.json"
_LAYOUT_VERSION = 1
_CHUNK_BYTES = 1 << 20

_locks: dict[str, threading.Lock] = {}
_locks_guard = threading.Lock()


def cache_root() -> Path:
    """The directory of all caches: ``$SYLVITE_CACHE_DIR``, or the user's cache directory."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("sylvite"))


def digest_bytes(data: bytes) -> str:
    """SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content in hexadecimal; the file is read in pieces."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


def digest_json(value: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``value``."""
    return digest_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


class Cache:
    """Entries of one kind below ``root``.

    Args:
        root: the cache directory; made when needed.
        kind: a name for the sort of entries, such as ``modules``.
    """

    def __init__(self, root: Path, kind: str) -> None:
        self._root = root / f"v{_LAYOUT_VERSION}"
        self._entries = self._root / kind
        self._kind = kind

    def find(self, key: str) -> Path | None:
        """The published, undamaged entry of ``key``."""
        entry = self._entries / key
        return entry if _intact(entry) else None

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A fresh directory on the cache's file system; removed at the end unless published.

        Raises:
            UnavailableError: the cache directory cannot be written.
        """
        try:
            parent = self._root / "work"
            parent.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkdtemp(dir=parent))
        except OSError as error:
            raise UnavailableError(
                f"the cache directory {self._root} cannot be written: {error.strerror}; "
                f"set {ENVIRONMENT_VARIABLE} to another one"
            ) from error
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, key: str, workspace: Path, manifest: Mapping[str, Any]) -> Path:
        """Make ``workspace`` the entry of ``key``, atomically; somebody else's equal entry is kept."""
        sizes = {file.name: file.stat().st_size for file in workspace.iterdir() if file.is_file()}
        (workspace / MANIFEST).write_text(json.dumps({**manifest, "sizes": sizes}), encoding="utf-8")
        entry = self._entries / key
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            workspace.rename(entry)
        except OSError:
            if _intact(entry):
                return entry
            shutil.rmtree(entry, ignore_errors=True)
            workspace.rename(entry)
        return entry

    def get_or_build(self, key: str, build: Callable[[Path], Mapping[str, Any]]) -> tuple[Path, bool]:
        """The entry of ``key`` and whether it was there; ``build(workspace)`` makes it and returns its
        manifest. One builder at a time per key, over threads and processes."""
        entry = self.find(key)
        if entry is not None:
            return entry, True
        with _key_lock(self._root, f"{self._kind}-{key}"):
            entry = self.find(key)
            if entry is not None:
                return entry, True
            with self.workspace() as workspace:
                return self.publish(key, workspace, build(workspace)), False


def read_manifest(entry: Path) -> dict[str, Any]:
    """The manifest of a published entry."""
    manifest: dict[str, Any] = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _intact(entry: Path) -> bool:
    """Whether an entry exists and each of its files has the length it was published with."""
    try:
        sizes = read_manifest(entry)["sizes"]
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextlib.contextmanager
def _key_lock(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of ``name`` against other threads and, where files can be locked, other processes."""
    with _locks_guard:
        lock = _locks.setdefault(f"{root}|{name}", threading.Lock())
    with lock:
        directory = root / "locks"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / name).open("ab")
        except OSError as error:
            raise UnavailableError(
                f"the cache directory {root} cannot be written: {error.strerror}; "
                f"set {ENVIRONMENT_VARIABLE} to another one"
            ) from error
        with file:
            _lock_file(file)
            yield


def _lock_file(file: BinaryIO) -> None:
    """Lock ``file`` until it is closed; file systems without locks are used without one."""
    try:
        import fcntl
    except ImportError:  # Windows: the thread lock remains, and publication stays atomic.
        return
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
