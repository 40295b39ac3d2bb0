"""What comes between two steps of a call: another thread that closes the store, Control-C, a short stack."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from sylvite.engines.base import Limits
from sylvite.engines.wasmtime import functions
from sylvite.errors import ClosedError, InvalidArgumentError, TrapError

NUMBER = '(module (func (export "seven") (result i32) (i32.const 7)))'
SECOND = 1_000_000_000


def in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except Exception as error:  # noqa: BLE001 - the caller looks
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


@pytest.fixture
def timed(engine):
    with engine.create_store(Limits(deadline_ns=SECOND)) as store:
        yield store


@pytest.mark.parametrize("raw", [False, True])
def test_store_closed_just_before_a_call_is_closed(engine, wat, timed, raw, monkeypatch):
    seven = timed.instantiate(engine.compile(wat(NUMBER)), {}).exports["seven"]
    call = seven.prepare() if raw else seven
    get_ident = threading.get_ident

    def close_meanwhile():
        monkeypatch.undo()
        in_thread(timed.close)
        return get_ident()

    # Python may run another thread after each call of a function.
    monkeypatch.setattr(*((functions, "get_ident") if raw else (threading, "get_ident")), close_meanwhile)
    with pytest.raises(ClosedError):
        call()


@pytest.mark.parametrize("raw", [False, True])
def test_store_is_held_from_a_calls_beginning(engine, wat, timed, raw, monkeypatch):
    seven = timed.instantiate(engine.compile(wat(NUMBER)), {}).exports["seven"]
    call = seven.prepare() if raw else seven
    outcomes = []
    monkeypatch.setattr(
        timed.watchdog, "arm", lambda _: outcomes.extend((in_thread(timed.close), in_thread(call)))
    )
    assert call() == 7
    assert [type(outcome) for outcome in outcomes] == [InvalidArgumentError] * 2


@pytest.mark.parametrize("raw", [False, True])
def test_call_that_fails_to_begin_leaves_the_store_free(engine, wat, timed, raw, monkeypatch):
    seven = timed.instantiate(engine.compile(wat(NUMBER)), {}).exports["seven"]
    call = seven.prepare() if raw else seven

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(timed.watchdog, "arm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call()
    assert in_thread(call) == 7


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("place", ["arm", "attend"])
def test_control_c_while_a_guard_begins_leaves_nothing_behind(engine, wat, place, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with engine.create_store() as store:
            seven = store.instantiate(engine.compile(wat(NUMBER)), {}).exports["seven"]
            with monkeypatch.context() as patched:
                patched.setattr(store.watchdog, place, lambda *_: os.kill(os.getpid(), signal.SIGINT))
                with pytest.raises(KeyboardInterrupt), store.guard(SECOND):
                    pytest.fail("the guard began")
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert not store.state.attended
            assert not store.state.caps
            with store.guard(SECOND):
                assert store.state.attended
                assert seven() == 7
            assert not store.state.attended
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_control_c_is_heard_through_a_handler_that_another_store_left(engine):
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with engine.create_store() as outer, engine.create_store() as inner:
            with outer.guard(None):
                handler = signal.getsignal(signal.SIGINT)
                with inner.guard(None):
                    assert inner.state.attended
                assert signal.getsignal(signal.SIGINT) is handler
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks pthreads")
@pytest.mark.parametrize("raw", [False, True])
def test_thread_with_a_short_stack_may_not_call(engine, wat, store, raw):
    text = '(module (func $f (export "deep") (result i32) (i32.add (i32.const 1) (call $f))))'
    deep = store.instantiate(engine.compile(wat(text)), {}).exports["deep"]
    call = deep.prepare() if raw else deep
    before = threading.stack_size(256 * 1024)
    try:
        for _ in range(2):
            outcome = in_thread(call)
            assert isinstance(outcome, InvalidArgumentError)
            assert "too short" in str(outcome)
    finally:
        threading.stack_size(before)
    assert isinstance(in_thread(call), TrapError)
