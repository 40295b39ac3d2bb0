"""The same modules again, in a store of another thread.

Functions, tables and globals belong to a store, and a store to one thread at a time; a shared memory belongs
to all. A `Replica` follows a `LinkSpace`: whatever the space instantiates, it instantiates from the same
compiled code over the same memory, at the same addresses and table slots. It decides nothing itself, so it
cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..engines.base import (
    CompiledModule,
    Extern,
    Function,
    Global,
    HostFunction,
    Instance,
    Memory,
    Store,
    Table,
    ValueType,
)
from ..errors import LinkError

if TYPE_CHECKING:
    from .shadow_stack import StackRegion

__all__ = ["Replica", "ReplicatedTable"]


class Replica:
    """A store with instances of everything its space has.

    Args:
        store: of the space's engine; closed with the space.
        memory: the shared memory.
        make_stack: makes a shadow stack of its own.
        table: the space's table; what is in it already is not copied.
    """

    def __init__(
        self,
        store: Store,
        memory: Memory,
        make_stack: Callable[[Store], StackRegion],
        table: Table,
    ) -> None:
        self.store = store
        self.table = store.create_table(minimum=table.size)
        self.stack = make_stack(store)
        # Keyed by identity; the original is held so that its identity stays its own.
        self._twins: dict[int, tuple[Extern, Extern]] = {}
        self._add(memory, memory)
        self._add(table, self.table)

    def _add(self, original: Extern, twin: Extern) -> None:
        self._twins[id(original)] = (original, twin)

    def add_global(self, original: Global, value_type: ValueType, value: int, *, mutable: bool) -> None:
        """Make the twin of a global."""
        self._add(original, self.store.create_global(value_type, value, mutable=mutable))

    def adopt_global(self, original: Global, twin: Global) -> None:
        """Take an existing global of this store for the twin of another."""
        self._add(original, twin)

    def add_host_function(
        self,
        original: Function,
        parameter_types: Sequence[ValueType],
        result_types: Sequence[ValueType],
        function: HostFunction,
    ) -> None:
        """Make the twin of a host function."""
        self._add(original, self.store.create_function(parameter_types, result_types, function))

    def add_instance(
        self, module: CompiledModule, imports: Mapping[tuple[str, str], Extern], original: Instance
    ) -> Instance:
        """Instantiate what the space has instantiated as ``original``.

        Raises:
            LinkError: an import is a function of the space's store that was not made through the space.
        """
        twins = {key: self.twin(item, module.name, key) for key, item in imports.items()}
        instance = self.store.instantiate(module, twins)
        for name, item in original.exports.items():
            self._add(item, instance.exports[name])
        return instance

    def twin(self, item: Extern, module: str, key: tuple[str, str]) -> Extern:
        """What stands for an extern of the space in this store."""
        found = self._twins.get(id(item))
        if found is None:
            symbol = f"{key[0]}.{key[1]}"
            raise LinkError(
                f"module {module}: {symbol} is given as a function of one thread's store; give a "
                "HostFunctionSpec, which can be made again for each worker",
                module=module,
                symbols=[symbol],
            )
        return found[1]

    def function(self, original: Function) -> Function:
        """The twin of a function that was made through the space."""
        twin: Function = self.twin(original, "table", ("table", "entry"))  # type: ignore[assignment]
        return twin

    def forget(self, items: Iterable[Extern]) -> None:
        """Let go of the twins of a module that was unloaded."""
        for item in items:
            self._twins.pop(id(item), None)

    def set_global(self, original: Global, value: int) -> None:
        """Give the twin of a global a value."""
        twin: Global = self.twin(original, "global", ("global", "entry"))  # type: ignore[assignment]
        twin.value = value


class ReplicatedTable:
    """The tables of a space and its replicas as one: what is put into it is put into all.

    Args:
        table: the space's own.
        replicas: their list, which may still grow while nothing is in the table.
    """

    def __init__(self, table: Table, replicas: list[Replica]) -> None:
        self._table = table
        self._replicas = replicas

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._table.size

    def get(self, index: int) -> Function | None:
        """The space's function at ``index``."""
        return self._table.get(index)

    def set(self, index: int, function: Function | None) -> None:
        """Put a function, and its twins, at ``index``."""
        for replica in self._replicas:
            replica.table.set(index, None if function is None else replica.function(function))
        self._table.set(index, function)

    def grow(self, delta: int) -> int:
        """Grow all tables to the size that the space's has then; return its old size."""
        old = self._table.grow(delta)
        for replica in self._replicas:
            missing = old + delta - replica.table.size
            if missing > 0:
                replica.table.grow(missing)
        return old
