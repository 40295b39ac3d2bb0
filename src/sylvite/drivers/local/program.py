"""Command buffers as programs of the sequencer: records in the slab, after the dispatch states.

What is only known at execution (buffers in the binding table, transient buffers) is patched into the records
before each run; whatever can be known is written once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ...errors import InvalidArgumentError
from ...hal import (
    WHOLE_BUFFER,
    Binding,
    BufferRef,
    Command,
    CommandBuffer,
    CopyBuffer,
    Dispatch,
    DispatchIndirect,
    ExecutionBarrier,
    FillBuffer,
    TransientStorage,
    UpdateBuffer,
)
from ...hal.command_buffer import check_fill, overlaps
from .executable import LocalExecutable
from .sequencer import FILL_PART_BYTES, RECORD_WORDS, Op, Record
from .slab import WORD_BYTES, DispatchLayout, Slab

if TYPE_CHECKING:
    from ...engines.base import RawCall
    from ...trace import Counters

__all__ = ["Program", "ProgramBuilder", "Unit"]

RECORD_BYTES: Final = RECORD_WORDS * WORD_BYTES
# Workgroups beyond this are not handed out by number, which has 32 bits and some slack for late tickets.
MAX_SHARED_UNITS: Final = 1 << 30
# Tickets per worker and dispatch: few enough that taking one costs nothing, enough to even out.
TICKETS_PER_WORKER: Final = 8
_PATTERN_BYTES: Final = 8
_STATE, _UNITS, _CHUNK, _SEGMENT, _EXPECTED = (
    member // WORD_BYTES
    for member in (Record.STATE, Record.UNITS, Record.CHUNK, Record.SEGMENT, Record.EXPECTED)
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a record is, for messages and timelines. ``workgroups`` is ``None`` where the run reads it;
    ``byte_length`` is that of all its buffers, ``None`` where a length comes with the binding table."""

    name: str
    category: str
    workgroups: int | None = None
    byte_length: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class _Draft:
    """A record being made: its words, and the commands whose addresses are filled in later."""

    op: Op
    unit: Unit
    words: dict[Record, int]
    command: Command | None = None
    layout: DispatchLayout | None = None
    units: int = 1


class ProgramBuilder:
    """Turns commands into records.

    Args:
        domain: the guest heap, which is what the sequencer can address.
        workers: how many the device has.
    """

    def __init__(self, domain: object, workers: int) -> None:
        self._domain = domain
        self._workers = workers
        self._drafts: list[_Draft] = []
        self._data = bytearray()
        self._is_foreign = False

    def add(self, command: Command, layout: DispatchLayout | None) -> None:
        """Add a command; ``layout`` is that of a dispatch in the slab."""
        if isinstance(command, Dispatch) and layout is not None:
            self._add_dispatch(command, layout)
        elif isinstance(command, DispatchIndirect) and layout is not None:
            words = {**self._entry(command), Record.COUNT_X: 0}
            unit = Unit(
                name=_export_name(command), category="dispatch", byte_length=_bytes_of(command.bindings)
            )
            self._append(Op.INDIRECT, unit, words, command, layout)
        elif isinstance(command, FillBuffer):
            pattern = command.pattern * (_PATTERN_BYTES // len(command.pattern))
            words = {
                Record.UNIFORM: int(len(set(pattern)) == 1),
                Record.PATTERN: int.from_bytes(pattern[:4], "little"),
                Record.COUNT_Y: int.from_bytes(pattern[4:], "little"),
            }
            length = command.target.length
            parts = 1 if length == WHOLE_BUFFER else max(1, -(-length // FILL_PART_BYTES))
            self._append(Op.FILL, Unit(name="fill", category="transfer"), words, command, units=parts)
        elif isinstance(command, UpdateBuffer):
            words = {Record.SOURCE: len(self._data), Record.LENGTH: len(command.data)}
            self._data += command.data + bytes(-len(command.data) % WORD_BYTES)
            self._append(Op.COPY, Unit(name="update", category="transfer"), words, command)
        elif isinstance(command, CopyBuffer):
            self._append(Op.COPY, Unit(name="copy", category="transfer"), {}, command)
        elif isinstance(command, ExecutionBarrier) and self._drafts and self._drafts[-1].op is not Op.BARRIER:
            self._append(Op.BARRIER, Unit(name="barrier", category="barrier"), {})

    def _append(
        self,
        op: Op,
        unit: Unit,
        words: dict[Record, int],
        command: Command | None = None,
        layout: DispatchLayout | None = None,
        units: int = 1,
    ) -> None:
        self._drafts.append(
            _Draft(op=op, unit=unit, words=words, command=command, layout=layout, units=units)
        )

    @staticmethod
    def _entry(command: Dispatch | DispatchIndirect) -> dict[Record, int]:
        executable = command.executable
        if not isinstance(executable, LocalExecutable):
            raise InvalidArgumentError("the executable belongs to another device")
        return {
            Record.FUNCTION: executable.table_indices[command.export_ordinal],
            Record.ENVIRONMENT: executable.environment_address,
        }

    def _add_dispatch(self, command: Dispatch, layout: DispatchLayout) -> None:
        x, y, z = command.workgroup_count
        total = x * y * z
        if not total:
            return
        words = {**self._entry(command), Record.COUNT_X: x, Record.COUNT_Y: y, Record.COUNT_Z: z}
        unit = Unit(
            name=_export_name(command),
            category="dispatch",
            workgroups=total,
            byte_length=_bytes_of(command.bindings),
        )
        if 1 < total <= MAX_SHARED_UNITS:
            self._append(Op.DISPATCH, unit, words, command, layout, total)
        else:
            self._append(Op.WALK, unit, words, command, layout)

    @property
    def byte_length(self) -> int:
        """Bytes the program takes in the slab."""
        return (len(self._drafts) + 1) * RECORD_BYTES + len(self._data)

    def build(self, slab: Slab, first_word: int) -> Program:
        """Write the records to the slab from a word on."""
        self._append(Op.END, Unit(name="end", category="barrier"), {})
        data_address = slab.address + first_word * WORD_BYTES + len(self._drafts) * RECORD_BYTES
        program = Program(slab, first_word, self._domain)
        count = len(self._drafts)
        slab.words[first_word : first_word + count * RECORD_WORDS] = 0
        # Single words are written through a memoryview, which is twice as fast as an array.
        words = slab.words.data
        segment: list[int] = []
        expected = 0
        for index, draft in enumerate(self._drafts):
            at = first_word + index * RECORD_WORDS
            self._write(words, at, draft, slab.address)
            if draft.op in (Op.BARRIER, Op.END):
                for member in segment:
                    words[member + _SEGMENT] = slab.address + at * WORD_BYTES
                words[at + _EXPECTED] = expected
                segment, expected = [], 0
            else:
                segment.append(at)
                expected += draft.units
            self._place(program, slab, at, draft, data_address)
        data_word = first_word + count * RECORD_WORDS
        slab.words[data_word : data_word + len(self._data) // WORD_BYTES] = np.frombuffer(
            bytes(self._data), np.uint32
        )
        return program

    def _write(self, words: memoryview, at: int, draft: _Draft, slab_address: int) -> None:
        words[at] = draft.op
        for member, value in draft.words.items():
            words[at + member // WORD_BYTES] = value
        if draft.op in (Op.BARRIER, Op.END):
            return
        if draft.layout is not None:
            words[at + _STATE] = slab_address + draft.layout.state * WORD_BYTES
        words[at + _UNITS] = draft.units
        words[at + _CHUNK] = max(1, draft.units // (self._workers * TICKETS_PER_WORKER))

    def _place(self, program: Program, slab: Slab, at: int, draft: _Draft, data_address: int) -> None:
        """Write the addresses of a record's buffers, or note to do it at each execution."""
        program.units.append(draft.unit)
        command = draft.command
        if isinstance(command, Dispatch):
            program.dispatches += 1
            program.workgroups += draft.unit.workgroups or 0
            program.is_parallel |= draft.op is Op.DISPATCH
        elif isinstance(command, DispatchIndirect):
            program.dispatches += 1
            # Counts always have 12 bytes, so the length goes into a word that the record does not use.
            counts_word = at + Record.COUNT_X // WORD_BYTES
            slab.bind(counts_word, counts_word + 1, command.workgroups)
            program.note_domain(command.workgroups)
            program.has_indirect = True
        elif isinstance(command, (FillBuffer, UpdateBuffer, CopyBuffer)):
            if isinstance(command, UpdateBuffer):
                slab.words[at + Record.SOURCE // WORD_BYTES] += data_address
            program.add_transfer(at, command)


def _bytes_of(bindings: Sequence[BufferRef]) -> int | None:
    lengths = [ref.length for ref in bindings]
    return None if WHOLE_BUFFER in lengths else sum(lengths)


def _export_name(command: Dispatch | DispatchIndirect) -> str:
    return command.executable.exports[command.export_ordinal].name


class Program:
    """The written program, and what has to be patched before each run.

    Args:
        slab: where it is.
        first_word: word of its first record.
        domain: the guest heap.
    """

    def __init__(self, slab: Slab, first_word: int, domain: object) -> None:
        self._words = slab.words.data
        self._domain = domain
        self._late: list[tuple[int, FillBuffer | UpdateBuffer | CopyBuffer]] = []
        self._static_bytes = 0
        self._late_bytes = 0
        self._is_foreign = False
        self.address = slab.address + first_word * WORD_BYTES
        self.units: list[Unit] = []
        self.dispatches = 0
        self.workgroups = 0
        self.is_parallel = False
        self.has_indirect = False
        # A call of the sequencer with its arguments in place but for the first; see `Workers.prepare`.
        self.call: RawCall | None = None

    def unit_at(self, record_address: int) -> Unit | None:
        """What the record at a guest address is; ``None`` for addresses that are none."""
        index, rest = divmod(record_address - self.address, RECORD_BYTES)
        return self.units[index] if not rest and 0 <= index < len(self.units) else None

    @property
    def is_foreign(self) -> bool:
        """Whether it uses memory that the sequencer cannot address."""
        return self._is_foreign

    def settle(self) -> list[tuple[int, int, int]]:
        """Write the lengths of transfers whose ranges come with the binding table; all were recorded. Return
        the words that are left to write: word, slot, offset."""
        words = self._words
        left = []
        for at, command in self._late:
            target, source = command.target, getattr(command, "source", None)
            words[at + Record.LENGTH // WORD_BYTES] = target.length
            self._static_bytes += target.length
            for member, ref in ((Record.TARGET, target), (Record.SOURCE, source)):
                word = at + member // WORD_BYTES
                if ref is None:
                    continue
                if ref.buffer is None:
                    left.append((word, ref.slot, ref.offset))
                else:
                    words[word] = CommandBuffer.resolve(ref, ()).address
        self._late.clear()
        return left

    def note_domain(self, ref: BufferRef) -> None:
        """Take note of memory that the sequencer cannot address."""
        if ref.buffer is not None and ref.buffer.storage.domain is not self._domain:
            self._is_foreign = True

    def add_transfer(self, at: int, command: FillBuffer | UpdateBuffer | CopyBuffer) -> None:
        """Resolve a transfer now, or at each execution."""
        refs = [command.target, *([command.source] if isinstance(command, CopyBuffer) else [])]
        for ref in refs:
            self.note_domain(ref)
        if all(
            ref.buffer is not None and not isinstance(ref.buffer.storage, TransientStorage) for ref in refs
        ):
            if not self._is_foreign:
                self._static_bytes += self._resolve(at, command, ())
        else:
            self._late.append((at, command))

    def patch(self, table: Sequence[Binding | None]) -> bool:
        """Write what this execution's binding table gives.

        Returns:
            Whether the sequencer can run it: all its memory is the guest's.

        Raises:
            InvalidArgumentError: lengths do not fit or ranges overlap, which could not be known before; or a
                transient buffer is not allocated yet.
        """
        if self._is_foreign:
            return False
        self._late_bytes = 0
        for at, command in self._late:
            for ref in (command.target, getattr(command, "source", None)):
                bound = table[ref.slot] if ref is not None and ref.buffer is None else None
                if bound is not None and bound.storage.domain is not self._domain:
                    return False
            self._late_bytes += self._resolve(at, command, table)
        return True

    def _resolve(
        self, at: int, command: FillBuffer | UpdateBuffer | CopyBuffer, table: Sequence[Binding | None]
    ) -> int:
        words = self._words
        target = CommandBuffer.resolve(command.target, table)
        length = target.byte_length
        if isinstance(command, FillBuffer):
            check_fill(0, length, command.pattern, what="fill target")
            words[at + Record.LENGTH // WORD_BYTES] = length
        elif isinstance(command, CopyBuffer):
            source = CommandBuffer.resolve(command.source, table)
            if source.byte_length != length:
                message = f"copy: {source.byte_length} source bytes do not fill {length} target bytes"
                raise InvalidArgumentError(message)
            if overlaps(source, target):
                raise InvalidArgumentError("copy: source and target overlap")
            words[at + Record.SOURCE // WORD_BYTES] = source.address
            words[at + Record.LENGTH // WORD_BYTES] = length
        elif len(command.data) != length:
            raise InvalidArgumentError(f"update: {len(command.data)} bytes do not fill {length} target bytes")
        words[at + Record.TARGET // WORD_BYTES] = target.address
        return length

    def count(self, counters: Counters, indirect_workgroups: int) -> None:
        """Count a run."""
        counters.engine_calls += 1
        counters.dispatches += self.dispatches
        counters.workgroups += self.workgroups + indirect_workgroups
        counters.device_bytes_copied += self._static_bytes + self._late_bytes
