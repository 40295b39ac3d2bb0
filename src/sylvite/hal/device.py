"""Devices: they make buffers, executables, command buffers, and run work in queue order.

A driver subclasses `Device` and implements the hooks; everything is checked here, once.

Source: ``iree/hal/device.h``, ``iree/hal/driver.h``.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fnmatch
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, SylviteError, UnsupportedFeatureError
from ..trace import Tracer
from . import transfer
from .allocator import DEFAULT_MEMORY_TYPE, DEFAULT_USAGE, Allocator
from .buffer import Buffer, TransientStorage, check_range, host_bytes
from .buffer_view import BufferView
from .call_plan import CallPlan, PreparedCall
from .command_buffer import Binding, CommandBuffer, check_fill, check_usage, overlaps
from .commands import BufferRef
from .element_types import element_type_from_numpy
from .executable import Executable
from .fence import Fence
from .file import File, OpenFile
from .queue import Pending, Queue
from .semaphore import Semaphore
from .types import (
    WHOLE_BUFFER,
    BufferUsage,
    CommandBufferMode,
    CommandCategory,
    MemoryAccess,
    MemoryType,
)

if TYPE_CHECKING:
    from ..engines.code_cache import CodeCache

__all__ = ["Device", "DeviceInfo", "Driver"]

_MAXIMUM_RANK = 32
"""Most dimensions of an array in any release of numpy that we support."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device a driver can open.

    Args:
        identifier: what `Device.identifier` will be, such as ``local-sync``.
        name: for people.
        details: further facts, by name.
    """

    identifier: str
    name: str
    details: tuple[tuple[str, str], ...] = ()


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        extents = tuple(map(operator.index, shape)) if np.iterable(shape) else (operator.index(shape),)
    except TypeError as error:
        raise InvalidArgumentError(f"a shape holds whole numbers, got {shape!r:.100}") from error
    if any(extent < 0 for extent in extents):
        raise InvalidArgumentError(f"shape {extents} has a negative extent")
    if len(extents) > _MAXIMUM_RANK:
        raise InvalidArgumentError(f"an array has at most {_MAXIMUM_RANK} dimensions, got {len(extents)}")
    return extents


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{dtype!r:.100} is no dtype") from error


class Driver(abc.ABC):
    """Lists and opens devices of one kind. Loads nothing native before that."""

    name: str

    @abc.abstractmethod
    def query_devices(self) -> tuple[DeviceInfo, ...]:
        """Devices that can be opened here."""

    @abc.abstractmethod
    def create_device(self, *, tracer: Tracer | None = None, **options: Any) -> Device:
        """Open a device.

        Raises:
            InvalidArgumentError: an option is not known.
            UnavailableError: the device cannot be used here.
        """


class Device(abc.ABC):
    """A device with one queue. Thread safe: one operation runs at a time.

    Args:
        identifier: the device's kind in compiled programs, such as ``local-sync``.
        name: for people.
        tracer: counts and times what happens; a new one when absent.
    """

    def __init__(self, *, identifier: str, name: str, tracer: Tracer | None = None) -> None:
        self.identifier = identifier
        self.name = name
        self.tracer = Tracer() if tracer is None else tracer
        self._queue = Queue(identifier)

    # -- what it is ---------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def allocator(self) -> Allocator:
        """Makes buffers that this device can use."""

    @property
    def code_cache(self) -> CodeCache | None:
        """Where code is kept between runs; ``None`` when it is not."""
        return None

    @property
    def deadline_ns(self) -> int | None:
        """Longest time one call may run here, in nanoseconds; ``None`` when nothing was said."""
        return None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._queue.closed

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Held while an operation runs. Whoever else runs code in the device's store holds it too."""
        return self._queue.lock

    def guard(self, timeout_ns: int | None) -> AbstractContextManager[None]:
        """While the result is entered, what this thread has the device run in it may take ``timeout_ns``
        nanoseconds (``None`` for no such limit), and Control-C stops it; where the device can do so."""
        return contextlib.nullcontext()

    def query_i64(self, category: str, key: str) -> int | None:
        """A property of the device as a number; ``None`` when there is no such property.

        Programs ask ``hal.device.id`` (does the identifier match the pattern ``key``) and
        ``hal.executable.format`` (can it load this format) to choose among variants of their code.

        Raises:
            ClosedError: the device is closed.
        """
        self._queue.check_open()
        if category == "hal.device.id":
            return int(fnmatch.fnmatchcase(self.identifier, key))
        if category == "hal.executable.format":
            return int(self.can_load(key))
        return self._query_i64(category, key)

    @abc.abstractmethod
    def can_load(self, format: str) -> bool:
        """Whether `create_executable` takes this format."""

    # -- making things ------------------------------------------------------------------------------

    def allocate(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A writable array in the device's memory. A program that gets it as an input uses it without a
        copy. Its contents are undefined; its memory lives as long as the array does.

        Args:
            shape: extents, in elements.
            dtype: a dtype that has an element type.

        Raises:
            InvalidArgumentError: the dtype has no element type, or the shape is none of an array.
            OutOfMemoryError: memory ran out or a cap was reached.
            ClosedError: the device is closed.
        """
        extents, element_type = _checked_shape(shape), element_type_from_numpy(_checked_dtype(dtype))
        buffer = self.allocator.allocate(element_type.byte_length(extents), tag="input")
        return BufferView(buffer, extents, element_type).numpy()

    def create_command_buffer(
        self,
        *,
        mode: CommandBufferMode = CommandBufferMode.DEFAULT,
        categories: CommandCategory = CommandCategory.ANY,
        binding_capacity: int = 0,
    ) -> CommandBuffer:
        """A command buffer in the recording state.

        Args:
            mode: how it is going to be used.
            categories: which commands it may hold.
            binding_capacity: slots of the binding table that its commands may refer to.

        Raises:
            InvalidArgumentError: the capacity is negative.
            ClosedError: the device is closed.
        """
        self._queue.check_open()
        return self._create_command_buffer(
            mode=mode, categories=categories, binding_capacity=binding_capacity
        )

    def create_executable(
        self, *, format: str, data: memoryview | bytes, constants: Sequence[int] = ()
    ) -> Executable:
        """Load device code.

        Args:
            format: executable format, such as ``system-wasm-wasm_32``.
            data: the code.
            constants: values of executable-level constants, 32 bits each.

        Raises:
            UnsupportedFeatureError: the device does not take this format.
            FormatError: the code is malformed.
            LinkError: it needs symbols that do not exist.
            OutOfMemoryError: there is no room for it.
            ClosedError: the device is closed.
        """
        self._queue.check_open()
        if not self.can_load(format):
            raise UnsupportedFeatureError(
                f"device {self.identifier} cannot load executables of format {format!r}"
            )
        with self._queue.lock:
            self._queue.check_open()
            return self._create_executable(format=format, data=data, constants=tuple(constants))

    def create_semaphore(self, initial: int = 0) -> Semaphore:
        """A timeline semaphore.

        Raises:
            ClosedError: the device is closed.
        """
        self._queue.check_open()
        return Semaphore(initial)

    def create_fence(self) -> Fence:
        """A fence that nobody has signalled yet: one timepoint of a new semaphore.

        Raises:
            ClosedError: the device is closed.
        """
        return Fence([(self.create_semaphore(), 1)])

    # -- queue operations ---------------------------------------------------------------------------
    # All of them return at once when their wait is not reached yet. Arguments are checked before that.
    # Raises, for all: InvalidArgumentError when arguments do not fit, ClosedError when the device or
    # something passed in is closed; and the failure itself when there is no fence to carry it.

    def queue_alloca(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        byte_length: int,
        memory_type: MemoryType = DEFAULT_MEMORY_TYPE,
        usage: BufferUsage = DEFAULT_USAGE,
        tag: str = "transient",
    ) -> Buffer:
        """Allocate in queue order. The buffer may be passed on at once, and used after ``signal``."""
        allocator = self.allocator
        buffer, storage = allocator.promise(byte_length, memory_type=memory_type, usage=usage, tag=tag)
        self._queue.submit("alloca", wait, signal, lambda: allocator.commit(storage, tag))
        return buffer

    def queue_dealloca(
        self, *, wait: Fence | None = None, signal: Fence | None = None, buffer: Buffer
    ) -> None:
        """Let go of a buffer of `queue_alloca` in queue order; its memory is freed once no view of it is
        left. Other buffers are left alone."""
        storage = buffer.storage

        def action() -> None:
            if isinstance(storage, TransientStorage):
                storage.decommit()

        self._queue.submit("dealloca", wait, signal, action)

    def queue_execute(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        command_buffer: CommandBuffer,
        binding_table: Sequence[BufferRef] = (),
    ) -> None:
        """Execute a finalized command buffer, with the buffers its indirect references mean this time.

        When the guest fails, ``signal`` fails with a TrapError, KernelError or DeadlineExceededError that
        names the kernel; the device stays usable.
        """
        bindings = command_buffer.bind(binding_table)
        self._check_own(command_buffer)
        self._queue.check_open()
        command_buffer.begin_execution()
        self.tracer.counters.submissions += 1

        def action() -> Pending | None:
            # Once more: between submission and now anything may have been closed.
            command_buffer.check_open()
            return self._execute(command_buffer, bindings)

        self._queue.submit("execute", wait, signal, action)

    def queue_fill(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        target: Buffer,
        offset: int = 0,
        length: int = WHOLE_BUFFER,
        pattern: bytes,
    ) -> None:
        """Repeat a pattern of 1, 2, 4 or 8 bytes over a range."""
        bound = self._bind_target(target, offset, length, "fill target")
        check_fill(offset, bound.byte_length, pattern, what="fill target")
        captured = bytes(pattern)
        self._transfer("fill", wait, signal, lambda: self._fill(bound, captured))

    def queue_copy(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        source: Buffer,
        source_offset: int = 0,
        target: Buffer,
        target_offset: int = 0,
        length: int = WHOLE_BUFFER,
    ) -> None:
        """Copy between buffers; the ranges may not overlap."""
        bound_source = self._bind_source(source, source_offset, length, "copy source")
        bound_target = self._bind_target(target, target_offset, bound_source.byte_length, "copy target")
        if overlaps(bound_source, bound_target):
            raise InvalidArgumentError("copy: source and target overlap")
        self._transfer("copy", wait, signal, lambda: self._copy(bound_source, bound_target))

    def queue_update(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        source: Any,
        source_offset: int = 0,
        target: Buffer,
        target_offset: int = 0,
        length: int = WHOLE_BUFFER,
    ) -> None:
        """Write host bytes, which are captured now."""
        data = host_bytes(source, what="update source")
        length = check_range(source_offset, length, data.size, what="update source")
        bound = self._bind_target(target, target_offset, length, "update target")
        captured = data[source_offset : source_offset + length].tobytes()
        self._transfer("update", wait, signal, lambda: self._update(captured, bound))

    def queue_read(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        file: File,
        file_offset: int = 0,
        target: Buffer,
        target_offset: int = 0,
        length: int = WHOLE_BUFFER,
    ) -> None:
        """Read from a file into a buffer."""
        data = file.range(file_offset, length, MemoryAccess.READ)
        bound = self._bind_target(target, target_offset, len(data), "read target")
        opened = file.opened
        self._transfer("read", wait, signal, lambda: self._read(data, opened, file_offset, bound))

    def queue_write(
        self,
        *,
        wait: Fence | None = None,
        signal: Fence | None = None,
        source: Buffer,
        source_offset: int = 0,
        file: File,
        file_offset: int = 0,
        length: int = WHOLE_BUFFER,
    ) -> None:
        """Write from a buffer into a file."""
        bound = self._bind_source(source, source_offset, length, "write source")
        data = file.range(file_offset, bound.byte_length, MemoryAccess.WRITE)
        self._transfer("write", wait, signal, lambda: self._download(bound, data))

    def queue_barrier(self, *, wait: Fence | None = None, signal: Fence | None = None) -> None:
        """Signal once the wait is reached."""
        self._queue.submit("barrier", wait, signal, lambda: None)

    def prepare_call(self, plan: CallPlan, explain: Callable[[SylviteError], None]) -> PreparedCall | None:
        """Prepare to do all of a recorded call at once; ``None`` when there is no faster way here than to
        make the calls that were recorded.

        Args:
            plan: what was recorded.
            explain: called with the failure of a kernel before it is raised, to say more about it.

        Raises:
            OutOfMemoryError: there is no memory for what is prepared.
            ClosedError: the device, or something in the plan, is closed.
        """
        self._queue.check_open()
        return self._prepare_call(plan, explain)

    def queue_flush(self) -> None:
        """Nothing is held back here; reports a failure that had no fence to go to."""
        self._queue.flush()

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what is running, fail what waits, and let go of the device. Idempotent.

        Views of buffers stay right: memory lives as long as somebody looks at it. Whatever else is used
        afterwards raises ClosedError.
        """
        self._queue.close(self._close)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- hooks --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _create_command_buffer(
        self, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> CommandBuffer:
        """A new command buffer of this device."""

    @abc.abstractmethod
    def _create_executable(
        self, *, format: str, data: memoryview | bytes, constants: tuple[int, ...]
    ) -> Executable:
        """Load an executable of a format that `can_load` takes; the queue's lock is held."""

    @abc.abstractmethod
    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> Pending | None:
        """Execute with a resolved binding table, or begin to; the queue's lock is held."""

    @abc.abstractmethod
    def _check_own(self, command_buffer: CommandBuffer) -> None:
        """Refuse a command buffer of another device with InvalidArgumentError."""

    def _query_i64(self, category: str, key: str) -> int | None:
        """Further properties."""
        return None

    def _prepare_call(self, plan: CallPlan, explain: Callable[[SylviteError], None]) -> PreparedCall | None:
        """A faster way through a recorded call, where the device has one."""
        return None

    def _fill(self, target: Binding, pattern: bytes) -> int:
        """Fill; return the bytes moved."""
        return transfer.fill(target, pattern)

    def _copy(self, source: Binding, target: Binding) -> int:
        """Copy; return the bytes moved."""
        return transfer.copy(source, target)

    def _update(self, data: bytes | memoryview, target: Binding) -> int:
        """Write host bytes; return the bytes moved."""
        return transfer.update(data, target)

    def _read(self, data: memoryview, opened: OpenFile | None, offset: int, target: Binding) -> int:
        """Write bytes of a file: ``data``, which can also be read from ``opened`` at ``offset``; return the
        bytes moved."""
        return self._update(data, target)

    def _download(self, source: Binding, data: memoryview) -> int:
        """Read into host memory; return the bytes moved."""
        data[:] = source.storage.view(source.byte_offset, source.byte_length, writable=False).data
        return source.byte_length

    def _close(self) -> None:  # noqa: B027 - a device may own nothing
        """Let go of what the device owns; the queue's lock is held, called once."""

    # -- checks -------------------------------------------------------------------------------------

    def _transfer(self, name: str, wait: Fence | None, signal: Fence | None, move: Callable[[], int]) -> None:
        def action() -> None:
            self.tracer.counters.device_bytes_copied += move()

        self._queue.submit(name, wait, signal, action)

    def _bind_target(self, buffer: Buffer, offset: int, length: int, what: str) -> Binding:
        check_usage(buffer, BufferUsage.TRANSFER_TARGET, MemoryAccess.WRITE, what=what)
        length = check_range(offset, length, buffer.byte_length, what=what)
        return Binding(buffer.storage, buffer.byte_offset + offset, length)

    def _bind_source(self, buffer: Buffer, offset: int, length: int, what: str) -> Binding:
        check_usage(buffer, BufferUsage.TRANSFER_SOURCE, MemoryAccess.READ, what=what)
        length = check_range(offset, length, buffer.byte_length, what=what)
        return Binding(buffer.storage, buffer.byte_offset + offset, length)
