"""The cache of compiled code on disk."""

from __future__ import annotations

import multiprocessing
import os
import stat
import sys

import pytest
import wasmtime

from sylvite import engines
from sylvite.engines.code_cache import CodeCache
from sylvite.errors import FormatError, InvalidArgumentError

ADD = '(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))'

needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no file owners here")


def add_through(cache_dir, data, **options):
    """Compile and run in a fresh engine; return the cache's statistics."""
    with engines.create("wasmtime", cache_dir=cache_dir, **options) as engine, engine.create_store() as store:
        assert store.instantiate(engine.compile(data), {}).exports["add"](2, 3) == 5
        return engine.cache.statistics


@pytest.fixture
def add(wat):
    return wat(ADD)


def entries(cache_dir):
    return sorted(cache_dir.glob("wasmtime-*/*.code"))


def test_cache_second_engine_finds_what_the_first_compiled(tmp_path, add):
    assert add_through(tmp_path, add).misses == 1
    again = add_through(tmp_path, add)
    assert (again.hits, again.misses, again.discarded) == (1, 0, 0)
    assert len(entries(tmp_path)) == 1


def test_cache_entry_is_really_what_runs(tmp_path, add, monkeypatch):
    add_through(tmp_path, add)
    monkeypatch.setattr("sylvite.engines.wasmtime.engine._compile", None)
    assert add_through(tmp_path, add).hits == 1


def test_cache_keys_depend_on_content_and_settings(tmp_path, add, wat):
    add_through(tmp_path, add)
    add_through(tmp_path, wat(ADD.replace("i32.add", "i32.add nop")))
    add_through(tmp_path, add, deterministic=True)
    add_through(tmp_path, add, interruptible=False)
    add_through(tmp_path, add, stack_bytes=1 << 20)
    assert len(entries(tmp_path)) == 5
    add_through(tmp_path, add, parallel=False)
    assert len(entries(tmp_path)) == 5


def test_cache_key_separates_its_parts():
    assert CodeCache.key(b"ab", b"c") != CodeCache.key(b"a", b"bc")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"X" + data[1:],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    ],
)
def test_cache_damaged_entry_is_discarded_and_compiled_again(tmp_path, add, damage):
    add_through(tmp_path, add)
    (entry,) = entries(tmp_path)
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    after = add_through(tmp_path, add)
    assert (after.discarded, after.hits) == (1, 0)
    assert entry.read_bytes()[:8] == good[:8]
    assert add_through(tmp_path, add).hits == 1


def test_cache_intact_entry_of_a_foreign_engine_is_discarded(tmp_path, add):
    add_through(tmp_path, add)
    (entry,) = entries(tmp_path)
    key = entry.stem
    config = wasmtime.Config()
    config.wasm_simd = False
    config.wasm_relaxed_simd = False
    foreign = bytes(wasmtime.Module(wasmtime.Engine(config), add).serialize())
    CodeCache(entry.parent).store(key, foreign)
    after = add_through(tmp_path, add)
    assert (after.hits, after.discarded) == (1, 1)
    assert add_through(tmp_path, add).discarded == 0


def test_cache_does_not_keep_modules_that_do_not_compile(tmp_path):
    with engines.create("wasmtime", cache_dir=tmp_path) as engine, pytest.raises(FormatError):
        engine.compile(b"\0asm\1\0\0\0\1\x05")
    assert entries(tmp_path) == []


@needs_owners
def test_cache_directory_is_private(tmp_path, add):
    add_through(tmp_path / "deep" / "er", add)
    (folder,) = (tmp_path / "deep" / "er").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entries(tmp_path / "deep" / "er")[0].stat().st_mode) == 0o600


@needs_owners
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_cache_directory_open_to_others_is_refused(tmp_path, add, mode):
    add_through(tmp_path, add)
    (folder,) = tmp_path.iterdir()
    folder.chmod(mode)
    with pytest.raises(InvalidArgumentError, match="mode 0700"):
        engines.create("wasmtime", cache_dir=tmp_path)


@needs_owners
def test_cache_directory_below_a_public_one_is_refused(tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    with pytest.raises(InvalidArgumentError, match="anybody may write"):
        CodeCache(public / "cache")


@needs_owners
def test_cache_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidArgumentError, match="not a directory"):
        CodeCache(tmp_path / "link")


def test_cache_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError):
        CodeCache(tmp_path / "file")


@needs_owners
def test_cache_entry_that_is_a_link_is_not_followed(tmp_path, add):
    add_through(tmp_path, add)
    (entry,) = entries(tmp_path)
    target = tmp_path / "elsewhere"
    entry.rename(target)
    entry.symlink_to(target)
    assert add_through(tmp_path, add).discarded == 1
    assert not entry.is_symlink()


def test_cache_write_that_fails_is_counted_and_harmless(tmp_path, add, monkeypatch):
    def refuse(*_args, **_keywords):
        raise OSError("disk full")

    monkeypatch.setattr("sylvite.engines.code_cache.os.replace", refuse)
    statistics = add_through(tmp_path, add)
    assert (statistics.failed_writes, statistics.misses) == (1, 1)
    assert not list(tmp_path.glob("*/.new-*"))


def test_cache_evicts_the_least_recently_used(tmp_path):
    cache = CodeCache(tmp_path / "c", limit_bytes=2500)
    for index, key in enumerate("abc"):
        cache.store(key, b"x" * 1000)
        os.utime(tmp_path / "c" / f"{key}.code", (index, index))
        if key == "b":
            cache.load("a")
    assert cache.load("a") == b"x" * 1000
    assert cache.load("b") is None
    assert cache.load("c") == b"x" * 1000


def _race(cache_dir, data, barrier, failures):
    try:
        barrier.wait(60)
        for _ in range(20):
            add_through(cache_dir, data)
            for entry in entries(cache_dir):
                entry.unlink(missing_ok=True)
    except BaseException as error:
        failures.put(repr(error))
        raise


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be replaced there")
def test_cache_is_safe_with_concurrent_processes(tmp_path, add):
    context = multiprocessing.get_context("spawn")
    barrier, failures = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_race, args=(tmp_path, add, barrier, failures)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert failures.empty()
