"""Stopping guests through words that only the host can write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from sylvite import engines, wasm
from sylvite.engines.base import Limits
from sylvite.errors import DeadlineExceededError, FormatError, LinkError, TrapError, UnsupportedFeatureError
from sylvite.wasm.interruption import make_interruptible

MILLISECOND = 1_000_000

ENDLESS = {
    "a loop": "(func $f (export {name}) (loop br 0))",
    "an inner loop": "(func $f (export {name}) (loop (loop br 0) br 0))",
    "a second loop": (
        "(func $f (export {name}) (local i32) (local.set 0 (i32.const 9))"
        " (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))) (loop br 0))"
    ),
    "a loop with values": (
        "(func $f (export {name}) (i32.const 1) (loop (param i32) (result i32) (br 0)) drop)"
    ),
    "tail calls": "(func $f (export {name}) (return_call $f))",
    "calls of tail calls": "(func $g (return_call $g)) (func $f (export {name}) (call $g))",
    "two calls of itself": (
        "(func $r (param i32) (if (local.get 0) (then"
        " (call $r (i32.sub (local.get 0) (i32.const 1)))"
        " (call $r (i32.sub (local.get 0) (i32.const 1))))))"
        " (func $f (export {name}) (call $r (i32.const 200)))"
    ),
}


@pytest.mark.parametrize("memory", ["", "(memory 1)", "(memory i64 1)", "(memory 1 2 shared)"])
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_endless_code_is_stopped(engine, wat, memory, text):
    module = engine.compile(wat(f"(module {memory} {text.format(name=chr(34) + 'f' + chr(34))})"))
    with engine.create_store(Limits(deadline_ns=20 * MILLISECOND)) as store:
        function = store.instantiate(module, {}).exports["f"]
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match="longer than 20 ms in"):
                function()


def test_endless_loop_behind_many_others_is_stopped(engine, wat):
    # More loops than there are words.
    loops = "(loop (br_if 0 (local.tee 0 (i32.const 0))))" * 17_000
    with engine.create_store(Limits(deadline_ns=200 * MILLISECOND)) as store:
        text = f'(module (func (export "f") (local i32) {loops} (loop br 0)))'
        function = store.instantiate(engine.compile(wat(text)), {}).exports["f"]
        with pytest.raises(DeadlineExceededError):
            function()


def test_unreachable_code_is_a_trap_of_the_guest(engine, wat):
    with engine.create_store(Limits(deadline_ns=10**12)) as store:
        function = store.instantiate(engine.compile(wat('(module (func (export "f") unreachable))')), {})
        with pytest.raises(TrapError, match="unreachable"):
            function.exports["f"]()


@pytest.mark.parametrize("name", ["stop", "memory", "else"])
def test_module_that_imports_the_words_is_refused(engine, wat, name):
    text = f'(module (import "sylvite:host" "{name}" (memory 1 1)) (func (export "f") (loop br 0)))'
    with pytest.raises(LinkError, match="the host's alone") as caught:
        engine.compile(wat(text))
    assert caught.value.symbols == (name,)


def test_module_that_imports_the_words_for_a_function_is_refused(engine, wat):
    with pytest.raises(LinkError, match="the host's alone"):
        engine.compile(wat('(module (import "sylvite:host" "stop" (func)))'))


@pytest.mark.parametrize(
    "text", ["(memory 1) (memory 1)", '(import "a" "b" (memory 1)) (memory 1)', "(memory 1) (memory i64 1)"]
)
def test_module_with_two_memories_is_refused(engine, wat, text):
    with pytest.raises(UnsupportedFeatureError, match="2 memories"):
        engine.compile(wat(f"(module {text})"))


# i32.const 0, i32.const 0, i32.store of a memory by index; memory.fill, memory.grow of one.
@pytest.mark.parametrize("memories", [0, 1])
@pytest.mark.parametrize(
    "code",
    [
        "41 00 41 00 36 42 {index} 00",
        "41 00 41 00 41 04 fc 0b {index}",
        "41 01 40 {index} 1a",
    ],
    ids=["store", "fill", "grow"],
)
def test_code_cannot_name_a_memory_that_the_module_has_not(engine, memories, code):
    module = wasm.ModuleBuilder("hostile")
    if memories:
        module.add_memory(1)
    module.function("f", export=True)
    decoded = wasm.decode(module.build())
    body = b"\0" + bytes.fromhex(code.format(index=f"{memories:02x}")) + b"\x0b"
    hostile = wasm.rewrite.replace_body(decoded, 0, wasm.FunctionBody(data=body))
    with pytest.raises(FormatError, match="memory"):
        engine.compile(wasm.encode(hostile))


def test_module_with_a_memory_of_its_own_keeps_it(engine, wat):
    text = (
        '(module (memory (export "m") 2 3) (data (i32.const 65536) "data")'
        ' (func (export "f") (result i32) (loop) (i32.load (i32.const 65536))))'
    )
    module = engine.compile(wat(text))
    assert list(module.import_names) == []
    with engine.create_store() as store:
        first, second = (store.instantiate(module, {}).exports for _ in range(2))
        first["m"].view(65536, 4)[:] = b"\1\0\0\0"
        assert (first["f"](), second["f"]()) == (1, int.from_bytes(b"data", "little"))
        assert first["m"].byte_length == 2 * 65536
        assert first["m"].maximum_pages == 3


def test_stop_of_one_call_spares_the_next(engine, wat):
    text = (
        '(module (func $endless (export "count") (param i32)'
        " (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"
    )
    with engine.create_store() as store:
        count = store.instantiate(engine.compile(wat(text)), {}).exports["count"].prepare()
        done = threading.Event()

        def interrupt():
            while not done.is_set():
                store.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        messages = []
        for _ in range(300):
            try:
                count(100_000)
            except DeadlineExceededError as error:
                messages.append(str(error))
        done.set()
        thread.join()
        assert set(messages) == {"the guest was interrupted in endless"}
        count(100_000)


def test_checks_leave_leaves_alone(wat):
    module = wasm.decode(wat("(module (func (param i32) (result i32) local.get 0) (func (call 1)) )"))
    leaf, caller = make_interruptible(module).code
    assert leaf is module.code[0]
    assert len(caller.data) > len(module.code[1].data)


def test_engine_without_interruption_takes_two_memories(wat):
    with engines.create("wasmtime", interruptible=False) as engine, engine.create_store() as store:
        store.instantiate(engine.compile(wat("(module (memory 1) (memory 1))")), {})


CONTROL_C = """
import os, signal, sys, threading
from sylvite import engines
from sylvite.wasm import ModuleBuilder
module = ModuleBuilder("example")
spin = module.function("spin", export=True)
with spin.loop() as again:
    spin.br(again)
with engines.create("wasmtime") as engine, engine.create_store() as store:
    function = store.instantiate(engine.compile(module.build()), {}).exports["spin"]
    for call in (function, function.prepare(), function):
        threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            with store.guard(None):
                call()
        except KeyboardInterrupt:
            continue
        raise SystemExit("not interrupted")
    # A stale signal stops nobody.
    store.set_deadline(400_000_000)
    try:
        with store.guard(None):
            function()
    except Exception as error:
        assert "longer than 400 ms" in str(error), error
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
def test_control_c_stops_an_endless_loop():
    def listen():
        # A background job of a shell ignores the signal, and hands that on.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    done = subprocess.run(
        [sys.executable, "-c", CONTROL_C],
        check=False,
        timeout=60,
        capture_output=True,
        preexec_fn=listen if os.name == "posix" else None,
    )
    assert done.returncode == 0, done.stderr.decode()
