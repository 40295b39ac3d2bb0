"""The queue's answers to errors that are not ours."""

from __future__ import annotations

import pytest

from sylvite.errors import (
    ClosedError,
    GuestError,
    InternalError,
    KernelError,
    OutOfMemoryError,
    StatusCode,
    SylviteError,
)
from sylvite.hal import Fence, Semaphore
from sylvite.hal.queue import Queue


def new_fence():
    return Fence([(Semaphore(), 1)])


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("odd"), InternalError),
        (MemoryError(), OutOfMemoryError),
        (KernelError("bad", code=1), KernelError),
    ],
)
def test_queue_error_of_an_operation_arrives_typed_at_its_fence(raised, expected):
    queue, signal = Queue("test"), new_fence()
    queue.submit("work", None, signal, raising(raised))
    with pytest.raises(expected) as caught:
        signal.wait(0)
    assert str(caught.value) == str(raised) or caught.value.__cause__ is raised
    with pytest.raises(expected):
        queue.submit("work", None, None, raising(raised))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_queue_interrupt_fails_the_fence_and_goes_on_to_the_caller(interrupt):
    queue, signal, after = Queue("test"), new_fence(), new_fence()
    queue.submit("after", signal, after, lambda: None)
    with pytest.raises(interrupt):
        queue.submit("work", None, signal, raising(interrupt()))
    for fence in (signal, after):
        with pytest.raises(GuestError, match=interrupt.__name__):
            fence.wait(0)
    again = new_fence()
    queue.submit("again", None, again, lambda: None)
    assert again.query()


def test_queue_interrupt_in_a_chain_fails_what_was_ready_too():
    queue, signal = Queue("test"), new_fence()
    first, second = new_fence(), new_fence()
    queue.submit("first", signal, first, raising(KeyboardInterrupt()))
    queue.submit("second", signal, second, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        queue.submit("start", None, signal, lambda: None)
    for fence in (first, second):
        with pytest.raises(GuestError):
            fence.wait(0)


def test_queue_callback_that_submits_is_run_by_the_same_loop():
    queue, order, signal = Queue("test"), [], new_fence()

    def submit_more(_):
        queue.submit("nested", None, None, lambda: order.append("nested"))
        order.append("callback")

    signal.on_reached(submit_more)
    queue.submit("outer", None, signal, lambda: order.append("outer"))
    assert order == ["outer", "callback", "nested"]


def test_queue_close_releases_once_then_fails_what_waits():
    queue, released, wait, signal = Queue("test"), [], new_fence(), new_fence()
    queue.submit("late", wait, signal, lambda: released.append("never"))
    queue.close(lambda: released.append("once"))
    queue.close(lambda: released.append("twice"))
    wait.signal()
    assert released == ["once"]
    with pytest.raises(ClosedError, match="closed before queue late ran"):
        signal.wait(0)
    with pytest.raises(ClosedError):
        queue.submit("more", None, None, lambda: None)


def test_queue_signal_of_a_failed_semaphore_keeps_its_failure():
    queue, semaphore = Queue("test"), Semaphore()
    semaphore.fail(KernelError("earlier", code=9))
    queue.submit("work", None, Fence([(semaphore, 1)]), lambda: None)
    with pytest.raises(SylviteError, match="earlier") as caught:
        semaphore.query()
    assert caught.value.status is StatusCode.INTERNAL
