"""Facts about files that did not change are not found out again."""

from __future__ import annotations

import os
import time

import pytest

from sylvite.compile import file_facts
from sylvite.compile.cache import cache_root, digest_bytes, digest_file
from sylvite.compile.file_facts import known_fact
from sylvite.compile.sources import resolve

DATA = bytes(range(256)) * 5000

pytestmark = pytest.mark.skipif(not file_facts._IDENTIFIES_FILES, reason="files have no numbers here")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_facts, "_QUIET_NS", -(10**12))
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return path


class Digest:
    """`digest_file`, counted."""

    def __init__(self):
        self.calls = 0

    def __call__(self, path):
        self.calls += 1
        return digest_file(path)


def entries():
    return sorted((cache_root() / "files").glob("*"))


def test_fact_of_an_unchanged_file_is_found_out_once(path):
    digest = Digest()
    for _ in range(3):
        assert known_fact(path, "sha256", digest) == digest_bytes(DATA)
    assert digest.calls == 1
    known_fact(path, "other", digest)
    assert digest.calls == 2


@pytest.mark.parametrize("change", ["content", "content-and-time", "other-file", "length"])
def test_fact_of_a_changed_file_is_found_out_again(path, change):
    digest = Digest()
    known_fact(path, "sha256", digest)
    status = path.stat()
    new = DATA[::-1] if change != "length" else DATA + b"x"
    time.sleep(0.02)
    if change == "other-file":
        other = path.with_name("other")
        other.write_bytes(new)
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
    else:
        path.write_bytes(new)
        if change == "content-and-time":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert known_fact(path, "sha256", digest) == digest_bytes(new)
    assert digest.calls == 2


def test_fact_of_a_file_changed_just_now_is_not_kept(path, monkeypatch):
    monkeypatch.setattr(file_facts, "_QUIET_NS", 2 * 10**9)
    digest = Digest()
    for _ in range(2):
        known_fact(path, "sha256", digest)
    assert digest.calls == 2
    assert entries() == []


def test_fact_of_a_file_that_changes_while_it_is_read_is_not_kept(path):
    def find(path):
        with path.open("ab") as file:
            file.write(b"more")
        return "?"

    known_fact(path, "sha256", find)
    assert entries() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"identity": 1, "fact": "x"}', "null"])
def test_fact_from_a_damaged_entry_is_not_believed(path, text):
    digest = Digest()
    known_fact(path, "sha256", digest)
    (entry,) = entries()
    entry.write_text(text)
    assert known_fact(path, "sha256", digest) == digest_bytes(DATA)
    assert known_fact(path, "sha256", digest) == digest_bytes(DATA)
    assert digest.calls == 2


def test_fact_without_a_cache_that_can_be_written_is_found_out(path, monkeypatch):
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(path / "below-a-file"))
    digest = Digest()
    for _ in range(2):
        assert known_fact(path, "sha256", digest) == digest_bytes(DATA)
    assert digest.calls == 2


def test_resolve_without_cache_reads_the_file(path, monkeypatch):
    path = path.rename(path.with_suffix(".mlir"))
    first = resolve(path).digest
    monkeypatch.setattr(file_facts, "_identity", lambda path: [0, 0, 1 << 30, 0, 0])
    monkeypatch.setattr("sylvite.compile.sources.digest_file", lambda path: "read")
    resolve(path)
    assert resolve(path, cache=False).digest == "read"
    assert first == digest_bytes(DATA)
