"""Halide's runtime for GPUs: what pipelines with kernels import, over a device of the HAL.

The pipeline itself runs in the sandbox. Its kernels and the buffers they use are on the device; a buffer's
dirty flags say where its newest contents are, as in Halide's own runtime.

Failures do not go through the guest: the first one is kept, the pipeline gets a code and gives back what it
has, and the call that entered it raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgumentError, SylviteError
from ..hal import BufferRef, CommandBufferMode, MemoryAccess
from ..wasm.types import ValueType
from .device_buffers import DeviceRange, GuestBuffer
from .device_kernels import Kernels, Launch
from .guest_memory import GuestMemory, as_unsigned
from .types import HalideType

if TYPE_CHECKING:
    from ..engines.base import Function
    from ..hal import Device, Fence
    from ..linker import LinkSpace

__all__ = ["DEVICE_SYMBOLS", "DeviceRuntime"]

_I32: Final = ValueType.I32
_FAILED: Final = -1
_COPY_FAILED: Final = -14
_MOST_ARGUMENTS: Final = 1024
_INTERFACE_BYTES: Final = 64
_SCALARS: Final = {
    (0, 1): "b", (0, 8): "b", (0, 16): "h", (0, 32): "i",
    (1, 1): "B", (1, 8): "B", (1, 16): "H", (1, 32): "I",
    (2, 32): "I",
}  # fmt: skip
"""By code and bits of a type, how its values lie in guest memory; floats travel as their bits."""


class DeviceRuntime:
    """The functions of `DEVICE_SYMBOLS` for one link space. One call at a time.

    Args:
        space: of the pipelines; not owned.
        device: runs the kernels; not owned.
    """

    def __init__(self, space: LinkSpace, device: Device) -> None:
        self.device = device
        self._memory = GuestMemory(space.memory)
        self._heap = space.heap
        self._counters = space.tracer.counters
        self._kernels = Kernels(device)
        self._ranges: dict[int, DeviceRange] = {}
        self._next_handle = 1
        # Guest addresses that pipelines were given beside device memory.
        self._hosts: set[int] = set()
        self._last: Fence | None = None
        self._failure: SylviteError | None = None
        self._interface = space.heap.allocate(_INTERFACE_BYTES)
        space.memory.clear(self._interface, _INTERFACE_BYTES)

    def symbols(self, space: LinkSpace, names: Iterable[str]) -> dict[str, Function]:
        """Definitions of those of ``names`` that are the device's."""
        found = {}
        for name in names:
            if name in DEVICE_SYMBOLS:
                count, has_result, method = DEVICE_SYMBOLS[name]
                function = self._guarded(method, has_result=has_result)
                found[name] = space.make_function([_I32] * count, [_I32] * has_result, function)
        return found

    def _guarded(self, method: Callable[..., int | None], *, has_result: bool) -> Callable[..., int | None]:
        def call(*arguments: int) -> int | None:
            try:
                return method(self, *arguments)
            except SylviteError as error:
                self._note(error)
                return _FAILED if has_result else None

        return call

    def _note(self, error: SylviteError) -> None:
        if self._failure is None:
            self._failure = error

    # -- around calls -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a call."""
        self._failure = None
        self._last = None

    def share(self, address: int, contents: DeviceRange, *, is_input: bool) -> None:
        """Have a buffer of the call use memory of the device that is there already."""
        buffer = GuestBuffer(self._memory, address)
        buffer.attach(self._new_handle(contents), self._interface)
        buffer.device_dirty = is_input

    def offer(self, address: int) -> None:
        """Have the contents of an input in guest memory be the newest."""
        GuestBuffer(self._memory, address).host_dirty = True

    def fetch(self, address: int) -> bool:
        """After a call: bring an output to guest memory, unless it is in shared memory of the device.

        Returns:
            Whether it is in guest memory now.

        Raises:
            SylviteError: a kernel failed.
        """
        buffer = GuestBuffer(self._memory, address)
        contents = self._ranges.get(buffer.handle)
        if contents is not None and contents.is_shared:
            return not buffer.device_dirty
        if buffer.device_dirty:
            self._download(buffer)
        return True

    def finish(self) -> None:
        """At the end of a call that went well: wait for its kernels.

        Raises:
            SylviteError: what failed, in a kernel or before.
        """
        self._wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take_failure(self) -> SylviteError | None:
        """What failed first in a call that returned a code."""
        failure, self._failure = self._failure, None
        return failure

    def release(self) -> None:
        """After a call, however it ended: take back what it did not give back."""
        self._ranges.clear()
        self._last = None
        while self._hosts:
            self._heap.free(self._hosts.pop())

    def close(self) -> None:
        """Let go of the kernels. Idempotent."""
        self.release()
        self._kernels.close()

    # -- memory -------------------------------------------------------------------------------------

    def _new_handle(self, contents: DeviceRange) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._ranges[handle] = contents
        return handle

    def _range(self, buffer: GuestBuffer) -> DeviceRange:
        contents = self._ranges.get(buffer.handle)
        if contents is None:
            raise InvalidArgumentError(
                f"the buffer at guest address {buffer.address:#x} has no memory on the device"
            )
        needed = buffer.byte_length
        if needed > contents.byte_length:
            raise InvalidArgumentError(
                f"the buffer at guest address {buffer.address:#x} covers {needed} bytes, it has "
                f"{contents.byte_length} on the device"
            )
        return contents

    def _allocate(self, buffer: GuestBuffer) -> None:
        if buffer.handle:
            self._range(buffer)
            return
        length = max(-(-buffer.byte_length // 4) * 4, 4)
        made = self.device.allocator.allocate(length, tag="halide")
        buffer.attach(self._new_handle(DeviceRange(made, 0, length)), self._interface)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.wait()

    def _upload(self, buffer: GuestBuffer) -> None:
        contents = self._range(buffer)
        data = self._host_bytes(buffer)
        self._wait()
        padded = data + bytes(-len(data) % 4)
        contents.buffer.write(contents.offset, padded[: contents.byte_length])
        self._counters.bytes_copied += len(data)

    def _download(self, buffer: GuestBuffer) -> None:
        contents = self._range(buffer)
        self._wait()
        length = buffer.byte_length
        if not length:
            return
        view = contents.buffer.view(contents.offset, length, access=MemoryAccess.READ)
        target = self._memory.writable(buffer.host, length)
        # Not what lies between its elements: that is somebody else's.
        buffer.elements(target)[...] = buffer.elements(view)
        self._counters.bytes_copied += length

    def _host_bytes(self, buffer: GuestBuffer) -> bytes:
        if not buffer.host:
            raise InvalidArgumentError(
                f"the buffer at guest address {buffer.address:#x} has no contents to bring to the device"
            )
        return self._memory.read(buffer.host, buffer.byte_length)

    def _copy_to_device(self, _context: int, address: int, _interface: int) -> int:
        buffer = GuestBuffer(self._memory, address)
        self._allocate(buffer)
        if buffer.host_dirty:
            if buffer.device_dirty:
                return self._both_dirty(buffer)
            self._upload(buffer)
            buffer.host_dirty = False
        return 0

    def _copy_to_host(self, _context: int, address: int) -> int:
        buffer = GuestBuffer(self._memory, address)
        if buffer.device_dirty:
            if buffer.host_dirty:
                return self._both_dirty(buffer)
            self._download(buffer)
            buffer.device_dirty = False
        return 0

    def _both_dirty(self, buffer: GuestBuffer) -> int:
        self._note(
            InvalidArgumentError(
                f"the buffer at guest address {buffer.address:#x} was written on the device and beside it"
            )
        )
        return _COPY_FAILED

    def _device_malloc(self, _context: int, address: int, _interface: int) -> int:
        self._allocate(GuestBuffer(self._memory, address))
        return 0

    def _device_free(self, _context: int, address: int) -> int:
        buffer = GuestBuffer(self._memory, address)
        self._ranges.pop(buffer.handle, None)
        buffer.attach(0, 0)
        buffer.device_dirty = False
        return 0

    def _device_free_as_destructor(self, context: int, address: int) -> None:
        self._device_free(context, address)

    def _both_malloc(self, _context: int, address: int, _interface: int) -> int:
        buffer = GuestBuffer(self._memory, address)
        self._allocate(buffer)
        host = self._heap.allocate(max(buffer.byte_length, 1), 128)
        self._hosts.add(host)
        buffer.host = host
        return 0

    def _both_free(self, context: int, address: int) -> int:
        buffer = GuestBuffer(self._memory, address)
        host = buffer.host
        if host in self._hosts:
            self._hosts.discard(host)
            self._heap.free(host)
            buffer.host = 0
        buffer.host_dirty = False
        return self._device_free(context, address)

    def _both_free_as_destructor(self, context: int, address: int) -> None:
        self._both_free(context, address)

    def _nop(self, _context: int, _address: int) -> None:
        """Memory that goes with that of the device."""

    def _sync(self, _context: int, _address: int) -> int:
        self._wait()
        return 0

    def _buffer_copy(self, _context: int, source_at: int, interface: int, target_at: int) -> int:
        """Copy what both cover, to the device or to guest memory."""
        source, target = GuestBuffer(self._memory, source_at), GuestBuffer(self._memory, target_at)
        if source.device_dirty:
            data = bytearray(self._contents(source))
        else:
            data = bytearray(self._host_bytes(source))
        self._wait()
        common = _common(source, target)
        if common is None:
            return 0
        if interface:
            self._allocate(target)
            contents = self._range(target)
            image = bytearray(self._contents(target))
            _copy_elements(source, data, target, image, common)
            contents.buffer.write(contents.offset, bytes(image) + bytes(-len(image) % 4))
            target.device_dirty, target.host_dirty = True, False
        else:
            length = target.byte_length
            _copy_elements(source, data, target, self._memory.writable(target.host, length), common)
            target.host_dirty, target.device_dirty = True, False
        self._counters.bytes_copied += len(data)
        return 0

    def _contents(self, buffer: GuestBuffer) -> bytes:
        contents = self._range(buffer)
        self._wait()
        return bytes(contents.buffer.view(contents.offset, buffer.byte_length, access=MemoryAccess.READ).data)

    def _device_crop(self, _context: int, source_at: int, target_at: int) -> int:
        source, target = GuestBuffer(self._memory, source_at), GuestBuffer(self._memory, target_at)
        if len(source.dims) != len(target.dims):
            raise InvalidArgumentError("a crop has another number of dimensions than what it is cut from")
        return self._part(source, target, {n: dim.min for n, dim in enumerate(target.dims)})

    def _device_slice(
        self, _context: int, source_at: int, dimension: int, position: int, target_at: int
    ) -> int:
        source, target = GuestBuffer(self._memory, source_at), GuestBuffer(self._memory, target_at)
        if not 0 <= dimension < len(source.dims):
            raise InvalidArgumentError(f"a slice along dimension {dimension} of {len(source.dims)}")
        return self._part(source, target, {dimension: position})

    def _part(self, source: GuestBuffer, target: GuestBuffer, coordinates: dict[int, int]) -> int:
        whole = self._range(source)
        offset = source.offset_of(coordinates)
        if not 0 <= offset <= whole.byte_length - target.byte_length:
            raise InvalidArgumentError("a part of a buffer lies outside of it")
        part = DeviceRange(
            whole.buffer, whole.offset + offset, whole.byte_length - offset, is_shared=whole.is_shared
        )
        target.attach(self._new_handle(part), self._interface)
        target.device_dirty = source.device_dirty
        return 0

    # -- kernels ------------------------------------------------------------------------------------

    def _device_interface(self) -> int:
        return self._interface

    def _initialize_kernels(self, _context: int, state_at: int, source: int, byte_length: int) -> int:
        number = self._kernels.add(self._memory.read(source, as_unsigned(byte_length)))
        self._memory.write(state_at, struct.pack("<I", number))
        return 0

    def _finalize_kernels(self, _context: int, _state: int) -> None:
        return None

    def _run(
        self,
        _context: int,
        state: int,
        entry: int,
        *rest: int,
    ) -> int:
        sizes, (shared_bytes, types, arguments, kinds) = rest[:6], rest[6:]
        ranges, words = self._arguments(types, arguments, kinds)
        launch = Launch(
            entry=self._memory.text(entry),
            groups=(sizes[0], sizes[1], sizes[2]),
            threads=(sizes[3], sizes[4], sizes[5]),
            shared_bytes=as_unsigned(shared_bytes),
            buffer_bytes=tuple(contents.byte_length for contents in ranges),
            words=words,
        )
        executable = self._kernels.executable(as_unsigned(state), launch)
        if not all(launch.groups):
            return 0
        commands = self.device.create_command_buffer(mode=CommandBufferMode.ONE_SHOT)
        bindings = [BufferRef(item.buffer, 0, item.offset, item.byte_length) for item in ranges]
        commands.dispatch(executable, 0, launch.groups, constants=words, bindings=bindings)
        commands.finalize()
        signal = self.device.create_fence()
        self.device.queue_execute(command_buffer=commands, wait=self._last, signal=signal)
        self._last = signal
        return 0

    def _arguments(
        self, types: int, arguments: int, kinds: int
    ) -> tuple[Sequence[DeviceRange], tuple[int, ...]]:
        """Buffers and the words of scalars. Bindings are numbered as arguments: buffers come first."""
        ranges: list[DeviceRange] = []
        words: list[int] = []
        for number in range(_MOST_ARGUMENTS):
            (address,) = self._memory.pointers(arguments + 4 * number, 1)
            if not address:
                return ranges, tuple(words)
            if self._memory.read(kinds + number, 1) != b"\0":
                if words:
                    raise InvalidArgumentError("a kernel's buffers come before its scalars")
                buffer = GuestBuffer(self._memory, address)
                whole = self._range(buffer)
                length = min(max(-(-buffer.byte_length // 4) * 4, 4), whole.byte_length)
                ranges.append(DeviceRange(whole.buffer, whole.offset, length))
            else:
                (word,) = self._memory.pointers(types + 4 * number, 1)
                words.append(self._scalar(HalideType.from_word(word), address))
        raise InvalidArgumentError(f"a kernel has more than {_MOST_ARGUMENTS} arguments")

    def _scalar(self, scalar_type: HalideType, address: int) -> int:
        layout = _SCALARS.get((int(scalar_type.code), scalar_type.bits))
        if layout is None:
            raise InvalidArgumentError(f"kernels on WebGPU take no scalars of type {scalar_type}")
        (value,) = self._memory.unpack(layout, address)
        return int(value) & 0xFFFFFFFF


Region = list[tuple[int, int]]
"""First coordinate and extent by dimension."""


def _common(source: GuestBuffer, target: GuestBuffer) -> Region | None:
    """What both buffers cover.

    Raises:
        InvalidArgumentError: they are not of one type and rank.
    """
    if len(source.dims) != len(target.dims) or source.type != target.type:
        raise InvalidArgumentError("buffers of different types or ranks cannot be copied to each other")
    region = []
    for one, other in zip(source.dims, target.dims, strict=True):
        low = max(one.min, other.min)
        extent = min(one.min + one.extent, other.min + other.extent) - low
        if extent <= 0:
            return None
        region.append((low, extent))
    return region


def _copy_elements(source: GuestBuffer, data: Any, target: GuestBuffer, image: Any, region: Region) -> None:
    def part(buffer: GuestBuffer) -> tuple[slice, ...]:
        pairs = zip(buffer.dims, region, strict=True)
        slices = [slice(low - dim.min, low - dim.min + extent) for dim, (low, extent) in pairs]
        return tuple(slices[::-1])

    target.elements(image)[part(target)] = source.elements(data)[part(source)]


_D = DeviceRuntime

DEVICE_SYMBOLS: Final[Mapping[str, tuple[int, bool, Callable[..., int | None]]]] = {
    "halide_webgpu_device_interface": (0, True, _D._device_interface),
    "halide_webgpu_initialize_kernels": (4, True, _D._initialize_kernels),
    "halide_webgpu_finalize_kernels": (2, False, _D._finalize_kernels),
    "halide_webgpu_run": (13, True, _D._run),
    "halide_copy_to_device": (3, True, _D._copy_to_device),
    "halide_copy_to_host": (2, True, _D._copy_to_host),
    "halide_device_malloc": (3, True, _D._device_malloc),
    "halide_device_free": (2, True, _D._device_free),
    "halide_device_free_as_destructor": (2, False, _D._device_free_as_destructor),
    "halide_device_and_host_malloc": (3, True, _D._both_malloc),
    "halide_device_and_host_free": (2, True, _D._both_free),
    "halide_device_and_host_free_as_destructor": (2, False, _D._both_free_as_destructor),
    "halide_device_host_nop_free": (2, False, _D._nop),
    "halide_device_sync": (2, True, _D._sync),
    "halide_device_sync_global": (2, True, _D._sync),
    "halide_buffer_copy": (4, True, _D._buffer_copy),
    "halide_device_crop": (3, True, _D._device_crop),
    "halide_device_slice": (5, True, _D._device_slice),
    "halide_device_release_crop": (2, True, _D._device_free),
}
"""Number of parameters (all i32), whether there is a result, and the method, by symbol."""
