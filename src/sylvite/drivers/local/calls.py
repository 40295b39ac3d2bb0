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


Taken = tuple[int, int, str]
"""An allocation that ends with the call: address, length and tag."""


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
        self._executables = tuple({item: None for buffer in buffers for item in buffer.executables})
        self._pinned = plan.pinned
        self._closed = False
        self._submission_lock = device.submission_lock
        self._running_lock = device.running_lock
        self._space = device.space
        self._allocator = device.allocator
        self._allocate = self._space.heap.allocate
        self._free = self._space.heap.free
        self._retain = self._space.store.retain
        self._base_address = self._space.memory.base_address
        self._memory = self._space.view(0, self._space.memory.byte_length)
        self._input_lengths = plan.input_lengths
        self._place(plan)

    def _place(self, plan: CallPlan) -> None:
        """Prepare what is done for each slot."""
        inputs = len(plan.input_lengths)
        kept = sorted({output.slot - inputs for output in plan.outputs})
        self._allocations = tuple(
            (byte_length, _result_type(self._device, byte_length) if index in kept else None)
            for index, byte_length in enumerate(plan.allocations)
        )
        self._allocated_bytes = sum(plan.allocations)
        self._outputs = tuple(
            (kept.index(output.slot - inputs), output.shape, output.byte_offset) for output in plan.outputs
        )
        # By slot: where it was in the call before, and the words that say so.
        slots = inputs + len(plan.allocations)
        self._addresses = [-1] * slots
        self._patches: list[list[Patch]] = [[] for _ in range(slots)]
        for buffer in self._buffers:
            for slot, patch in buffer.address_words().items():
                self._patches[slot].append(patch)

    def run(
        self, arrays: Sequence[Array], dtypes: Sequence[np.dtype[Any]], timeout_ns: int | None
    ) -> list[Array] | None:
        """Do it; see `PreparedCall.run`."""
        device = self._device
        taken: list[Taken] = []
        owners: list[Any] = []
        try:
            with self._submission_lock:
                if not self._holds():
                    return None
                try:
                    addresses = self._take(arrays, taken, owners)
                except OutOfMemoryError:
                    return None
            with self._running_lock, device.call_guard(timeout_ns):
                # Once more: on devices with two locks it may have been closed in between.
                if self._closed or device.closed:
                    return None
                if addresses != self._addresses:
                    self._patch(addresses)
                for program in self._programs:
                    device.run_program(program)
        except BaseException:
            # Who keeps the error keeps this frame, which must not keep memory.
            owners.clear()
            raise
        finally:
            if taken:
                self._give_back(taken)
        return [
            np.ndarray(shape, dtype, owners[index], byte_offset)
            for (index, shape, byte_offset), dtype in zip(self._outputs, dtypes, strict=True)
        ]

    def _holds(self) -> bool:
        """Whether everything is as it was when the plan was made."""
        device = self._device
        if self._closed or device.closed or self._tracer.enabled or device.has_discarded:
            return False
        for executable in self._executables:
            if executable.closed:
                return False
        return not self._pinned or all(transient.is_backed_by(storage) for transient, storage in self._pinned)

    def _take(self, arrays: Sequence[Array], taken: list[Taken], owners: list[Any]) -> list[int]:
        """Find or make memory for every slot, and copy the inputs that need it; return addresses."""
        addresses: list[int] = []
        copies: list[tuple[int, Array]] = []
        fresh: list[int] = []
        allocate = self._allocate
        try:
            for array, byte_length in zip(arrays, self._input_lengths, strict=True):
                address = None if array.base is None else self._guest_address(array, byte_length)
                if address is None:
                    address = allocate(byte_length)
                    fresh.append(address)
                    copies.append((address, array))
                addresses.append(address)
            for byte_length, _ in self._allocations:
                address = allocate(byte_length)
                fresh.append(address)
                addresses.append(address)
        except BaseException:
            for address in fresh:
                self._free(address)
            raise
        allocator = self._allocator
        allocator.account_allocations(len(self._allocations), self._allocated_bytes, _TRANSIENT_TAG)
        if copies:
            allocator.account_allocations(len(copies), sum(array.nbytes for _, array in copies), _INPUT_TAG)
            for address, array in copies:
                taken.append((address, array.nbytes, _INPUT_TAG))
                self._copy(array, address)
        at = len(self._input_lengths)
        for byte_length, result_type in self._allocations:
            if result_type is None:
                taken.append((addresses[at], byte_length, _TRANSIENT_TAG))
            else:
                self._retain()
                owners.append(result_type.from_address(self._base_address + addresses[at]))
            at += 1
        return addresses

    def _give_back(self, taken: list[Taken]) -> None:
        for address, byte_length, tag in reversed(taken):
            self._free(address)
            self._allocator.note_release(byte_length, tag)

    def _guest_address(self, array: Array, byte_length: int) -> int | None:
        """Where an array lies, when that is in the guest's memory and in one piece."""
        if not array.flags.c_contiguous or not byte_length:
            return None
        try:
            host_address = _address_of(_Byte.from_buffer(array))
        except (BufferError, TypeError, ValueError):  # read-only, or of a dtype without a buffer
            host_address = array.__array_interface__["data"][0]
        address: int = host_address - self._base_address
        if 0 <= address <= len(self._memory) - byte_length:
            return address
        # The memory may have grown.
        return self._allocator.address_of(host_address, byte_length)

    def _copy(self, array: Array, address: int) -> None:
        if address + array.nbytes > len(self._memory):
            self._memory = self._space.view(0, self._space.memory.byte_length)
        np.ndarray(array.shape, array.dtype, self._memory, address)[...] = array
        self._tracer.counters.bytes_copied += array.nbytes

    def _patch(self, addresses: list[int]) -> None:
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
        self._buffers = self._programs = self._executables = ()
        self._patches.clear()
        self._pinned = ()
