"""``hal.command_buffer.*``, ``hal.executable.*`` and ``hal.channel.*``.

Source: IREE's ``hal.imports.mlir`` and ``iree/modules/hal/module.c``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

from typing import Any, NoReturn

from ....errors import InvalidArgumentError, UnsupportedFeatureError
from ....hal.buffer import Buffer
from ....hal.command_buffer import CommandBuffer
from ....hal.commands import BufferRef
from ....hal.device import Device
from ....hal.executable import Executable
from ....hal.types import CommandBufferMode, CommandCategory, DispatchFlags, ExecutionStage, parse_flags
from ...refs import VmBuffer
from ..arguments import bytes_of, expect, expect_or_none, span_of, text_of, u32, u64
from .state import HalState

_WORKGROUP_COUNTS_BYTES = 12
_MAXIMUM_PATTERN_BYTES = 8

Binding = tuple[int, int, "Buffer | None", int, int]


def _buffer_ref(buffer: Buffer | None, slot: int, offset: int, length: int, what: str) -> BufferRef:
    return BufferRef(expect_or_none(buffer, Buffer, what), u32(slot), offset, length)


def pattern_bytes(pattern: int, byte_length: int) -> bytes:
    """The low bytes of a fill pattern.

    Raises:
        InvalidArgumentError: The pattern would be longer than 8 bytes.
    """
    if not 0 < byte_length <= _MAXIMUM_PATTERN_BYTES:
        raise InvalidArgumentError(f"a fill pattern of {byte_length} bytes")
    return u64(pattern).to_bytes(_MAXIMUM_PATTERN_BYTES, "little")[:byte_length]


# -- command buffer --------------------------------------------------------------------------------------


def command_buffer_create(
    _state: HalState, device: Device, modes: int, categories: int, _affinity: int, binding_capacity: int
) -> CommandBuffer:
    """A command buffer that is being recorded."""
    return expect(device, Device, "device").create_command_buffer(
        mode=parse_flags(CommandBufferMode, modes, what="command buffer mode"),
        categories=parse_flags(CommandCategory, categories, what="command categories"),
        binding_capacity=binding_capacity,
    )


def command_buffer_finalize(_state: HalState, commands: CommandBuffer) -> None:
    """End of recording."""
    expect(commands, CommandBuffer, "command_buffer").finalize()


def command_buffer_begin_debug_group(_state: HalState, commands: CommandBuffer, label: VmBuffer) -> None:
    """Begin a named group."""
    expect(commands, CommandBuffer, "command_buffer").begin_debug_group(text_of(label, "label"))


def command_buffer_end_debug_group(_state: HalState, commands: CommandBuffer) -> None:
    """End the innermost group."""
    expect(commands, CommandBuffer, "command_buffer").end_debug_group()


def command_buffer_execution_barrier(
    _state: HalState, commands: CommandBuffer, source_stages: int, target_stages: int, _flags: int
) -> None:
    """What is recorded later starts after what was recorded before."""
    expect(commands, CommandBuffer, "command_buffer").execution_barrier(
        parse_flags(ExecutionStage, source_stages, what="source stages"),
        parse_flags(ExecutionStage, target_stages, what="target stages"),
    )


def command_buffer_advise_buffer(
    _state: HalState,
    commands: CommandBuffer,
    buffer: Buffer | None,
    flags: int,
    first: int,
    second: int,
    slot: int,
) -> None:
    """A hint about a buffer."""
    target = _buffer_ref(buffer, slot, 0, -1, "buffer")
    expect(commands, CommandBuffer, "command_buffer").advise_buffer(
        target, u64(flags), (u64(first), u64(second))
    )


def command_buffer_fill_buffer(
    _state: HalState,
    commands: CommandBuffer,
    target: Buffer | None,
    offset: int,
    length: int,
    slot: int,
    pattern: int,
    pattern_length: int,
    _flags: int,
) -> None:
    """Fill a range."""
    reference = _buffer_ref(target, slot, offset, length, "target_buffer")
    expect(commands, CommandBuffer, "command_buffer").fill_buffer(
        reference, pattern_bytes(pattern, pattern_length)
    )


def command_buffer_update_buffer(
    _state: HalState,
    commands: CommandBuffer,
    source: VmBuffer,
    source_offset: int,
    target: Buffer | None,
    target_offset: int,
    length: int,
    slot: int,
    _flags: int,
) -> None:
    """Write host bytes, captured now."""
    data = span_of(source, source_offset, length, "source_buffer")
    reference = _buffer_ref(target, slot, target_offset, length, "target_buffer")
    expect(commands, CommandBuffer, "command_buffer").update_buffer(data, 0, reference)


def command_buffer_copy_buffer(
    _state: HalState,
    commands: CommandBuffer,
    source_slot: int,
    target_slot: int,
    source: Buffer | None,
    source_offset: int,
    target: Buffer | None,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    """Copy a range."""
    expect(commands, CommandBuffer, "command_buffer").copy_buffer(
        _buffer_ref(source, source_slot, source_offset, length, "source_buffer"),
        _buffer_ref(target, target_slot, target_offset, length, "target_buffer"),
    )


def _binding_refs(bindings: list[Binding]) -> list[BufferRef]:
    return [
        _buffer_ref(buffer, slot, offset, length, "bindings") for _, slot, buffer, offset, length in bindings
    ]


def command_buffer_dispatch(
    _state: HalState,
    commands: CommandBuffer,
    executable: Executable,
    function_id: int,
    count_x: int,
    count_y: int,
    count_z: int,
    flags: int,
    constants: list[int],
    bindings: list[Binding],
) -> None:
    """Run a kernel over a grid that is known now."""
    expect(commands, CommandBuffer, "command_buffer").dispatch(
        expect(executable, Executable, "executable"),
        function_id,
        (u32(count_x), u32(count_y), u32(count_z)),
        constants=constants,
        bindings=_binding_refs(bindings),
        flags=parse_flags(DispatchFlags, u64(flags), what="dispatch flags"),
    )


def command_buffer_dispatch_indirect(
    _state: HalState,
    commands: CommandBuffer,
    executable: Executable,
    function_id: int,
    workgroups_slot: int,
    workgroups: Buffer | None,
    workgroups_offset: int,
    flags: int,
    constants: list[int],
    bindings: list[Binding],
) -> None:
    """Run a kernel over a grid that is in a buffer."""
    wanted = parse_flags(DispatchFlags, u64(flags), what="dispatch flags")
    if not wanted & DispatchFlags.STATIC_INDIRECT_PARAMETERS:
        wanted |= DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS
    expect(commands, CommandBuffer, "command_buffer").dispatch_indirect(
        expect(executable, Executable, "executable"),
        function_id,
        _buffer_ref(
            workgroups, workgroups_slot, workgroups_offset, _WORKGROUP_COUNTS_BYTES, "workgroups_buffer"
        ),
        constants=constants,
        bindings=_binding_refs(bindings),
        flags=wanted,
    )


# -- executable ------------------------------------------------------------------------------------------


def executable_create(
    _state: HalState,
    device: Device,
    _affinity: int,
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
) -> Executable:
    """Load device code."""
    words = memoryview(b"") if constants is None else bytes_of(constants, "constants")
    if len(words) % 4:
        raise InvalidArgumentError(f"executable constants of {len(words)} bytes are not whole 32-bit words")
    values = [int.from_bytes(words[start : start + 4], "little") for start in range(0, len(words), 4)]
    return expect(device, Device, "device").create_executable(
        format=text_of(executable_format, "executable_format"),
        data=bytes_of(data, "executable_data"),
        constants=values,
    )


def executable_lookup_function(_state: HalState, executable: Executable, name: VmBuffer) -> int:
    """The number that stands for an export: its ordinal."""
    return expect(executable, Executable, "executable").lookup(text_of(name, "function_name"))


# -- collectives -----------------------------------------------------------------------------------------


def collectives_refused(_state: HalState, *_arguments: Any) -> NoReturn:
    """Every ``channel.*`` import and ``command_buffer.collective``: no device here has peers.

    Raises:
        UnsupportedFeatureError: Always.
    """
    raise UnsupportedFeatureError("the program uses collectives between devices, which no device here has")
