"""Side workers: run programs that need one worker, while the others do something else.

A side worker has a replica of the link space and a control block of its own, so that a trap, a code or a
deadline there is nobody else's. Helpers cannot do this: they stay in the sandbox, where only worker 0 can
call them.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from ...engines.base import Function, RawCall, Store
from ...errors import InternalError, SylviteError
from .outcomes import count_run, named, told_failure
from .sequencer import Control, WorkerBlock

if TYPE_CHECKING:
    from ...linker import LinkSpace
    from ...linker.replica import Replica
    from .program import Program
    from .timeline import Timeline

__all__ = ["SideWorker"]

_WORD: Final = 4
_TRACE: Final = int(Control.TRACE) // _WORD


class SideWorker:
    """One side worker. One run at a time: the owner holds `lock`.

    Args:
        space: where the programs are.
        replica: of the space; nobody else uses its store.
        number: of the worker.
        state: guest address of its workgroup state.
        timeline: makes spans of its marks.

    Raises:
        OutOfMemoryError: there is no room for the control block.
    """

    def __init__(
        self, space: LinkSpace, replica: Replica, number: int, state: int, timeline: Timeline
    ) -> None:
        self.lock = threading.RLock()
        """Held while it runs something, and by whoever links."""
        self._replica = replica
        self._number = number
        self._tracer = space.tracer
        self._timeline = timeline
        control = space.heap.allocate(Control.BYTE_LENGTH)
        block = space.heap.allocate(WorkerBlock.BYTE_LENGTH)
        space.memory.clear(control, Control.BYTE_LENGTH)
        space.memory.clear(block, WorkerBlock.BYTE_LENGTH)
        self._words = space.view(control, Control.BYTE_LENGTH).cast("I")
        self._block = space.view(block, WorkerBlock.BYTE_LENGTH).cast("I")
        self._arguments = (control, block, state, number)
        self._call: RawCall | None = None

    def prepare(self, function: Function) -> None:
        """Take the sequencer's ``run_alone`` of the space; the worker calls its twin."""
        self._call = self._replica.function(function).prepare()

    @property
    def is_prepared(self) -> bool:
        """Whether `run` can be called."""
        return self._call is not None

    @property
    def store(self) -> Store:
        """Where it runs: to bound it, and to interrupt it."""
        return self._replica.store

    def run(self, program: Program) -> None:
        """Run a patched program to its end; see `Workers.run`, which raises the same.

        Raises:
            InternalError: it is not prepared.
        """
        if self._call is None:
            raise InternalError("a side worker was used before the sequencer was linked")
        tracer = self._tracer
        self._words[_TRACE] = tracer.enabled
        if tracer.enabled:
            self._timeline.programs[self._number] = weakref.ref(program)
        try:
            failure = self._call(program.address, *self._arguments)
        except SylviteError as error:
            record = self._block[WorkerBlock.PROGRESS // _WORD]
            raise named(self._replica.stack.explained(error), program, record) from error
        if failure:
            raise told_failure(self._words, program, failure)
        count_run(self._words, program, tracer.counters)

    def close(self) -> None:
        """Let go of the memory's views. Idempotent."""
        self._words.release()
        self._block.release()
