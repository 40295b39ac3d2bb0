"""Wasmtime's C API as this package needs it: the calls, and its failures as our errors.

The ``wasmtime`` package's classes are used for what happens once (configuration, compiling, types).
Calls, host functions and externs go to the C functions through the package's own bindings, because the
classes are too slow for dispatches (tens of microseconds a call), keep a host function's exception in a
variable shared by all threads, and cannot pass a shared memory to an instance. All of that is tied to
the exact release, which is why it is pinned and checked here.

Source: wasmtime C API, ``wasmtime.h`` of release 50.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from ...errors import (
    FormatError,
    LinkError,
    OutOfMemoryError,
    SylviteError,
    TrapError,
    UnavailableError,
    UnsupportedFeatureError,
)
from ..base import ValueType

try:
    import wasmtime
    from wasmtime import _ffi as ffi
except ImportError as error:
    raise UnavailableError(f"the wasmtime engine is not installed ({error}); pip install wasmtime") from error
except (OSError, RuntimeError) as error:
    raise UnavailableError(f"the wasmtime engine does not run on this machine: {error}") from error


def _installed_release() -> str:
    """Release of the package. Its metadata's folder says it as well, and is much quicker to look at."""
    folders = list(Path(wasmtime.__file__).parent.parent.glob("wasmtime-*.dist-info"))
    if len(folders) == 1:
        return folders[0].name.removeprefix("wasmtime-").removesuffix(".dist-info")
    import importlib.metadata

    return importlib.metadata.version("wasmtime")


SUPPORTED_RELEASE = "50."
VERSION = _installed_release()
if not VERSION.startswith(SUPPORTED_RELEASE):
    raise UnavailableError(
        f"wasmtime {VERSION} is installed, this release of sylvite works with {SUPPORTED_RELEASE}x: "
        "its C API is used directly"
    )
if sys.byteorder != "little":
    raise UnavailableError("the wasmtime engine needs a little-endian machine")

__all__ = ["ffi", "wasmtime"]

# Raw call slots are 16 bytes (a v128 fits); everything else uses the low bytes of one.
SLOT_BYTES = ctypes.sizeof(ffi.wasmtime_val_raw_t)

# Fresh prototypes that take plain addresses: converting ctypes pointers costs more than the call.
call_unchecked = ffi.dll["wasmtime_func_call_unchecked"]
call_unchecked.restype = ctypes.c_void_p
call_unchecked.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
]

HostCallback = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
new_host_function = ffi.dll["wasmtime_func_new_unchecked"]
new_host_function.restype = None
new_host_function.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    HostCallback,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
]

delete_store = ffi.dll["wasmtime_store_delete"]
delete_store.restype = None
delete_store.argtypes = [ctypes.c_void_p]

# Takes an object out of the sight of the garbage collector.
untrack = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))

no_finalizer = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))

_VALUE_KINDS = {
    0: ValueType.I32,
    1: ValueType.I64,
    2: ValueType.F32,
    3: ValueType.F64,
    128: ValueType.EXTERNREF,
    129: ValueType.FUNCREF,
}

_V128 = ffi.wasmtime_wasm_valtype_v128()

# What a number travels as in a slot.
SLOT_TYPES: dict[ValueType, Any] = {
    ValueType.I32: ctypes.c_int32,
    ValueType.I64: ctypes.c_int64,
    ValueType.F32: ctypes.c_float,
    ValueType.F64: ctypes.c_double,
}

# wasmtime_val_t kinds and union fields of the numeric types.
VALUE_FIELDS: dict[ValueType, tuple[int, str]] = {
    ValueType.I32: (0, "i32"),
    ValueType.I64: (1, "i64"),
    ValueType.F32: (2, "f32"),
    ValueType.F64: (3, "f64"),
}
FUNCREF_KIND = 5

# Trap codes whose name in wasmtime is not the one used here; the rest are wasmtime's own in lower case.
_TRAP_NAMES = {
    "BAD_SIGNATURE": "indirect_call_type_mismatch",
    "INTEGER_DIVISION_BY_ZERO": "integer_divide_by_zero",
    "BAD_CONVERSION_TO_INTEGER": "invalid_conversion_to_integer",
    "UNREACHABLE_CODE_REACHED": "unreachable",
}


def _trap_codes() -> dict[int, str]:
    codes = {}
    for member in ffi.wasmtime_trap_code_enum:
        name = member.name.removeprefix("WASMTIME_TRAP_CODE_").removeprefix("WASMTIME_TRAP_")
        codes[member.value] = _TRAP_NAMES.get(name, name.lower())
    return codes


TRAP_CODES = _trap_codes()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the engine said when a call failed. ``code`` is None unless it was a trap of wasm code."""

    message: str
    code: str | None
    frames: tuple[str, ...]


def take_failure(error_address: int | None, trap_address: int | None) -> Failure:
    """Read and free the error or trap that a call returned."""
    if trap_address:
        trap = ctypes.cast(trap_address, ctypes.POINTER(ffi.wasm_trap_t))
        number = ffi.wasmtime_trap_code_t()
        has_code = ffi.wasmtime_trap_code(trap, ctypes.byref(number))
        frames = ffi.wasm_frame_vec_t(0, None)
        ffi.wasm_trap_trace(trap, ctypes.byref(frames))
        text = ffi.wasm_byte_vec_t()
        ffi.wasm_trap_message(trap, ctypes.byref(text))
        failure = Failure(
            message=_take_text(text),
            code=TRAP_CODES.get(number.value, f"code_{number.value}") if has_code else None,
            frames=_take_frames(frames),
        )
        ffi.wasm_trap_delete(trap)
        return failure
    pointer = ctypes.cast(error_address or 0, ctypes.POINTER(ffi.wasmtime_error_t))
    frames = ffi.wasm_frame_vec_t(0, None)
    ffi.wasmtime_error_wasm_trace(pointer, ctypes.byref(frames))
    text = ffi.wasm_byte_vec_t()
    ffi.wasmtime_error_message(pointer, ctypes.byref(text))
    failure = Failure(message=_take_text(text), code=None, frames=_take_frames(frames))
    ffi.wasmtime_error_delete(pointer)
    return failure


def address_of(pointer: Any) -> int | None:
    """Address a ctypes pointer holds, None when it is null."""
    return ctypes.cast(pointer, ctypes.c_void_p).value


def take_error(pointer: Any) -> str | None:
    """Message of a returned ``wasmtime_error_t*`` (freed), None when there is no error."""
    if not pointer:
        return None
    return _chain(take_failure(address_of(pointer), None).message)


def trap_error(failure: Failure) -> TrapError:
    """The `TrapError` for a failure of wasm code."""
    code = failure.code or "host_error"
    place = f" in {' < '.join(failure.frames[:4])}" if failure.frames else ""
    reason = code.replace("_", " ") if failure.code else failure.message
    return TrapError(f"WebAssembly trap: {reason}{place}", code=code, frames=failure.frames)


_OFFSETS = (
    (re.compile(r" *\(at offset 0x([0-9a-f]+)\)"), 16),
    (re.compile(r"Invalid input WebAssembly code at offset (\d+): "), 10),
)
_MISSING_FEATURE = re.compile(
    r"not enabled|must be enabled|not supported|requires? (?:the )?`?[\w -]+`? (?:proposal|feature)|disabled"
)


def compile_error(message: str, *, name: str) -> FormatError:
    """The error for a module that did not compile."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # The cause is the last entry of the chain: "0: unknown global 3 (at offset 0x2f)".
    cause = re.sub(r"^\d+: ", "", lines[-1]) if lines else message
    offset = None
    for pattern, base in _OFFSETS:
        found = pattern.search(cause)
        if found:
            offset = int(found.group(1), base)
            cause = pattern.sub("", cause)
    kind = UnsupportedFeatureError if _MISSING_FEATURE.search(cause) else FormatError
    return kind(cause, offset=offset, where=f"wasm module {name}" if name else "wasm module")


def instantiate_error(message: str, *, name: str) -> SylviteError:
    """The error for a module that compiled but could not be instantiated."""
    if "exceeds memory limits" in message or "exceeds table limits" in message or "mmap" in message:
        return OutOfMemoryError(f"module {name}: {_first_line(message)}")
    return LinkError(f"module {name}: {_chain(message)}", module=name)


def _first_line(message: str) -> str:
    return message.splitlines()[0] if message else message


def _chain(message: str) -> str:
    lines = [line.strip() for line in message.splitlines()]
    return ": ".join(re.sub(r"^\d+: ", "", line) for line in lines if line and line != "Caused by:")


def _take_text(vector: Any) -> str:
    text = ctypes.string_at(vector.data, vector.size) if vector.size else b""
    ffi.wasm_byte_vec_delete(ctypes.byref(vector))
    return text.rstrip(b"\0").decode("utf-8", "replace")


def _take_frames(vector: Any) -> tuple[str, ...]:
    names = []
    for index in range(vector.size):
        frame = vector.data[index]
        name = ffi.wasmtime_frame_func_name(frame)
        names.append(
            ctypes.string_at(name.contents.data, name.contents.size).decode("utf-8", "replace")
            if name
            else f"function[{ffi.wasm_frame_func_index(frame)}]"
        )
    ffi.wasm_frame_vec_delete(ctypes.byref(vector))
    return tuple(names)


def value_type_of(pointer: Any) -> ValueType:
    """`ValueType` of a ``wasm_valtype_t*``.

    Raises:
        UnsupportedFeatureError: a reference type that no proposal in use has.
    """
    # Asking wasm_valtype_kind about a v128 aborts the process.
    if ffi.wasmtime_wasm_valtype_equal(pointer, _V128):
        return ValueType.V128
    kind = ffi.wasm_valtype_kind(pointer)
    number = kind.value if hasattr(kind, "value") else int(kind)
    value_type = _VALUE_KINDS.get(number)
    if value_type is None:
        raise UnsupportedFeatureError(f"value type of kind {number} is not supported")
    return value_type


def function_type(parameter_types: tuple[ValueType, ...], result_types: tuple[ValueType, ...]) -> Any:
    """A ``wasmtime.FuncType`` of numeric types."""
    makers = {
        ValueType.I32: wasmtime.ValType.i32,
        ValueType.I64: wasmtime.ValType.i64,
        ValueType.F32: wasmtime.ValType.f32,
        ValueType.F64: wasmtime.ValType.f64,
    }
    return wasmtime.FuncType(
        [makers[value_type]() for value_type in parameter_types],
        [makers[value_type]() for value_type in result_types],
    )


def signature_of(context: Any, function: Any) -> tuple[tuple[ValueType, ...], tuple[ValueType, ...]]:
    """Parameter and result types of a ``wasmtime_func_t``."""
    pointer = ffi.wasmtime_func_type(context, ctypes.byref(function))
    try:
        return tuple(
            tuple(value_type_of(vector.contents.data[index]) for index in range(vector.contents.size))
            for vector in (ffi.wasm_functype_params(pointer), ffi.wasm_functype_results(pointer))
        )  # type: ignore[return-value]
    finally:
        ffi.wasm_functype_delete(pointer)
