"""The wasmtime engine: configuration, compiling, the code cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import ClosedError, FormatError, InvalidArgumentError, UnavailableError
from ...wasm import passes as wasm_passes
from ...wasm.interruption import INTERRUPTIBLE, UNINTERRUPTIBLE
from ..base import PAGE_BYTES, Capabilities, CompiledModule, Limits
from ..code_cache import CodeCache
from . import native
from .deadlines import Watchdog
from .imports import OwnMemory, read_imports
from .native import ffi, wasmtime
from .store import WasmtimeStore

__all__ = ["WasmtimeEngine", "WasmtimeModule"]

DEFAULT_STACK_BYTES = 512 * 1024
# Python's threads commonly have 8 MiB of stack, some systems 1 MiB less what the caller has used.
STACK_RANGE = (64 * 1024, 4 * 1024 * 1024)
RESERVATION_BYTES = 1 << 32
WASM_MAGIC = b"\0asm"
# Imports a shared memory of any size; nothing else.
SHARED_MEMORY_HOLDER = WASM_MAGIC + bytes((1, 0, 0, 0, 2, 9, 1, 0, 0, 2, 3, 0, 0x80, 0x80, 4))


class WasmtimeModule:
    """Compiled code, independent of stores."""

    __slots__ = ("__weakref__", "_engine", "_import_names", "_module", "_name", "own_memory")

    def __init__(self, engine: WasmtimeEngine, module: Any, name: str) -> None:
        self._engine = engine
        self._module = module
        self._name = name
        self._import_names, self.own_memory = read_imports(module)

    @property
    def name(self) -> str:
        """The name it was compiled under."""
        return self._name

    @property
    def import_names(self) -> Sequence[tuple[str, str]]:
        """Module and field name of every import, in order."""
        return self._import_names

    def native_for(self, engine: WasmtimeEngine) -> Any:
        """The native ``wasmtime_module_t*``, for a store of ``engine``.

        Raises:
            InvalidArgumentError: another engine compiled it.
        """
        if engine is not self._engine:
            raise InvalidArgumentError(f"module {self._name} was compiled by another engine")
        return self._module.ptr()


class WasmtimeEngine:
    """Wasmtime with everything the runtime uses switched on; see `sylvite.engines.base.Engine`.

    Args:
        cache_dir: where compiled code is kept between runs; a directory below it, named after the
            release, is made private. ``None`` for no cache.
        stack_bytes: native stack that a call may use, 64 KiB to 4 MiB.
        deterministic: NaN bits and relaxed SIMD results are the same on every machine, at some cost.
        parallel: compile functions on all cores.
        interruptible: deadlines and `WasmtimeStore.interrupt` work, and modules have one memory at most;
            see `sylvite.wasm.interruption`.
        cache_limit_bytes: most bytes of compiled code to keep.
        reservation_bytes: addresses each memory reserves, so that it grows in place and up to there. Less
            than 4 GiB helps where address space is rationed, and makes code check bounds itself.

    Raises:
        InvalidArgumentError: an option is out of range, or ``cache_dir`` cannot be trusted.
    """

    def __init__(
        self,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        stack_bytes: int | None = None,
        deterministic: bool = False,
        parallel: bool = True,
        interruptible: bool = True,
        cache_limit_bytes: int = 1 << 30,
        reservation_bytes: int = RESERVATION_BYTES,
    ) -> None:
        self._stack_bytes = DEFAULT_STACK_BYTES if stack_bytes is None else stack_bytes
        if not STACK_RANGE[0] <= self._stack_bytes <= STACK_RANGE[1]:
            raise InvalidArgumentError(
                f"stack_bytes must be from {STACK_RANGE[0]} to {STACK_RANGE[1]}, got {stack_bytes}"
            )
        if not PAGE_BYTES <= reservation_bytes <= RESERVATION_BYTES:
            raise InvalidArgumentError(
                f"reservation_bytes must be from {PAGE_BYTES} to {RESERVATION_BYTES}, got {reservation_bytes}"
            )
        self._interruptible = interruptible
        self._deterministic = deterministic
        # See `_Pool`.
        parallel = parallel and not _POOL.is_lost
        settings: dict[str, Any] = {
            **_FEATURES,
            **_MEMORY_SETTINGS,
            "max_wasm_stack": self._stack_bytes,
            "memory_reservation": reservation_bytes,
            "wasm_relaxed_simd_deterministic": deterministic,
            "cranelift_nan_canonicalization": deterministic,
            "cranelift_opt_level": "speed",
            "parallel_compilation": parallel,
        }
        self._identity = _identity(settings)
        self._settings = settings
        self._native = _new_engine(settings)
        # What compiles in a forked process in its place.
        self._serial: Any = None
        self._cache: CodeCache | None = None
        if cache_dir is not None:
            self._cache = CodeCache(
                Path(cache_dir) / f"wasmtime-{native.VERSION}", limit_bytes=cache_limit_bytes
            )
        self._modules: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._stores: weakref.WeakSet[WasmtimeStore] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._holder: Any = None
        self.watchdog = Watchdog()

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(
            engine="wasmtime",
            version=native.VERSION,
            simd=True,
            relaxed_simd=True,
            threads=True,
            tail_call=True,
            memory64=True,
            shared_objects=True,
            deadlines=self._interruptible,
            traps_with_frames=True,
            code_cache=self._cache is not None,
            deterministic=self._deterministic,
        )

    @property
    def stack_bytes(self) -> int:
        """Native stack that a call may use."""
        return self._stack_bytes

    @property
    def interruptible(self) -> bool:
        """Whether deadlines and interruption work."""
        return self._interruptible

    @property
    def cache(self) -> CodeCache | None:
        """The cache of compiled code, when there is one."""
        return self._cache

    @property
    def native(self) -> Any:
        """The ``wasmtime.Engine``.

        Raises:
            ClosedError: the engine is closed.
        """
        if self._closed:
            raise ClosedError("the engine is closed")
        return self._native

    def compile(
        self,
        wasm: bytes | bytearray | memoryview,
        *,
        name: str = "",
        passes: Sequence[wasm_passes.Pass] = (),
    ) -> WasmtimeModule:
        """Validate, rewrite with ``passes`` in order and compile, through the cache when there is one. Any
        thread may do it.

        Equal bytes with equal passes share their code while somebody holds a module of them; code that is
        cached is neither validated nor rewritten again.

        Raises:
            FormatError: the module is malformed or does not validate.
            UnsupportedFeatureError: it needs a feature that is switched off, or several memories in an
                engine with interruption, or defines a shared memory among several.
            LinkError: it imports what only the host may.
            ClosedError: the engine is closed.
        """
        engine = self.native
        data = bytes(wasm)
        passes = (*passes, INTERRUPTIBLE if self._interruptible else UNINTERRUPTIBLE)
        if data[:4] != WASM_MAGIC:
            raise FormatError(
                "not a WebAssembly binary module", offset=0, where=f"wasm module {name}" if name else None
            )
        key = CodeCache.key(self._identity, wasm_passes.identity(passes), data)
        with self._lock:
            known = self._modules.get(key)
        if known is not None:
            return WasmtimeModule(self, known, name)
        module = self._load_cached(engine, key)
        if module is None:
            compiler = self._compiler()
            module = _compile(compiler, _rewritten(compiler, data, name, passes), name)
            if self._cache is not None:
                self._cache.store(key, bytes(module.serialize()))
            if compiler is not engine:
                module = wasmtime.Module.deserialize(engine, module.serialize())
        with self._lock:
            module = self._modules.setdefault(key, module)
        return WasmtimeModule(self, module, name)

    def create_store(self, limits: Limits | None = None) -> WasmtimeStore:
        """A new store.

        Raises:
            InvalidArgumentError: ``limits`` asks for another stack than the engine has, or for a deadline
                though the engine was made without interruption.
            ClosedError: the engine is closed.
        """
        limits = limits if limits is not None else Limits()
        if limits.deadline_ns is not None:
            self.require_interruption()
        return WasmtimeStore(self, limits)

    def native_module(self, module: CompiledModule) -> Any:
        """The native module of a module that this engine compiled.

        Raises:
            InvalidArgumentError: another engine compiled it.
        """
        if not isinstance(module, WasmtimeModule):
            raise InvalidArgumentError(f"a {type(module).__name__} cannot be instantiated by wasmtime")
        return module.native_for(self)

    def adopt(self, store: WasmtimeStore) -> None:
        """Note a new store of this engine."""
        self._stores.add(store)
        self.watchdog.watch(store.state)

    def own_memory_of(self, module: CompiledModule) -> OwnMemory | None:
        """The memory that a module of this engine defines, when the host has to make it."""
        return module.own_memory if isinstance(module, WasmtimeModule) else None

    @property
    def shared_memory_holder(self) -> Any:
        """The native module that `WasmtimeStore.handle_of` instantiates."""
        if self._holder is None:
            # Stores may ask when the engine is closed.
            self._holder = wasmtime.Module(self._native, SHARED_MEMORY_HOLDER)
        return self._holder.ptr()

    def require_interruption(self) -> None:
        """Check that deadlines can be had.

        Raises:
            InvalidArgumentError: the engine was made with ``interruptible=False``.
        """
        if not self._interruptible:
            raise InvalidArgumentError("this engine was made with interruptible=False: no deadlines")

    def close(self) -> None:
        """Refuse further use. Stores made before stay usable. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._modules.clear()
        if not any(not store.closed for store in self._stores):
            self.watchdog.close()

    def __enter__(self) -> WasmtimeEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _compiler(self) -> Any:
        """The native engine that compiles; what it makes fits the other one."""
        if not self._settings["parallel_compilation"]:
            return self._native
        if not _POOL.is_lost:
            _POOL.is_started = True
            return self._native
        if self._serial is None:
            self._serial = _new_engine({**self._settings, "parallel_compilation": False})
        return self._serial

    def _load_cached(self, engine: Any, key: str) -> Any:
        if self._cache is None:
            return None
        code = self._cache.load(key)
        if code is None:
            return None
        try:
            return wasmtime.Module.deserialize(engine, code)
        except wasmtime.WasmtimeError:
            # Intact, but not of this engine: wasmtime checks its own version and the processor's features.
            self._cache.discard(key)
            return None


# Reservation and guard make growth in place and bounds checks free; without may_move growth that would
# need a move fails instead.
_MEMORY_SETTINGS = {
    "memory_may_move": False,
    "memory_guard_size": 32 << 20,
    "memory_init_cow": False,
}

_FEATURES = {
    "wasm_bulk_memory": True,
    "wasm_exceptions": False,
    "wasm_function_references": False,
    "wasm_gc": False,
    "wasm_memory64": True,
    "wasm_multi_memory": True,
    "wasm_multi_value": True,
    "wasm_reference_types": True,
    "wasm_relaxed_simd": True,
    "wasm_simd": True,
    "wasm_tail_call": True,
    "wasm_threads": True,
    "shared_memory": True,
}


class _Pool:
    """Wasmtime's threads for compiling, one pool a process, which start with the first module. A forked
    process has none of them, and would wait for them without end."""

    __slots__ = ("is_lost", "is_started")

    def __init__(self) -> None:
        self.is_started = False
        self.is_lost = False

    def forget(self) -> None:
        """In a forked process."""
        self.is_lost = self.is_lost or self.is_started


_POOL = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.forget)


def _new_engine(settings: dict[str, Any]) -> Any:
    config = wasmtime.Config()
    for name, value in settings.items():
        setattr(config, name, value)
    # Nothing uses a stack of this size; wasmtime aborts the process where the other one is larger.
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), 2 * STACK_RANGE[1])
    try:
        return wasmtime.Engine(config)
    except wasmtime.WasmtimeError as error:
        raise UnavailableError(f"wasmtime cannot run here: {error}") from error


def _identity(settings: dict[str, Any]) -> bytes:
    """What compiled code depends on besides the module."""
    parts = [f"{name}={value}" for name, value in sorted(settings.items()) if name != "parallel_compilation"]
    return hashlib.sha256(
        "\n".join([native.VERSION, platform.machine(), platform.system(), *parts]).encode()
    ).digest()


def _rewritten(engine: Any, data: bytes, name: str, passes: Sequence[wasm_passes.Pass]) -> bytes:
    """The module that is compiled. Passes get valid modules only."""
    error = ffi.wasmtime_module_validate(engine.ptr(), _pointer(data), len(data))
    if error:
        failure = native.take_failure(native.address_of(error), None)
        raise native.compile_error(failure.message, name=name)
    return wasm_passes.apply(data, passes, where=f"wasm module {name}")


def _pointer(data: bytes) -> Any:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))


def _compile(engine: Any, data: bytes, name: str) -> Any:
    # wasmtime.Module would take WebAssembly text for a module too; the C function takes binaries only.
    pointer = ctypes.POINTER(ffi.wasmtime_module_t)()
    error = ffi.wasmtime_module_new(engine.ptr(), _pointer(data), len(data), ctypes.byref(pointer))
    if error:
        failure = native.take_failure(native.address_of(error), None)
        raise native.compile_error(failure.message, name=name)
    return wasmtime.Module._from_ptr(pointer)
