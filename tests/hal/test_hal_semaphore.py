"""Semaphores and fences, with threads."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from sylvite.errors import DeadlineExceededError, InvalidArgumentError, KernelError, TrapError
from sylvite.hal import Fence, Semaphore

MS = 1_000_000


def test_semaphore_rises_and_never_falls():
    semaphore = Semaphore(3)
    assert semaphore.query() == 3
    semaphore.signal(7)
    assert semaphore.query() == 7
    for value in (7, 2, 1 << 64):
        with pytest.raises(InvalidArgumentError, match="cannot be signalled"):
            semaphore.signal(value)
    with pytest.raises(InvalidArgumentError, match="start"):
        Semaphore(-1)


def test_semaphore_failure_is_sticky_and_first_wins():
    semaphore = Semaphore()
    semaphore.fail(KernelError("first", code=1))
    semaphore.fail(KernelError("second", code=2))
    for use in (semaphore.query, lambda: semaphore.wait(1), lambda: semaphore.signal(1)):
        with pytest.raises(KernelError, match="first"):
            use()


def test_semaphore_wait_times_out():
    with pytest.raises(DeadlineExceededError, match="5 ms"):
        Semaphore().wait(1, 5 * MS)
    Semaphore(4).wait(4, 0)


def test_semaphore_wait_is_released_by_a_later_value():
    semaphore = Semaphore()
    timer = threading.Timer(0.02, semaphore.signal, [9])
    timer.start()
    semaphore.wait(5, 5000 * MS)
    timer.join()


def test_semaphore_wait_is_released_by_failure():
    semaphore = Semaphore()
    timer = threading.Timer(0.02, semaphore.fail, [TrapError("boom", code="unreachable")])
    timer.start()
    with pytest.raises(TrapError, match="boom"):
        semaphore.wait(5, 5000 * MS)
    timer.join()


def test_semaphore_ping_pong_between_threads():
    semaphore, rounds = Semaphore(), 50

    def pong():
        for value in range(1, 2 * rounds, 2):
            semaphore.wait(value, 5000 * MS)
            semaphore.signal(value + 1)

    thread = threading.Thread(target=pong)
    thread.start()
    for value in range(1, 2 * rounds, 2):
        semaphore.signal(value)
        semaphore.wait(value + 1, 5000 * MS)
    thread.join()
    assert semaphore.query() == 2 * rounds


def test_semaphore_callbacks_run_once_in_value_order():
    semaphore, seen = Semaphore(), []
    semaphore.on_reached(0, lambda error: seen.append(("now", error)))
    semaphore.on_reached(2, lambda error: seen.append((2, error)))
    semaphore.on_reached(1, lambda error: seen.append((1, error)))
    semaphore.on_reached(9, lambda error: seen.append((9, error)))
    assert seen == [("now", None)]
    semaphore.signal(2)
    assert seen[1:] == [(1, None), (2, None)]
    failure = KernelError("bad", code=1)
    semaphore.fail(failure)
    semaphore.on_reached(1, lambda error: seen.append(("late", error)))
    assert seen[3:] == [(9, failure), ("late", failure)]


def test_semaphore_failure_holds_nothing_of_those_who_saw_it():
    class Witness:
        pass

    witness = Witness()
    seen = weakref.ref(witness)
    semaphore = Semaphore()

    def fails(held):
        raise KernelError("bad", code=1)

    def waits(held):
        try:
            semaphore.query()
        except KernelError as error:
            return error.code

    try:
        fails(witness)
    except KernelError as error:
        semaphore.fail(error)
    gc.disable()
    try:
        assert waits(witness) == 1
        del witness
        assert seen() is None
    finally:
        gc.enable()


def test_fence_without_timepoints_is_reached():
    fence = Fence()
    assert fence.query()
    fence.wait(0)
    seen = []
    fence.on_reached(seen.append)
    assert seen == [None]


def test_fence_needs_all_timepoints():
    first, second = Semaphore(), Semaphore()
    fence = Fence([(first, 2), (second, 1)])
    seen = []
    fence.on_reached(seen.append)
    first.signal(2)
    assert not fence.query()
    with pytest.raises(DeadlineExceededError):
        fence.wait(MS)
    assert seen == []
    second.signal(1)
    assert fence.query()
    assert seen == [None]
    fence.wait()


def test_fence_failure_of_one_is_seen_though_others_are_not_reached():
    first, second = Semaphore(), Semaphore()
    fence = Fence([(first, 1), (second, 1)])
    seen = []
    fence.on_reached(seen.append)
    second.fail(KernelError("bad", code=3))
    for use in (fence.query, fence.wait, lambda: fence.wait(0)):
        with pytest.raises(KernelError, match="bad"):
            use()
    first.fail(KernelError("other", code=4))
    assert [error.code for error in seen] == [3]


def test_fence_insert_keeps_the_highest_value_per_semaphore():
    semaphore = Semaphore()
    fence = Fence([(semaphore, 5), (semaphore, 2)])
    assert fence.timepoints == ((semaphore, 5),)
    fence.signal()
    assert semaphore.query() == 5
    with pytest.raises(InvalidArgumentError):
        fence.signal()


def test_fence_join_waits_for_all():
    first, second = Fence([(Semaphore(), 1)]), Fence([(Semaphore(), 1)])
    joined = Fence.join([first, None, second])
    first.signal()
    assert not joined.query()
    second.signal()
    assert joined.query()


def test_fence_wait_times_out_with_the_whole_timeout_named():
    with pytest.raises(DeadlineExceededError, match="20 ms"):
        Fence([(Semaphore(), 1)]).wait(20 * MS)
