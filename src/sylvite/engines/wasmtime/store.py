"""Stores and instances of the wasmtime engine."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LinkError,
    OutOfMemoryError,
)
from ..base import PAGE_BYTES, CompiledModule, Extern, HostFunction, Limits, ValueType
from . import native
from .deadlines import CallState
from .externs import WasmtimeGlobal, WasmtimeTable, from_native_extern, to_native_extern
from .functions import WasmtimeFunction
from .guards import Attention, Guard
from .memories import ADDRESS_SPACE_PAGES, SharedMemory, WasmtimeMemory, Window
from .native import ffi
from .stacks import require_stack

if TYPE_CHECKING:
    from .engine import WasmtimeEngine

__all__ = ["WasmtimeInstance", "WasmtimeStore"]

# A funcref entry takes 8 bytes; this bounds what a guest can take with table.grow.
TABLE_ENTRY_LIMIT = 1 << 20
NEVER = (1 << 63) - 1
STOPPED_CODE = "unreachable"
"""The trap of a check; see `sylvite.wasm.interruption`."""


class _Hold:
    """One `WasmtimeStore.retain`, undone when it is collected."""

    __slots__ = ("_store",)

    def __init__(self, store: WasmtimeStore) -> None:
        store.retain()
        self._store = store

    def __del__(self) -> None:
        self._store.release()


class _NativeStore(int):
    """Address of a native store that goes with the last reference.

    The garbage collector must not see it. Of what it collects, it first runs all finalizers, in any order,
    and some call the guest (`LocalTaskDevice` ends its threads); only then it takes references away, as the
    one to this.
    """

    __slots__ = ()

    def __init__(self, _address: int) -> None:
        native.untrack(self)

    def __del__(
        self, _delete: Any = native.delete_store, _is_ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        # At the end of the process threads may be in there that nobody can wait for.
        if not _is_ending():
            _delete(self)


class WasmtimeInstance:
    """An instantiated module. Instances live as long as their store."""

    __slots__ = ("_exports", "_native", "_store")

    def __init__(self, store: WasmtimeStore, instance: Any, exports: dict[str, Extern]) -> None:
        self._store = store
        self._native = instance
        self._exports = MappingProxyType(exports)

    @property
    def exports(self) -> Mapping[str, Extern]:
        """Exports by name."""
        return self._exports


class WasmtimeStore:
    """Owns memories, tables, globals, functions and instances; see `sylvite.engines.base.Store`.

    One thread at a time may use a store; a second one that comes while a call runs is refused. The
    native store goes when it is closed, or collected, and no view of a memory of it is left.
    """

    def __init__(self, engine: WasmtimeEngine, limits: Limits) -> None:
        if limits.stack_bytes is not None and limits.stack_bytes != engine.stack_bytes:
            raise InvalidArgumentError(
                f"wasmtime fixes the stack when the engine is made ({engine.stack_bytes} bytes here); "
                f"pass stack_bytes={limits.stack_bytes} to engines.create"
            )
        self._engine = engine
        self._limits = limits
        self.state = CallState(limits.deadline_ns)
        self._pointer = ffi.wasmtime_store_new(engine.native.ptr(), None, native.no_finalizer)
        # Emptied by whoever deletes the native store, so that it happens once.
        self._native = [_NativeStore(native.address_of(self._pointer) or 0)]
        self._context = ffi.wasmtime_store_context(self._pointer)
        self.context_address = native.address_of(self._context)
        self._retained: collections.deque[None] = collections.deque()
        self._thunks: list[Any] = []
        self._windows: dict[int, Window] = {}
        # By host address: what imports of a shared memory are given. See `handle_of`.
        self._shared_handles: dict[int, Any] = {}
        self.watchdog = engine.watchdog
        self._attention = Attention(self.state, engine.watchdog)
        self._cap_memory(limits.memory_bytes)
        self._stop_memory: WasmtimeMemory | None = None
        engine.adopt(self)

    def _cap_memory(self, memory_bytes: int | None) -> None:
        # Bytes, table entries, instances, tables, memories; what is negative stays.
        limit = -1 if memory_bytes is None else memory_bytes
        ffi.wasmtime_store_limiter(self._pointer, limit, TABLE_ENTRY_LIMIT, NEVER, NEVER, -1)

    @property
    def engine(self) -> WasmtimeEngine:
        """The engine that made it."""
        return self._engine

    @property
    def limits(self) -> Limits:
        """The limits it was made with."""
        return self._limits

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.state.closed

    @property
    def context(self) -> Any:
        """The native context, for one operation by this thread.

        Raises:
            ClosedError: the store is closed.
            InvalidArgumentError: another thread's call runs in the store.
        """
        if self.state.closed:
            raise ClosedError("the store is closed")
        if self.state.depth and self.state.thread != threading.get_ident():
            raise InvalidArgumentError("a store is used by one thread at a time; a call of another one runs")
        return self._context

    @property
    def shared_context(self) -> Any:
        """The native context, for what is harmless while another thread's call runs.

        Raises:
            ClosedError: the store is closed.
        """
        if self.state.closed:
            raise ClosedError("the store is closed")
        return self._context

    def window(self, base_address: int) -> Window:
        """The window over the memory at a host address; its slices hold the native store open.

        Raises:
            ClosedError: the store is closed.
        """
        if self.state.closed:
            raise ClosedError("the store is closed")
        window = self._windows.get(base_address)
        if window is None:
            window = self._windows.setdefault(base_address, Window(base_address, _Hold(self)))
        return window

    def create_memory(
        self, *, minimum_pages: int, maximum_pages: int | None = None, shared: bool = False
    ) -> WasmtimeMemory | SharedMemory:
        """A linear memory. A shared one belongs to the engine and can be imported by all its stores.

        Raises:
            InvalidArgumentError: sizes out of range, or a shared memory without a maximum.
            OutOfMemoryError: the cap or the machine does not allow ``minimum_pages``.
        """
        most = ADDRESS_SPACE_PAGES if maximum_pages is None else maximum_pages
        if not 0 <= minimum_pages <= most <= ADDRESS_SPACE_PAGES:
            raise InvalidArgumentError(
                f"memory of {minimum_pages} to {maximum_pages} pages: need 0 <= minimum <= maximum "
                f"<= {ADDRESS_SPACE_PAGES}"
            )
        cap = self._limits.memory_bytes
        if cap is not None and minimum_pages * PAGE_BYTES > cap:
            raise OutOfMemoryError(
                f"a memory of {minimum_pages * PAGE_BYTES} bytes exceeds the cap of {cap} bytes",
                requested_bytes=minimum_pages * PAGE_BYTES,
                limit_bytes=cap,
            )
        if not shared:
            return WasmtimeMemory.create(self, minimum_pages, maximum_pages)
        if maximum_pages is None:
            raise InvalidArgumentError("a shared memory needs maximum_pages")
        if cap is not None:
            maximum_pages = min(maximum_pages, cap // PAGE_BYTES)
        return SharedMemory.create(self._engine, minimum_pages, maximum_pages)

    def handle_of(self, memory: SharedMemory) -> Any:
        """The ``wasmtime_memory_t`` by which instances of this store import a shared memory.

        Given the shared memory itself, wasmtime makes one more instance for every import, to hold it. It
        looks for the memory of an out-of-bounds access in all instances, and aborts the process when it finds
        two. So there is one such instance here, made together with an instance of the engine's holder
        module and so numbered just before it; the handle names it in the layout that ``wasmtime/extern.h``
        asserts.
        """
        handle = self._shared_handles.get(memory.base_address)
        if handle is None:
            extern = ffi.wasmtime_extern_t()
            extern.kind = ffi.WASMTIME_EXTERN_SHAREDMEMORY.value
            extern.of.sharedmemory = memory.pointer
            holder = self._make(self._engine.shared_memory_holder, "shared memory", (extern,))
            # Views of the members: the bindings hide names that begin with two underscores.
            store, number = (ctypes.c_uint64 * 2).from_buffer(holder)
            handle = ffi.wasmtime_memory_t()
            ctypes.c_uint64.from_buffer(handle).value = store
            ctypes.c_uint32.from_buffer(handle, 8).value = (number & 0xFFFFFFFF) - 1
            self._shared_handles[memory.base_address] = handle
        return handle

    def create_table(self, *, minimum: int, maximum: int | None = None) -> WasmtimeTable:
        """A table of ``minimum`` null function references.

        Raises:
            InvalidArgumentError: sizes out of range.
        """
        most = TABLE_ENTRY_LIMIT if maximum is None else maximum
        if not 0 <= minimum <= min(most, TABLE_ENTRY_LIMIT) or most >= 1 << 32:
            raise InvalidArgumentError(f"table of {minimum} to {maximum} entries")
        return WasmtimeTable.create(self, minimum, maximum)

    def create_global(self, value_type: ValueType, value: int | float, *, mutable: bool) -> WasmtimeGlobal:
        """A global of a numeric type."""
        return WasmtimeGlobal.create(self, value_type, value, mutable=mutable)

    def create_function(
        self,
        parameter_types: Sequence[ValueType],
        result_types: Sequence[ValueType],
        function: HostFunction,
        *,
        name: str = "",
    ) -> WasmtimeFunction:
        """A host function of numeric types. A call of it from the guest costs 10 to 50 us.

        Raises:
            InvalidArgumentError: a type is not numeric.
        """
        return WasmtimeFunction.create(
            self, tuple(parameter_types), tuple(result_types), function, self._thunks, name=name
        )

    def instantiate(
        self, module: CompiledModule, imports: Mapping[tuple[str, str], Extern]
    ) -> WasmtimeInstance:
        """Instantiate ``module`` and run its start function; see the protocol."""
        native_module = self._engine.native_module(module)
        wanted = module.import_names
        hidden = self._hidden_imports(module)
        missing = sorted({f"{space}.{name}" for space, name in wanted if (space, name) not in imports})
        if missing:
            raise LinkError(
                f"module {module.name} imports what nobody provides: {', '.join(missing)}",
                module=module.name,
                symbols=missing,
            )
        externs = [to_native_extern(self, item) for item in [*(imports[key] for key in wanted), *hidden]]
        instance = self._make(native_module, module.name, externs)
        return WasmtimeInstance(self, instance, self._exports_of(instance))

    def _make(self, native_module: Any, name: str, imports: Sequence[Any]) -> Any:
        """A native instance."""
        context = self.context
        count = len(imports)
        externs = (ffi.wasmtime_extern_t * count)(*imports)
        instance = ffi.wasmtime_instance_t()
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        self.enter()
        try:
            error = ffi.wasmtime_instance_new(
                context, native_module, externs, count, ctypes.byref(instance), ctypes.byref(trap)
            )
        finally:
            self.leave()
        if error or trap:
            self._fail_instantiation(name, native.address_of(error), native.address_of(trap))
        return instance

    def _hidden_imports(self, module: CompiledModule) -> list[Extern]:
        """What was added to a module's imports, in order, behind its own."""
        own = self._engine.own_memory_of(module)
        added: list[Extern] = [] if own is None else [own.create(self)]
        if not self._engine.interruptible:
            return added
        if self._stop_memory is None:
            # Not subject to the guest's cap, which may be less than its one page.
            self._cap_memory(None)
            try:
                self._stop_memory = WasmtimeMemory.create(self, 1, 1)
            finally:
                self._cap_memory(self._limits.memory_bytes)
            self.state.set_words(self._stop_memory.base_address)
        return [*added, self._stop_memory]

    def set_deadline(self, deadline_ns: int | None) -> None:
        """Longest time each following call may run, in nanoseconds; ``None`` for no limit.

        Raises:
            InvalidArgumentError: not positive, or the engine was made without interruption.
        """
        if deadline_ns is not None:
            if deadline_ns <= 0:
                raise InvalidArgumentError(f"deadline_ns must be positive, got {deadline_ns}")
            self._engine.require_interruption()
        self.state.deadline_ns = deadline_ns

    def interrupt(self) -> None:
        """Stop the call that runs in this store, from any thread. Without one nothing happens.

        Raises:
            InvalidArgumentError: the engine was made without interruption.
        """
        self._engine.require_interruption()
        self.state.interrupted = True
        self.state.stop()

    def guard(self, timeout_ns: int | None) -> AbstractContextManager[None]:
        """Bound the calls of this thread meanwhile, and let Control-C stop them; see the protocol."""
        if not self._engine.interruptible:
            return contextlib.nullcontext()
        if timeout_ns is None:
            return self._attention
        return Guard(self.state, self._attention, self.watchdog, timeout_ns)

    def retain(self) -> None:
        """Hold the native store open beyond `close`.

        Raises:
            ClosedError: the store is closed and its native part is gone.
        """
        # First held, then looked: a close() in between either sees the hold or is seen here.
        self._retained.append(None)
        if not self._native:
            self._retained.pop()
            raise ClosedError("the store is closed")

    def release(self) -> None:
        """Undo one `retain`; safe in finalizers."""
        self._retained.pop()
        if self.state.closed and not self._retained:
            self._delete()

    def close(self) -> None:
        """Close it. The native store goes now, or with the last view of its memories. Idempotent.

        Raises:
            InvalidArgumentError: a call runs in the store.
        """
        if self.state.closed:
            return
        # Without a call in between, as in `enter`.
        if self.state.depth:
            raise InvalidArgumentError("a store cannot be closed while a call runs in it")
        self.state.closed = True
        self._windows.clear()
        if not self._retained:
            self._delete()

    def _delete(self) -> None:
        try:
            native_store = self._native.pop()
        except IndexError:
            return
        self.state.set_words(None)
        del native_store
        self._thunks.clear()

    def __enter__(self) -> WasmtimeStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Entering and leaving wasm. RawCall does the same inline, because a method call is not free there.

    def enter(self) -> None:
        """Note that a call begins.

        Raises:
            InvalidArgumentError: a call of another thread runs in the store.
        """
        state = self.state
        thread = threading.get_ident()
        # Looked at and claimed without a call in between, where Python could run another thread.
        if state.depth:
            if state.thread != thread:
                raise InvalidArgumentError("a store is used by one thread at a time; a call of another runs")
            state.depth += 1
            return
        state.depth = 1
        previous, state.thread = state.thread, thread
        state.interrupted = False
        try:
            # After the claim: `close` looks the other way round.
            if state.closed:
                raise ClosedError("the store is closed")
            if thread != previous:
                self.require_stack()
            if state.deadline_ns is not None:
                expires_ns = time.monotonic_ns() + state.deadline_ns
                state.expires_ns = expires_ns
                self.watchdog.arm(expires_ns)
            if state.alarm:
                state.settle()
        except BaseException:
            state.expires_ns = None
            state.thread = state.depth = 0
            raise

    def require_stack(self) -> None:
        """Check the stack of a thread that comes after another one.

        Raises:
            InvalidArgumentError: it is too short.
        """
        require_stack(self._engine.stack_bytes)

    def leave(self) -> None:
        """Note that a call ended."""
        state = self.state
        state.depth -= 1
        if not state.depth:
            state.expires_ns = None

    def fail(self, error_address: int | None, trap_address: int | None) -> NoReturn:
        """Raise what a failed call means."""
        self._raise(native.take_failure(error_address, trap_address))

    def _raise(self, failure: native.Failure) -> NoReturn:
        state = self.state
        pending = state.pending
        if pending is not None:
            state.pending = None
            raise pending
        if failure.code == STOPPED_CODE and state.is_stopping:
            place = f" in {' < '.join(failure.frames[:4])}" if failure.frames else ""
            if state.interrupted:
                raise DeadlineExceededError(f"the guest was interrupted{place}")
            milliseconds = (state.caps_exceeded or state.deadline_ns or 0) / 1e6
            raise DeadlineExceededError(f"the guest ran longer than {milliseconds:g} ms{place}")
        raise native.trap_error(failure)

    def _fail_instantiation(self, name: str, error_address: int | None, trap_address: int | None) -> NoReturn:
        failure = native.take_failure(error_address, trap_address)
        if failure.code is not None or failure.frames or self.state.pending:
            self._raise(failure)
        raise native.instantiate_error(failure.message, name=name)

    def _exports_of(self, instance: Any) -> dict[str, Extern]:
        exports: dict[str, Extern] = {}
        item = ffi.wasmtime_extern_t()
        name = ctypes.POINTER(ctypes.c_char)()
        length = ctypes.c_size_t()
        while ffi.wasmtime_instance_export_nth(
            self._context,
            ctypes.byref(instance),
            len(exports),
            ctypes.byref(name),
            ctypes.byref(length),
            ctypes.byref(item),
        ):
            text = ctypes.string_at(name, length.value).decode("utf-8")
            exports[text] = from_native_extern(self, item)
        return exports
