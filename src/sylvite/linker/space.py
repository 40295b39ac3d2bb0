"""The dynamic linker: one memory, one table, and the side modules linked into them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeAlias

import numpy

from ..engines.base import (
    PAGE_BYTES,
    CompiledModule,
    Engine,
    Extern,
    Function,
    Global,
    HostFunction,
    Instance,
    Limits,
    Memory,
    RawCall,
    Store,
    Table,
)
from ..errors import (
    ClosedError,
    InvalidArgumentError,
    LinkError,
    UnavailableError,
    UnsupportedFeatureError,
)
from ..trace import Tracer
from ..wasm import Feature, ValueType
from . import dispatcher
from .linked import LinkedModule
from .regions import RegionAllocator
from .replica import Replica, ReplicatedTable
from .resolver import Resolver, Symbol
from .rewriting import passes_for
from .shadow_stack import StackRegion
from .side_module import (
    ENVIRONMENT,
    MEMORY,
    MEMORY_BASE,
    TABLE,
    TABLE_BASE,
    SideModule,
    read_side_module,
)
from .slots import TableSlots

__all__ = ["LinkSpace", "StackRegion"]

ADDRESS_SPACE_PAGES = 65536
STACK_ALIGNMENT = 64
STACK_RANGE = (4096, 1 << 28)

# What a proposal needs of the engine; proposals that are not here every engine has.
_CAPABILITY_OF = {
    Feature.SIMD: "simd",
    Feature.RELAXED_SIMD: "relaxed_simd",
    Feature.THREADS: "threads",
    Feature.TAIL_CALL: "tail_call",
    Feature.MEMORY64: "memory64",
}
_UNSUPPORTED = frozenset({Feature.EXCEPTIONS, Feature.WIDE_ARITHMETIC})

Bytes: TypeAlias = "bytes | bytearray | memoryview"


class LinkSpace:
    """One linear memory and one function table, with all modules of a device linked into them.

    Not thread-safe: whoever owns it (a device) locks.

    Args:
        engine: makes the store; must be able to share memories and tables between instances.
        limits: limits of the store.
        tracer: counts callbacks from the guest.
        minimum_pages, maximum_pages: size range of the memory.
        stack_bytes: length of the shadow stack.
        replicas: further stores, for one thread each, that get instances of everything over the same
            memory, which is a shared one then. Linking touches all of them: no guest code may run meanwhile.

    Raises:
        UnavailableError: the engine cannot share memories and tables.
        InvalidArgumentError: a size is out of range.
        OutOfMemoryError: a limit or the machine does not allow the memory.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limits: Limits | None = None,
        tracer: Tracer | None = None,
        minimum_pages: int = 32,
        maximum_pages: int = ADDRESS_SPACE_PAGES,
        stack_bytes: int = 1 << 20,
        replicas: int = 0,
    ) -> None:
        if replicas and not engine.capabilities.threads:
            raise UnavailableError(f"engine {engine.capabilities.engine} has no shared memories")
        if not engine.capabilities.shared_objects:
            raise UnavailableError(
                f"engine {engine.capabilities.engine} cannot share memories between modules: link statically"
            )
        if not STACK_RANGE[0] <= stack_bytes <= STACK_RANGE[1]:
            raise InvalidArgumentError(
                f"stack_bytes must be from {STACK_RANGE[0]} to {STACK_RANGE[1]}, got {stack_bytes}"
            )
        self._engine = engine
        self._tracer = tracer if tracer is not None else Tracer()
        self._store = engine.create_store(limits)
        self._modules: list[LinkedModule] = []
        self._dispatcher: RawCall | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._store.close)
            cap = None if limits is None else limits.memory_bytes
            if cap is not None:
                minimum_pages = min(minimum_pages, cap // PAGE_BYTES)
            self._memory = self._store.create_memory(
                minimum_pages=minimum_pages, maximum_pages=maximum_pages, shared=replicas > 0
            )
            self._table = self._store.create_table(minimum=1)
            self._heap = RegionAllocator(self._memory)
            self._replicas: list[Replica] = []
            self._slots = TableSlots(ReplicatedTable(self._table, self._replicas))
            self._stack = self._make_stack(self._store, stack_bytes)
            low, high = self.make_constant(self._stack.address), self.make_constant(self._stack.top)
            self._platform: dict[tuple[str, str], Extern] = {
                (ENVIRONMENT, MEMORY): self._memory,
                (ENVIRONMENT, TABLE): self._table,
                (ENVIRONMENT, "__stack_pointer"): self._stack.pointer,
                (ENVIRONMENT, "__stack_low"): low,
                (ENVIRONMENT, "__stack_high"): high,
            }
            for _ in range(replicas):
                self._add_replica(limits, stack_bytes, low, high, undo)
            self._passes = passes_for(
                engine.capabilities,
                shared_pages=(self._memory.maximum_pages or ADDRESS_SPACE_PAGES) if replicas else None,
            )
            self._resolver = Resolver(self)
            undo.pop_all()

    def _make_stack(self, store: Store, stack_bytes: int) -> StackRegion:
        stack_bytes -= stack_bytes % STACK_ALIGNMENT
        address = self._heap.allocate(stack_bytes, STACK_ALIGNMENT)
        pointer = store.create_global(ValueType.I32, address + stack_bytes, mutable=True)
        return StackRegion(address=address, byte_length=stack_bytes, pointer=pointer)

    def _add_replica(
        self,
        limits: Limits | None,
        stack_bytes: int,
        low: Global,
        high: Global,
        undo: contextlib.ExitStack,
    ) -> None:
        store = self._engine.create_store(limits)
        undo.callback(store.close)
        store.set_deadline(None)
        replica = Replica(
            store, self._memory, lambda store: self._make_stack(store, stack_bytes), self._table
        )
        replica.adopt_global(self._stack.pointer, replica.stack.pointer)
        replica.add_global(low, ValueType.I32, replica.stack.address, mutable=False)
        replica.add_global(high, ValueType.I32, replica.stack.top, mutable=False)
        self._replicas.append(replica)

    def make_constant(self, value: int) -> Global:
        """An immutable i32 global, in replicas too."""
        return self._make_global(value, mutable=False)

    def make_entry(self, value: int) -> Global:
        """A mutable i32 global, in replicas too: an entry of the global offset table."""
        return self._make_global(value, mutable=True)

    def _make_global(self, value: int, *, mutable: bool) -> Global:
        made = self._store.create_global(ValueType.I32, value, mutable=mutable)
        for replica in self._replicas:
            replica.add_global(made, ValueType.I32, value, mutable=mutable)
        return made

    def make_function(
        self,
        parameter_types: Sequence[ValueType],
        result_types: Sequence[ValueType],
        function: HostFunction,
    ) -> Function:
        """A host function, in replicas too; their threads call it as well."""
        made = self._store.create_function(parameter_types, result_types, function)
        for replica in self._replicas:
            replica.add_host_function(made, parameter_types, result_types, function)
        return made

    def compile(self, data: bytes, *, name: str) -> CompiledModule:
        """Compile a module for this space, with the space's rewritings: with replicas, for instance, its
        memory import becomes a shared one."""
        return self._engine.compile(data, name=name, passes=self._passes)

    def instantiate(
        self, module: CompiledModule, imports: Mapping[tuple[str, str], Extern] | None = None
    ) -> Instance:
        """Instantiate a module of `compile` here and in all replicas.

        Active data segments are applied once per instance, all before anything of the module runs.
        """
        chosen = self._platform if imports is None else imports
        instance = self._store.instantiate(module, chosen)
        for replica in self._replicas:
            replica.add_instance(module, chosen, instance)
        return instance

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self._engine

    @property
    def store(self) -> Store:
        """The store that everything lives in."""
        return self._store

    @property
    def memory(self) -> Memory:
        """The linear memory."""
        return self._memory

    @property
    def table(self) -> Table:
        """The function table."""
        return self._table

    @property
    def heap(self) -> RegionAllocator:
        """The allocator of guest memory."""
        return self._heap

    @property
    def slots(self) -> TableSlots:
        """The allocator of table slots."""
        return self._slots

    @property
    def stack(self) -> StackRegion:
        """The shadow stack."""
        return self._stack

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The stores of further threads."""
        return tuple(self._replicas)

    @property
    def tracer(self) -> Tracer:
        """The tracer."""
        return self._tracer

    @property
    def platform(self) -> Mapping[tuple[str, str], Extern]:
        """What every module can import of the linker: memory, table, stack pointer and limits."""
        return self._platform

    @property
    def support(self) -> Mapping[str, Function]:
        """The support module's routines by name; the module is made when first needed."""
        return self._resolver.support

    @property
    def modules(self) -> tuple[LinkedModule, ...]:
        """Modules that are loaded, in order."""
        return tuple(self._modules)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._store.closed

    @property
    def dispatcher(self) -> RawCall:
        """``loop(entry, environment, dispatch_state, workgroup_state, count_x, count_y, count_z) -> code``:
        all workgroups of a dispatch in one call; see `sylvite.linker.dispatcher`."""
        if self._dispatcher is None:
            compiled = self.compile(dispatcher.assemble(), name="dispatcher")
            instance = self._store.instantiate(compiled, self._platform)
            function: Function = instance.exports[dispatcher.EXPORT_NAME]  # type: ignore[assignment]
            self._dispatcher = function.prepare()
        return self._dispatcher

    # Linking

    def define(self, name: str, item: Symbol) -> None:
        """Define a symbol for all modules loaded from now on: a function, or an ``int``, the address of data.

        Raises:
            InvalidArgumentError: it is defined already.
        """
        self._resolver.define(name, item)

    def load(
        self,
        wasm: Bytes,
        *,
        name: str,
        symbols: Mapping[str, Symbol] | None = None,
        public: bool = True,
    ) -> LinkedModule:
        """Link a side module: place it, resolve its imports, relocate its data, run its constructors.

        A symbol is looked for in ``symbols``, in the module itself (where the convention asks for own
        symbols through the GOT), among `define`\\ d ones, in the support module, then in the modules loaded
        before, the latest first. A failed load leaves memory regions and table slots as they were.

        Args:
            wasm: the binary.
            name: for messages, and for ``needed`` entries of modules loaded later.
            symbols: definitions for this module alone.
            public: whether modules loaded later may be linked against it.

        Raises:
            FormatError: malformed, or its segments reach outside its own memory or slots.
            UnsupportedFeatureError: it needs a proposal the engine lacks.
            LinkError: not a side module, unresolved symbols (all named), or symbols of another type.
            OutOfMemoryError: no room for its data or table slots.
            TrapError, DeadlineExceededError: a constructor failed.
            ClosedError: the space is closed.
        """
        self._require_open()
        side = read_side_module(bytes(wasm), name=name)
        self._check_features(side)
        self._check_needed(side)
        resources = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(resources.close)
            linked = self._link(side, dict(symbols or {}), resources)
            undo.pop_all()
        self._modules.append(linked)
        if public:
            self._resolver.publish(linked)
        return linked

    def _link(
        self, side: SideModule, symbols: dict[str, Symbol], resources: contextlib.ExitStack
    ) -> LinkedModule:
        compiled = self.compile(side.data, name=side.name)
        self._heap.ensure_memory(side.minimum_pages)
        self._slots.ensure_size(side.minimum_entries)
        memory_base = self._take_memory(side, resources)
        table_base = self._take_slots(side, resources)
        side.check_segments(memory_base, table_base)
        resolution = self._resolver.resolve(side, symbols, memory_base, resources)
        own: dict[tuple[str, str], Extern] = {
            (ENVIRONMENT, MEMORY_BASE): self.make_constant(memory_base),
            (ENVIRONMENT, TABLE_BASE): self.make_constant(table_base),
        }
        instance = self.instantiate(compiled, {**self._platform, **own, **resolution.imports})
        for replica in self._replicas:
            resources.callback(
                replica.forget, [*own.values(), *resolution.entries, *instance.exports.values()]
            )
        linked = LinkedModule(
            self,
            side,
            exports={
                name: instance.exports[name]  # type: ignore[misc]
                for name in side.function_exports
            },
            memory_base=memory_base,
            table_base=table_base,
            resources=resources,
            compiled=compiled,
        )
        for symbol, entry in resolution.own_functions.items():
            entry.value = slot = linked.slot_of(symbol)
            for replica in self._replicas:
                replica.set_global(entry, slot)
        self._initialize(linked)
        return linked

    def _take_memory(self, side: SideModule, resources: contextlib.ExitStack) -> int:
        length = side.info.memory_size
        if not length:
            return 0
        address = self._heap.allocate(length, 1 << side.info.memory_alignment)
        resources.callback(self._heap.free, address)
        # Zero-initialised data has no segment, and the region may have been used before.
        self._memory.clear(address, length)
        return address

    def _take_slots(self, side: SideModule, resources: contextlib.ExitStack) -> int:
        if not side.info.table_size:
            return 0
        first = self._slots.allocate(side.info.table_size, 1 << side.info.table_alignment)
        resources.callback(self._slots.free, first)
        return first

    def _initialize(self, linked: LinkedModule) -> None:
        try:
            for name in ("__wasm_apply_data_relocs", "__wasm_call_ctors"):
                function = linked.exports.get(name)
                if function is None:
                    continue
                if function.parameter_types or function.result_types:
                    raise LinkError(
                        f"module {linked.name} exports {name} with another type than [] -> []",
                        module=linked.name,
                        symbols=[name],
                    )
                function()
        finally:
            self.reset_stack()

    def _check_features(self, side: SideModule) -> None:
        capabilities = self._engine.capabilities
        missing = [
            feature.value
            for feature in sorted(side.features, key=lambda feature: feature.value)
            if feature in _UNSUPPORTED
            or (feature in _CAPABILITY_OF and not getattr(capabilities, _CAPABILITY_OF[feature]))
        ]
        if missing:
            raise UnsupportedFeatureError(
                f"needs {', '.join(missing)}, which engine {capabilities.engine} lacks",
                where=f"wasm module {side.name}",
            )

    def _check_needed(self, side: SideModule) -> None:
        loaded = {module.name for module in self._modules}
        missing = [name for name in side.info.needed if name not in loaded]
        if missing:
            raise LinkError(
                f"module {side.name} needs modules that are not loaded: {', '.join(missing)}",
                module=side.name,
                symbols=missing,
            )

    def place_function(self, function: Function, resources: contextlib.ExitStack) -> int:
        """Put a function into a table slot of its own, given back when ``resources`` closes."""
        slot = self._slots.allocate(1)
        resources.callback(self._slots.free, slot)
        ReplicatedTable(self._table, self._replicas).set(slot, function)
        return slot

    def forget(self, module: LinkedModule) -> None:
        """Take a module that closes out of symbol resolution."""
        if module in self._modules:
            self._modules.remove(module)
        self._resolver.withdraw(module)

    def function_name(self, table_index: int) -> str | None:
        """Name of the function in a table slot, as ``module!function``, None when it is nobody's."""
        for module in self._modules:
            name = module.function_name(table_index)
            if name is not None:
                return f"{module.name}!{name}"
        return None

    # Memory

    def reserve(self, byte_length: int, alignment: int = 64) -> int:
        """Take a region of guest memory; see `RegionAllocator.allocate`."""
        self._require_open()
        return self._heap.allocate(byte_length, alignment)

    def release(self, address: int) -> None:
        """Give a region back; see `RegionAllocator.free`."""
        self._heap.free(address)

    def view(self, address: int, length: int) -> memoryview:
        """A writable view of guest memory, without a copy; it keeps the memory alive.

        Raises:
            InvalidArgumentError: the range is not inside the memory.
            ClosedError: the space is closed.
        """
        return self._memory.view(address, length)

    def read(self, address: int, length: int) -> bytes:
        """A copy of guest memory. Raises as `view` does."""
        return bytes(self._memory.view(address, length))

    def write(self, address: int, data: Bytes) -> None:
        """Copy contiguous bytes into guest memory. Raises as `view` does."""
        source = memoryview(data).cast("B")
        self._memory.view(address, len(source))[:] = source

    def fill(self, address: int, length: int, pattern: bytes) -> None:
        """Repeat a pattern over a range.

        Args:
            address: guest address.
            length: bytes, a multiple of the pattern's length.
            pattern: 1, 2, 4, 8 or 16 bytes.

        Raises:
            InvalidArgumentError: as `view`, or the lengths do not fit.
        """
        if len(pattern) not in (1, 2, 4, 8, 16) or length % len(pattern):
            raise InvalidArgumentError(
                f"cannot fill {length} bytes with a pattern of {len(pattern)}: it must be 1, 2, 4, 8 or 16 "
                "bytes and divide the length"
            )
        target = self._memory.view(address, length)
        if length:
            numpy.frombuffer(target, dtype=f"V{len(pattern)}")[:] = numpy.void(pattern)

    def copy(self, target: int, source: int, length: int) -> None:
        """Copy guest memory to guest memory; the ranges may overlap. Raises as `view` does."""
        self._memory.view(target, length)[:] = self._memory.view(source, length)

    def reset_stack(self) -> None:
        """Empty the shadow stack: a call that trapped did not. Call it while no guest code runs here."""
        self._stack.pointer.value = self._stack.top

    def close(self) -> None:
        """Close the store and with it everything. Views of the memory stay valid. Idempotent."""
        if self._store.closed:
            return
        self._store.close()
        for replica in self._replicas:
            replica.store.close()
        self._modules.clear()

    def _require_open(self) -> None:
        if self._store.closed:
            raise ClosedError("the link space is closed")

    def __enter__(self) -> LinkSpace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
