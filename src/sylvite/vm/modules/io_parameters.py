"""The ``io_parameters`` module: programs load, gather and scatter parameters by key.

A call handles many parameters at once. Keys come as a table of (offset, length) pairs into a text blob,
ranges as triples of (offset in the parameter, offset in the buffer, length).

Source: IREE's ``io_parameters.imports.mlir`` and ``iree/modules/io/parameters/module.c``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import InvalidArgumentError, NotFoundError, SylviteError
from ...hal.buffer import Buffer
from ...hal.device import Device
from ...hal.fence import Fence
from ...hal.types import BufferUsage, MemoryAccess, MemoryType, parse_flags
from ..native import NativeFunction, NativeModule
from ..parameters.index import FileRange, ParameterEntry, Splat
from ..parameters.provider import ParameterProvider
from ..refs import VmBuffer, VmList
from .arguments import bytes_of, expect, expect_or_none, text_of

__all__ = ["IoParametersModule"]

_KEY = struct.Struct("<II")
_SPAN = struct.Struct("<QQQ")
_MAXIMUM_OFFSET = (1 << 63) - 1
_FILL_PATTERN_BYTES = (1, 2, 4, 8)
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One parameter of a call."""

    key: str
    parameter_offset: int
    buffer_offset: int
    byte_length: int


def _decode_key(table: memoryview, data: memoryview, number: int) -> str:
    offset, byte_length = _KEY.unpack_from(table, number * _KEY.size)
    if offset > len(data) or byte_length > len(data) - offset:
        raise InvalidArgumentError(
            f"parameter key {number} spans bytes {offset} to {offset + byte_length} of {len(data)}"
        )
    try:
        return str(data[offset : offset + byte_length], "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"parameter key {number} is not UTF-8 text") from error


def _decode_requests(key_table: VmBuffer, key_data: VmBuffer, spans: VmBuffer) -> list[_Request]:
    """Decode the tables of a call.

    Raises:
        InvalidArgumentError: A table is too short, or an entry points outside.
    """
    table, data = bytes_of(key_table, "key_table"), bytes_of(key_data, "key_data")
    span_data = bytes_of(spans, "spans")
    count, rest = divmod(len(span_data), _SPAN.size)
    if rest or len(table) < count * _KEY.size:
        raise InvalidArgumentError(
            f"a table of {len(table)} bytes of keys does not go with {len(span_data)} bytes of spans"
        )
    requests = []
    for number in range(count):
        fields = _SPAN.unpack_from(span_data, number * _SPAN.size)
        if max(fields) > _MAXIMUM_OFFSET:
            raise InvalidArgumentError(f"span {number} of a parameter call is out of range: {fields}")
        requests.append(
            _Request(
                key=_decode_key(table, data, number),
                parameter_offset=fields[0],
                buffer_offset=fields[1],
                byte_length=fields[2],
            )
        )
    return requests


class _Batch:
    """Queue operations one after the other: the first starts after ``wait``, ``signal`` comes last."""

    def __init__(self, device: Device, wait: Fence | None, signal: Fence | None) -> None:
        self.device = device
        self._point = wait
        self._signal = signal

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations; whatever goes wrong also fails ``signal``, so that nobody waits forever."""
        try:
            yield
            self.device.queue_barrier(wait=self._point, signal=self._signal)
        except SylviteError as error:
            if self._signal is not None:
                self._signal.fail(error)
            raise

    def step(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        """Queue one operation after the one before."""
        fence = self.device.create_fence()
        result = operation(wait=self._point, signal=fence, **arguments)
        self._point = fence
        return result

    def read(self, provider: ParameterProvider, request: _Request, target: Buffer) -> None:
        """Queue the transfer of a parameter into a buffer: one copy."""
        entry = provider.resolve(request.key, request.parameter_offset, request.byte_length)
        if isinstance(entry.storage, Splat):
            self._splat(entry, entry.storage.pattern, request, target)
        else:
            self.device.tracer.counters.bytes_copied += request.byte_length
            self.step(
                self.device.queue_read,
                file=provider.file(entry.storage.file),
                file_offset=entry.storage.offset + request.parameter_offset,
                target=target,
                target_offset=request.buffer_offset,
                length=request.byte_length,
            )

    def _splat(self, entry: ParameterEntry, pattern: bytes, request: _Request, target: Buffer) -> None:
        size = len(pattern)
        begin, length = request.buffer_offset, request.byte_length
        turn = request.parameter_offset % size
        if size in _FILL_PATTERN_BYTES and begin % size == 0 and length % size == 0:
            self.step(
                self.device.queue_fill,
                target=target,
                offset=begin,
                length=length,
                pattern=pattern[turn:] + pattern[:turn],
            )
            return
        # Fills know neither patterns of 16 bytes nor unaligned ranges: write the bytes out in pieces.
        for offset in range(0, length, _CHUNK_BYTES):
            piece = min(_CHUNK_BYTES, length - offset)
            self.step(
                self.device.queue_update,
                source=entry.read(request.parameter_offset + offset, piece),
                target=target,
                target_offset=begin + offset,
            )

    def write(self, provider: ParameterProvider, request: _Request, source: Buffer) -> None:
        """Queue the transfer of part of a buffer into a parameter."""
        entry = provider.resolve(
            request.key, request.parameter_offset, request.byte_length, MemoryAccess.WRITE
        )
        storage = entry.storage
        if isinstance(storage, FileRange):
            self.step(
                self.device.queue_write,
                source=source,
                source_offset=request.buffer_offset,
                file=provider.file(storage.file),
                file_offset=storage.offset + request.parameter_offset,
                length=request.byte_length,
            )


class _State:
    """The providers, by scope."""

    __slots__ = ("providers",)

    def __init__(self, providers: Mapping[str, ParameterProvider]) -> None:
        self.providers = providers

    def provider(self, scope: VmBuffer | None) -> ParameterProvider:
        """The provider of a scope.

        Raises:
            NotFoundError: There is none; the message says which there are.
        """
        name = "" if scope is None else text_of(scope, "scope")
        provider = self.providers.get(name)
        if provider is None:
            there = ", ".join(map(repr, self.providers)) or "none"
            raise NotFoundError(f"the program wants parameters of scope {name!r}; scopes given: {there}")
        return provider


def _batch(device: Device, wait: Fence | None, signal: Fence | None) -> _Batch:
    return _Batch(
        expect(device, Device, "device"),
        expect_or_none(wait, Fence, "wait_fence"),
        expect_or_none(signal, Fence, "signal_fence"),
    )


def load(
    state: _State,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    scope: VmBuffer | None,
    _target_affinity: int,
    memory_types: int,
    usage: int,
    key_table: VmBuffer,
    key_data: VmBuffer,
    spans: VmBuffer,
) -> VmList:
    """Load parameters into new buffers, which are there once ``signal`` is reached."""
    batch = _batch(device, wait, signal)
    buffers = VmList("!hal.buffer")
    with batch.recording():
        provider = state.provider(scope)
        memory_type = parse_flags(MemoryType, memory_types, what="memory type")
        wanted = parse_flags(BufferUsage, usage, what="buffer usage") | BufferUsage.TRANSFER_TARGET
        for request in _decode_requests(key_table, key_data, spans):
            provider.resolve(request.key, request.parameter_offset, request.byte_length)
            buffer = batch.step(
                batch.device.queue_alloca,
                byte_length=request.byte_length,
                memory_type=memory_type,
                usage=wanted,
                tag="parameters",
            )
            batch.read(provider, request, buffer)
            buffers.append(buffer)
    return buffers


def gather(
    state: _State,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    scope: VmBuffer | None,
    target: Buffer,
    key_table: VmBuffer,
    key_data: VmBuffer,
    spans: VmBuffer,
) -> None:
    """Load parameters into places of one buffer."""
    batch = _batch(device, wait, signal)
    with batch.recording():
        provider = state.provider(scope)
        target = expect(target, Buffer, "target_buffer")
        for request in _decode_requests(key_table, key_data, spans):
            batch.read(provider, request, target)


def scatter(
    state: _State,
    device: Device,
    _affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: Buffer,
    scope: VmBuffer | None,
    key_table: VmBuffer,
    key_data: VmBuffer,
    spans: VmBuffer,
) -> None:
    """Write places of one buffer into parameters."""
    batch = _batch(device, wait, signal)
    with batch.recording():
        provider = state.provider(scope)
        source = expect(source, Buffer, "source_buffer")
        for request in _decode_requests(key_table, key_data, spans):
            batch.write(provider, request, source)


TABLE: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("load", "rIrrrIiirrr_r", load),
    ("gather", "rIrrrrrrr_v", gather),
    ("scatter", "rIrrrrrrr_v", scatter),
)
"""Every import of the module, version 0: name, calling convention, function."""

_FUNCTIONS = {
    name: NativeFunction(name=name, calling_convention=convention, call=call)
    for name, convention, call in TABLE
}


class IoParametersModule(NativeModule):
    """Parameters for programs.

    Args:
        providers: One per scope; they stay the caller's to close, after the contexts that use them.
    """

    name = "io_parameters"
    version = 0

    def __init__(self, providers: Sequence[ParameterProvider]) -> None:
        self._providers: dict[str, ParameterProvider] = {}
        for provider in providers:
            if provider.scope in self._providers:
                raise InvalidArgumentError(f"two providers for the parameter scope {provider.scope!r}")
            self._providers[provider.scope] = provider

    @property
    def functions(self) -> Mapping[str, NativeFunction]:
        """Functions by local name."""
        return _FUNCTIONS

    def create_state(self) -> _State:
        """State of one context."""
        return _State(self._providers)
