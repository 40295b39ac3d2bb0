"""Calls that are done again: the device's half of `sylvite.hal.CallPlan`.

A plan has command buffers of its own, whose slabs keep the addresses of the call before; only what lies
elsewhere this time is written. The rest of a call is to take memory, copy inputs that are not the guest's,
enter the engine, and give memory back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import OutOfMemoryError
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
        programs: what they run.
    """

    def __init__(
        self,
        device: LocalDevice,
        plan: CallPlan,
        buffers: Sequence[LocalCommandBuffer],
        programs: Sequence[Program],
    ) -> None:
        self._device = device
        self._tracer = device.tracer
        self._buffers = tuple(buffers)
        self._programs = tuple(programs)
        self._pinned = plan.pinned
        self._closed = False
        self._discarded = device.discarded
        self._guard = device.call_guard
        self._run_program = device.run_program
        self._submission_lock = device.submission_lock
        self._running_lock = device.running_lock
        self._queue = device.queue
        self._space = device.space
        self._allocator = device.allocator
        self._account = device.allocator.account_allocations
        self._allocate = self._space.heap.allocate
        self._free = self._space.heap.free
        self._note = device.allocator.note_release
        self._retain = self._space.store.retain
        self._base_address = self._space.memory.base_address
        self._memory = self._space.view(0, self._space.memory.byte_length)
        self._input_lengths = plan.input_lengths
        self._place(plan)

    def _place(self, plan: CallPlan) -> None:
        """Prepare what is done for each slot."""
        inputs = len(plan.input_lengths)
        kept = sorted({output.slot for output in plan.outputs})
        self._allocation_lengths = plan.allocations
        self._allocated_bytes = sum(plan.allocations)
        self._results = tuple(
            (slot, _result_type(self._device, plan.allocations[slot - inputs])) for slot in kept
        )
        self._outputs = tuple(
            (kept.index(output.slot), output.shape, output.byte_offset) for output in plan.outputs
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

    def run(
        self, arrays: Sequence[Array], dtypes: Sequence[np.dtype[Any]], timeout_ns: int | None
    ) -> list[Array] | None:
        """Do it; see `PreparedCall.run`."""
        if self._closed or self._queue.closed:
            return None
        addresses = self._locate(arrays)
        owners: list[Any] = []
        copied: list[int] | None = None
        try:
            with self._submission_lock:
                if not self._holds():
                    return None
                try:
                    copied = self._take(arrays, addresses, owners)
                except OutOfMemoryError:
                    return None
            with self._running_lock, self._guard(timeout_ns):
                # Once more: on devices with two locks it may have been closed in between.
                if self._closed or self._queue.closed:
                    return None
                if addresses != self._addresses:
                    self._patch(addresses)
                for program in self._programs:
                    self._run_program(program)
        except BaseException:
            # Who keeps the error keeps this frame, which must not keep memory.
            owners.clear()
            raise
        finally:
            if copied or (self._temporary and copied is not None):
                self._give_back(addresses, copied)
        results = []
        for (index, shape, byte_offset), dtype in zip(self._outputs, dtypes):  # noqa: B905 - slower
            results.append(np.ndarray(shape, dtype, owners[index], byte_offset))
        return results

    def _locate(self, arrays: Sequence[Array]) -> list[Any]:
        """Guest addresses of arrays that lie in the guest's memory and in one piece; ``None`` for others."""
        addresses: list[Any] = []
        base_address, end = self._base_address, len(self._memory)
        for array, byte_length in zip(arrays, self._input_lengths):  # noqa: B905 - slower
            address = None
            if array.base is not None and array.flags.c_contiguous and byte_length:
                try:
                    address = _address_of(_Byte.from_buffer(array)) - base_address
                except (BufferError, TypeError, ValueError):  # read-only, or of a dtype without a buffer
                    address = array.__array_interface__["data"][0] - base_address
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
            for slot, address in enumerate(addresses):
                if address is None:
                    addresses[slot] = address = allocate(self._input_lengths[slot])
                    fresh.append(address)
                    copied.append(slot)
            for byte_length in self._allocation_lengths:
                address = allocate(byte_length)
                fresh.append(address)
                addresses.append(address)
        except BaseException:
            for address in fresh:
                self._free(address)
            raise
        self._account(len(self._allocation_lengths), self._allocated_bytes, _TRANSIENT_TAG)
        if copied:
            self._copy(arrays, addresses, copied)
        for slot, result_type in self._results:
            self._retain()
            owners.append(result_type.from_address(self._base_address + addresses[slot]))
        return copied

    def _copy(self, arrays: Sequence[Array], addresses: list[Any], slots: list[int]) -> None:
        """Copy inputs to where their slots are."""
        total = 0
        for slot in slots:
            array, address, byte_length = arrays[slot], addresses[slot], self._input_lengths[slot]
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
            self._note(sum(self._input_lengths[slot] for slot in copied), _INPUT_TAG, len(copied))

    def _patch(self, addresses: list[Any]) -> None:
        for address, before, patches in zip(addresses, self._addresses, self._patches, strict=True):
            if address != before:
                for words, places in patches:
                    for index, offset in places:
                        words[index] = address + offset
        self._addresses = addresses

    def close(self) -> None:
        """Wait for the call in progress and let go of the slabs. Idempotent."""
        with self._device.submission_lock, self._device.running_lock:
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
