from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sylvite.compile.cache import MANIFEST, Cache, cache_root, digest_bytes, digest_file, digest_json
from sylvite.errors import UnavailableError


def _write(text: str, calls: list[str] | None = None):
    def build(workspace: Path) -> dict[str, str]:
        if calls is not None:
            calls.append(text)
        (workspace / "content").write_text(text)
        return {"text": text}

    return build


def test_cache_root_follows_environment_at_each_call(tmp_path, monkeypatch):
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(tmp_path / "a"))
    assert cache_root() == tmp_path / "a"
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "b"
    monkeypatch.delenv("SYLVITE_CACHE_DIR")
    assert cache_root().name == "sylvite"


def test_cache_second_request_does_not_build(tmp_path):
    cache, calls = Cache(tmp_path, "modules"), []
    first, hit = cache.get_or_build("key", _write("one", calls))
    assert not hit
    second, hit = cache.get_or_build("key", _write("two", calls))
    assert hit
    assert second == first
    assert calls == ["one"]
    assert (second / "content").read_text() == "one"


def test_cache_failed_build_publishes_nothing(tmp_path):
    cache = Cache(tmp_path, "modules")

    def fail(workspace: Path) -> dict[str, str]:
        (workspace / "content").write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get_or_build("key", fail)
    assert cache.find("key") is None
    assert not list((tmp_path / "v1" / "work").iterdir())


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "no manifest"])
def test_cache_damaged_entry_is_rebuilt(tmp_path, damage):
    cache = Cache(tmp_path, "modules")
    entry, _ = cache.get_or_build("key", _write("content"))
    match damage:
        case "truncate":
            (entry / "content").write_text("con")
        case "remove":
            (entry / "content").unlink()
        case "manifest":
            (entry / MANIFEST).write_text("{")
        case _:
            (entry / MANIFEST).unlink()
    assert cache.find("key") is None
    entry, hit = cache.get_or_build("key", _write("content"))
    assert not hit
    assert (entry / "content").read_text() == "content"


def test_cache_threads_asking_for_one_key_build_once(tmp_path):
    cache, calls, barrier = Cache(tmp_path, "modules"), [], threading.Barrier(8)
    found = []

    def ask() -> None:
        barrier.wait()
        found.append(cache.get_or_build("key", _write("x", calls))[0])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["x"]
    assert len(set(found)) == 1


def test_cache_processes_asking_for_one_key_agree(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from sylvite.compile.cache import Cache\n"
        "def build(w):\n"
        "    time.sleep(0.3); (w / 'content').write_text(sys.argv[2]); return {}\n"
        "entry, hit = Cache(pathlib.Path(sys.argv[1]), 'modules').get_or_build('key', build)\n"
        "print((entry / 'content').read_text(), int(hit))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert len({text for text, _ in answers}) == 1
    assert sum(hit == "0" for _, hit in answers) == 1


def test_cache_unwritable_directory_is_refused_with_advice(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UnavailableError, match="SYLVITE_CACHE_DIR"):
        Cache(file, "modules").get_or_build("key", _write("x"))


def test_cache_publishing_over_equal_entry_keeps_the_first(tmp_path):
    cache = Cache(tmp_path, "modules")
    with cache.workspace() as first, cache.workspace() as second:
        (first / "content").write_text("1")
        (second / "content").write_text("2")
        assert cache.publish("key", first, {}) == cache.publish("key", second, {})
    assert (tmp_path / "v1" / "modules" / "key" / "content").read_text() == "1"
    assert json.loads((tmp_path / "v1" / "modules" / "key" / MANIFEST).read_text())["sizes"] == {"content": 1}


def test_digest_of_file_equals_digest_of_bytes(tmp_path):
    data = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == digest_bytes(data)
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": 2})
