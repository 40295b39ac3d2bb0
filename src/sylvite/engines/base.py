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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

from ..errors import InvalidArgumentError
from ..wasm.passes import Pass
from ..wasm.types import ValueType
from .code_cache import CodeCache

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. ``shared_objects``: memories, tables and globals made by the host can be
    imported by several instances (dynamic linking needs it; otherwise link statically). ``deterministic``:
    results are to have the same bits everywhere, so code chosen at run time must not use relaxed SIMD."""

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
    deterministic: bool = False


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

    def __post_init__(self) -> None:
        """Refuse what is no limit.

        Raises:
            InvalidArgumentError: not a number, negative, or a time of 0.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidArgumentError(f"{field.name} must be a whole number, got {value!r}")
            if value < 0 or (value == 0 and field.name != "memory_bytes"):
                raise InvalidArgumentError(f"{field.name} must be positive, got {value}")


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

    def view(self, address: int, byte_length: int) -> memoryview:
        """A writable view (format ``B``) of guest memory, without a copy.

        The view keeps the native memory alive beyond the store's `close`; growth does not disturb it.

        Raises:
            InvalidArgumentError: the range is not inside the memory.
            ClosedError: the store is closed.
        """

    def clear(self, address: int, byte_length: int) -> None:
        """Make a range zero. Raises as `view` does."""

    def discard(self, address: int, byte_length: int) -> int:
        """Give physical pages inside a range back to the system; they hold anything afterwards.

        Returns:
            Bytes given back.
        """


class Function(Protocol):
    """A wasm or host function. Calling it converts and checks arguments."""

    @property
    def parameter_types(self) -> Sequence[ValueType]:
        """Types of the parameters."""

    @property
    def result_types(self) -> Sequence[ValueType]:
        """Types of the results."""

    def __call__(self, *args: int | float) -> int | float | tuple[int | float, ...] | None:
        """Call it.

        Raises:
            TrapError, DeadlineExceededError
        """

    def prepare(self) -> RawCall:
        """A prepared unchecked call with its own argument slots."""


class RawCall(Protocol):
    """The fast calling path: write slots, call, read slots. No type checks.

    Slots hold raw bit patterns; arguments and results share the slots. Floats travel as their bits.
    """

    def set_arguments(self, *args: int) -> None:
        """Store integer ``args`` from the first slot on. Calls that give fewer leave the others as they are;
        only the slots of results change."""

    def __call__(self, *args: int) -> int:
        """Store integer ``args``, call, return the first result as a signed integer of its width (0
        when there is none).

        Raises:
            TrapError, DeadlineExceededError
        """


class Table(Protocol):
    """A table of function references."""

    @property
    def size(self) -> int:
        """Number of entries."""

    def get(self, index: int) -> Function | None:
        """The function at ``index``, None for a null entry.

        Raises:
            InvalidArgumentError: the index is outside the table.
        """

    def set(self, index: int, function: Function | None) -> None:
        """Put a function of the same store, or null, at ``index``.

        Raises:
            InvalidArgumentError: the index is outside the table, or the function is of another store.
        """

    def grow(self, delta: int) -> int:
        """Grow by ``delta`` null entries; return the old size.

        Raises:
            OutOfMemoryError: the table's maximum or the store's limit does not allow it.
        """


class Global(Protocol):
    """A global variable."""

    @property
    def value(self) -> int | float:
        """The present value; setting it needs a mutable global."""

    @value.setter
    def value(self, value: int | float) -> None:
        """Set it."""


Extern: TypeAlias = "Memory | Table | Global | Function"


class Instance(Protocol):
    """An instantiated module."""

    @property
    def exports(self) -> Mapping[str, Extern]:
        """Exports by name."""


class CompiledModule(Protocol):
    """Compiled code, independent of stores; can be instantiated many times, in several threads."""

    @property
    def name(self) -> str:
        """The name it was compiled under, for messages."""

    @property
    def import_names(self) -> Sequence[tuple[str, str]]:
        """Module and field name of every import, in order."""


class Store(Protocol):
    """Owns memories, tables, globals, functions, instances. ``close()`` is idempotent and frees them;
    arrays over a memory must be gone or hold the store open with `retain`/`release`."""

    @property
    def engine(self) -> Engine:
        """The engine that made it."""

    @property
    def limits(self) -> Limits:
        """The limits it was made with."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def create_memory(
        self, *, minimum_pages: int, maximum_pages: int | None = None, shared: bool = False
    ) -> Memory:
        """A linear memory. A shared one can be imported by all stores of the engine and needs a maximum.

        Raises:
            InvalidArgumentError: sizes out of range.
            OutOfMemoryError: the cap or the machine does not allow ``minimum_pages``.
        """

    def create_table(self, *, minimum: int, maximum: int | None = None) -> Table:
        """A table of ``minimum`` null function references."""

    def create_global(self, value_type: ValueType, value: int | float, *, mutable: bool) -> Global:
        """A global of a numeric type."""

    def create_function(
        self,
        parameter_types: Sequence[ValueType],
        result_types: Sequence[ValueType],
        function: HostFunction,
        *,
        name: str = "",
    ) -> Function:
        """A host function. An exception it raises stops the guest and comes out of the call unchanged."""

    def instantiate(self, module: CompiledModule, imports: Mapping[tuple[str, str], Extern]) -> Instance:
        """Instantiate and run the start function.

        Raises:
            LinkError: imports are missing (all of them named) or of another type.
            TrapError: the start function trapped.
        """

    def set_deadline(self, deadline_ns: int | None) -> None:
        """Longest time each following call may run, in nanoseconds; ``None`` for no limit.

        A call made from a host function shares the outermost call's time.

        Raises:
            InvalidArgumentError: not positive, or the engine has no deadlines.
        """

    def guard(self, timeout_ns: int | None) -> AbstractContextManager[None]:
        """While the result is entered, all calls of this thread together may take ``timeout_ns``
        nanoseconds (``None`` for no such limit), beside what `set_deadline` says; and Control-C stops
        those of the main thread, even in the middle of a guest's loop. Without effect on engines that
        have no deadlines."""

    def interrupt(self) -> None:
        """Stop the call that runs in this store (DeadlineExceededError there); any thread may do it.

        Nothing happens when none runs: interrupting does not stick to the next call.
        """

    def retain(self) -> None:
        """Hold the native store open beyond `close` (views of its memory exist)."""

    def release(self) -> None:
        """Undo one `retain`."""

    def close(self) -> None:
        """Close it; idempotent.

        Raises:
            InvalidArgumentError: a call runs in the store.
        """


class Engine(Protocol):
    """Compiles modules and makes stores."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def cache(self) -> CodeCache | None:
        """The on-disk cache of code, when one was given."""

    def compile(self, wasm: bytes, *, name: str = "", passes: Sequence[Pass] = ()) -> CompiledModule:
        """Validate, rewrite with ``passes`` in order and compile, through the on-disk code cache when one
        was given. Code that is cached is neither validated nor rewritten again.

        Raises:
            FormatError: the module is malformed or does not validate.
            UnsupportedFeatureError: it needs a feature the engine lacks.
        """

    def create_store(self, limits: Limits | None = None) -> Store:
        """A new store.

        Raises:
            InvalidArgumentError: the engine cannot keep a limit.
        """

    def close(self) -> None:
        """Refuse further use; stores made before stay usable. Idempotent."""
