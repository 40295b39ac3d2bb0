"""Tables and globals of the wasmtime engine, and conversion of all externs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, OutOfMemoryError, UnsupportedFeatureError
from ..base import Extern, Function, ValueType
from . import native
from .functions import WasmtimeFunction, checked_number
from .memories import SharedMemory, WasmtimeMemory
from .native import ffi

if TYPE_CHECKING:
    from .store import WasmtimeStore

__all__ = ["WasmtimeGlobal", "WasmtimeTable", "from_native_extern", "to_native_extern"]


_INDEX_MAX = (1 << 32) - 1


class WasmtimeTable:
    """A table of function references."""

    __slots__ = ("native", "store")

    def __init__(self, store: WasmtimeStore, table: Any) -> None:
        self.store = store
        self.native = table

    @classmethod
    def create(cls, store: WasmtimeStore, minimum: int, maximum: int | None) -> WasmtimeTable:
        """Make a new one; sizes were checked."""
        wasmtime = native.wasmtime
        table_type = wasmtime.TableType(wasmtime.ValType.funcref(), wasmtime.Limits(minimum, maximum))
        table = ffi.wasmtime_table_t()
        null = _function_value(None)
        error = ffi.wasmtime_table_new(
            store.context, table_type.ptr(), ctypes.byref(null), ctypes.byref(table)
        )
        message = native.take_error(error)
        if message is not None:
            raise OutOfMemoryError(f"no table of {minimum} entries: {message}")
        return cls(store, table)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(ffi.wasmtime_table_size(self.store.context, ctypes.byref(self.native)))

    def get(self, index: int) -> WasmtimeFunction | None:
        """The function at ``index``, None for a null entry.

        Raises:
            InvalidArgumentError: the index is outside the table.
        """
        value = ffi.wasmtime_val_t()
        context = self.store.context
        if not 0 <= index <= _INDEX_MAX or not ffi.wasmtime_table_get(
            context, ctypes.byref(self.native), index, ctypes.byref(value)
        ):
            raise InvalidArgumentError(f"table index {index} is outside the table of {self.size} entries")
        if value.kind != native.FUNCREF_KIND or value.of.funcref.store_id == 0:
            return None
        function = ffi.wasmtime_func_t()
        ctypes.pointer(function)[0] = value.of.funcref
        return WasmtimeFunction(self.store, function)

    def set(self, index: int, function: Function | None) -> None:
        """Put a function of the same store, or null, at ``index``.

        Raises:
            InvalidArgumentError: the index is outside the table, or the function is of another store.
        """
        context = self.store.context
        if function is not None:
            if not isinstance(function, WasmtimeFunction):
                raise InvalidArgumentError(f"cannot put a {type(function).__name__} into a table")
            _require_same_store(self.store, function)
        value = _function_value(function)
        if not 0 <= index <= _INDEX_MAX:
            raise InvalidArgumentError(f"table index {index} is outside the table of {self.size} entries")
        error = ffi.wasmtime_table_set(context, ctypes.byref(self.native), index, ctypes.byref(value))
        message = native.take_error(error)
        if message is not None:
            raise InvalidArgumentError(f"table index {index}: {message}")

    def grow(self, delta: int) -> int:
        """Grow by ``delta`` null entries; return the old size.

        Raises:
            OutOfMemoryError: its maximum or the store's limit does not allow it.
        """
        if delta < 0:
            raise InvalidArgumentError(f"delta must not be negative, got {delta}")
        # More would lose its high bits on the way; wasmtime refuses this much, too.
        delta = min(delta, _INDEX_MAX)
        null = _function_value(None)
        previous = ctypes.c_uint64()
        error = ffi.wasmtime_table_grow(
            self.store.context, ctypes.byref(self.native), delta, ctypes.byref(null), ctypes.byref(previous)
        )
        message = native.take_error(error)
        if message is not None:
            raise OutOfMemoryError(f"table of {self.size} entries cannot grow by {delta}: {message}")
        return previous.value


class WasmtimeGlobal:
    """A global variable of a numeric type."""

    __slots__ = ("native", "store")

    def __init__(self, store: WasmtimeStore, variable: Any) -> None:
        self.store = store
        self.native = variable

    @classmethod
    def create(
        cls, store: WasmtimeStore, value_type: ValueType, value: int | float, *, mutable: bool
    ) -> WasmtimeGlobal:
        """Make a new one."""
        initial = _number_value(value_type, value)
        wasmtime = native.wasmtime
        maker = getattr(wasmtime.ValType, value_type.name.lower())
        variable = ffi.wasmtime_global_t()
        error = ffi.wasmtime_global_new(
            store.context,
            wasmtime.GlobalType(maker(), mutable).ptr(),
            ctypes.byref(initial),
            ctypes.byref(variable),
        )
        message = native.take_error(error)
        if message is not None:
            raise InvalidArgumentError(f"global: {message}")
        return cls(store, variable)

    @property
    def value(self) -> int | float:
        """The present value.

        Raises:
            UnsupportedFeatureError: the global is not of a numeric type.
        """
        value_type, raw = self._read()
        number: int | float = getattr(raw.of, native.VALUE_FIELDS[value_type][1])
        return number

    @value.setter
    def value(self, value: int | float) -> None:
        value_type, _ = self._read()
        raw = _number_value(value_type, value)
        error = ffi.wasmtime_global_set(self.store.context, ctypes.byref(self.native), ctypes.byref(raw))
        message = native.take_error(error)
        if message is not None:
            raise InvalidArgumentError(f"global: {message}")

    def _read(self) -> tuple[ValueType, Any]:
        raw = ffi.wasmtime_val_t()
        ffi.wasmtime_global_get(self.store.context, ctypes.byref(self.native), ctypes.byref(raw))
        for value_type, (kind, _) in native.VALUE_FIELDS.items():
            if kind == raw.kind:
                return value_type, raw
        ffi.wasmtime_val_unroot(ctypes.byref(raw))
        raise UnsupportedFeatureError(f"a global holding a value of kind {raw.kind} cannot be read")


def to_native_extern(store: WasmtimeStore, item: Extern) -> Any:
    """The ``wasmtime_extern_t`` of an item, for an import of ``store``."""
    result = ffi.wasmtime_extern_t()
    if isinstance(item, SharedMemory):
        if item.engine is not store.engine:
            raise InvalidArgumentError("a shared memory can be imported by stores of its engine only")
        result.kind = ffi.WASMTIME_EXTERN_MEMORY.value
        result.of.memory = store.handle_of(item)
        return result
    for kind, (field, python_type) in _EXTERN_KINDS.items():
        if isinstance(item, python_type):
            _require_same_store(store, item)
            result.kind = kind
            setattr(result.of, field, item.native)
            return result
    raise InvalidArgumentError(f"cannot import a {type(item).__name__}")


def from_native_extern(store: WasmtimeStore, item: Any) -> Extern:
    """The Python object for a ``wasmtime_extern_t``; the struct may be overwritten afterwards."""
    if item.kind == ffi.WASMTIME_EXTERN_SHAREDMEMORY.value:
        owner = native.wasmtime.SharedMemory._from_ptr(
            ctypes.cast(native.address_of(item.of.sharedmemory) or 0, type(item.of.sharedmemory))
        )
        return SharedMemory(store.engine, owner, owner.type().limits.max)
    if item.kind not in _EXTERN_KINDS:
        raise UnsupportedFeatureError(f"exports of kind {item.kind} are not supported")
    field, python_type = _EXTERN_KINDS[item.kind]
    source = getattr(item.of, field)
    copy = type(source).from_buffer_copy(source)
    extern: Extern = python_type(store, copy)
    return extern


# wasmtime_extern_t kind -> (union field, class)
_EXTERN_KINDS: dict[int, tuple[str, Any]] = {
    ffi.WASMTIME_EXTERN_FUNC.value: ("func", WasmtimeFunction),
    ffi.WASMTIME_EXTERN_GLOBAL.value: ("global_", WasmtimeGlobal),
    ffi.WASMTIME_EXTERN_TABLE.value: ("table", WasmtimeTable),
    ffi.WASMTIME_EXTERN_MEMORY.value: ("memory", WasmtimeMemory),
}


def _require_same_store(store: WasmtimeStore, item: Any) -> None:
    # Wasmtime aborts the process when objects of different stores meet.
    if item.store is not store:
        raise InvalidArgumentError(f"the {type(item).__name__} belongs to another store")


def _function_value(function: WasmtimeFunction | None) -> Any:
    value = ffi.wasmtime_val_t()
    value.kind = native.FUNCREF_KIND
    if function is None:
        value.of.funcref.store_id = 0
    else:
        value.of.funcref = function.native
    return value


def _number_value(value_type: ValueType, value: int | float) -> Any:
    if value_type not in native.VALUE_FIELDS:
        raise InvalidArgumentError(f"globals of type {value_type.name} cannot be made by the host")
    kind, field = native.VALUE_FIELDS[value_type]
    raw = ffi.wasmtime_val_t()
    raw.kind = kind
    setattr(raw.of, field, checked_number(value_type, value))
    return raw
