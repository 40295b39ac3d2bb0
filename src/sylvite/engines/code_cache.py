"""Compiled code on disk.

Compiled code is machine code: whoever can write an entry can run anything in this process. So entries
live in a directory that belongs to the user and nobody else may enter (mode 0700), and every entry carries
a digest of itself, which catches torn writes and rotten disks (not attackers: the directory does that).
Writes go to a temporary file that is renamed, so processes may share the directory.

Besides machine code it keeps what this package makes of nothing but its own sources and a model's bytes,
and runs: assembled kernels, programs translated to Python. Such keys contain
`sylvite.own_sources.sources_digest`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import InvalidArgumentError

__all__ = ["CodeCache", "CodeCacheStatistics"]

_MAGIC = b"SYLVCOD1"
_HEADER_BYTES = len(_MAGIC) + 32
_SUFFIX = ".code"
_HAS_OWNERS = hasattr(os, "geteuid")


@dataclasses.dataclass(slots=True)
class CodeCacheStatistics:
    """What a cache did since it was opened. ``failed_writes`` counts entries the disk did not take."""

    hits: int = 0
    misses: int = 0
    discarded: int = 0
    failed_writes: int = 0


class CodeCache:
    """Entries of bytes under keys, in a private directory.

    Args:
        directory: where; created with mode 0700 when it is not there.
        limit_bytes: when entries take more than this, the least recently used ones go.

    Raises:
        InvalidArgumentError: the directory is not one, or others than the user may write or read it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, limit_bytes: int = 1 << 30) -> None:
        self._directory = Path(directory)
        self._limit_bytes = limit_bytes
        self.statistics = CodeCacheStatistics()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_private()
        except OSError as error:
            raise InvalidArgumentError(f"code cache {self._directory}: {error}") from error

    @property
    def directory(self) -> Path:
        """Where entries are."""
        return self._directory

    @staticmethod
    def key(*parts: bytes) -> str:
        """A key that depends on every byte of every part."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def load(self, key: str) -> bytes | None:
        """The entry, or None when there is none. A damaged one is removed and counts as none."""
        path = self._path(key)
        try:
            data = self._read_own_file(path)
        except FileNotFoundError:
            self.statistics.misses += 1
            return None
        except OSError:
            self.discard(key)
            return None
        body = data[_HEADER_BYTES:]
        if data[:_HEADER_BYTES] != _MAGIC + hashlib.sha256(body).digest():
            self.discard(key)
            return None
        self.statistics.hits += 1
        # The time stamp orders entries for eviction; not having one for this use is no reason to fail.
        with contextlib.suppress(OSError):
            os.utime(path)
        return body

    def store(self, key: str, body: bytes) -> None:
        """Write an entry. A disk that does not take it is counted, not an error: the code is in memory."""
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix=".new-")
        except OSError:
            self.statistics.failed_writes += 1
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(body).digest())
                file.write(body)
            os.replace(temporary, self._path(key))
        except OSError:
            self.statistics.failed_writes += 1
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        self._evict()

    def remember(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The entry; when there is none, what ``make`` returns, which becomes the entry."""
        body = self.load(key)
        if body is None:
            body = make()
            self.store(key, body)
        return body

    def discard(self, key: str) -> None:
        """Remove an entry that turned out to be unusable."""
        self.statistics.discarded += 1
        with contextlib.suppress(OSError):
            os.unlink(self._path(key))

    def _path(self, key: str) -> Path:
        return self._directory / (key + _SUFFIX)

    def _read_own_file(self, path: Path) -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or (_HAS_OWNERS and status.st_uid != os.geteuid()):
                raise PermissionError(f"{path} is not a file of this user")
            return file.read()

    def _require_private(self) -> None:
        status = os.lstat(self._directory)
        if not stat.S_ISDIR(status.st_mode):
            raise InvalidArgumentError(f"code cache {self._directory} is not a directory")
        if not _HAS_OWNERS:
            return
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise InvalidArgumentError(
                f"code cache {self._directory} must belong to this user with mode 0700 (it has mode "
                f"{stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}): its contents are run as code"
            )
        parent = os.stat(self._directory.parent)
        if parent.st_mode & 0o002 and not parent.st_mode & stat.S_ISVTX:
            raise InvalidArgumentError(
                f"code cache {self._directory} is in a directory that anybody may write to"
            )

    def _evict(self) -> None:
        entries = []
        try:
            with os.scandir(self._directory) as listing:
                for entry in listing:
                    if entry.name.endswith(_SUFFIX):
                        status = entry.stat(follow_symlinks=False)
                        entries.append((status.st_mtime_ns, status.st_size, entry.path))
        except OSError:
            # Another process is removing entries too; the next write counts again.
            return
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
