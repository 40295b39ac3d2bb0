"""One shared memory in two stores, used by two threads."""

from __future__ import annotations

import gc
import threading

import pytest

from sylvite import engines
from sylvite.engines.base import Limits
from sylvite.errors import InvalidArgumentError, OutOfMemoryError, TrapError, UnsupportedFeatureError

PAGE = 65536

COUNT = """(module
  (import "env" "memory" (memory 1 4 shared))
  (func (export "count") (param i32)
    (loop $again
      (drop (i32.atomic.rmw.add (i32.const 64) (i32.const 1)))
      (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
  (func (export "wait") (param i32) (result i32)
    (memory.atomic.wait32 (i32.const 128) (local.get 0) (i64.const 5000000000)))
  (func (export "wake") (result i32) (memory.atomic.notify (i32.const 128) (i32.const 1)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
)"""


@pytest.fixture
def shared(store):
    return store.create_memory(minimum_pages=1, maximum_pages=4, shared=True)


def test_shared_memory_two_stores_in_two_threads_count_together(engine, wat, shared):
    module = engine.compile(wat(COUNT))
    rounds = 200_000

    def run():
        with engine.create_store() as own:
            own.instantiate(module, {("env", "memory"): shared}).exports["count"](rounds)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int.from_bytes(shared.view(64, 4), "little") == 2 * rounds


def test_shared_memory_a_thread_waits_for_another(engine, wat, shared):
    module = engine.compile(wat(COUNT))
    outcome = []

    def run():
        with engine.create_store() as own:
            outcome.append(own.instantiate(module, {("env", "memory"): shared}).exports["wait"](0))

    thread = threading.Thread(target=run)
    thread.start()
    with engine.create_store() as own:
        wake = own.instantiate(module, {("env", "memory"): shared}).exports["wake"]
        while thread.is_alive() and not wake():
            thread.join(0.01)
    thread.join()
    assert outcome == [0]


def test_shared_memory_growth_is_seen_by_all_and_does_not_move(engine, store, wat, shared):
    base = shared.base_address
    grow = store.instantiate(engine.compile(wat(COUNT)), {("env", "memory"): shared}).exports["grow"]
    view = shared.view(0, 4)
    assert grow(1) == 1
    assert shared.byte_length == 2 * PAGE
    assert shared.grow(2) == 2
    assert grow(0) == 4
    assert shared.base_address == base
    shared.view(4 * PAGE - 1, 1)[0] = 1
    view[:] = b"abcd"
    assert bytes(shared.view(0, 4)) == b"abcd"
    with pytest.raises(OutOfMemoryError) as caught:
        shared.grow(1)
    assert caught.value.limit_bytes == 4 * PAGE


def test_shared_memory_view_outlives_stores(engine, wat):
    with engine.create_store() as own:
        memory = own.create_memory(minimum_pages=1, maximum_pages=2, shared=True)
        own.instantiate(
            engine.compile(wat('(module (import "e" "m" (memory 1 2 shared)))')), {("e", "m"): memory}
        )
        view = memory.view(0, 8)
    view[:] = b"survives"
    assert bytes(memory.view(0, 8)) == b"survives"
    del memory
    gc.collect()
    assert bytes(view) == b"survives"


def test_shared_memory_exported_by_a_module_is_found(engine, store, wat):
    text = '(module (memory (export "m") 1 3 shared) (data (i32.const 5) "hello"))'
    memory = store.instantiate(engine.compile(wat(text)), {}).exports["m"]
    assert bytes(memory.view(5, 5)) == b"hello"
    assert memory.maximum_pages == 3
    with engine.create_store() as other:
        module = engine.compile(wat('(module (import "e" "m" (memory 1 3 shared)))'))
        other.instantiate(module, {("e", "m"): memory})


def test_shared_memory_needs_a_maximum(store):
    with pytest.raises(InvalidArgumentError, match="maximum_pages"):
        store.create_memory(minimum_pages=1, shared=True)


def test_shared_memory_cap_becomes_its_maximum(engine):
    with engine.create_store(Limits(memory_bytes=2 * PAGE)) as own:
        memory = own.create_memory(minimum_pages=1, maximum_pages=100, shared=True)
        assert memory.maximum_pages == 2
        memory.grow(1)
        with pytest.raises(OutOfMemoryError):
            memory.grow(1)


def test_shared_memory_of_another_engine_is_refused(store, wat, engine, shared):
    with engines.create("wasmtime") as other, other.create_store() as foreign:
        module = other.compile(wat(COUNT))
        with pytest.raises(InvalidArgumentError, match="its engine"):
            foreign.instantiate(module, {("env", "memory"): shared})


REACH = """(module
  (import "env" "memory" (memory 1 4 shared))
  (func (export "reach") (param i32) (result i32) (i32.load (local.get 0))))"""


def test_shared_memory_access_out_of_bounds_traps_in_every_instance(engine, wat, shared):
    # Wasmtime aborts the process when it finds the memory of a fault in two instances of a store.
    modules = [engine.compile(wat(text)) for text in (REACH, COUNT)]
    for _ in range(2):
        with engine.create_store() as own:
            imports = {("env", "memory"): shared}
            instances = [own.instantiate(module, imports) for module in (*modules, modules[0])]
            for instance in (instances[0], instances[2]):
                for address in (65536, 5 * 65536, -4):
                    with pytest.raises(TrapError) as caught:
                        instance.exports["reach"](address)
                    assert caught.value.code == "memory_out_of_bounds"
                assert instance.exports["reach"](65532) == 0


def test_shared_memory_two_in_one_store_stay_apart(engine, wat, store):
    text = """(module
      (import "a" "m" (memory 1 4 shared))
      (func (export "get") (result i32) (i32.load (i32.const 8))))"""
    module = engine.compile(wat(text))
    for value in (3, 4):
        memory = store.create_memory(minimum_pages=1, maximum_pages=4, shared=True)
        memory.view(8, 1)[0] = value
        for _ in range(2):
            assert store.instantiate(module, {("a", "m"): memory}).exports["get"]() == value


DEFINER = """(module (memory (export "m") 1 100 shared)
  (func (export "load") (param i32) (result i32) (i32.load (local.get 0)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"""


@pytest.mark.parametrize("interruptible", [True, False])
def test_shared_memory_of_a_module_traps_there_and_where_it_is_imported(wat, interruptible):
    importer = """(module (import "e" "m" (memory 1 100 shared))
      (func (export "load") (param i32) (result i32) (i32.load (local.get 0))))"""
    with engines.create("wasmtime", interruptible=interruptible) as own, own.create_store() as store:
        definer = store.instantiate(own.compile(wat(DEFINER)), {}).exports
        importing = store.instantiate(own.compile(wat(importer)), {("e", "m"): definer["m"]}).exports
        for function in (importing["load"], definer["load"]):
            with pytest.raises(TrapError) as caught:
                function(PAGE)
            assert caught.value.code == "memory_out_of_bounds"


@pytest.mark.parametrize("interruptible", [True, False])
def test_shared_memory_of_a_module_grows_up_to_the_cap(wat, interruptible):
    with (
        engines.create("wasmtime", interruptible=interruptible) as own,
        own.create_store(Limits(memory_bytes=2 * PAGE)) as store,
    ):
        exports = store.instantiate(own.compile(wat(DEFINER)), {}).exports
        assert exports["grow"](2) == -1
        assert exports["grow"](1) == 1
        assert exports["m"].byte_length == 2 * PAGE
        with pytest.raises(OutOfMemoryError, match="cap"):
            store.instantiate(own.compile(wat("(module (memory 3 100 shared))")), {})


def test_shared_memory_beside_another_is_refused_without_interruption(wat):
    with (
        engines.create("wasmtime", interruptible=False) as own,
        pytest.raises(UnsupportedFeatureError, match="among several"),
    ):
        own.compile(wat("(module (memory 1) (memory 1 2 shared))"))


def test_shared_memory_is_imported_after_the_engine_closed(wat):
    own = engines.create("wasmtime")
    module = own.compile(wat(COUNT))
    with own.create_store() as store:
        memory = store.create_memory(minimum_pages=1, maximum_pages=4, shared=True)
        own.close()
        assert store.instantiate(module, {("env", "memory"): memory}).exports["grow"](1) == 1
