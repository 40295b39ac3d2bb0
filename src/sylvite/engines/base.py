"""What a WebAssembly engine must offer, as protocols.

Names follow the WebAssembly JavaScript/C embedding: an *engine* compiles *modules*; a *store* owns
memories, tables, globals, functions and instances. Nothing here imports an engine. An engine states
its `Capabilities`; callers test them and never assume.

Value passing: i32/i64 are Python ints (signed canonical range on results, any congruent value on
arguments), f32/f64 are floats. Calls may be made from one thread at a time per store; they release
the GIL.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = [
    "Capabilities",
    "CompiledModule",
    "Engine",
    "Extern",
    "Function",
    "Global",
    "HostFunction",
    "Instance",
    "Limits",
    "Memory",
    "RawCall",
    "Store",
    "Table",
    "ValueType",
]

PAGE_BYTES = 65536
"""Size of a WebAssembly page in bytes."""


class ValueType(enum.IntEnum):
    """Value types by their binary encoding. Source: WebAssembly core specification, 5.3."""

    I32 = 0x7F
    I64 = 0x7E
    F32 = 0x7D
    F64 = 0x7C
    V128 = 0x7B
    FUNCREF = 0x70
    EXTERNREF = 0x6F


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. ``shared_objects``: memories, tables and globals made by the host can be
    imported by several instances (dynamic linking needs it; otherwise link statically)."""

    engine: str
    version: str
    simd: bool
    relaxed_simd: bool
    threads: bool
    tail_call: bool
    memory64: bool
    shared_objects: bool
    deadlines: bool
    traps_with_frames: bool
    code_cache: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sandbox limits of one store. ``None`` means the engine's own limit.

    Args:
        memory_bytes: cap of linear memory, in bytes (rounded down to pages; at most 4 GiB).
        stack_bytes: native stack a call may use, in bytes.
        deadline_ns: longest time one call may run, in nanoseconds.
    """

    memory_bytes: int | None = None
    stack_bytes: int | None = None
    deadline_ns: int | None = None


HostFunction: TypeAlias = Callable[..., "int | float | tuple[int | float, ...] | None"]


@runtime_checkable
class Memory(Protocol):
    """A linear memory. Its base address never changes while the store lives."""

    @property
    def base_address(self) -> int:
        """Host address of guest address 0."""

    @property
    def byte_length(self) -> int:
        """Current length in bytes."""

    @property
    def maximum_pages(self) -> int | None:
        """Most pages it may grow to."""

    def grow(self, page_delta: int) -> int:
        """Grow by ``page_delta`` pages; return the old page count.

        Raises:
            OutOfMemoryError: the cap or the machine does not allow it.
        """


class Function(Protocol):
    """A wasm or host function. Calling it converts and checks arguments."""

    @property
    def parameter_types(self) -> Sequence[ValueType]: ...

    @property
    def result_types(self) -> Sequence[ValueType]: ...

    def __call__(self, *args: int | float) -> int | float | tuple[int | float, ...] | None:
        """Call it.

        Raises:
            TrapError, DeadlineExceededError
        """

    def prepare(self) -> RawCall:
        """A prepared unchecked call with its own argument slots."""


class RawCall(Protocol):
    """The fast calling path: write slots, call, read slots. No type checks.

    Slots hold raw 64-bit patterns of integers; arguments and results share the slots.
    """

    def __call__(self, *args: int) -> int:
        """Store integer ``args`` (i32/i64), call, return the first result as a signed i32/i64 (0 when
        there is none).

        Raises:
            TrapError, DeadlineExceededError
        """


class Table(Protocol):
    """A table of function references."""

    @property
    def size(self) -> int: ...

    def get(self, index: int) -> Function | None: ...

    def set(self, index: int, function: Function | None) -> None: ...

    def grow(self, delta: int) -> int:
        """Grow by ``delta`` null entries; return the old size."""


class Global(Protocol):
    """A global variable."""

    @property
    def value(self) -> int | float: ...

    @value.setter
    def value(self, value: int | float) -> None: ...


Extern: TypeAlias = "Memory | Table | Global | Function"


class Instance(Protocol):
    """An instantiated module."""

    @property
    def exports(self) -> Mapping[str, Extern]: ...


class CompiledModule(Protocol):
    """Compiled code, independent of stores; can be instantiated many times, in several threads."""

    @property
    def name(self) -> str: ...


class Store(Protocol):
    """Owns memories, tables, globals, functions, instances. ``close()`` is idempotent and frees them;
    arrays over a memory must be gone or hold the store open with `retain`/`release`."""

    @property
    def engine(self) -> Engine: ...

    @property
    def limits(self) -> Limits: ...

    def create_memory(self, *, minimum_pages: int, maximum_pages: int | None, shared: bool = False) -> Memory: ...

    def create_table(self, *, minimum: int, maximum: int | None = None) -> Table: ...

    def create_global(self, value_type: ValueType, value: int | float, *, mutable: bool) -> Global: ...

    def create_function(
        self,
        parameter_types: Sequence[ValueType],
        result_types: Sequence[ValueType],
        function: HostFunction,
        *,
        name: str = "",
    ) -> Function:
        """A host function. An exception it raises stops the guest and comes out of the call unchanged."""

    def instantiate(
        self, module: CompiledModule, imports: Mapping[tuple[str, str], Extern]
    ) -> Instance:
        """Instantiate and run the start function.

        Raises:
            LinkError: imports are missing (all of them named) or of another type.
            TrapError: the start function trapped.
        """

    def set_deadline(self, deadline_ns: int | None) -> None:
        """Longest time each following call may run, in nanoseconds; ``None`` for no limit."""

    def interrupt(self) -> None:
        """Stop the call that is running in this store, from another thread (DeadlineExceededError there)."""

    def retain(self) -> None:
        """Hold the native store open beyond `close` (views of its memory exist)."""

    def release(self) -> None:
        """Undo one `retain`."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Compiles modules and makes stores."""

    @property
    def capabilities(self) -> Capabilities: ...

    def compile(self, wasm: bytes, *, name: str = "") -> CompiledModule:
        """Validate and compile, through the on-disk code cache when one was given.

        Raises:
            FormatError: the module is malformed or does not validate.
            UnsupportedFeatureError: it needs a feature the engine lacks.
        """

    def create_store(self, limits: Limits | None = None) -> Store: ...

    def close(self) -> None: ...
