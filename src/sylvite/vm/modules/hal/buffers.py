"""``hal.allocator.*``, ``hal.buffer.*`` and ``hal.buffer_view.*``.

Source: IREE's ``hal.imports.mlir`` and ``iree/modules/hal/module.c``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

import sys

from ....errors import InvalidArgumentError
from ....hal.allocator import Allocator
from ....hal.buffer import Buffer
from ....hal.buffer_view import BufferView
from ....hal.device import Device
from ....hal.element_types import ElementType, NumericalType
from ....hal.types import BufferUsage, EncodingType, MemoryAccess, MemoryType, lacks, parse_enum, parse_flags
from ...refs import VmBuffer
from ..arguments import element_type, expect, span_of, text_of
from ..formatting import format_buffer_view
from .state import HalState

_WORD_BYTES = 4
_EVERY_BIT = 0xFFFFFFFF


def memory_type_of(value: int) -> MemoryType:
    """A memory type argument."""
    return parse_flags(MemoryType, value, what="memory type")


def usage_of(value: int) -> BufferUsage:
    """A buffer usage argument."""
    return parse_flags(BufferUsage, value, what="buffer usage")


# -- allocator -------------------------------------------------------------------------------------------


def allocator_select(
    _state: HalState, _memory_types: int, _usage: int, _flags: int, candidates: list[tuple[Device, int]]
) -> tuple[Device, int]:
    """The first candidate: local devices are equally good at holding memory."""
    if not candidates:
        raise InvalidArgumentError("allocator.select needs at least one pair of device and queue affinity")
    device, affinity = candidates[0]
    return expect(device, Device, "device"), affinity


def allocator_allocate(
    _state: HalState, allocator: Allocator, _affinity: int, memory_types: int, usage: int, byte_length: int
) -> Buffer:
    """A new buffer."""
    return expect(allocator, Allocator, "allocator").allocate(
        byte_length, memory_type=memory_type_of(memory_types), usage=usage_of(usage)
    )


def allocator_import(
    _state: HalState,
    allocator: Allocator,
    try_only: int,
    _affinity: int,
    memory_types: int,
    usage: int,
    source: VmBuffer,
    offset: int,
    length: int,
) -> Buffer | None:
    """A buffer with the contents of host memory. With ``try`` null where that takes a copy: the program
    then stages the copy itself."""
    data = span_of(source, offset, length, "source")
    wanted = usage_of(usage)
    immutable = bool(wanted & BufferUsage.SHARING_IMMUTABLE)
    if not source.mutable and not immutable:
        raise InvalidArgumentError("read-only memory can only be imported for use as a constant")
    return expect(allocator, Allocator, "allocator").import_host(
        data,
        memory_type=memory_type_of(memory_types),
        usage=wanted,
        access=MemoryAccess.READ if immutable else MemoryAccess.READ | MemoryAccess.WRITE,
        copy=not try_only,
    )


# -- buffer ----------------------------------------------------------------------------------------------


def buffer_assert(
    _state: HalState,
    buffer: Buffer,
    message: VmBuffer,
    allocator: Allocator,
    minimum_length: int,
    memory_types: int,
    usage: int,
) -> None:
    """Check a buffer from outside: long enough, of this memory type at least, allowed these uses."""
    buffer = expect(buffer, Buffer, "buffer")
    expect(allocator, Allocator, "allocator")
    if buffer.byte_length < minimum_length:
        raise InvalidArgumentError(
            f"{text_of(message, 'message')}: the buffer has {buffer.byte_length} bytes, "
            f"at least {minimum_length} are needed"
        )
    if lacks(buffer.memory_type, memory_types, _EVERY_BIT):
        raise InvalidArgumentError(
            f"{text_of(message, 'message')}: the buffer is in {buffer.memory_type!r}, "
            f"the program needs {memory_type_of(memory_types)!r}"
        )
    if lacks(buffer.allowed_usage, usage, _EVERY_BIT):
        raise InvalidArgumentError(
            f"{text_of(message, 'message')}: the buffer allows {buffer.allowed_usage!r}, "
            f"the program needs {usage_of(usage)!r}"
        )


def buffer_allocation_preserve(_state: HalState, buffer: Buffer) -> None:
    """One more owner of the allocation."""
    expect(buffer, Buffer, "buffer").storage.preserve()


def buffer_allocation_discard(_state: HalState, buffer: Buffer) -> int:
    """One owner less; 1 when that was the last."""
    return int(expect(buffer, Buffer, "buffer").storage.discard())


def buffer_allocation_is_terminal(_state: HalState, buffer: Buffer) -> int:
    """1 when there is one owner left."""
    return int(expect(buffer, Buffer, "buffer").storage.is_terminal)


def buffer_subspan(_state: HalState, buffer: Buffer, offset: int, length: int) -> Buffer:
    """Part of a buffer."""
    return expect(buffer, Buffer, "source_buffer").subspan(offset, length)


def buffer_length(_state: HalState, buffer: Buffer) -> int:
    """Length in bytes."""
    return expect(buffer, Buffer, "buffer").byte_length


def _check_word(verb: str, length: int) -> None:
    if not 0 <= length <= _WORD_BYTES:
        raise InvalidArgumentError(f"a {verb} of {length} bytes; at most {_WORD_BYTES} are possible")


def buffer_load(_state: HalState, buffer: Buffer, offset: int, length: int) -> int:
    """Up to four bytes as a little-endian integer; missing high bytes are zero."""
    _check_word("load", length)
    raw = expect(buffer, Buffer, "source_buffer").read(offset, length)
    return int.from_bytes(raw.ljust(_WORD_BYTES, b"\0"), "little", signed=True)


def buffer_store(_state: HalState, value: int, buffer: Buffer, offset: int, length: int) -> None:
    """The low bytes of a value, up to four."""
    _check_word("store", length)
    raw = (value & 0xFFFFFFFF).to_bytes(_WORD_BYTES, "little")[:length]
    expect(buffer, Buffer, "target_buffer").write(offset, raw)


# -- buffer view -----------------------------------------------------------------------------------------


def buffer_view_create(
    _state: HalState, buffer: Buffer, offset: int, length: int, element: int, encoding: int, shape: list[int]
) -> BufferView:
    """A typed look at part of a buffer."""
    buffer = expect(buffer, Buffer, "buffer")
    if offset or length != buffer.byte_length:
        buffer = buffer.subspan(offset, length)
    layout = parse_enum(EncodingType, encoding, what="encoding type")
    return BufferView(buffer, shape, element_type(element), layout)


def _may_stand_for(actual: ElementType, expected: ElementType) -> bool:
    """Opaque elements may stand for anything: somebody carries bytes around."""
    return actual.numerical_type is NumericalType.UNKNOWN or actual.is_compatible_with(expected)


def buffer_view_assert(
    _state: HalState, view: BufferView, message: VmBuffer, element: int, encoding: int, shape: list[int]
) -> None:
    """Check a tensor from outside: encoding, element type, rank, dimensions, in this order."""
    view = expect(view, BufferView, "buffer_view")
    if view.is_exactly(element, encoding, shape):
        return
    found: object
    if view.encoding is not EncodingType.OPAQUE and view.encoding != encoding:
        wanted, found, noun = encoding, int(view.encoding), "encoding"
    elif not _may_stand_for(view.element_type, element_type(element)):
        wanted, found, noun = element_type(element), view.element_type, "element type"  # type: ignore[assignment]
    elif view.shape != tuple(shape):
        noun = "rank" if len(view.shape) != len(shape) else "shape"
        wanted, found = _dimensions(shape), _dimensions(view.shape)  # type: ignore[assignment]
    else:
        return
    raise InvalidArgumentError(f"{text_of(message, 'message')}: {noun} {wanted} expected, {found} given")


def _dimensions(shape: list[int] | tuple[int, ...]) -> str:
    return f"{len(shape)} ({'x'.join(map(str, shape)) or 'scalar'})"


def buffer_view_buffer(_state: HalState, view: BufferView) -> Buffer:
    """The buffer behind a view."""
    return expect(view, BufferView, "buffer_view").buffer


def buffer_view_element_type(_state: HalState, view: BufferView) -> int:
    """The element type's encoding."""
    return expect(view, BufferView, "buffer_view").element_type.value


def buffer_view_encoding_type(_state: HalState, view: BufferView) -> int:
    """The encoding's number."""
    return int(expect(view, BufferView, "buffer_view").encoding)


def buffer_view_rank(_state: HalState, view: BufferView) -> int:
    """The number of dimensions."""
    return len(expect(view, BufferView, "buffer_view").shape)


def buffer_view_dim(_state: HalState, view: BufferView, index: int) -> int:
    """One dimension; 0 where there is none."""
    shape = expect(view, BufferView, "buffer_view").shape
    return shape[index] if 0 <= index < len(shape) else 0


def buffer_view_trace(state: HalState, key: VmBuffer, views: list[BufferView]) -> None:
    """Print tensors to standard error, or where the module was told to."""
    stream = sys.stderr if state.trace_stream is None else state.trace_stream
    lines = [f"=== {text_of(key, 'key')} ==="]
    for view in views:
        lines.append(format_buffer_view(expect(view, BufferView, "operands"), limit=sys.maxsize))
    print("\n".join(lines), file=stream, end="\n\n")
