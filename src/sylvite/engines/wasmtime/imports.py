"""What compiled modules import, and what of it the host makes by itself."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any

from ...errors import LinkError
from ...wasm.interruption import OWN_MEMORY, STOP_MEMORY
from .memories import SharedMemory, WasmtimeMemory
from .native import ffi

if TYPE_CHECKING:
    from .store import WasmtimeStore

__all__ = ["OwnMemory", "read_imports"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnMemory:
    """The memory that a module defined, and imports now: sizes in pages."""

    minimum: int
    maximum: int | None
    is_shared: bool
    is_64: bool

    def create(self, store: WasmtimeStore) -> WasmtimeMemory | SharedMemory:
        """The memory for one instance.

        Raises:
            OutOfMemoryError: the cap or the machine does not allow it.
            UnsupportedFeatureError: it has more than 4 GiB.
            LinkError: shared memories may not be addressed by 64 bits here.
        """
        if not self.is_shared:
            return WasmtimeMemory.create(store, self.minimum, self.maximum, is_64=self.is_64)
        if self.is_64 or self.maximum is None:
            raise LinkError("the module defines a shared memory of 64-bit addresses")
        return store.create_memory(minimum_pages=self.minimum, maximum_pages=self.maximum, shared=True)


def read_imports(module: Any) -> tuple[tuple[tuple[str, str], ...], OwnMemory | None]:
    """Names of a native module's imports but for those of interruption, which come last, and the memory
    that it wants for its own."""
    vector = ffi.wasm_importtype_vec_t(0, None)
    ffi.wasmtime_module_imports(module.ptr(), ctypes.byref(vector))
    names: list[tuple[str, str]] = []
    own: OwnMemory | None = None
    try:
        for index in range(vector.size):
            item = vector.data[index]
            key = (_text(ffi.wasm_importtype_module(item)), _text(ffi.wasm_importtype_name(item)))
            if key == OWN_MEMORY:
                own = _own_memory(item)
            elif key != STOP_MEMORY:
                names.append(key)
        return tuple(names), own
    finally:
        ffi.wasm_importtype_vec_delete(ctypes.byref(vector))


def _own_memory(item: Any) -> OwnMemory:
    memory = ffi.wasm_externtype_as_memorytype(ffi.wasm_importtype_type(item))
    maximum = ctypes.c_uint64()
    has_maximum = ffi.wasmtime_memorytype_maximum(memory, ctypes.byref(maximum))
    return OwnMemory(
        minimum=int(ffi.wasmtime_memorytype_minimum(memory)),
        maximum=maximum.value if has_maximum else None,
        is_shared=bool(ffi.wasmtime_memorytype_isshared(memory)),
        is_64=bool(ffi.wasmtime_memorytype_is64(memory)),
    )


def _text(name: Any) -> str:
    size = name.contents.size
    return ctypes.string_at(name.contents.data, size).decode("utf-8") if size else ""
