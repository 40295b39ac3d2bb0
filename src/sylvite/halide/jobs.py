"""What workers of a parallel pipeline share: how they wait, take semaphores and run jobs. The lower half of
`scheduler`.

Source: ``HalideRuntime.h``: ``halide_parallel_task_t``, ``halide_semaphore_t``.
"""

from __future__ import annotations

import enum
from typing import Final

from ..wasm import FunctionBuilder, ModuleBuilder
from ..wasm.types import FunctionType, ValueType
from . import layouts

__all__ = ["SCHEDULER_IMPORTS", "SPINS", "Job", "Jobs", "Team", "team_bytes"]

_I32: Final = ValueType.I32
TASK_TYPE: Final = FunctionType(parameters=(_I32,) * 3, results=(_I32,))
_LOOP_TASK: Final = FunctionType(parameters=(_I32,) * 5, results=(_I32,))

SPINS: Final = 4000
"""Looks at a word before a worker goes to sleep on it: some ten microseconds."""
NAP_NS: Final = 1_000_000
"""Longest sleep. Whoever is to be stopped meets a check of the engine then."""

SCHEDULER_IMPORTS: Final = ("team", "worker", "workers", "tally", "control", "stop", "program")
"""Constants that the module imports from ``host``: address of the `Team`, number of this worker and of all,
where this worker counts iterations, the device's control block, its stop word, and the helpers' program."""


class Team(enum.IntEnum):
    """Byte offsets in the team's state, which is zero when a call begins."""

    LOCK = 0
    # Goes up with everything that may let somebody go on.
    SIGNAL = 64
    SLEEPERS = 68
    JOBS = 128
    OPEN = 132
    CALLED = 136
    INSIDE = 140
    RESERVED = 144
    ORDER = 148
    DEADLOCK = 152
    # By worker: twice the signal at which it found nothing to do; and 1 where it found nothing at all.
    SETTLED = 192


def team_bytes(workers: int) -> int:
    """Length of the team's state."""
    return Team.SETTLED + 4 * workers


class Job(enum.IntEnum):
    """Byte offsets in a job. TICKET and what follows is written by all workers."""

    FUNCTION = 0
    CLOSURE = 4
    CONTEXT = 8
    MIN = 12
    EXTENT = 16
    IS_SERIAL = 20
    IS_LOOP_TASK = 24
    SEMAPHORES = 28
    SEMAPHORE_COUNT = 32
    MIN_THREADS = 36
    ACQUIRED = 40
    PARENT = 44
    SIBLINGS = 48
    SIBLING_COUNT = 52
    NEXT = 56
    ORDER = 60
    TICKET = 64
    STATUS = 68
    ACTIVE = 72
    RESERVED = 76
    CHUNK = 80
    BYTE_LENGTH = 128


class Jobs:
    """Adds the functions to a module, each before those that call it.

    Args:
        module: where; it has the memory and the table.
        constants: indices of the globals of `SCHEDULER_IMPORTS`.
    """

    def __init__(self, module: ModuleBuilder, constants: dict[str, int]) -> None:
        self._module = module
        self._constants = constants
        self._check = self._make_check()
        self.lock = self._make_lock()
        self.unlock = self._make_unlock()
        self._signal = self._make_signal()
        self._nap = self._make_nap()
        self._has_settled = self._make_has_settled()
        self._add_semaphores()
        self._acquire = self._make_acquire()
        self._call = self._make_call()
        self._perform = self._make_perform()

    # Short forms

    def _constant(self, f: FunctionBuilder, name: str) -> FunctionBuilder:
        return f.emit("global.get", self._constants[name])

    def _team(self, f: FunctionBuilder) -> FunctionBuilder:
        return self._constant(f, "team")

    def _settled(self, f: FunctionBuilder) -> FunctionBuilder:
        """Push the address from which `Team.SETTLED` is this worker's word."""
        self._team(f)
        self._constant(f, "worker").i32(2).emit("i32.shl")
        return f.emit("i32.add")

    def _lock_team(self, f: FunctionBuilder) -> None:
        self._team(f).call(self.lock)

    def _unlock_team(self, f: FunctionBuilder) -> None:
        self._team(f).call(self.unlock)

    # Waiting

    def _make_check(self) -> FunctionBuilder:
        """``check()``: leave by a trap when the call was stopped."""
        f = self._module.function("check", [], [])
        self._constant(f, "stop").emit("i32.atomic.load")
        with f.if_():
            f.emit("unreachable")
        return f

    def _make_lock(self) -> FunctionBuilder:
        """``lock(word)``: 0 is free, 1 held, 2 held while others sleep."""
        f = self._module.function("lock", [_I32], [])
        word, seen, spins = 0, f.local(_I32, "seen"), f.local(_I32, "spins")
        f.i32(SPINS // 40).set(spins)
        with f.loop() as again:
            f.get(word).i32(0).i32(1).emit("i32.atomic.rmw.cmpxchg").tee(seen).emit("i32.eqz")
            with f.if_():
                f.emit("return")
            f.get(spins).i32(1).emit("i32.sub").tee(spins)
            f.br_if(again)
        with f.loop() as again:
            f.call(self._check)
            f.get(word).i32(2).emit("i32.atomic.rmw.xchg").emit("i32.eqz")
            with f.if_():
                f.emit("return")
            f.get(word).i32(2).i64(NAP_NS).emit("memory.atomic.wait32").emit("drop")
            f.br(again)
        return f

    def _make_unlock(self) -> FunctionBuilder:
        f = self._module.function("unlock", [_I32], [])
        f.get(0).i32(0).emit("i32.atomic.rmw.xchg").i32(2).emit("i32.eq")
        with f.if_():
            f.get(0).i32(1).emit("memory.atomic.notify").emit("drop")
        return f

    def _make_signal(self) -> FunctionBuilder:
        """``signal()``: something has changed."""
        f = self._module.function("signal", [], [])
        self._team(f).i32(1).emit("i32.atomic.rmw.add", offset=Team.SIGNAL).emit("drop")
        self._team(f).emit("i32.atomic.load", offset=Team.SLEEPERS)
        with f.if_():
            self._wake_sleepers(f)
        return f

    def _wake_sleepers(self, f: FunctionBuilder) -> None:
        self._team(f).i32(-1).emit("memory.atomic.notify", offset=Team.SIGNAL).emit("drop")

    def _make_nap(self) -> FunctionBuilder:
        """``nap(seen)``: until the signal is another one, or a while."""
        f = self._module.function("nap", [_I32], [])
        seen, spins = 0, f.local(_I32, "spins")
        f.i32(SPINS).set(spins)
        with f.loop() as again:
            self._team(f).emit("i32.atomic.load", offset=Team.SIGNAL).get(seen).emit("i32.ne")
            with f.if_():
                f.emit("return")
            f.get(spins).i32(1).emit("i32.sub").tee(spins)
            f.br_if(again)
        f.call(self._check)
        self._team(f).i32(1).emit("i32.atomic.rmw.add", offset=Team.SLEEPERS).emit("drop")
        self._team(f).get(seen).i64(NAP_NS).emit("memory.atomic.wait32", offset=Team.SIGNAL).emit("drop")
        self._team(f).i32(1).emit("i32.atomic.rmw.sub", offset=Team.SLEEPERS).emit("drop")
        return f

    def _make_has_settled(self) -> FunctionBuilder:
        """``has_settled(signal, is_final) -> bool``: every worker has looked since and found nothing; when
        it is to be final, without reservations as well."""
        f = self._module.function("has_settled", [_I32, _I32], [_I32])
        seen, is_final = 0, 1
        at, left = f.local(_I32, "at"), f.local(_I32, "left")
        self._team(f).set(at)
        self._constant(f, "workers").set(left)
        f.get(seen).i32(1).emit("i32.shl").i32(1).emit("i32.or").set(seen)
        with f.loop() as again:
            f.get(at).emit("i32.load", offset=Team.SETTLED)
            f.get(is_final).emit("i32.eqz").emit("i32.or").get(seen).emit("i32.ne")
            with f.if_():
                f.i32(0).emit("return")
            f.get(at).i32(4).emit("i32.add").set(at)
            f.get(left).i32(1).emit("i32.sub").tee(left)
            f.br_if(again)
        return f.i32(1)

    def _settle(self, f: FunctionBuilder, seen: int, *, is_final: bool) -> None:
        """Note that this worker has found nothing."""
        self._settled(f).get(seen).i32(1).emit("i32.shl")
        if is_final:
            f.i32(1).emit("i32.or")
        f.emit("i32.store", offset=Team.SETTLED)

    # Semaphores

    def _add_semaphores(self) -> None:
        """The count is the first word."""
        module = self._module
        f = module.function("halide_semaphore_init", [_I32, _I32], [_I32], export=True)
        f.get(0).get(1).emit("i32.atomic.store").get(1)
        f = module.function("halide_semaphore_release", [_I32, _I32], [_I32], export=True)
        f.get(0).get(1).emit("i32.atomic.rmw.add").get(1).emit("i32.add").call(self._signal)
        f = self._try_acquire = module.function(
            "halide_semaphore_try_acquire", [_I32, _I32], [_I32], export=True
        )
        held = f.local(_I32, "held")
        f.get(1).emit("i32.eqz")
        with f.if_():
            f.i32(1).emit("return")
        with f.loop() as again:
            f.get(0).emit("i32.atomic.load").tee(held).get(1).emit("i32.lt_s")
            with f.if_():
                f.i32(0).emit("return")
            f.get(0).get(held).get(held).get(1).emit("i32.sub").emit("i32.atomic.rmw.cmpxchg")
            f.get(held).emit("i32.ne")
            f.br_if(again)
        f.i32(1)

    def _make_acquire(self) -> FunctionBuilder:
        """``acquire(job) -> bool``: take what is left of the semaphores of one iteration."""
        f = self._module.function("acquire", [_I32], [_I32])
        job, at = 0, f.local(_I32, "at")
        offsets = layouts.SEMAPHORE_ACQUIRE.offsets
        with f.block() as complete, f.loop() as again:
            f.get(job).emit("i32.load", offset=Job.ACQUIRED)
            f.get(job).emit("i32.load", offset=Job.SEMAPHORE_COUNT).emit("i32.ge_s")
            f.br_if(complete)
            f.get(job).emit("i32.load", offset=Job.SEMAPHORES)
            f.get(job).emit("i32.load", offset=Job.ACQUIRED).i32(3).emit("i32.shl").emit("i32.add").set(at)
            f.get(at).emit("i32.load", offset=offsets["semaphore"])
            f.get(at).emit("i32.load", offset=offsets["count"]).call(self._try_acquire).emit("i32.eqz")
            with f.if_():
                f.i32(0).emit("return")
            f.get(job)
            f.get(job).emit("i32.load", offset=Job.ACQUIRED).i32(1).emit("i32.add")
            f.emit("i32.store", offset=Job.ACQUIRED)
            f.br(again)
        f.get(job).i32(0).emit("i32.store", offset=Job.ACQUIRED)
        return f.i32(1)

    # Running

    def _make_call(self) -> FunctionBuilder:
        """``call(job, min, extent) -> code``."""
        f = self._module.function("call", [_I32] * 3, [_I32])
        job, begin, extent, code = 0, 1, 2, f.local(_I32, "code")
        f.get(job).emit("i32.load", offset=Job.IS_LOOP_TASK)
        with f.if_():
            f.get(job).emit("i32.load", offset=Job.CONTEXT).get(begin).get(extent)
            f.get(job).emit("i32.load", offset=Job.CLOSURE).get(job)
            f.get(job).emit("i32.load", offset=Job.FUNCTION)
            f.emit("call_indirect", _LOOP_TASK, 0).emit("return")
        with f.loop() as again:
            f.get(job).emit("i32.load", offset=Job.CONTEXT).get(begin)
            f.get(job).emit("i32.load", offset=Job.CLOSURE)
            f.get(job).emit("i32.load", offset=Job.FUNCTION).emit("call_indirect", TASK_TYPE, 0).tee(code)
            f.get(job).emit("i32.atomic.load", offset=Job.STATUS).emit("i32.or")
            with f.if_():
                f.get(code).emit("return")
            f.get(begin).i32(1).emit("i32.add").set(begin)
            f.get(extent).i32(1).emit("i32.sub").tee(extent)
            f.br_if(again)
        return f.i32(0)

    def _make_perform(self) -> FunctionBuilder:
        """``perform(job, ticket) -> code``: run as much of a job as there is, without the lock.

        ``ticket`` is the iteration of a job with semaphores that was claimed."""
        f = self._module.function("perform", [_I32, _I32], [_I32])
        job, first = 0, 1
        extent, count, code, chunk = (f.local(_I32, name) for name in ("extent", "count", "code", "chunk"))
        f.get(job).emit("i32.load", offset=Job.EXTENT).set(extent)
        f.get(job).emit("i32.load", offset=Job.IS_SERIAL)
        with f.if_():
            # The first iteration's semaphores are taken.
            f.i32(1).set(count)
            with f.loop() as more:
                f.get(job).emit("i32.load", offset=Job.SEMAPHORE_COUNT).i32(0).emit("i32.le_s")
                with f.if_():
                    f.get(extent).set(count)
                    f.else_()
                    with f.block() as full, f.loop() as claim:
                        f.get(count).get(extent).emit("i32.ge_u")
                        f.br_if(full)
                        f.get(job).call(self._acquire).emit("i32.eqz")
                        f.br_if(full)
                        f.get(count).i32(1).emit("i32.add").set(count)
                        f.br(claim)
                f.get(count).emit("i32.eqz")
                with f.if_():
                    f.i32(0).emit("return")
                f.get(job).get(job).emit("i32.load", offset=Job.MIN).get(count).call(self._call).set(code)
                self._tally(f, count)
                f.get(job).get(job).emit("i32.load", offset=Job.MIN).get(count).emit("i32.add")
                f.emit("i32.store", offset=Job.MIN)
                f.get(job).get(extent).get(count).emit("i32.sub").tee(extent)
                f.emit("i32.store", offset=Job.EXTENT)
                f.i32(0).set(count)
                f.get(code)
                with f.if_():
                    f.get(code).emit("return")
                f.get(job).emit("i32.atomic.load", offset=Job.STATUS).emit("i32.eqz")
                f.get(extent).i32(0).emit("i32.ne").emit("i32.and")
                f.br_if(more)
            f.i32(0).emit("return")
        f.get(job).emit("i32.load", offset=Job.SEMAPHORE_COUNT).i32(0).emit("i32.gt_s")
        with f.if_():
            f.i32(1).set(count)
            self._tally(f, count)
            f.get(job).get(job).emit("i32.load", offset=Job.MIN).get(first).emit("i32.add").i32(1)
            f.call(self._call).emit("return")
        f.get(job).emit("i32.load", offset=Job.CHUNK).set(chunk)
        with f.loop() as again:
            f.get(job).get(chunk).emit("i32.atomic.rmw.add", offset=Job.TICKET).tee(first)
            f.get(extent).emit("i32.ge_u")
            with f.if_():
                f.i32(0).emit("return")
            f.call(self._check)
            f.get(extent).get(first).emit("i32.sub").tee(count).get(chunk)
            f.get(count).get(chunk).emit("i32.lt_u").emit("select").set(count)
            self._tally(f, count)
            f.get(job).get(job).emit("i32.load", offset=Job.MIN).get(first).emit("i32.add").get(count)
            f.call(self._call).tee(code)
            with f.if_():
                f.get(code).emit("return")
            f.get(job).emit("i32.atomic.load", offset=Job.STATUS).emit("i32.eqz")
            f.br_if(again)
        return f.i32(0)

    def _tally(self, f: FunctionBuilder, count: int) -> None:
        self._constant(f, "tally")
        self._constant(f, "tally").emit("i64.load").get(count).emit("i64.extend_i32_u").emit("i64.add")
        f.emit("i64.store")
