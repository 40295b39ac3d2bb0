"""Translations on disk: what is kept, under which key, and what is not believed."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys

import pytest
from translator_support import Function, module_of

from sylvite.engines.code_cache import CodeCache
from sylvite.errors import FormatError
from sylvite.translator import module as translator_module
from sylvite.translator import translate


@pytest.fixture(autouse=True)
def no_memory(monkeypatch):
    """Nothing is found in this process; sources count as old."""
    monkeypatch.setattr(translator_module, "_CACHE_ENTRIES", 0)
    monkeypatch.setattr(translator_module, "sources_digest", lambda *names: "".join(names).encode())


@pytest.fixture
def cache(tmp_path):
    return CodeCache(tmp_path / "code")


def adder(number=5, registers=2):
    function = Function("i_i").block().op("const.i32", number, 1).op("add.i32", 0, 1, 0).op("return", [0])
    module = module_of(function)
    (definition,) = module.functions
    function = dataclasses.replace(definition, i32_register_count=registers)
    return dataclasses.replace(module, functions=(function,))


def entries(cache):
    return sorted(cache.directory.glob("*.code"))


def test_translation_kept_on_disk_is_the_same_and_not_made_again(cache, monkeypatch):
    first = translate(adder(), cache=cache)
    monkeypatch.setattr(translator_module, "_translate", None)
    assert translate(adder(), cache=cache) == first
    assert (cache.statistics.hits, cache.statistics.misses) == (1, 1)
    namespace = {"C": first.constants}
    exec(first.code, namespace)
    assert namespace["F0"](37) == 42


def test_translation_of_other_bytes_or_tables_has_another_entry(cache):
    for module in (adder(), adder(6), adder(registers=8), dataclasses.replace(adder(), global_bytes=8)):
        translate(module, cache=cache)
    assert len(entries(cache)) == 4


@pytest.mark.parametrize("what", ["python", "sources"])
def test_translation_of_another_version_is_not_used(cache, monkeypatch, what):
    translate(adder(), cache=cache)
    if what == "python":
        monkeypatch.setattr(sys, "version", "4.0")
    else:
        monkeypatch.setattr(translator_module, "sources_digest", lambda *names: b"newer")
    translate(adder(), cache=cache)
    assert cache.statistics.hits == 0
    assert len(entries(cache)) == 2


def test_translation_is_not_kept_where_the_sources_are_unknown(cache, monkeypatch):
    monkeypatch.setattr(translator_module, "sources_digest", lambda *names: None)
    translate(adder(), cache=cache)
    assert not entries(cache)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    ],
)
def test_translation_damaged_on_disk_is_made_and_kept_again(cache, damage):
    first = translate(adder(), cache=cache)
    (entry,) = entries(cache)
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    assert translate(adder(), cache=cache) == first
    assert cache.statistics.discarded == 1
    assert entry.read_bytes()[:8] == good[:8]
    assert translate(adder(), cache=cache) == first
    assert cache.statistics.hits == 1


@pytest.mark.parametrize("body", [b"", b"nonsense", b"N", translator_module.marshal.dumps(("",) * 5)])
def test_translation_entry_that_is_no_translation_is_made_again(cache, body):
    first = translate(adder(), cache=cache)
    cache.store(entries(cache)[0].stem, body)
    assert translate(adder(), cache=cache) == first
    assert cache.statistics.discarded == 1
    assert translate(adder(), cache=cache) == first
    assert cache.statistics.discarded == 1


def test_translation_of_unverified_bytecode_verifies_it_once(cache, monkeypatch):
    translate(adder(), verified=False, cache=cache)
    monkeypatch.setattr(translator_module, "verify", None)
    translate(adder(), verified=False, cache=cache)
    assert cache.statistics.hits == 1


def test_translation_of_malformed_bytecode_is_refused_each_time_and_not_kept(cache):
    # Its bytes are those of a module that is kept, but it declares fewer registers than it uses.
    translate(adder(), cache=cache)
    hostile = adder(registers=1)
    for _ in range(2):
        with pytest.raises(FormatError, match="register 1 of 1"):
            translate(hostile, verified=False, cache=cache)
    assert len(entries(cache)) == 1


def _translate_often(directory, start):
    cache = CodeCache(directory)
    start.wait(20)
    for number in range(20):
        translate(adder(number), cache=cache)
    return cache.statistics.discarded


def test_translations_written_by_two_processes_at_once_are_whole(cache):
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Manager() as manager, context.Pool(2) as pool:
        start = manager.Event()
        running = [pool.apply_async(_translate_often, (cache.directory, start)) for _ in range(2)]
        start.set()
        assert [result.get(60) for result in running] == [0, 0]
    for number in range(20):
        translate(adder(number), cache=cache)
    assert cache.statistics.hits == 20
