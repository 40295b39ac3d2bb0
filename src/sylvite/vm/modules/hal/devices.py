"""``hal.device.*``, ``hal.devices.*`` and ``hal.ex.*``.

A queue affinity chooses among the queues of a device; devices here have one, so it is not looked at.

Source: IREE's ``hal.imports.mlir`` and ``iree/modules/hal/module.c``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

from ....errors import InvalidArgumentError, UnsupportedFeatureError
from ....hal.allocator import Allocator
from ....hal.buffer import Buffer
from ....hal.command_buffer import CommandBuffer
from ....hal.commands import BufferRef
from ....hal.device import Device
from ....hal.fence import Fence
from ....hal.file import File
from ....hal.types import MemoryAccess
from ...refs import VmBuffer
from ..arguments import expect, expect_or_none, span_of, text_of
from .buffers import memory_type_of, usage_of
from .commands import pattern_bytes
from .state import HalState


def _wait(fence: Fence | None) -> Fence | None:
    return expect_or_none(fence, Fence, "wait_fence")


def _signal(fence: Fence | None) -> Fence | None:
    return expect_or_none(fence, Fence, "signal_fence")


# -- devices ---------------------------------------------------------------------------------------------


def devices_count(state: HalState) -> int:
    """How many devices the program sees."""
    return len(state.devices)


def devices_get(state: HalState, index: int) -> Device | None:
    """A device by number; null past the end."""
    return state.devices[index] if 0 <= index < len(state.devices) else None


def device_allocator(_state: HalState, device: Device) -> Allocator:
    """The device's allocator."""
    return expect(device, Device, "device").allocator


def device_query_i64(_state: HalState, device: Device, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """What the device says about itself: (known, value)."""
    value = expect(device, Device, "device").query_i64(text_of(category, "category"), text_of(key, "key"))
    return (0, 0) if value is None else (1, value)


# -- queues ----------------------------------------------------------------------------------------------


def device_queue_alloca(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    pool: int,
    memory_types: int,
    usage: int,
    byte_length: int,
    _flags: int,
) -> Buffer:
    """A buffer that is there once ``signal`` is reached."""
    if pool:
        raise UnsupportedFeatureError(f"the program allocates from pool {pool}; devices here have none")
    return expect(device, Device, "device").queue_alloca(
        wait=_wait(wait),
        signal=_signal(signal),
        byte_length=byte_length,
        memory_type=memory_type_of(memory_types),
        usage=usage_of(usage),
    )


def device_queue_dealloca(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    buffer: Buffer,
    _flags: int,
) -> None:
    """Give a buffer back in queue order."""
    expect(device, Device, "device").queue_dealloca(
        wait=_wait(wait), signal=_signal(signal), buffer=expect(buffer, Buffer, "buffer")
    )


def device_queue_fill(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    target: Buffer,
    offset: int,
    length: int,
    pattern: int,
    pattern_length: int,
    _flags: int,
) -> None:
    """Fill a range in queue order."""
    expect(device, Device, "device").queue_fill(
        wait=_wait(wait),
        signal=_signal(signal),
        target=expect(target, Buffer, "target_buffer"),
        offset=offset,
        length=length,
        pattern=pattern_bytes(pattern, pattern_length),
    )


def device_queue_update(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: VmBuffer,
    source_offset: int,
    target: Buffer,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    """Write host bytes in queue order."""
    data = span_of(source, source_offset, length, "source_buffer")
    expect(device, Device, "device").queue_update(
        wait=_wait(wait),
        signal=_signal(signal),
        source=data,
        source_offset=0,
        target=expect(target, Buffer, "target_buffer"),
        target_offset=target_offset,
        length=len(data),
    )


def device_queue_copy(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: Buffer,
    source_offset: int,
    target: Buffer,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    """Copy a range in queue order."""
    expect(device, Device, "device").queue_copy(
        wait=_wait(wait),
        signal=_signal(signal),
        source=expect(source, Buffer, "source_buffer"),
        source_offset=source_offset,
        target=expect(target, Buffer, "target_buffer"),
        target_offset=target_offset,
        length=length,
    )


def device_queue_read(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: File,
    source_offset: int,
    target: Buffer,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    """Read part of a file into a buffer in queue order."""
    expect(device, Device, "device").queue_read(
        wait=_wait(wait),
        signal=_signal(signal),
        file=expect(source, File, "source_file"),
        file_offset=source_offset,
        target=expect(target, Buffer, "target_buffer"),
        target_offset=target_offset,
        length=length,
    )


def device_queue_write(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: Buffer,
    source_offset: int,
    target: File,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    """Write part of a buffer to a file in queue order."""
    expect(device, Device, "device").queue_write(
        wait=_wait(wait),
        signal=_signal(signal),
        source=expect(source, Buffer, "source_buffer"),
        source_offset=source_offset,
        file=expect(target, File, "target_file"),
        file_offset=target_offset,
        length=length,
    )


def device_queue_barrier(
    _state: HalState, device: Device, _affinity: int, wait: Fence | None, signal: Fence | None, _flags: int
) -> None:
    """Reach ``signal`` when ``wait`` is reached."""
    expect(device, Device, "device").queue_barrier(wait=_wait(wait), signal=_signal(signal))


def device_queue_execute(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    _flags: int,
) -> None:
    """Run a command buffer."""
    expect(device, Device, "device").queue_execute(
        wait=_wait(wait),
        signal=_signal(signal),
        command_buffer=expect(commands, CommandBuffer, "command_buffer"),
    )


def device_queue_execute_indirect(
    _state: HalState,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    _flags: int,
    table: list[tuple[Buffer | None, int, int]],
) -> None:
    """Run a command buffer with the buffers its slots stand for this time."""
    expect(device, Device, "device").queue_execute(
        wait=_wait(wait),
        signal=_signal(signal),
        command_buffer=expect(commands, CommandBuffer, "command_buffer"),
        binding_table=[
            BufferRef(expect_or_none(buffer, Buffer, "binding_table"), 0, offset, length)
            for buffer, offset, length in table
        ],
    )


def device_queue_flush(_state: HalState, device: Device, _affinity: int) -> None:
    """Hand everything submitted so far to the device."""
    expect(device, Device, "device").queue_flush()


# -- files -----------------------------------------------------------------------------------------------


def ex_file_from_memory(
    _state: HalState,
    device: Device,
    _affinity: int,
    access: int,
    buffer: VmBuffer,
    offset: int,
    length: int,
    _flags: int,
) -> File:
    """A read-only file over host memory."""
    expect(device, Device, "device")
    if access & ~MemoryAccess.READ:
        raise InvalidArgumentError("memory of the program can only be opened as a file to read")
    return File.from_memory(span_of(buffer, offset, length, "buffer"))
