"""Running programs: one engine call from the thread that submits, and threads that help.

Worker 0 is whoever calls `Workers.run`. Helpers are threads, one per replica of the link space, that stay
inside the sandbox between submissions (spinning briefly, then asleep in ``memory.atomic.wait32``), so that
waking them takes no Python. Linking needs their stores: `Workers.park` brings them out first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final

from ...engines.base import Function, RawCall, Store
from ...errors import DeadlineExceededError, GuestError, SylviteError, TrapError
from .aside import SideWorker
from .outcomes import count_run, named, told_failure
from .program import Program
from .sequencer import CLOSED, MARK_TYPES, RECORD_BYTES, Control, Op, Record, WorkerBlock, assemble
from .timeline import Timeline
from .workgroup_state import WorkgroupState

if TYPE_CHECKING:
    from ...linker import LinkSpace
    from ...linker.replica import Replica

__all__ = ["Workers"]

_WORD: Final = 4
# Divided once: members of enumerations take long to calculate with, and every run writes this word.
_TRACE: Final = int(Control.TRACE) // _WORD
_STOP: Final = int(Control.STOP) // _WORD
# How long a stopped submission's helpers may take to leave before they are interrupted (again).
_GATHER_NS: Final = 20_000_000
# After so long they are brought out of the sandbox: guests can write over what they count by.
_PATIENCE_NS: Final = 500_000_000
_PARK_S: Final = 0.05


class _Crew:
    """What helper threads share with their owner; does not know the owner, who may be collected."""

    def __init__(self, control: int, words: memoryview) -> None:
        self.control = control
        self.words = words
        self.changed = threading.Condition()
        self.serving = False
        self.closed = False
        self.inside = 0
        # (failure, address of the record that ran) of the present submission.
        self.failures: list[tuple[BaseException, int]] = []
        # The store of a call that helpers take part in from inside; see `Workers.lend`.
        self.borrower: Store | None = None
        self.threads: set[int] = set()

    def enter(self) -> bool:
        """Wait to be called into the sandbox; false at the end."""
        with self.changed:
            while not (self.serving or self.closed):
                self.changed.wait()
            if self.closed:
                return False
            self.inside += 1
            return True

    def leave(self) -> None:
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()


class _Helper:
    """One further worker: a thread with a store of its own."""

    def __init__(
        self,
        crew: _Crew,
        replica: Replica,
        calls: dict[str, RawCall],
        block: memoryview,
        arguments: tuple[int, ...],
    ) -> None:
        self.crew = crew
        self.store = replica.store
        self._replica = replica
        self._calls = calls
        self.block = block
        self._arguments = arguments

    @property
    def is_active(self) -> bool:
        """Whether it is inside a submission."""
        return bool(self.block[WorkerBlock.ACTIVE // _WORD])

    def work(self, processor: int | None) -> None:
        """The thread's life."""
        if processor is not None:
            os.sched_setaffinity(0, {processor})
        crew = self.crew
        crew.threads.add(threading.get_ident())
        while crew.enter():
            try:
                while crew.serving:
                    self._serve()
            finally:
                crew.leave()

    def _serve(self) -> None:
        crew = self.crew
        try:
            self._calls["serve"](*self._arguments)
        except BaseException as error:  # noqa: BLE001 - told to worker 0, who raises it
            # Interrupted while idle means nothing: it was meant for a submission that is over.
            if self.is_active:
                error = self._replica.stack.explained(error)
                borrower = crew.borrower
                if borrower is None and not isinstance(error, SylviteError):
                    wrapped = GuestError(f"a worker was stopped by {type(error).__name__}: {error}")
                    wrapped.__cause__ = error
                    error = wrapped
                crew.failures.append((error, self.block[WorkerBlock.PROGRESS // _WORD]))
                # Not by a call of the sequencer, which may be interrupted like the one that was.
                crew.words[_STOP] = 1
                if borrower is not None and borrower.engine.capabilities.deadlines:
                    # Its call lasts until this helper has left.
                    borrower.interrupt()
                while self.is_active:
                    with contextlib.suppress(DeadlineExceededError):
                        self._calls["leave"](*self._arguments[:2])


class Workers:
    """Runs programs on a link space. One run at a time; the owner locks.

    Args:
        space: its replicas become helpers.
        states: workgroup states, one per worker.
        pin: processors to fix the helpers to, one each, the first for the second worker; ``None`` to let
            the system choose.
        sides: how many of the space's replicas, its last ones, become side workers instead.

    Raises:
        OutOfMemoryError: there is no room for the control blocks.
    """

    def __init__(
        self,
        space: LinkSpace,
        states: WorkgroupState,
        *,
        pin: Sequence[int] | None = None,
        sides: int = 0,
    ) -> None:
        self._space = space
        self._states = states
        self.count = 1 + len(space.replicas) - sides
        self._pin = pin
        self._control = space.heap.allocate(Control.BYTE_LENGTH)
        blocks_length = WorkerBlock.BYTE_LENGTH * self.count
        self._blocks = space.heap.allocate(blocks_length)
        space.memory.clear(self._control, Control.BYTE_LENGTH)
        space.memory.clear(self._blocks, blocks_length)
        self._words = space.view(self._control, Control.BYTE_LENGTH).cast("I")
        self._words[Control.GATE // _WORD] = CLOSED & 0xFFFFFFFF
        self._own_block = self._block(0)
        self._crew = _Crew(self._control, self._words)
        self._helpers: list[_Helper] = []
        self._threads: list[threading.Thread] = []
        self._timeline = Timeline(space)
        self._calls: dict[str, RawCall] = {}
        self._functions: dict[str, Function] = {}
        self._arguments = (self._control, self._blocks, states.address)
        self.sides = tuple(
            SideWorker(space, replica, worker, states.address_of(worker), self._timeline)
            for worker, replica in enumerate(space.replicas[self.count - 1 :], self.count)
        )
        """What runs whole programs beside `run`, in threads of their own."""

    def _block(self, worker: int) -> memoryview:
        address = self._blocks + WorkerBlock.BYTE_LENGTH * worker
        return self._space.view(address, WorkerBlock.BYTE_LENGTH).cast("I")

    def _prepare(self) -> None:
        """Instantiate the sequencer, here and for every helper."""
        space = self._space
        mark = space.make_function(MARK_TYPES, (), self._timeline.mark)
        compiled = space.compile(assemble(), name="sequencer")
        instance = space.instantiate(compiled, {**space.platform, ("env", "mark"): mark})
        functions: dict[str, Function] = dict(instance.exports)  # type: ignore[arg-type]
        for side in self.sides:
            side.prepare(functions["run_alone"])
        for worker, replica in enumerate(space.replicas[: self.count - 1], 1):
            calls = {name: replica.function(functions[name]).prepare() for name in ("serve", "leave")}
            arguments = (
                self._control,
                self._blocks + WorkerBlock.BYTE_LENGTH * worker,
                self._states.address_of(worker),
                worker,
                self.count,
            )
            self._helpers.append(_Helper(self._crew, replica, calls, self._block(worker), arguments))
        self._functions = functions
        self._calls = {name: functions[name].prepare() for name in ("run", "gather", "shut_down")}

    def prepare(self, program: Program) -> None:
        """Give a program that runs often a call of its own. A call keeps its arguments, but for the first,
        whose place the result takes. No run may be in progress."""
        if not self._calls:
            self._prepare()
        call = self._functions["run"].prepare()
        call.set_arguments(program.address, *self._arguments, self.count if program.is_parallel else 1)
        program.call = call

    # -- running ------------------------------------------------------------------------------------

    def run(self, program: Program) -> None:
        """Run a patched program to its end.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
            InvalidArgumentError: an indirect dispatch found a workgroup count that is too large.
        """
        if not self._calls:
            self._prepare()
        tracer = self._space.tracer
        workers = self.count if program.is_parallel else 1
        is_traced = self._words[_TRACE] = tracer.enabled
        if is_traced:
            self._timeline.program = weakref.ref(program)
            self._timeline.is_shared = workers > 1
        if workers > 1:
            self._crew.failures.clear()
            if not self._crew.serving:
                self._call_in()
        try:
            call = program.call
            if call is None:
                failure = self._calls["run"](program.address, *self._arguments, workers)
            else:
                failure = call(program.address)
        except BaseException as error:
            record = self._own_block[WorkerBlock.PROGRESS // _WORD]
            if workers > 1:
                self._stop_helpers()
                # Worker 0 may only have waited for another one. Helpers that wait are stopped too.
                record = self._busy_record(program, [record, *[at for _, at in self._crew.failures]])
                self._crew.failures.clear()
            if not isinstance(error, SylviteError):
                raise  # Control-C
            raise named(self._space.stack.explained(error), program, record) from error
        if failure or self._crew.failures:
            self._raise(program, failure)
        count_run(self._words, program, tracer.counters)

    def _raise(self, program: Program, failure: int) -> None:
        met = self._take_failure()
        if failure:
            raise told_failure(self._words, program, failure)
        if met is None:
            return
        error, record = met
        if not isinstance(error, SylviteError):
            raise error
        raise named(error, program, record) from error

    @staticmethod
    def _busy_record(program: Program, records: Sequence[int]) -> int:
        """The first record that is no barrier."""
        for record in records:
            unit = program.unit_at(record)
            if unit is not None and unit.category != "barrier":
                return record
        return records[0]

    def _stop_helpers(self) -> None:
        """After worker 0 failed: make the helpers leave the submission, by force if need be."""
        store = self._space.store
        can_interrupt = self._space.engine.capabilities.deadlines
        # Not by a call of the sequencer: the time that stopped this one may stop that, too.
        self._words[_STOP] = 1
        store.set_deadline(_GATHER_NS if can_interrupt else None)
        try:
            until_ns = time.monotonic_ns() + _PATIENCE_NS
            while time.monotonic_ns() < until_ns:
                if can_interrupt:
                    for helper in self._helpers:
                        if helper.is_active:
                            helper.store.interrupt()
                try:
                    self._calls["gather"](self._control)
                except DeadlineExceededError:
                    if self._words[Control.GATE // _WORD] != CLOSED & 0xFFFFFFFF:
                        time.sleep(0.001)
                        continue
                return
            self._bring_out()
        finally:
            # The device's own, which the next run has to have.
            store.set_deadline(store.limits.deadline_ns)

    def _bring_out(self) -> None:
        """Bring the helpers out of the sandbox whatever the words there say, and make these new."""
        crew = self._crew
        crew.serving = False
        with crew.changed:
            while crew.inside:
                self._calls["shut_down"](self._control)
                for helper in self._helpers:
                    helper.block[WorkerBlock.ACTIVE // _WORD] = 0
                    helper.store.interrupt()
                crew.changed.wait(_PARK_S)
        self._space.memory.clear(self._control, Control.BYTE_LENGTH)
        self._space.memory.clear(self._blocks, WorkerBlock.BYTE_LENGTH * self.count)
        self._words[Control.GATE // _WORD] = CLOSED & 0xFFFFFFFF

    # -- lending ------------------------------------------------------------------------------------

    @property
    def functions(self) -> Mapping[str, Function]:
        """The sequencer's functions, for modules that call helpers in themselves: ``open``, ``summon`` and
        ``gather``. Each takes `control` first."""
        if not self._calls:
            self._prepare()
        return self._functions

    @property
    def control(self) -> int:
        """Guest address of the control block."""
        return self._control

    @property
    def stop_word(self) -> int:
        """Guest address of the word that is not 0 when a call is to end."""
        return self._control + Control.STOP

    def helpers_program(self) -> int:
        """A program, for ``open``, in which helpers call one function; `set_helpers_function` says which.

        Raises:
            OutOfMemoryError
        """
        length = 2 * RECORD_BYTES
        address = self._space.heap.allocate(length)
        self._space.memory.clear(address, length)
        return address

    def set_helpers_function(self, program: int, slot: int) -> None:
        """Have helpers call the function in a table slot; it takes three words that mean nothing and returns
        one."""
        words = self._space.view(program, RECORD_BYTES).cast("I")
        words[Record.OP // _WORD] = Op.HELP
        words[Record.FUNCTION // _WORD] = slot

    def lend(self, call: RawCall, entry: int, argument: int) -> int:
        """Call a guest function that may call helpers in by ``open``, and has sent them out by ``gather``
        when it returns.

        Raises:
            BaseException: what the call raises, or what a helper met first.
        """
        crew = self._crew
        crew.failures.clear()
        if not crew.serving:
            self._call_in()
        crew.borrower = self._space.store
        try:
            result = call(entry, argument)
        except BaseException as error:
            is_first = not crew.failures
            self._stop_helpers()
            met = self._take_failure()
            # Whoever failed first has stopped the others.
            if met is not None and not is_first and isinstance(error, (TrapError, DeadlineExceededError)):
                try:
                    raise met[0] from None
                finally:
                    del met
            raise
        finally:
            crew.borrower = None
        met = self._take_failure()
        if met is not None:
            try:
                raise met[0]
            finally:
                del met
        return result

    def _take_failure(self) -> tuple[BaseException, int] | None:
        """What a helper met first; all are forgotten, as their frames keep memory. No helper is inside."""
        failures = self._crew.failures
        first = failures[0] if failures else None
        failures.clear()
        return first

    @property
    def helper_threads(self) -> Set[int]:
        """Identities of the helpers' threads, as they start."""
        return self._crew.threads

    # -- the crew -----------------------------------------------------------------------------------

    def _call_in(self) -> None:
        crew = self._crew
        with crew.changed:
            crew.serving = True
            crew.changed.notify_all()
        for index in range(len(self._threads), len(self._helpers)):
            processor = self._pin[index] if self._pin is not None else None
            name = f"sylvite-worker-{index + 1}"
            work = self._helpers[index].work
            thread = threading.Thread(target=work, args=(processor,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def park(self) -> None:
        """Bring the helpers out of the sandbox. No run may be in progress. Idempotent."""
        crew = self._crew
        if not crew.serving:
            return
        crew.serving = False
        self._calls["shut_down"](self._control)
        with crew.changed:
            while crew.inside:
                if not crew.changed.wait(_PARK_S) and self._space.engine.capabilities.deadlines:
                    # A guest may have written over the words that they look at.
                    self._calls["shut_down"](self._control)
                    for helper in self._helpers:
                        helper.store.interrupt()
        self._words[Control.SHUTDOWN // _WORD] = 0

    def close(self) -> None:
        """End the threads. Idempotent."""
        self.park()
        crew = self._crew
        with crew.changed:
            crew.closed = True
            crew.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for side in self.sides:
            side.close()
        # These views hold the store open, and cycles of references may keep this object for long.
        self._words.release()
        self._own_block.release()
