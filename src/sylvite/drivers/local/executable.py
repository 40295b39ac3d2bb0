"""Executables of local devices: wasm side modules with a library structure."""

from __future__ import annotations

import collections
import struct
from typing import TYPE_CHECKING

from ...abi import structs
from ...engines.base import ValueType
from ...errors import FormatError, InvalidArgumentError, LinkError
from ...hal import Device, Executable
from .library import Library, read_library
from .workgroup_state import WorkgroupState

if TYPE_CHECKING:
    from ...linker import LinkedModule, LinkSpace

__all__ = ["FORMAT", "LoadedLibrary", "LocalExecutable", "load_library"]

FORMAT = "system-wasm-wasm_32"
"""What iree-compile calls its wasm32 executables."""

Discarded = collections.deque["LoadedLibrary"]


class LoadedLibrary:
    """What a loaded executable takes of its device: a module, its environment, scratch memory.

    Args:
        space: the link space.
        workgroup_state: has the scratch memory.
        module: the linked module.
    """

    def __init__(self, space: LinkSpace, workgroup_state: WorkgroupState, module: LinkedModule) -> None:
        self._space = space
        self._workgroup_state = workgroup_state
        self._module = module
        self._scratch_bytes: int | None = None
        self._regions: list[int] = []
        self.environment_address = 0

    def reserve(self, data: bytes, alignment: int = 8) -> int:
        """Put bytes into guest memory for as long as the library is loaded; return their address."""
        address = self._space.heap.allocate(len(data), alignment)
        self._regions.append(address)
        self._space.write(address, data)
        return address

    def reserve_scratch(self, byte_length: int) -> None:
        """Have workgroups get this much scratch memory for as long as the library is loaded."""
        self._workgroup_state.acquire(byte_length)
        self._scratch_bytes = byte_length

    def release(self) -> None:
        """Unload. The device's lock must be held. Idempotent."""
        regions, self._regions = self._regions, []
        for address in regions:
            self._space.heap.free(address)
        scratch_bytes, self._scratch_bytes = self._scratch_bytes, None
        if scratch_bytes is not None:
            self._workgroup_state.release(scratch_bytes)
        self._module.close()


def load_library(
    space: LinkSpace,
    workgroup_state: WorkgroupState,
    data: bytes,
    *,
    name: str,
    constants: tuple[int, ...],
) -> tuple[LoadedLibrary, Library]:
    """Link a module, give it an environment and read its library.

    Raises:
        FormatError: the module or its library is malformed.
        LinkError: it imports what does not exist.
        InvalidArgumentError: it takes another number of constants.
        OutOfMemoryError: there is no room.
    """
    module = space.load(data, name=name, public=False)
    loaded = LoadedLibrary(space, workgroup_state, module)
    try:
        packed = struct.pack(f"<{len(constants)}I", *(value & 0xFFFFFFFF for value in constants))
        constants_address = loaded.reserve(packed) if packed else 0
        environment = {"constants": constants_address}
        loaded.environment_address = loaded.reserve(structs.ENVIRONMENT.pack(environment))
        library = read_library(space, module, _query(module, loaded.environment_address))
        if library.constant_count != len(constants):
            message = f"executable {name} takes {library.constant_count} constants, not {len(constants)}"
            raise InvalidArgumentError(message)
        _provide_imports(space, loaded, library, environment)
        loaded.reserve_scratch(max((entry.export.local_memory_bytes for entry in library.exports), default=0))
    except BaseException:
        loaded.release()
        raise
    return loaded, library


def _query(module: LinkedModule, environment_address: int) -> int:
    query = module.exports.get(structs.LIBRARY_QUERY_SYMBOL)
    where = f"executable {module.name}"
    if query is None:
        raise FormatError(f"no function {structs.LIBRARY_QUERY_SYMBOL} is exported", where=where)
    if tuple(query.parameter_types) != (ValueType.I32,) * 2 or tuple(query.result_types) != (ValueType.I32,):
        raise FormatError(f"{structs.LIBRARY_QUERY_SYMBOL} is not of type (i32, i32) -> i32", where=where)
    result = query(structs.LIBRARY_VERSION, environment_address)
    return result if isinstance(result, int) else 0


def _provide_imports(
    space: LinkSpace, loaded: LoadedLibrary, library: Library, environment: dict[str, int]
) -> None:
    """No host function is offered through the import table (symbols of the link take that place), so
    optional imports are null and others are refused."""
    missing = [wanted.name for wanted in library.imports if not wanted.optional]
    if missing:
        message = f"executable {library.name} needs imports that do not exist: {', '.join(missing)}"
        raise LinkError(message, module=library.name, symbols=missing)
    if library.imports:
        nulls = bytes(4 * len(library.imports))
        environment["import_funcs"] = loaded.reserve(nulls)
        environment["import_contexts"] = loaded.reserve(nulls)
        space.write(loaded.environment_address, structs.ENVIRONMENT.pack(environment))


class LocalExecutable(Executable):
    """A linked wasm side module.

    Args:
        loaded: what it takes of the link space.
        library: its checked library structure.
        space: the link space it is in.
        device: its lock is held while code is unloaded.
        discarded: where to leave ``loaded`` when this is collected without having been closed.
    """

    def __init__(
        self,
        loaded: LoadedLibrary,
        library: Library,
        space: LinkSpace,
        device: Device,
        discarded: Discarded,
    ) -> None:
        self._loaded: LoadedLibrary | None = None
        super().__init__([entry.export for entry in library.exports], format=FORMAT)
        self.space = space
        self.name = library.name
        self.environment_address = loaded.environment_address
        self.table_indices = tuple(entry.table_index for entry in library.exports)
        self._device = device
        self._discarded = discarded
        # Set last: before that, whoever loaded it unloads it.
        self._loaded = loaded

    def _close(self) -> None:
        device = self._device
        with device.lock:
            loaded, self._loaded = self._loaded, None
            if loaded is not None and not device.closed:
                loaded.release()

    def __del__(self) -> None:
        # Unloading touches the store, which a finalizer must not: the device does it when it runs next.
        loaded = getattr(self, "_loaded", None)
        if loaded is not None:
            self._discarded.append(loaded)
