"""Halide's parallel runtime on several workers, as functions of the generated runtime module.

Whoever meets a parallel loop or a set of tasks lays out *jobs* (`Job`) on its own shadow stack, puts them on
the list of the *team* (`Team`) and works on them itself, as do helpers that have nothing else to do.
Iterations of plain loops are handed out by ticket, several at a time; tasks with semaphores or in series are
claimed under the team's lock. Who waits for its jobs runs others meanwhile.

A worker with an empty stack may run any job. One that waits may run its own jobs, and jobs that cannot block
and are younger than its own, so that stacks stay shallow. Jobs that may block reserve the workers that they
need, as in Halide's thread pool. Only when every worker has looked and found nothing do these rules fall:
first that of reservations, where nobody is kept from going on by it, then all. What one thread can do, tasks
run above waiting ones, is done so. When that is nothing either, the tasks wait for each other.

Source: ``HalideRuntime.h``: ``halide_parallel_task_t`` and the rules about semaphores around it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from ..wasm import FunctionBuilder, ModuleBuilder
from ..wasm.types import FunctionType, ValueType
from . import layouts
from .jobs import SPINS, TASK_TYPE, Job, Jobs, Team

__all__ = ["DEADLOCK_CODE", "SESSION", "Platform", "Scheduler"]

_I32: Final = ValueType.I32
_ARGV: Final = FunctionType(parameters=(_I32,), results=(_I32,))

TICKETS_PER_WORKER: Final = 16
"""Tickets of a plain loop, and the most iterations of each: few cost little, many even out."""
MOST_PER_TICKET: Final = 64
DEADLOCK_CODE: Final = -1
"""What tasks that wait for each other end with; `Team.DEADLOCK` is set then."""
SESSION: Final = "run_with_helpers"
"""``run_with_helpers(entry, argv) -> code``: a pipeline's call during which helpers may be called in."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Indices of what the module imports besides constants."""

    stack_pointer: int
    stack_low: int
    stack_top: int
    open: int
    summon: int
    gather: int
    run_alone: int


class Scheduler(Jobs):
    """Adds the functions to a module.

    Args:
        module: where; it has the memory and the table.
        constants: indices of the globals of `SCHEDULER_IMPORTS`.
        platform: further imports.
    """

    def __init__(self, module: ModuleBuilder, constants: dict[str, int], platform: Platform) -> None:
        super().__init__(module, constants)
        self._platform = platform
        self._is_enough = self._make_is_enough()
        self._find = self._make_find()
        self._reserve = self._make_reserve()
        self._mark = self._make_mark()
        self._work = self._make_work()
        self._is_done = self._make_is_done()
        self._join = self._make_join()
        self._push = self._make_push()
        self._reserve_frame = self._make_frame()
        self._add_parallel_for()
        self._add_parallel_tasks()
        self._add_help()
        self._add_session()

    # Choosing, with the lock held

    def _make_is_enough(self) -> FunctionBuilder:
        """``is_enough(job) -> bool``: as many workers are free as the job needs to come to its end."""
        f = self._module.function("is_enough", [_I32], [_I32])
        job, parent, active, needed = 0, *(f.local(_I32, name) for name in ("parent", "active", "needed"))
        f.get(job).emit("i32.load", offset=Job.MIN_THREADS).tee(needed).i32(0).emit("i32.le_s")
        with f.if_():
            f.i32(1).emit("return")
        f.get(job).emit("i32.load", offset=Job.PARENT).tee(parent)
        with f.if_(results=[_I32]):
            f.get(parent).emit("i32.load", offset=Job.ACTIVE).tee(active).i32(1).get(active).emit("select")
            f.get(parent).emit("i32.load", offset=Job.MIN_THREADS).emit("i32.mul")
            f.get(parent).emit("i32.load", offset=Job.RESERVED).emit("i32.sub")
            f.else_()
            self._constant(f, "workers")
            self._team(f).emit("i32.load", offset=Team.RESERVED).emit("i32.sub")
        return f.get(needed).emit("i32.ge_s")

    def _make_find(self) -> FunctionBuilder:
        """``find(owner, rule) -> job or 0``: something to run, the youngest first.

        ``owner`` is the first job of who waits, 0 for helpers. Rules: 0 as the module says; 1 anything;
        2 plain loops, the oldest; 3 without reservations. Semaphores of what is found are taken. Jobs that
        are used up are dropped.
        """
        f = self._module.function("find", [_I32, _I32], [_I32])
        owner, rule = 0, 1
        link, job, found, serial = (f.local(_I32, name) for name in ("link", "job", "found", "serial"))
        self._team(f).i32(Team.JOBS - Job.NEXT).emit("i32.add").set(link)
        with f.block() as end, f.loop() as again:
            f.get(link).emit("i32.load", offset=Job.NEXT).tee(job).emit("i32.eqz")
            f.br_if(end)
            f.get(job).emit("i32.load", offset=Job.IS_SERIAL).set(serial)
            f.get(job).emit("i32.atomic.load", offset=Job.STATUS)
            self._push_is_used_up(f, job, serial)
            f.emit("i32.or")
            with f.if_():
                f.get(link).get(job).emit("i32.load", offset=Job.NEXT).emit("i32.store", offset=Job.NEXT)
                f.br(again)
            f.get(job).set(link)
            # One worker at a time for those in series.
            f.get(serial)
            with f.if_():
                f.get(job).emit("i32.load", offset=Job.ACTIVE)
                f.br_if(again)
            f.get(rule).i32(2).emit("i32.eq")
            with f.if_():
                f.get(serial).get(job).emit("i32.load", offset=Job.SEMAPHORE_COUNT).i32(0).emit("i32.gt_s")
                f.emit("i32.or")
                f.br_if(again)
                f.get(job).call(self._is_enough)
                with f.if_():
                    f.get(job).set(found)
                f.br(again)
            f.get(rule).emit("i32.eqz")
            with f.if_():
                f.get(job).call(self._is_enough).emit("i32.eqz")
                f.br_if(again)
            f.get(rule).i32(1).emit("i32.ne")
            with f.if_():
                # What may wait, and is all that its owner waits for, is best left to that one's stack.
                f.get(owner).emit("i32.eqz")
                f.get(job).emit("i32.load", offset=Job.MIN_THREADS).i32(0).emit("i32.gt_s").emit("i32.and")
                f.get(job).emit("i32.load", offset=Job.SIBLING_COUNT).i32(1).emit("i32.eq").emit("i32.and")
                f.get(job).emit("i32.load", offset=Job.EXTENT).i32(1).emit("i32.eq").get(serial)
                f.emit("i32.or").emit("i32.and")
                f.br_if(again)
            f.get(rule).i32(1).emit("i32.ne").get(owner).i32(0).emit("i32.ne").emit("i32.and")
            with f.if_():
                f.get(job).emit("i32.load", offset=Job.SIBLINGS).get(owner).emit("i32.ne")
                f.get(rule)
                f.get(job).emit("i32.load", offset=Job.MIN_THREADS).i32(0).emit("i32.gt_s")
                f.get(job).emit("i32.load", offset=Job.ORDER)
                f.get(owner).emit("i32.load", offset=Job.ORDER).emit("i32.le_u")
                f.emit("i32.or").emit("i32.or").emit("i32.and")
                f.br_if(again)
            f.get(job).call(self._acquire).emit("i32.eqz")
            f.br_if(again)
            f.get(job).emit("return")
        return f.get(found)

    def _push_is_used_up(self, f: FunctionBuilder, job: int, serial: int) -> None:
        """Push whether no iteration is left to begin."""
        f.get(serial)
        with f.if_(results=[_I32]):
            f.get(job).emit("i32.load", offset=Job.EXTENT).emit("i32.eqz")
            f.else_()
            f.get(job).emit("i32.atomic.load", offset=Job.TICKET)
            f.get(job).emit("i32.load", offset=Job.EXTENT).emit("i32.ge_u")

    def _make_reserve(self) -> FunctionBuilder:
        """``reserve(job, sign)``: count a worker on a job in or out, with those it needs."""
        f = self._module.function("reserve", [_I32, _I32], [])
        job, sign, parent, needed = 0, 1, f.local(_I32, "parent"), f.local(_I32, "needed")
        f.get(job).get(job).emit("i32.load", offset=Job.ACTIVE).get(sign).emit("i32.add")
        f.emit("i32.store", offset=Job.ACTIVE)
        f.get(job).emit("i32.load", offset=Job.MIN_THREADS).get(sign).emit("i32.mul").tee(needed)
        with f.if_():
            f.get(job).emit("i32.load", offset=Job.PARENT).tee(parent)
            with f.if_():
                f.get(parent).get(parent).emit("i32.load", offset=Job.RESERVED).get(needed).emit("i32.add")
                f.emit("i32.store", offset=Job.RESERVED)
                f.else_()
                self._team(f)
                self._team(f).emit("i32.load", offset=Team.RESERVED).get(needed).emit("i32.add")
                f.emit("i32.store", offset=Team.RESERVED)
        return f

    def _make_mark(self) -> FunctionBuilder:
        """``mark(first, code)``: fail a set of jobs, those that have not failed."""
        f = self._module.function("mark", [_I32, _I32], [])
        first, code, left = 0, 1, f.local(_I32, "left")
        f.get(first).emit("i32.load", offset=Job.SIBLING_COUNT).set(left)
        with f.loop() as again:
            f.get(first).i32(0).get(code).emit("i32.atomic.rmw.cmpxchg", offset=Job.STATUS).emit("drop")
            f.get(first).i32(Job.BYTE_LENGTH).emit("i32.add").set(first)
            f.get(left).i32(1).emit("i32.sub").tee(left).i32(0).emit("i32.gt_s")
            f.br_if(again)
        return f

    def _make_work(self) -> FunctionBuilder:
        """``work(job)``: take part in a job that was found. The lock is given up meanwhile."""
        f = self._module.function("work", [_I32], [])
        job, ticket, code = 0, f.local(_I32, "ticket"), f.local(_I32, "code")
        self._settled(f).i32(0).emit("i32.store", offset=Team.SETTLED)
        f.get(job).i32(1).call(self._reserve)
        f.get(job).emit("i32.load", offset=Job.SEMAPHORE_COUNT).i32(0).emit("i32.gt_s")
        f.get(job).emit("i32.load", offset=Job.IS_SERIAL).emit("i32.eqz").emit("i32.and")
        with f.if_():
            f.get(job).i32(1).emit("i32.atomic.rmw.add", offset=Job.TICKET).set(ticket)
        self._unlock_team(f)
        f.get(job).get(ticket).call(self._perform).set(code)
        self._lock_team(f)
        f.get(code)
        with f.if_():
            f.get(job).emit("i32.load", offset=Job.SIBLINGS).get(code).call(self._mark)
        f.get(job).i32(-1).call(self._reserve)
        f.call(self._signal)
        return f

    # Owners

    def _make_is_done(self) -> FunctionBuilder:
        """``is_done(first) -> bool``: nobody runs these jobs, and nobody will."""
        f = self._module.function("is_done", [_I32], [_I32])
        job, left, serial = 0, f.local(_I32, "left"), f.local(_I32, "serial")
        f.get(job).emit("i32.load", offset=Job.SIBLING_COUNT).set(left)
        with f.loop() as again:
            f.get(job).emit("i32.load", offset=Job.IS_SERIAL).set(serial)
            f.get(job).emit("i32.load", offset=Job.ACTIVE)
            f.get(job).emit("i32.atomic.load", offset=Job.STATUS)
            self._push_is_used_up(f, job, serial)
            f.emit("i32.or").emit("i32.eqz").emit("i32.or")
            with f.if_():
                f.i32(0).emit("return")
            f.get(job).i32(Job.BYTE_LENGTH).emit("i32.add").set(job)
            f.get(left).i32(1).emit("i32.sub").tee(left).i32(0).emit("i32.gt_s")
            f.br_if(again)
        return f.i32(1)

    def _look(self, f: FunctionBuilder, owner: int | None, job: int, seen: int) -> None:
        """Find a job by all rules, with the lock held; note when there is none."""

        def find(rule: int) -> None:
            if owner is None:
                f.i32(0)
            else:
                f.get(owner)
            f.i32(rule).call(self._find).tee(job)

        self._team(f).emit("i32.atomic.load", offset=Team.SIGNAL).set(seen)
        if owner is None:
            find(2)
            f.emit("i32.eqz")
            with f.if_():
                find(0)
                f.emit("drop")
        else:
            find(0)
            f.emit("drop")
        f.get(job).emit("i32.eqz")
        with f.if_():
            self._settle(f, seen, is_final=False)
            f.get(seen).i32(0).call(self._has_settled)
            with f.if_():
                # First what keeps nobody from going on: helpers have room, and owners wait for these anyway.
                find(3)
                f.emit("i32.eqz")
                with f.if_():
                    self._settle(f, seen, is_final=True)
                    f.get(seen).i32(1).call(self._has_settled)
                    with f.if_():
                        find(1)
                        f.emit("drop")
            f.get(job).emit("i32.eqz")
            f.get(seen).i32(0).call(self._has_settled).emit("i32.and")
            with f.if_():
                # Somebody who sleeps may have something to do now.
                self._wake_sleepers(f)

    def _make_join(self) -> FunctionBuilder:
        """``join(first) -> code``: take part until a set of jobs is done, with the lock held."""
        f = self._module.function("join", [_I32], [_I32])
        first, job, seen, parent, left = 0, *(f.local(_I32, n) for n in ("job", "seen", "parent", "left"))
        with f.block() as done, f.loop() as again:
            f.get(first).call(self._is_done)
            f.br_if(done)
            f.get(first).emit("i32.atomic.load", offset=Job.STATUS).emit("i32.eqz")
            with f.if_():
                f.get(first).emit("i32.load", offset=Job.PARENT).tee(parent)
                with f.if_():
                    # What failed around these jobs may be what they wait for.
                    f.get(parent).emit("i32.atomic.load", offset=Job.STATUS)
                    with f.if_():
                        f.get(first).get(parent).emit("i32.atomic.load", offset=Job.STATUS).call(self._mark)
                        f.br(again)
            self._look(f, first, job, seen)
            f.get(job)
            with f.if_():
                f.get(job).call(self._work)
                f.br(again)
            f.get(seen).i32(1).call(self._has_settled)
            f.get(first).emit("i32.atomic.load", offset=Job.STATUS).emit("i32.eqz").emit("i32.and")
            with f.if_():
                self._team(f).i32(1).emit("i32.store", offset=Team.DEADLOCK)
                f.get(first).i32(DEADLOCK_CODE).call(self._mark)
                f.call(self._signal)
                f.br(again)
            self._unlock_team(f)
            f.get(seen).call(self._nap)
            self._lock_team(f)
            f.br(again)
        self._settled(f).i32(0).emit("i32.store", offset=Team.SETTLED)
        self._unlink(f, first, link=seen, job=job)
        f.get(first).emit("i32.load", offset=Job.SIBLING_COUNT).set(left)
        with f.loop() as again:
            f.get(first).emit("i32.atomic.load", offset=Job.STATUS).tee(job)
            with f.if_():
                f.get(job).emit("return")
            f.get(first).i32(Job.BYTE_LENGTH).emit("i32.add").set(first)
            f.get(left).i32(1).emit("i32.sub").tee(left).i32(0).emit("i32.gt_s")
            f.br_if(again)
        return f.i32(0)

    def _unlink(self, f: FunctionBuilder, first: int, *, link: int, job: int) -> None:
        """Take a set of jobs off the list, before their memory goes."""
        self._team(f).i32(Team.JOBS - Job.NEXT).emit("i32.add").set(link)
        with f.block() as end, f.loop() as again:
            f.get(link).emit("i32.load", offset=Job.NEXT).tee(job).emit("i32.eqz")
            f.br_if(end)
            f.get(job).emit("i32.load", offset=Job.SIBLINGS).get(first).emit("i32.eq")
            with f.if_():
                f.get(link).get(job).emit("i32.load", offset=Job.NEXT).emit("i32.store", offset=Job.NEXT)
                f.else_()
                f.get(job).set(link)
            f.br(again)

    def _make_push(self) -> FunctionBuilder:
        """``push(first, count)``: put a set of jobs on the list, the last one first, and call helpers in. The
        lock is held afterwards."""
        f = self._module.function("push", [_I32, _I32], [])
        first, count, job, order = 0, 1, f.local(_I32, "job"), f.local(_I32, "order")
        is_missed = f.local(_I32, "is_missed")
        f.get(first).set(job)
        self._lock_team(f)
        self._team(f)
        self._team(f).emit("i32.load", offset=Team.ORDER).i32(1).emit("i32.add").tee(order)
        f.emit("i32.store", offset=Team.ORDER)
        f.get(first).get(count).emit("i32.store", offset=Job.SIBLING_COUNT)
        with f.loop() as again:
            f.get(job).get(first).emit("i32.store", offset=Job.SIBLINGS)
            f.get(job).get(order).emit("i32.store", offset=Job.ORDER)
            f.get(job)
            self._team(f).emit("i32.load", offset=Team.JOBS).emit("i32.store", offset=Job.NEXT)
            self._team(f).get(job).emit("i32.store", offset=Team.JOBS)
            f.get(job).i32(Job.BYTE_LENGTH).emit("i32.add").set(job)
            f.get(count).i32(1).emit("i32.sub").tee(count)
            f.br_if(again)
        self._team(f).emit("i32.load", offset=Team.INSIDE).i32(1).emit("i32.add")
        self._constant(f, "workers").emit("i32.lt_s").set(is_missed)
        f.call(self._signal)
        f.get(is_missed)
        with f.if_():
            self._unlock_team(f)
            self._team(f).emit("i32.load", offset=Team.CALLED)
            with f.if_():
                self._constant(f, "control").call(self._platform.summon)
                f.else_()
                self._team(f).i32(1).emit("i32.store", offset=Team.CALLED)
                self._constant(f, "control")
                self._constant(f, "program").call(self._platform.open)
            self._lock_team(f)
        return f

    def _make_frame(self) -> FunctionBuilder:
        """``reserve_frame(count) -> address``: zeroed memory for jobs on this worker's stack, whose pointer
        is to be put back; a trap when there is no room."""
        f = self._module.function("reserve_frame", [_I32], [_I32])
        count, room, address = 0, f.local(_I32, "room"), f.local(_I32, "address")
        platform = self._platform
        f.emit("global.get", platform.stack_pointer).emit("global.get", platform.stack_low)
        f.emit("i32.sub").i32(2 * Job.BYTE_LENGTH).emit("i32.sub").tee(room).i32(0).emit("i32.le_s")
        f.get(count).get(room).i32(Job.BYTE_LENGTH).emit("i32.div_u").emit("i32.gt_u").emit("i32.or")
        with f.if_():
            f.emit("unreachable")
        f.emit("global.get", platform.stack_pointer).get(count).i32(Job.BYTE_LENGTH).emit("i32.mul")
        f.emit("i32.sub").i32(-64).emit("i32.and").tee(address)
        f.emit("global.set", platform.stack_pointer)
        f.get(address).i32(0).get(count).i32(Job.BYTE_LENGTH).emit("i32.mul").emit("memory.fill")
        return f.get(address)

    def _add_parallel_for(self) -> None:
        """``halide_do_par_for(uc, task, min, extent, closure)``."""
        f = self._module.function("halide_do_par_for", [_I32] * 5, [_I32], export=True)
        context, task, begin, extent, closure = range(5)
        job, stack, code = f.local(_I32, "job"), f.local(_I32, "stack"), f.local(_I32, "code")
        f.get(extent).i32(0).emit("i32.le_s")
        with f.if_():
            f.i32(0).emit("return")
        self._team(f).emit("i32.load", offset=Team.OPEN).emit("i32.eqz")
        f.get(extent).i32(1).emit("i32.eq").emit("i32.or")
        with f.if_(), f.loop() as again:
            f.get(context).get(begin).get(closure).get(task).emit("call_indirect", TASK_TYPE, 0).tee(code)
            with f.if_():
                f.get(code).emit("return")
            f.get(begin).i32(1).emit("i32.add").set(begin)
            f.get(extent).i32(1).emit("i32.sub").tee(extent)
            f.br_if(again)
            f.i32(0).emit("return")
        f.emit("global.get", self._platform.stack_pointer).set(stack)
        f.i32(1).call(self._reserve_frame).set(job)
        members = (
            (Job.FUNCTION, task),
            (Job.CLOSURE, closure),
            (Job.CONTEXT, context),
            (Job.MIN, begin),
            (Job.EXTENT, extent),
        )
        for member, value in members:
            f.get(job).get(value).emit("i32.store", offset=member)
        self._store_chunk(f, job, extent)
        f.get(job).i32(1).call(self._push)
        f.get(job).call(self._join).set(code)
        self._unlock_team(f)
        f.get(stack).emit("global.set", self._platform.stack_pointer)
        f.get(code)

    def _store_chunk(self, f: FunctionBuilder, job: int, extent: int) -> None:
        """How many iterations a ticket is for: few tickets cost little, many even out."""
        chunk = f.local(_I32, "chunk")
        f.get(job)
        f.get(extent)
        self._constant(f, "workers").i32(TICKETS_PER_WORKER).emit("i32.mul").emit("i32.div_u").tee(chunk)
        f.i32(MOST_PER_TICKET).get(chunk).i32(MOST_PER_TICKET).emit("i32.lt_u").emit("select").tee(chunk)
        f.i32(1).get(chunk).emit("select")
        f.emit("i32.store", offset=Job.CHUNK)

    def _add_parallel_tasks(self) -> None:
        """``halide_do_parallel_tasks(uc, count, tasks, parent)``."""
        f = self._module.function("halide_do_parallel_tasks", [_I32] * 4, [_I32], export=True)
        context, count, task, parent = range(4)
        first, job, stack, extent = (f.local(_I32, name) for name in ("first", "job", "stack", "extent"))
        f.get(count).i32(0).emit("i32.le_s")
        with f.if_():
            f.i32(0).emit("return")
        self._team(f).emit("i32.load", offset=Team.OPEN).emit("i32.eqz")
        with f.if_():
            f.get(context).get(count).get(task).get(parent).call(self._platform.run_alone).emit("return")
        f.emit("global.get", self._platform.stack_pointer).set(stack)
        f.get(count).call(self._reserve_frame).tee(first).set(job)
        offsets = layouts.PARALLEL_TASK.offsets
        members = {
            Job.FUNCTION: "fn",
            Job.CLOSURE: "closure",
            Job.SEMAPHORES: "semaphores",
            Job.SEMAPHORE_COUNT: "num_semaphores",
            Job.MIN: "min",
            Job.EXTENT: "extent",
            Job.MIN_THREADS: "min_threads",
        }
        with f.loop() as again:
            f.get(task).emit("i32.load", offset=offsets["extent"]).tee(extent).i32(0).emit("i32.gt_s")
            with f.if_():
                for member, name in members.items():
                    f.get(job).get(task).emit("i32.load", offset=offsets[name])
                    f.emit("i32.store", offset=member)
                f.get(job).get(task).emit("i32.load8_u", offset=offsets["serial"])
                f.emit("i32.store", offset=Job.IS_SERIAL)
                f.get(job).i32(1).emit("i32.store", offset=Job.IS_LOOP_TASK)
                f.get(job).get(context).emit("i32.store", offset=Job.CONTEXT)
                f.get(job).get(parent).emit("i32.store", offset=Job.PARENT)
                # Iterations that may wait are not to wait for others of their ticket.
                f.get(task).emit("i32.load", offset=offsets["min_threads"]).i32(0).emit("i32.gt_s")
                with f.if_():
                    f.get(job).i32(1).emit("i32.store", offset=Job.CHUNK)
                    f.else_()
                    self._store_chunk(f, job, extent)
                f.get(job).i32(Job.BYTE_LENGTH).emit("i32.add").set(job)
            f.get(task).i32(layouts.PARALLEL_TASK.byte_length).emit("i32.add").set(task)
            f.get(count).i32(1).emit("i32.sub").tee(count)
            f.br_if(again)
        f.get(job).get(first).emit("i32.ne")
        with f.if_():
            f.get(first)
            f.get(job).get(first).emit("i32.sub").i32(Job.BYTE_LENGTH).emit("i32.div_u").call(self._push)
            f.get(first).call(self._join).set(count)
            self._unlock_team(f)
        f.get(stack).emit("global.set", self._platform.stack_pointer)
        f.get(count)

    # Helpers

    def _add_help(self) -> None:
        """``help(...) -> 0``: a helper's part in a call, until there is nothing to do for a while."""
        f = self._module.function("help", [_I32] * 3, [_I32], export=True)
        job, seen, spins = (f.local(_I32, name) for name in ("job", "seen", "spins"))
        self._lock_team(f)
        self._add_inside(f, 1)
        f.i32(SPINS).set(spins)
        with f.block() as out, f.loop() as again:
            self._look(f, None, job, seen)
            f.get(job)
            with f.if_():
                f.get(job).call(self._work)
                f.i32(SPINS).set(spins)
                f.br(again)
            self._team(f).emit("i32.load", offset=Team.JOBS)
            with f.if_():
                self._unlock_team(f)
                f.get(seen).call(self._nap)
                f.else_()
                f.get(spins).emit("i32.eqz")
                self._team(f).emit("i32.atomic.load", offset=Team.OPEN).emit("i32.eqz").emit("i32.or")
                f.br_if(out)
                self._unlock_team(f)
                with f.loop() as spin:
                    f.get(spins).i32(1).emit("i32.sub").tee(spins).i32(0).emit("i32.ne")
                    self._team(f).emit("i32.atomic.load", offset=Team.SIGNAL).get(seen).emit("i32.eq")
                    self._team(f).emit("i32.atomic.load", offset=Team.OPEN).emit("i32.and").emit("i32.and")
                    f.br_if(spin)
            self._lock_team(f)
            f.br(again)
        self._settled(f).i32(0).emit("i32.store", offset=Team.SETTLED)
        self._add_inside(f, -1)
        self._unlock_team(f)
        f.i32(0)

    def _add_inside(self, f: FunctionBuilder, difference: int) -> None:
        self._team(f)
        self._team(f).emit("i32.load", offset=Team.INSIDE).i32(difference).emit("i32.add")
        f.emit("i32.store", offset=Team.INSIDE)

    def _add_session(self) -> None:
        """A pipeline's call, by worker 0, on an empty shadow stack."""
        f = self._module.function(SESSION, [_I32, _I32], [_I32], export=True)
        entry, argv, code = 0, 1, f.local(_I32, "code")
        f.emit("global.get", self._platform.stack_top).emit("global.set", self._platform.stack_pointer)
        self._team(f).i32(0).i32(Team.SETTLED)
        self._constant(f, "workers").i32(2).emit("i32.shl").emit("i32.add").emit("memory.fill")
        self._constant(f, "stop").i32(0).emit("i32.atomic.store")
        # Not what nobody has settled at.
        self._team(f).i32(1).emit("i32.atomic.store", offset=Team.SIGNAL)
        self._team(f).i32(1).emit("i32.atomic.store", offset=Team.OPEN)
        f.get(argv).get(entry).emit("call_indirect", _ARGV, 0).set(code)
        self._team(f).i32(0).emit("i32.atomic.store", offset=Team.OPEN)
        self._team(f).emit("i32.load", offset=Team.CALLED)
        with f.if_():
            self._constant(f, "control").call(self._platform.gather)
        f.get(code)
