"""The slab of a command buffer: every dispatch state, constant and binding table in one region.

It is laid out and written once, when the command buffer is finalized. What is only known at execution
(the buffers in the slots of a binding table, transient buffers) is patched in place from lists of word
positions prepared here, so that an execution allocates nothing per dispatch.

Source: ``iree/hal/local/executable_library.h`` (dispatch state, version 0.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...abi.structs import DISPATCH_STATE
from ...errors import InvalidArgumentError
from ...hal import WHOLE_BUFFER, Binding, BufferRef, ExecutableExport, TransientStorage
from ...hal.command_buffer import CommandBuffer

__all__ = ["WORD_BYTES", "DispatchLayout", "Slab", "SlabBuilder", "Words"]

Words = npt.NDArray[np.uint32]

WORD_BYTES: Final = 4
# What a word holds, and a memory with addresses of 32 bits at most.
_LONGEST: Final = 0xFFFFFFFF
# Below this, a loop is faster than numpy's fixed costs.
_FEW_PATCHES: Final = 48
_NO_PATCHES: Final = np.zeros((3, 0), np.uint32)
_STATE_WORDS: Final = DISPATCH_STATE.byte_length // WORD_BYTES
_COUNT_X_WORD: Final = DISPATCH_STATE.offsets["workgroup_count_x"] // WORD_BYTES


class DispatchLayout:
    """Where one dispatch lies in the slab, in words from its start."""

    __slots__ = ("binding_count", "constants", "end", "lengths", "pointers", "state")

    def __init__(self, start: int, constant_count: int, binding_count: int) -> None:
        self.state = start
        self.binding_count = binding_count
        self.constants = start + _STATE_WORDS
        self.pointers = self.constants + constant_count
        self.lengths = self.pointers + binding_count
        # States start on a multiple of eight bytes.
        self.end = (self.lengths + binding_count + 1) & ~1


class SlabBuilder:
    """Collects dispatches, then writes them for an address."""

    def __init__(self, max_concurrency: int = 1) -> None:
        self._max_concurrency = max_concurrency
        self._dispatches: list[
            tuple[DispatchLayout, ExecutableExport, tuple[int, int, int], Sequence[int], Sequence[BufferRef]]
        ] = []
        self._end = 0

    @property
    def word_count(self) -> int:
        """Words of the dispatches so far."""
        return self._end

    def add(
        self,
        export: ExecutableExport,
        workgroup_count: tuple[int, int, int],
        constants: Sequence[int],
        bindings: Sequence[BufferRef],
    ) -> DispatchLayout:
        """Place a dispatch."""
        layout = DispatchLayout(self._end, len(constants), len(bindings))
        self._end = layout.end
        self._dispatches.append((layout, export, workgroup_count, constants, bindings))
        return layout

    def build(self, address: int, words: Words) -> Slab:
        """Write the dispatches to ``words``, the guest memory at ``address``. Seal the slab after that."""
        slab = Slab(address, words)
        for layout, export, workgroup_count, constants, bindings in self._dispatches:
            state = _pack_state(
                address, layout, export, workgroup_count, len(constants), self._max_concurrency
            )
            words[layout.state : layout.state + _STATE_WORDS] = np.frombuffer(state, np.uint32)
            words[layout.constants : layout.constants + len(constants)] = constants
            for index, ref in enumerate(bindings):
                slab.bind(layout.pointers + index, layout.lengths + index, ref)
        return slab


def _pack_state(
    address: int,
    layout: DispatchLayout,
    export: ExecutableExport,
    workgroup_count: tuple[int, int, int],
    constant_count: int,
    max_concurrency: int,
) -> bytes:
    size = [max(extent, 1) for extent in export.workgroup_size]
    return DISPATCH_STATE.pack(
        {
            "workgroup_size_x": size[0],
            "workgroup_size_y": size[1],
            "workgroup_size_z": size[2],
            "constant_count": constant_count,
            "workgroup_count_x": workgroup_count[0],
            "workgroup_count_y": workgroup_count[1],
            "workgroup_count_z": workgroup_count[2],
            "max_concurrency": max_concurrency,
            "binding_count": layout.binding_count,
            "constants": address + layout.constants * WORD_BYTES,
            "binding_ptrs": address + layout.pointers * WORD_BYTES,
            "binding_lengths": address + layout.lengths * WORD_BYTES,
        }
    )


def _checked_length(byte_length: int) -> int:
    if byte_length > _LONGEST:
        raise InvalidArgumentError(
            f"a binding of {byte_length} bytes: the memory has at most {_LONGEST} bytes"
        )
    return byte_length


class Slab:
    """The written slab, and what has to be patched before each execution.

    Args:
        address: guest address.
        words: the guest memory there.
    """

    def __init__(self, address: int, words: Words) -> None:
        self.address = address
        self.words = words
        # Indirect pointers: word to write, slot, offset. Whole lengths: the same. Late: word, range.
        self._pointer_patches: list[tuple[int, int, int]] = []
        self._length_patches: list[tuple[int, int, int]] = []
        self._late: list[tuple[int, Binding]] = []
        self._pointers: Words = _NO_PATCHES
        self._lengths: Words = _NO_PATCHES
        self._memory = words.data

    @property
    def address_patches(self) -> Sequence[tuple[int, int, int]]:
        """Words that hold an address behind the binding table: word, slot, offset."""
        return self._pointer_patches

    def bind(self, pointer_word: int, length_word: int, ref: BufferRef) -> None:
        """Write a binding, or note what to patch."""
        if ref.buffer is None:
            self._pointer_patches.append((pointer_word, ref.slot, ref.offset))
            if ref.length == WHOLE_BUFFER:
                self._length_patches.append((length_word, ref.slot, ref.offset))
            else:
                self.words[length_word] = _checked_length(ref.length)
            return
        bound = CommandBuffer.resolve(ref, ())
        self.words[length_word] = _checked_length(bound.byte_length)
        if isinstance(bound.storage, TransientStorage):
            self._late.append((pointer_word, bound))
        else:
            self.words[pointer_word] = bound.address

    def seal(self) -> None:
        """Turn the patch lists into arrays: word, slot, offset as rows."""
        self._pointers = np.array(self._pointer_patches, np.uint32).reshape(-1, 3).T
        self._lengths = np.array(self._length_patches, np.uint32).reshape(-1, 3).T

    def patch(self, table: Sequence[Binding | None]) -> None:
        """Write the addresses and lengths that this execution's binding table gives.

        Raises:
            InvalidArgumentError: a transient buffer is not allocated yet.
            ClosedError: a transient buffer was deallocated.
        """
        for word, bound in self._late:
            self._memory[word] = bound.address
        if not self._pointer_patches:
            return
        addresses = [0 if bound is None else bound.address for bound in table]
        self._write_patches(self._pointer_patches, self._pointers, addresses, 1)
        if self._length_patches:
            byte_lengths = [0 if bound is None else bound.byte_length for bound in table]
            self._write_patches(self._length_patches, self._lengths, byte_lengths, -1)

    def _write_patches(
        self, patches: list[tuple[int, int, int]], rows: Words, values: list[int], sign: int
    ) -> None:
        """Write ``values[slot] + sign * offset`` to every patch's word."""
        if len(patches) < _FEW_PATCHES:
            memory = self._memory
            for word, slot, offset in patches:
                memory[word] = values[slot] + sign * offset
            return
        word_row, slot_row, offset_row = rows
        found = np.array(values, np.uint32)[slot_row]
        self.words[word_row] = found + offset_row if sign > 0 else found - offset_row

    def write_workgroup_count(self, layout: DispatchLayout, count: tuple[int, int, int]) -> None:
        """Write the workgroup counts of an indirect dispatch."""
        if count[2] > 0xFFFF:
            raise InvalidArgumentError(f"{count[2]} workgroups along z are not in 0..65535")
        first = layout.state + _COUNT_X_WORD
        self.words[first] = count[0]
        self.words[first + 1] = count[1]
        self.words[first + 2] = (int(self.words[first + 2]) & 0xFFFF0000) | count[2]
