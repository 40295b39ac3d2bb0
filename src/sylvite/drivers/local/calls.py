"""Calls that are done again: the device's half of `sylvite.hal.CallPlan`.

A plan has command buffers of its own, whose slabs keep the addresses of the call before; only what lies
elsewhere this time is written. The rest of a call is to take memory, copy inputs that are not the guest's,
enter the engine, and give memory back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import OutOfMemoryError, SylviteError
from ...hal.call_plan import CallPlan, PreparedCall
from .command_buffer import LocalCommandBuffer
from .program import Program

if TYPE_CHECKING:
    from .device import LocalDevice

__all__ = ["LocalCall"]

_INPUT_TAG: Final = "input"
_TRANSIENT_TAG: Final = "transient"

Array = npt.NDArray[Any]
Patch = tuple[Any, "list[tuple[int, int]]"]
"""Words of a slab, and which of them hold an address: index and what is added."""

_address_of = ctypes.addressof
_Byte: Any = ctypes.c_char


def _result_type(device: LocalDevice, byte_length: int) -> Any:
    """The class of objects that own an allocation of so many bytes, for arrays to lie over.

    Freeing is done as in `HeapStorage`: the garbage collector may do it anywhere, in any thread.
    """
    allocator, space = device.allocator, device.space
    free, note, release = space.heap.free, allocator.note_release, space.store.release
    base_address = space.memory.base_address

    def give_back(self: Any) -> None:
        free(_address_of(self) - base_address)
        note(byte_length, _TRANSIENT_TAG)
        release()

    return type("ResultMemory", (ctypes.c_uint8 * byte_length,), {"__del__": give_back, "__slots__": ()})


class LocalCall(PreparedCall):
    """A prepared plan. Calls take turns by the device's locks.

    Args:
        device: of all that is in the plan.
        plan: the plan.
        buffers: a command buffer for each of its submissions.
        programs: what they run, prepared by the device's workers.
        explain: see `Device.prepare_call`.
    """

    def __init__(
        self,
        device: LocalDevice,
        plan: CallPlan,
        buffers: Sequence[LocalCommandBuffer],
        programs: Sequence[Program],
        explain: Callable[[SylviteError], None],
    ) -> None:
        self._tracer = device.tracer
        self._buffers = tuple(buffers)
        self._programs = tuple(programs)
        self._explain = explain
        self._pinned = plan.pinned
        self._closed = False
        # What every call uses, found once.
        self._discarded = device.discarded
        self._guard = device.call_guard
        self._run_program = device.workers.run
        self._submission_lock = device.submission_lock
        self._running_lock = device.running_lock
        self._queue = device.queue
        self._space = device.space
        self._allocator = device.allocator
        self._account = device.allocator.account_allocations
        self._note = device.allocator.note_release
        self._allocate = self._space.heap.allocate
        self._free = self._space.heap.free
        self._retain = self._space.store.retain
        self._base_address = self._space.memory.base_address
        self._memory = self._space.view(0, self._space.memory.byte_length)
        self._place(device, plan)

    def _place(self, device: LocalDevice, plan: CallPlan) -> None:
        """Prepare what is done for each slot."""
        inputs = len(plan.inputs)
        self._input_count = inputs
        self._dtypes = tuple(entry.dtype for entry in plan.inputs)
        self._shapes = tuple(entry.shape for entry in plan.inputs)
        self._lengths = tuple(entry.byte_length for entry in plan.inputs)
        self._allocations = plan.allocations
        self._allocated_bytes = sum(plan.allocations)
        kept = sorted({entry.slot for entry in plan.outputs})
        self._owners = tuple((slot, _result_type(device, plan.allocations[slot - inputs])) for slot in kept)
        self._results = tuple(
            (entry.shape, entry.dtype, kept.index(entry.slot), entry.byte_offset) for entry in plan.outputs
        )
        slots = inputs + len(plan.allocations)
        # Slots that end with the call, in the order in which they are given back.
        self._temporary = tuple(slot for slot in range(slots - 1, inputs - 1, -1) if slot not in kept)
        self._temporary_bytes = sum(plan.allocations[slot - inputs] for slot in self._temporary)
        # By slot: where it was in the call before, and the words that say so.
        self._addresses: list[Any] = [None] * slots
        self._patches: list[list[Patch]] = [[] for _ in range(slots)]
        for buffer in self._buffers:
            for slot, patch in buffer.address_words().items():
                self._patches[slot].append(patch)

    def run(self, values: Sequence[Any], timeout_ns: int | None) -> list[Array] | None:
        """Do it; see `PreparedCall.run`."""
        if self._closed or self._queue.closed:
            return None
        addresses = self._locate(values)
        if addresses is None:
            return None
        owners: list[Any] = []
        copied: list[int] | None = None
        try:
            with self._submission_lock:
                if not self._holds():
                    return None
                try:
                    copied = self._take(values, addresses, owners)
                except OutOfMemoryError:
                    return None
            with self._running_lock, self._guard(timeout_ns):
                # Once more: on devices with two locks it may have been closed in between.
                if self._closed or self._queue.closed:
                    return None
                if addresses != self._addresses:
                    self._patch(addresses)
                self._execute()
        except BaseException as error:
            # Who keeps the error keeps this frame, which must not keep memory.
            owners.clear()
            if isinstance(error, SylviteError):
                self._explain(error)
            raise
        finally:
            if copied or (self._temporary and copied is not None):
                self._give_back(addresses, copied)
        results = []
        for shape, dtype, owner, byte_offset in self._results:
            results.append(np.ndarray(shape, dtype, owners[owner], byte_offset))
        return results

    def _execute(self) -> None:
        counters = self._tracer.counters
        try:
            for program in self._programs:
                counters.submissions += 1
                self._run_program(program)
        except BaseException:
            self._space.reset_stack()
            raise

    def _locate(self, values: Sequence[Any]) -> list[Any] | None:
        """Guest addresses of arrays that lie in the guest's memory and in one piece, ``None`` for others; and
        ``None`` for all when one is not of its dtype and shape."""
        if len(values) != self._input_count:
            return None
        addresses: list[Any] = []
        base_address, end = self._base_address, len(self._memory)
        for value, dtype, shape, byte_length in zip(  # noqa: B905 - slower
            values, self._dtypes, self._shapes, self._lengths
        ):
            if value.__class__ is not np.ndarray or value.shape != shape:
                return None
            if value.dtype is not dtype and value.dtype != dtype:
                return None
            address = None
            if value.base is not None and value.flags.c_contiguous and byte_length:
                try:
                    address = _address_of(_Byte.from_buffer(value)) - base_address
                except (BufferError, TypeError, ValueError):  # read-only, or of a dtype without a buffer
                    address = value.__array_interface__["data"][0] - base_address
                if not 0 <= address <= end - byte_length:
                    # Elsewhere, unless the memory has grown.
                    address = self._allocator.address_of(base_address + address, byte_length)
            addresses.append(address)
        return addresses

    def _holds(self) -> bool:
        """Whether everything is as it was when the plan was made."""
        if self._closed or self._queue.closed or self._tracer.enabled or self._discarded:
            return False
        return not self._pinned or all(transient.is_backed_by(storage) for transient, storage in self._pinned)

    def _take(self, arrays: Sequence[Array], addresses: list[Any], owners: list[Any]) -> list[int]:
        """Make memory for slots that have none; return which of them were filled with copies of inputs."""
        copied: list[int] = []
        fresh: list[int] = []
        allocate = self._allocate
        try:
            if None in addresses:
                for slot, address in enumerate(addresses):
                    if address is None:
                        addresses[slot] = address = allocate(self._lengths[slot])
                        fresh.append(address)
                        copied.append(slot)
            for byte_length in self._allocations:
                address = allocate(byte_length)
                fresh.append(address)
                addresses.append(address)
        except BaseException:
            for address in fresh:
                self._free(address)
            raise
        self._account(len(self._allocations), self._allocated_bytes, _TRANSIENT_TAG)
        if copied:
            self._copy(arrays, addresses, copied)
        for slot, result_type in self._owners:
            self._retain()
            owners.append(result_type.from_address(self._base_address + addresses[slot]))
        return copied

    def _copy(self, arrays: Sequence[Array], addresses: list[Any], slots: list[int]) -> None:
        """Copy inputs to where their slots are."""
        total = 0
        for slot in slots:
            array, address, byte_length = arrays[slot], addresses[slot], self._lengths[slot]
            total += byte_length
            if address + byte_length > len(self._memory):
                self._memory = self._space.view(0, self._space.memory.byte_length)
            np.ndarray(array.shape, array.dtype, self._memory, address)[...] = array
        self._account(len(slots), total, _INPUT_TAG)
        self._tracer.counters.bytes_copied += total

    def _give_back(self, addresses: list[Any], copied: list[int]) -> None:
        """End what a call took for itself, the latest first."""
        for slot in self._temporary:
            self._free(addresses[slot])
        if self._temporary:
            self._note(self._temporary_bytes, _TRANSIENT_TAG, len(self._temporary))
        for slot in reversed(copied):
            self._free(addresses[slot])
        if copied:
            self._note(sum(self._lengths[slot] for slot in copied), _INPUT_TAG, len(copied))

    def _patch(self, addresses: list[Any]) -> None:
        for address, before, patches in zip(addresses, self._addresses, self._patches, strict=True):
            if address != before:
                for words, places in patches:
                    for index, offset in places:
                        words[index] = address + offset
        self._addresses = addresses

    def close(self) -> None:
        """Wait for the call in progress and let go of the slabs. Idempotent."""
        with self._submission_lock, self._running_lock:
            if self._closed:
                return
            self._closed = True
        for buffer in self._buffers:
            buffer.close()
        self._buffers = self._programs = ()
        self._patches.clear()
        self._pinned = ()
        # It holds the store open.
        self._memory = memoryview(b"")
