"""Buffer and list operations of the virtual machine, as generated code calls them.

Offsets and lengths of typed accesses count elements, those of copies, clones, compares and hashes
count bytes. All are unsigned in IREE; negative ones are out of range here.

Source: IREE ``runtime/src/iree/vm/ops.h``, ``buffer.c`` and ``list.c``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..errors import ProgramError, StatusCode
from .refs import VmBuffer, VmList

__all__ = ["OPERATIONS", "checked_list", "checked_range", "hash_bytes"]

_FILL_CHUNK_BYTES = 1 << 20


def _is_null(what: str) -> ProgramError:
    return ProgramError(f"{what} is null or of another type", status=StatusCode.INVALID_ARGUMENT)


def _refuse(buffer: object, offset: int, count: int, element_bytes: int, *, write: bool) -> NoReturn:
    """Raise the error for an access that was refused."""
    if not isinstance(buffer, VmBuffer):
        raise _is_null("buffer")
    if write and not buffer.mutable:
        raise ProgramError(
            "buffer is read-only and cannot be written to", status=StatusCode.PERMISSION_DENIED
        )
    raise ProgramError(
        f"access of {count} elements of {element_bytes} bytes from element {offset} is out of bounds of a "
        f"buffer of {len(buffer)} bytes",
        status=StatusCode.OUT_OF_RANGE,
    )


def checked_range(
    buffer: object, offset: int, length: int, element_bytes: int = 1, *, write: bool
) -> memoryview:
    """The bytes of a range, counted in elements.

    Raises:
        ProgramError: no buffer, out of bounds, or read-only where ``write`` asks for more.
    """
    if (
        isinstance(buffer, VmBuffer)
        and (buffer.mutable or not write)
        and offset >= 0
        and length >= 0
        and (offset + length) * element_bytes <= len(buffer)
    ):
        return buffer.data[offset * element_bytes : (offset + length) * element_bytes]
    _refuse(buffer, offset, length, element_bytes, write=write)


def buffer_length(buffer: object) -> int:
    """Length in bytes."""
    if not isinstance(buffer, VmBuffer):
        raise _is_null("buffer")
    return buffer.data.nbytes


def buffer_copy(source: object, source_offset: int, target: object, target_offset: int, length: int) -> None:
    """Copy ``length`` bytes."""
    view = checked_range(source, source_offset, length, write=False)
    checked_range(target, target_offset, length, write=True)[:] = view


def buffer_compare(left: object, left_offset: int, right: object, right_offset: int, length: int) -> int:
    """1 when two ranges hold the same bytes, else 0."""
    first = checked_range(left, left_offset, length, write=False)
    return 1 if first == checked_range(right, right_offset, length, write=False) else 0


def _make_load(layout: str) -> Callable[[object, int], Any]:
    element = struct.Struct(layout)
    unpack, element_bytes = element.unpack_from, element.size

    def load(buffer: object, offset: int) -> Any:
        if isinstance(buffer, VmBuffer) and 0 <= offset * element_bytes <= buffer.data.nbytes - element_bytes:
            return unpack(buffer.data, offset * element_bytes)[0]
        _refuse(buffer, offset, 1, element_bytes, write=False)

    return load


def _make_store(layout: str, mask: int | None = None) -> Callable[[object, int, Any], None]:
    element = struct.Struct(layout)
    pack, element_bytes = element.pack_into, element.size

    def store(buffer: object, offset: int, value: Any) -> None:
        if (
            isinstance(buffer, VmBuffer)
            and buffer.mutable
            and 0 <= offset * element_bytes <= buffer.data.nbytes - element_bytes
        ):
            pack(buffer.data, offset * element_bytes, value if mask is None else value & mask)
        else:
            _refuse(buffer, offset, 1, element_bytes, write=True)

    return store


def _make_fill(layout: str, mask: int | None = None) -> Callable[[object, int, int, Any], None]:
    element = struct.Struct(layout)

    def fill(buffer: object, offset: int, length: int, value: Any) -> None:
        view = checked_range(buffer, offset, length, element.size, write=True)
        pattern = element.pack(value if mask is None else value & mask)
        chunk = pattern * min(length, _FILL_CHUNK_BYTES // element.size)
        for start in range(0, len(view), _FILL_CHUNK_BYTES):
            part = view[start : start + _FILL_CHUNK_BYTES]
            part[:] = chunk[: len(part)]

    return fill


_M64 = (1 << 64) - 1
_HASH_KEYS = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
_HASH_STATE = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_HASH_WORDS_PER_LOOK = 4096


def _sip_rounds(v0: int, v1: int, v2: int, v3: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = v0 + v1 & _M64
        v1 = (v1 << 13 & _M64 | v1 >> 51) ^ v0
        v0 = v0 << 32 & _M64 | v0 >> 32
        v2 = v2 + v3 & _M64
        v3 = (v3 << 16 & _M64 | v3 >> 48) ^ v2
        v0 = v0 + v3 & _M64
        v3 = (v3 << 21 & _M64 | v3 >> 43) ^ v0
        v2 = v2 + v1 & _M64
        v1 = (v1 << 17 & _M64 | v1 >> 47) ^ v2
        v2 = v2 << 32 & _M64 | v2 >> 32
    return v0, v1, v2, v3


def hash_bytes(data: memoryview, look: Callable[[], object]) -> int:
    """SipHash-2-4 of ``data`` with the key 00 01 ... 0f, as an i64. Calls ``look`` now and then.

    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF".
    """
    first, second = _HASH_KEYS
    v0, v1, v2, v3 = (
        state ^ key for state, key in zip(_HASH_STATE, (first, second, first, second), strict=True)
    )
    whole = len(data) - len(data) % 8
    for position, (word,) in enumerate(struct.iter_unpack("<Q", data[:whole])):
        if not position % _HASH_WORDS_PER_LOOK:
            look()
        v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    last = (len(data) & 0xFF) << 56 | int.from_bytes(data[whole:], "little")
    v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3 ^ last, 2)
    v0, v1, v2, v3 = _sip_rounds(v0 ^ last, v1, v2 ^ 0xFF, v3, 4)
    value = v0 ^ v1 ^ v2 ^ v3
    return value - (1 << 64) if value >> 63 else value


def checked_list(value: object) -> VmList:
    """``value`` as a list. Raises ProgramError when it is none."""
    if not isinstance(value, VmList):
        raise _is_null("list")
    return value


def list_size(target: object) -> int:
    """Number of elements."""
    return len(checked_list(target))


def list_reserve(target: object, capacity: int) -> None:
    """Check that a list may grow to ``capacity``; Python grows it when it does."""
    checked_list(target).check_capacity(capacity & 0xFFFFFFFF)


def list_resize(target: object, length: int) -> None:
    """Cut off or append elements."""
    checked_list(target).resize(length & 0xFFFFFFFF)


def _make_list_get(kind: str) -> Callable[[object, int], Any]:
    def get(target: object, index: int) -> Any:
        return checked_list(target).get_number(index & 0xFFFFFFFF, kind)

    return get


def _make_list_set(kind: str) -> Callable[[object, int, Any], None]:
    def set_(target: object, index: int, value: Any) -> None:
        checked_list(target).set_number(index & 0xFFFFFFFF, value, kind)

    return set_


_LAYOUTS: Mapping[str, str] = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}

OPERATIONS: Mapping[str, Any] = {
    "buffer_length": buffer_length,
    "buffer_copy": buffer_copy,
    "buffer_compare": buffer_compare,
    "load_u8": _make_load("<B"),
    "load_i8": _make_load("<b"),
    "load_u16": _make_load("<H"),
    "load_i16": _make_load("<h"),
    "store_i8": _make_store("<B", 0xFF),
    "store_i16": _make_store("<H", 0xFFFF),
    "fill_i8": _make_fill("<B", 0xFF),
    "fill_i16": _make_fill("<H", 0xFFFF),
    **{f"load_{kind}": _make_load(layout) for kind, layout in _LAYOUTS.items()},
    **{f"store_{kind}": _make_store(layout) for kind, layout in _LAYOUTS.items()},
    **{f"fill_{kind}": _make_fill(layout) for kind, layout in _LAYOUTS.items()},
    "list_size": list_size,
    "list_reserve": list_reserve,
    "list_resize": list_resize,
    **{f"list_get_{kind}": _make_list_get(kind) for kind in _LAYOUTS},
    **{f"list_set_{kind}": _make_list_set(kind) for kind in _LAYOUTS},
}
"""Names that generated code may use for operations that need nothing of their module."""
