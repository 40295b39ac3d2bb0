"""What a program does in one call, as a device can do it again with other inputs of the same shapes.

A plan names memory by *slots*: first the inputs, then what the call allocates. Its commands refer to both
through the binding table, with lengths resolved, and to everything else directly.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .allocator import DEFAULT_MEMORY_TYPE, DEFAULT_USAGE
from .buffer import Buffer, Storage, TransientStorage
from .command_buffer import Binding, CommandBuffer
from .commands import AdviseBuffer, BufferRef, Command

__all__ = ["CallPlan", "PlannedArray", "PreparedCall", "SlotMapper"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArray:
    """An input or a result: elements from byte ``byte_offset`` of a slot."""

    slot: int
    byte_offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def byte_length(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """One call.

    Args:
        inputs: arrays that the caller passes; slots from 0.
        allocations: bytes of what is allocated in queue order; slots after those of the inputs.
        submissions: the commands of each, in order; one is over before the next begins.
        outputs: results, in order.
        pinned: buffers that earlier calls allocated in queue order, with the memory behind them. The plan
            holds only as long as that is behind them.
    """

    inputs: tuple[PlannedArray, ...]
    allocations: tuple[int, ...]
    submissions: tuple[tuple[Command, ...], ...]
    outputs: tuple[PlannedArray, ...]
    pinned: tuple[tuple[TransientStorage, Storage], ...]


class PreparedCall(abc.ABC):
    """A plan that a device has prepared."""

    @abc.abstractmethod
    def run(self, values: Sequence[Any], timeout_ns: int | None) -> list[npt.NDArray[Any]] | None:
        """Do it, in this thread, and wait for the end.

        Args:
            values: inputs. Arrays in the device's memory are used where they are, others are copied.
            timeout_ns: longest time, in nanoseconds.

        Returns:
            Writable arrays over new memory of the device. ``None`` when nothing was done: the values are not
            what the plan is for, the plan does not hold any more, or memory is short. Whoever asks goes the
            long way then, and finds out.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Wait for a call in progress and let go of everything. Idempotent."""


class SlotMapper:
    """Rewrites commands so that they take given storages from the binding table.

    Args:
        slots: slot numbers by storage.
    """

    def __init__(self, slots: Mapping[Storage, int]) -> None:
        self._slots = slots
        self.pinned: dict[TransientStorage, Storage] = {}

    def map(self, commands: Sequence[Command], table: Sequence[Binding | None]) -> tuple[Command, ...]:
        """The commands of an execution with this binding table.

        Raises:
            InvalidArgumentError: the table lacks a slot.
        """
        mapped = []
        for command in commands:
            if isinstance(command, AdviseBuffer):
                continue  # a hint, whose slot may hold nothing
            changes: dict[str, Any] = {}
            for field in ("target", "source", "workgroups"):
                ref = getattr(command, field, None)
                if isinstance(ref, BufferRef):
                    changes[field] = self._map(ref, table)
            bindings = getattr(command, "bindings", ())
            if bindings:
                changes["bindings"] = tuple(self._map(ref, table) for ref in bindings)
            mapped.append(dataclasses.replace(command, **changes) if changes else command)
        return tuple(mapped)

    def _map(self, ref: BufferRef, table: Sequence[Binding | None]) -> BufferRef:
        bound = CommandBuffer.resolve(ref, table)
        storage = bound.storage
        slot = self._slots.get(storage)
        if slot is not None:
            return BufferRef(None, slot, bound.byte_offset, bound.byte_length)
        if isinstance(storage, TransientStorage):
            storage = self.pinned.setdefault(storage, storage.keepalive())
        elif ref.buffer is not None:
            return ref
        buffer = Buffer(
            storage,
            byte_offset=bound.byte_offset,
            byte_length=bound.byte_length,
            memory_type=DEFAULT_MEMORY_TYPE,
            allowed_usage=DEFAULT_USAGE,
        )
        return BufferRef(buffer, 0, 0, bound.byte_length)
