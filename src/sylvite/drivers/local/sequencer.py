"""The generated module that runs a whole command buffer in one engine call, on one worker or several.

A finalized command buffer is a *program*: fixed-size records in its slab, one per command (`Op`, `Record`).
The sequencer walks them inside the sandbox: dispatches call the kernels through the table, fills and copies
are bulk-memory instructions, and barriers make workers wait for each other.

With several workers every command is split into units (workgroups; other commands are one unit) that workers
take by ticket. A segment, the commands between two barriers, is over when as many units have completed as it
has; nobody waits for a *worker*. A helper that wakes late finds no tickets left and catches up, and when none
wakes the submitting worker does everything.

Source: ``iree/hal/local/executable_library.h`` 0.6: the entry's type and the workgroup state's layout.
"""

from __future__ import annotations

import enum
import functools
from typing import Final

from ...abi.structs import DISPATCH_STATE, WORKGROUP_STATE
from ...wasm import FunctionBuilder, ModuleBuilder
from ...wasm.types import FunctionType, ValueType

__all__ = ["MARK_TYPES", "RECORD_WORDS", "Control", "Failure", "Op", "Record", "WorkerBlock", "assemble"]

_I32: Final = ValueType.I32
_I64: Final = ValueType.I64
ENTRY_TYPE: Final = FunctionType(parameters=(_I32, _I32, _I32), results=(_I32,))
MARK_TYPES: Final = (_I32, _I32, _I32)
"""``mark(worker, record, units)``: -1 units when a command begins, else those this worker did of it."""

SPINS: Final = 20000
"""Looks at a word before a worker goes to sleep on it: some fifty microseconds, what waking may take."""
NAP_NS: Final = 1_000_000
"""Longest sleep within a submission; then a worker looks whether another one has failed."""
CLOSED: Final = -(1 << 31)

FILL_PART_BYTES: Final = 1 << 15
"""How much of a fill is one unit; a multiple of the pattern's length."""
FROM_LAST: Final = 1 << 16
"""In the word of tickets taken, the count of those from the last back: the upper half."""

RECORD_WORDS: Final = 12
RECORD_BYTES: Final = 4 * RECORD_WORDS


class Op(enum.IntEnum):
    """What a record does."""

    END = 0
    DISPATCH = 1
    WALK = 2
    INDIRECT = 3
    FILL = 4
    COPY = 5
    BARRIER = 6
    # For helpers only: a function that they stay in for as long as it wants them.
    HELP = 7


class Record(enum.IntEnum):
    """Byte offsets in a record. Which members it has depends on its `Op`."""

    OP = 0
    # Dispatches; indirect ones have the address of their workgroup counts in COUNT_X.
    FUNCTION = 4
    ENVIRONMENT = 8
    STATE = 12
    COUNT_X = 16
    COUNT_Y = 20
    COUNT_Z = 24
    # Fills: eight bytes of pattern, and whether they are all the same. Copies.
    TARGET = 4
    LENGTH = 8
    SOURCE = 12
    UNIFORM = 12
    PATTERN = 16
    # Barriers and the end: units of the segment that ends here.
    COMPLETED = 4
    EXPECTED = 8
    # All but barriers: tickets taken (`FROM_LAST`), units, units per ticket, address of the segment's end.
    TICKET = 28
    UNITS = 32
    CHUNK = 36
    SEGMENT = 40


class Control(enum.IntEnum):
    """Byte offsets in the control block of a device. What workers fight for has a cache line of its own."""

    EPOCH = 0
    GATE = 64
    PROGRAM = 128
    TRACE = 132
    SHUTDOWN = 136
    # Not 0: leave the submission at the next look. The host writes it, too.
    STOP = 192
    KIND = 196
    CODE = 200
    RECORD = 204
    WORKGROUPS = 256
    BYTE_LENGTH = 320


class WorkerBlock(enum.IntEnum):
    """Byte offsets in the block of one worker."""

    PROGRESS = 0
    ACTIVE = 4
    SEEN = 8
    BYTE_LENGTH = 64


class Failure(enum.IntEnum):
    """Why a run stopped without a trap (`Control.KIND`)."""

    NONE = 0
    KERNEL = 1
    WORKGROUP_COUNT = 2


class _Functions:
    """Builds the functions of the module, each before those that call it."""

    def __init__(self, module: ModuleBuilder) -> None:
        self.module = module
        module.import_table("env", "__indirect_function_table", 0)
        self.stack_pointer = module.import_global("env", "__stack_pointer", _I32, mutable=True)
        self.stack_top = module.import_global("env", "__stack_high", _I32)
        self.mark = module.import_function("env", "mark", list(MARK_TYPES), [])
        # Why the function that returned other than 0 did so.
        self.kind = module.add_global(_I32, Failure.KERNEL, mutable=True)

    def walk(self) -> FunctionBuilder:
        """``walk(record, workgroup_state, x, y, z) -> code``: all workgroups, x fastest."""
        f = self.module.function("walk", [_I32] * 5, [_I32])
        record, workgroup = 0, 1
        counts = {"x": 2, "y": 3, "z": 4}
        ids = {axis: f.local(_I32, axis) for axis in counts}
        function, environment, state = self._entry_locals(f, record)
        code = f.local(_I32, "code")
        for count in counts.values():
            f.get(count).emit("i32.eqz")
            with f.if_():
                f.i32(0).emit("return")

        def nest(axes: str) -> None:
            if not axes:
                f.get(environment).get(state).get(workgroup).get(function)
                f.emit("call_indirect", ENTRY_TYPE, 0).tee(code)
                with f.if_():
                    f.get(code).emit("return")
                return
            axis = axes[0]
            f.i32(0).set(ids[axis])
            with f.loop() as again:
                _store_id(f, workgroup, axis, ids[axis])
                nest(axes[1:])
                f.get(ids[axis]).i32(1).emit("i32.add").tee(ids[axis]).get(counts[axis]).emit("i32.ne")
                f.br_if(again)

        nest("zyx")
        return f.i32(0)

    def span(self) -> FunctionBuilder:
        """``span(record, workgroup_state, first, last) -> code``: workgroups by number; ``first < last``."""
        f = self.module.function("span", [_I32] * 4, [_I32])
        record, workgroup, first, last = range(4)
        function, environment, state = self._entry_locals(f, record)
        count_x, count_y, row, code = (f.local(_I32, name) for name in ("count_x", "count_y", "row", "code"))
        ids = {axis: f.local(_I32, axis) for axis in "xyz"}
        f.get(record).emit("i32.load", offset=Record.COUNT_X).set(count_x)
        f.get(record).emit("i32.load", offset=Record.COUNT_Y).set(count_y)
        f.get(first).get(count_x).emit("i32.rem_u").set(ids["x"])
        f.get(first).get(count_x).emit("i32.div_u").tee(row).get(count_y).emit("i32.rem_u").set(ids["y"])
        f.get(row).get(count_y).emit("i32.div_u").set(ids["z"])
        with f.loop() as again:
            for axis in "xyz":
                _store_id(f, workgroup, axis, ids[axis])
            f.get(environment).get(state).get(workgroup).get(function)
            f.emit("call_indirect", ENTRY_TYPE, 0).tee(code)
            with f.if_():
                f.get(code).emit("return")
            f.get(ids["x"]).i32(1).emit("i32.add").tee(ids["x"]).get(count_x).emit("i32.eq")
            with f.if_():
                f.i32(0).set(ids["x"])
                f.get(ids["y"]).i32(1).emit("i32.add").tee(ids["y"]).get(count_y).emit("i32.eq")
                with f.if_():
                    f.i32(0).set(ids["y"])
                    f.get(ids["z"]).i32(1).emit("i32.add").set(ids["z"])
            f.get(first).i32(1).emit("i32.add").tee(first).get(last).emit("i32.ne")
            f.br_if(again)
        return f.i32(0)

    @staticmethod
    def _entry_locals(f: FunctionBuilder, record: int) -> tuple[int, int, int]:
        found = []
        for member in (Record.FUNCTION, Record.ENVIRONMENT, Record.STATE):
            local = f.local(_I32, member.name.lower())
            f.get(record).emit("i32.load", offset=member).set(local)
            found.append(local)
        return found[0], found[1], found[2]

    def indirect(self, walk: FunctionBuilder) -> FunctionBuilder:
        """``indirect(record, workgroup_state, control) -> code``: counts are read now."""
        f = self.module.function("indirect", [_I32] * 3, [_I32])
        record, workgroup, control = range(3)
        x, y, z, at = (f.local(_I32, name) for name in ("x", "y", "z", "at"))
        f.get(record).emit("i32.load", offset=Record.COUNT_X).set(at)
        for index, local in enumerate((x, y, z)):
            f.get(at).emit("i32.load", offset=4 * index).set(local)
        f.get(z).i32(0xFFFF).emit("i32.gt_u")
        with f.if_():
            f.i32(Failure.WORKGROUP_COUNT).emit("global.set", self.kind)
            f.get(z).emit("return")
        f.get(record).emit("i32.load", offset=Record.STATE).set(at)
        offsets = DISPATCH_STATE.offsets
        f.get(at).get(x).emit("i32.store", offset=offsets["workgroup_count_x"])
        f.get(at).get(y).emit("i32.store", offset=offsets["workgroup_count_y"])
        f.get(at).get(z).emit("i32.store16", offset=offsets["workgroup_count_z"])
        f.get(control)
        for local in (x, y, z):
            f.get(local).emit("i64.extend_i32_u")
        f.emit("i64.mul").emit("i64.mul").emit("i64.atomic.rmw.add", offset=Control.WORKGROUPS).emit("drop")
        return f.get(record).get(workgroup).get(x).get(y).get(z).call(walk)

    def fill(self) -> FunctionBuilder:
        """``fill(record, first, last)``: repeat the pattern over parts of the target, by number."""
        f = self.module.function("fill", [_I32] * 3, [])
        record, first, last = range(3)
        at, end = f.local(_I32, "at"), f.local(_I32, "end")
        f.get(record).emit("i32.load", offset=Record.TARGET).tee(end)
        f.get(first).i32(FILL_PART_BYTES).emit("i32.mul").emit("i32.add").set(at)
        # The last part is what is left of the target; one whose length was not known is a single part.
        f.get(end)
        f.get(record).emit("i32.load", offset=Record.LENGTH)
        f.get(last).i32(FILL_PART_BYTES).emit("i32.mul")
        f.get(last).get(record).emit("i32.load", offset=Record.UNITS).emit("i32.eq").emit("select")
        f.emit("i32.add").set(end)
        f.get(record).emit("i32.load", offset=Record.UNIFORM)
        with f.if_():
            f.get(at).get(record).emit("i32.load8_u", offset=Record.PATTERN)
            f.get(end).get(at).emit("i32.sub").emit("memory.fill").emit("return")
        with f.block() as done, f.loop() as again:
            f.get(end).get(at).emit("i32.sub").i32(8).emit("i32.lt_u")
            f.br_if(done)
            f.get(at).get(record).emit("i64.load", offset=Record.PATTERN).emit("i64.store", align=0)
            f.get(at).i32(8).emit("i32.add").set(at)
            f.br(again)
        f.get(at).get(record).i32(Record.PATTERN).emit("i32.add").get(end).get(at).emit("i32.sub")
        f.emit("memory.copy")
        return f

    def perform(
        self, walk: FunctionBuilder, indirect: FunctionBuilder, fill: FunctionBuilder
    ) -> FunctionBuilder:
        """``perform(record, workgroup_state, control, op) -> code``: a whole command that is no barrier."""
        f = self.module.function("perform", [_I32] * 4, [_I32])
        record, workgroup, control, op = range(4)
        f.get(op).i32(Op.WALK).emit("i32.le_u")
        with f.if_():
            f.get(record).get(workgroup)
            for member in (Record.COUNT_X, Record.COUNT_Y, Record.COUNT_Z):
                f.get(record).emit("i32.load", offset=member)
            f.call(walk).emit("return")
        f.get(op).i32(Op.INDIRECT).emit("i32.eq")
        with f.if_():
            f.get(record).get(workgroup).get(control).call(indirect).emit("return")
        f.get(op).i32(Op.COPY).emit("i32.eq")
        with f.if_():
            for member in (Record.TARGET, Record.SOURCE, Record.LENGTH):
                f.get(record).emit("i32.load", offset=member)
            f.emit("memory.copy").i32(0).emit("return")
        f.get(record).i32(0).get(record).emit("i32.load", offset=Record.UNITS).call(fill)
        return f.i32(0)

    def wait(self) -> FunctionBuilder:
        """``wait(control, barrier)``: until the segment has completed, or somebody failed."""
        f = self.module.function("wait", [_I32] * 2, [])
        control, barrier = range(2)
        seen, spins = f.local(_I32, "seen"), f.local(_I32, "spins")
        f.i32(SPINS).set(spins)
        with f.block() as done, f.loop() as again:
            f.get(barrier).emit("i32.atomic.load", offset=Record.COMPLETED).tee(seen)
            f.get(barrier).emit("i32.load", offset=Record.EXPECTED).emit("i32.eq")
            f.br_if(done)
            f.get(control).emit("i32.atomic.load", offset=Control.STOP)
            f.br_if(done)
            f.get(spins)
            with f.if_():
                f.get(spins).i32(1).emit("i32.sub").set(spins)
                f.else_()
                f.get(barrier).get(seen).i64(NAP_NS)
                f.emit("memory.atomic.wait32", offset=Record.COMPLETED).emit("drop")
            f.br(again)
        return f

    def take(self) -> FunctionBuilder:
        """``take(record, tickets, worker) -> ticket``: one nobody has, below 0 when there are none left.

        Workers of even numbers take from the first on, others from the last back: what a worker reads is then
        mostly what it wrote itself, and still near its processor.
        """
        f = self.module.function("take", [_I32] * 3, [_I32])
        record, tickets, worker = range(3)
        taken, step = f.local(_I32, "taken"), f.local(_I32, "step")

        def leave_when_none_is_left() -> None:
            f.get(taken).i32(FROM_LAST - 1).emit("i32.and").get(taken).i32(16).emit("i32.shr_u")
            f.emit("i32.add").get(tickets).emit("i32.ge_u")
            with f.if_():
                f.i32(-1).emit("return")

        f.i32(FROM_LAST).i32(1).get(worker).i32(1).emit("i32.and").emit("select").set(step)
        # Looked at first, so that the counts stay near the number of tickets.
        f.get(record).emit("i32.atomic.load", offset=Record.TICKET).set(taken)
        leave_when_none_is_left()
        f.get(record).get(step).emit("i32.atomic.rmw.add", offset=Record.TICKET).set(taken)
        leave_when_none_is_left()
        f.get(tickets).i32(1).emit("i32.sub").get(taken).i32(16).emit("i32.shr_u").emit("i32.sub")
        f.get(taken).i32(FROM_LAST - 1).emit("i32.and")
        return f.get(worker).i32(1).emit("i32.and").emit("select")

    def share(
        self, take: FunctionBuilder, span: FunctionBuilder, fill: FunctionBuilder, perform: FunctionBuilder
    ) -> FunctionBuilder:
        """``share(record, workgroup_state, control, op, worker) -> code``: as many units as there are tickets
        for; the units done are left in the global that `units` names."""
        f = self.module.function("share", [_I32] * 5, [_I32])
        record, workgroup, control, op, worker = range(5)
        names = ("units", "chunk", "first", "last", "segment", "code", "completed")
        units, chunk, first, last, segment, code, completed = (f.local(_I32, name) for name in names)
        tickets = f.local(_I32, "tickets")
        for member, local in ((Record.UNITS, units), (Record.CHUNK, chunk), (Record.SEGMENT, segment)):
            f.get(record).emit("i32.load", offset=member).set(local)
        f.get(units).get(chunk).emit("i32.add").i32(1).emit("i32.sub")
        f.get(chunk).emit("i32.div_u").set(tickets)
        f.i32(0).emit("global.set", self.units)
        with f.block() as done, f.loop() as again:
            f.get(record).get(tickets).get(worker).call(take).tee(first).i32(0).emit("i32.lt_s")
            f.br_if(done)
            f.get(first).get(chunk).emit("i32.mul").set(first)
            f.get(first).get(chunk).emit("i32.add").tee(last).get(units)
            f.get(last).get(units).emit("i32.lt_u").emit("select").set(last)
            f.get(op).i32(Op.DISPATCH).emit("i32.eq")
            with f.if_(results=[_I32]):
                f.get(record).get(workgroup).get(first).get(last).call(span)
                f.else_()
                f.get(op).i32(Op.FILL).emit("i32.eq")
                with f.if_(results=[_I32]):
                    f.get(record).get(first).get(last).call(fill).i32(0)
                    f.else_()
                    f.get(record).get(workgroup).get(control).get(op).call(perform)
            f.tee(code)
            with f.if_():
                f.get(code).emit("return")
            f.get(last).get(first).emit("i32.sub").tee(last)
            f.emit("global.get", self.units).emit("i32.add").emit("global.set", self.units)
            f.get(segment).get(last).emit("i32.atomic.rmw.add", offset=Record.COMPLETED)
            f.get(last).emit("i32.add").tee(completed)
            f.get(segment).emit("i32.load", offset=Record.EXPECTED).emit("i32.eq")
            with f.if_():
                f.get(segment).i32(-1).emit("memory.atomic.notify", offset=Record.COMPLETED).emit("drop")
            f.get(control).emit("i32.atomic.load", offset=Control.STOP).emit("i32.eqz")
            f.br_if(again)
        return f.i32(0)

    @functools.cached_property
    def units(self) -> int:
        """A global: units of the present command that this worker did."""
        return self.module.add_global(_I32, 0, mutable=True)

    def execute(
        self, perform: FunctionBuilder, share: FunctionBuilder, wait: FunctionBuilder
    ) -> FunctionBuilder:
        """``execute(program, control, block, workgroup_state, worker, workers)``: the records in order."""
        f = self.module.function("execute", [_I32] * 6, [])
        program, control, block, workgroup, worker, workers = range(6)
        op, code = f.local(_I32, "op"), f.local(_I32, "code")
        record = program
        # An empty shadow stack: what a trapped call left on it is forgotten.
        f.emit("global.get", self.stack_top).emit("global.set", self.stack_pointer)
        with f.block() as over, f.loop() as again:
            f.get(block).get(record).emit("i32.store", offset=WorkerBlock.PROGRESS)
            f.get(record).emit("i32.load", offset=Record.OP).set(op)
            f.get(op).i32(Op.HELP).emit("i32.eq")
            with f.if_():
                f.get(record).i32(0).get(workgroup).get(record).emit("i32.load", offset=Record.FUNCTION)
                f.emit("call_indirect", ENTRY_TYPE, 0).emit("drop")
                f.br(over)
            with f.block() as next_record:
                f.get(op).emit("i32.eqz").get(op).i32(Op.BARRIER).emit("i32.eq").emit("i32.or")
                with f.if_():
                    f.get(workers).i32(1).emit("i32.ne")
                    with f.if_():
                        f.get(control).get(record).call(wait)
                        f.get(control).emit("i32.atomic.load", offset=Control.STOP)
                        f.br_if(over)
                    f.get(op)
                    f.br_if(next_record)
                    f.br(over)
                self._marked(f, control, worker, record, begin=True)
                f.get(record).get(workgroup).get(control).get(op)
                f.get(workers).i32(1).emit("i32.eq")
                with f.if_(parameters=[_I32] * 4, results=[_I32]):
                    f.call(perform)
                    f.else_()
                    f.get(worker).call(share)
                f.set(code)
                self._marked(f, control, worker, record, begin=False)
                f.get(code)
                with f.if_():
                    self._fail(f, control, record, code)
                    f.br(over)
            f.get(record).i32(RECORD_BYTES).emit("i32.add").set(record)
            f.br(again)
        return f

    def _marked(self, f: FunctionBuilder, control: int, worker: int, record: int, *, begin: bool) -> None:
        f.get(control).emit("i32.load", offset=Control.TRACE)
        with f.if_():
            f.get(worker).get(record)
            if begin:
                f.i32(-1)
            else:
                f.emit("global.get", self.units)
            f.call(self.mark)

    def _fail(self, f: FunctionBuilder, control: int, record: int, code: int) -> None:
        """The first failure of a run is the one that is told."""
        f.get(control).i32(0).i32(1).emit("i32.atomic.rmw.cmpxchg", offset=Control.STOP).emit("i32.eqz")
        with f.if_():
            f.get(control).get(code).emit("i32.store", offset=Control.CODE)
            f.get(control).get(record).emit("i32.store", offset=Control.RECORD)
            f.get(control).emit("global.get", self.kind).emit("i32.store", offset=Control.KIND)
        f.i32(Failure.KERNEL).emit("global.set", self.kind)

    def run(self, execute: FunctionBuilder) -> None:
        """``run(program, control, block, workgroup_state, workers) -> failure``: worker 0's side of a
        submission; other workers are called when there are to be several."""
        f = self.module.function("run", [_I32] * 5, [_I32], export=True)
        program, control, block, workgroup, workers = range(5)
        at, op = f.local(_I32, "at"), f.local(_I32, "op")
        f.get(control).i32(0).emit("i32.store", offset=Control.KIND)
        f.get(control).i64(0).emit("i64.store", offset=Control.WORKGROUPS)
        f.get(control).i32(0).emit("i32.atomic.store", offset=Control.STOP)
        f.get(workers).i32(1).emit("i32.ne")
        with f.if_():
            f.get(program).set(at)
            with f.loop() as again:
                f.get(at).emit("i32.load", offset=Record.OP).tee(op)
                f.emit("i32.eqz").get(op).i32(Op.BARRIER).emit("i32.eq").emit("i32.or")
                with f.if_():
                    f.get(at).i32(0).emit("i32.store", offset=Record.COMPLETED)
                    f.else_()
                    f.get(at).i32(0).emit("i32.store", offset=Record.TICKET)
                f.get(at).i32(RECORD_BYTES).emit("i32.add").set(at)
                f.get(op)
                f.br_if(again)
            f.get(control).get(program).call(self.open)
        f.get(program).get(control).get(block).get(workgroup).i32(0).get(workers).call(execute)
        f.get(workers).i32(1).emit("i32.ne")
        with f.if_():
            f.get(control).call(self.gather)
        f.get(control).emit("i32.load", offset=Control.KIND)

    def run_alone(self, execute: FunctionBuilder) -> None:
        """``run_alone(program, control, block, workgroup_state, worker) -> failure``: a whole submission by a
        worker that shares nothing with others; the control block is its own."""
        f = self.module.function("run_alone", [_I32] * 5, [_I32], export=True)
        program, control, block, workgroup, worker = range(5)
        f.get(control).i32(0).emit("i32.store", offset=Control.KIND)
        f.get(control).i64(0).emit("i64.store", offset=Control.WORKGROUPS)
        f.get(control).i32(0).emit("i32.atomic.store", offset=Control.STOP)
        f.get(program).get(control).get(block).get(workgroup).get(worker).i32(1).call(execute)
        f.get(control).emit("i32.load", offset=Control.KIND)

    @functools.cached_property
    def summon(self) -> FunctionBuilder:
        """``summon(control)``: have every helper look at the program, those who sleep as well."""
        f = self.module.function("summon", [_I32], [], export=True)
        f.get(0).i32(1).emit("i32.atomic.rmw.add", offset=Control.EPOCH).emit("drop")
        f.get(0).i32(-1).emit("memory.atomic.notify", offset=Control.EPOCH).emit("drop")
        return f

    @functools.cached_property
    def open(self) -> FunctionBuilder:
        """``open(control, program)``: let helpers in, until `gather`."""
        f = self.module.function("open", [_I32, _I32], [], export=True)
        control, program = range(2)
        f.get(control).get(program).emit("i32.store", offset=Control.PROGRAM)
        f.get(control).i32(~CLOSED).emit("i32.atomic.rmw.and", offset=Control.GATE).emit("drop")
        f.get(control).call(self.summon)
        return f

    @functools.cached_property
    def gather(self) -> FunctionBuilder:
        """``gather(control)``: let no helper in any more, and wait until none is inside."""
        f = self.module.function("gather", [_I32], [], export=True)
        control = 0
        seen, spins = f.local(_I32, "seen"), f.local(_I32, "spins")
        f.get(control).i32(CLOSED).emit("i32.atomic.rmw.or", offset=Control.GATE).emit("drop")
        f.i32(SPINS).set(spins)
        with f.block() as done, f.loop() as again:
            f.get(control).emit("i32.atomic.load", offset=Control.GATE).tee(seen).i32(CLOSED).emit("i32.eq")
            f.br_if(done)
            f.get(spins)
            with f.if_():
                f.get(spins).i32(1).emit("i32.sub").set(spins)
                f.else_()
                f.get(control).get(seen).i64(NAP_NS)
                f.emit("memory.atomic.wait32", offset=Control.GATE).emit("drop")
            f.br(again)
        return f

    def leave(self) -> FunctionBuilder:
        """``leave(control, block)``: a helper that came in goes out."""
        f = self.module.function("leave", [_I32] * 2, [], export=True)
        control, block = range(2)
        f.get(block).emit("i32.load", offset=WorkerBlock.ACTIVE)
        with f.if_():
            f.get(block).i32(0).emit("i32.store", offset=WorkerBlock.ACTIVE)
            f.get(control).i32(1).emit("i32.atomic.rmw.sub", offset=Control.GATE).emit("drop")
            f.get(control).i32(1).emit("memory.atomic.notify", offset=Control.GATE).emit("drop")
        return f

    def shut_down(self) -> None:
        """``shut_down(control)``: make helpers return from `serve`."""
        f = self.module.function("shut_down", [_I32], [], export=True)
        # Without a call or a loop, so that no deadline stops it.
        f.get(0).i32(1).emit("i32.atomic.store", offset=Control.SHUTDOWN)
        f.get(0).i32(1).emit("i32.atomic.rmw.add", offset=Control.EPOCH).emit("drop")
        f.get(0).i32(-1).emit("memory.atomic.notify", offset=Control.EPOCH).emit("drop")

    def serve(self, execute: FunctionBuilder, leave: FunctionBuilder) -> None:
        """``serve(control, block, workgroup_state, worker, workers)``: a helper's life."""
        f = self.module.function("serve", [_I32] * 5, [], export=True)
        control, block, workgroup, worker, workers = range(5)
        seen, spins = f.local(_I32, "seen"), f.local(_I32, "spins")
        with f.loop() as again:
            f.i32(SPINS).set(spins)
            with f.block() as called, f.loop() as idle:
                f.get(block).emit("i32.load", offset=WorkerBlock.SEEN).tee(seen)
                f.get(control).emit("i32.atomic.load", offset=Control.EPOCH).emit("i32.ne")
                f.br_if(called)
                f.get(spins)
                with f.if_():
                    f.get(spins).i32(1).emit("i32.sub").set(spins)
                    f.else_()
                    f.get(control).get(seen).i64(-1)
                    f.emit("memory.atomic.wait32", offset=Control.EPOCH).emit("drop")
                f.br(idle)
            f.get(block).get(control).emit("i32.atomic.load", offset=Control.EPOCH)
            f.emit("i32.store", offset=WorkerBlock.SEEN)
            f.get(control).emit("i32.atomic.load", offset=Control.SHUTDOWN)
            with f.if_():
                f.emit("return")
            f.get(block).i32(1).emit("i32.store", offset=WorkerBlock.ACTIVE)
            f.get(control).i32(1).emit("i32.atomic.rmw.add", offset=Control.GATE).i32(0).emit("i32.ge_s")
            with f.if_():
                f.get(control).emit("i32.load", offset=Control.PROGRAM)
                f.get(control).get(block).get(workgroup).get(worker).get(workers).call(execute)
            f.get(control).get(block).call(leave)
            f.br(again)


def _store_id(f: FunctionBuilder, workgroup: int, axis: str, value: int) -> None:
    name = "i32.store16" if axis == "z" else "i32.store"
    f.get(workgroup).get(value).emit(name, offset=WORKGROUP_STATE.offsets[f"workgroup_id_{axis}"])


@functools.cache
def assemble() -> bytes:
    """The module. It exports ``run``, ``run_alone``, ``serve``, ``open``, ``summon``, ``gather``, ``leave``
    and ``shut_down``.

    It imports ``env.mark``, which it calls around commands while `Control.TRACE` is set."""
    module = ModuleBuilder("sylvite_sequencer")
    module.import_memory("env", "memory", 0)
    functions = _Functions(module)
    walk, span, fill, wait = functions.walk(), functions.span(), functions.fill(), functions.wait()
    perform = functions.perform(walk, functions.indirect(walk), fill)
    execute = functions.execute(perform, functions.share(functions.take(), span, fill, perform), wait)
    functions.run(execute)
    functions.run_alone(execute)
    functions.serve(execute, functions.leave())
    functions.shut_down()
    return module.build()
