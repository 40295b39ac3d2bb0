"""A side module that is linked into a space."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from ..engines.base import CompiledModule, Function
from ..errors import NotFoundError
from ..wasm import Feature
from .side_module import SideModule

if TYPE_CHECKING:
    from .space import LinkSpace

__all__ = ["LinkedModule"]


class LinkedModule:
    """A linked side module. It owns a region of memory and a run of table slots until `close`.

    `LinkSpace.load` makes it. A module that another one was linked against keeps its memory and slots
    until that one is closed too.
    """

    def __init__(
        self,
        space: LinkSpace,
        side: SideModule,
        *,
        exports: Mapping[str, Function],
        memory_base: int,
        table_base: int,
        resources: contextlib.ExitStack,
        compiled: CompiledModule,
    ) -> None:
        self._space = space
        self._side = side
        self._exports = MappingProxyType(dict(exports))
        self._memory_base = memory_base
        self._table_base = table_base
        self._resources = resources
        # Held so that loading the same bytes again finds the code.
        self._compiled = compiled
        self._slots: dict[str, int] = {}
        self._functions_by_slot = side.table_functions(table_base)
        self._users = 0
        self._closed = False

    @property
    def name(self) -> str:
        """The name it was loaded under."""
        return self._side.name

    @property
    def exports(self) -> Mapping[str, Function]:
        """Exported functions by name."""
        return self._exports

    @property
    def data_exports(self) -> Mapping[str, int]:
        """Guest addresses of exported data by symbol."""
        return {symbol: self.data_address(symbol) for symbol in self._side.data_exports}

    @property
    def memory_base(self) -> int:
        """Guest address of its data (0 when it has none)."""
        return self._memory_base

    @property
    def memory_length(self) -> int:
        """Bytes of its data."""
        return self._side.info.memory_size

    @property
    def table_base(self) -> int:
        """Its first table slot (0 when it has none)."""
        return self._table_base

    @property
    def table_length(self) -> int:
        """Number of its table slots."""
        return self._side.info.table_size

    @property
    def features(self) -> frozenset[Feature]:
        """Proposals its code uses."""
        return self._side.features

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def data_address(self, symbol: str) -> int:
        """Guest address of an exported data symbol.

        Raises:
            NotFoundError: it exports no such data.
        """
        offset = self._side.data_exports.get(symbol)
        if offset is None:
            raise NotFoundError(f"module {self.name} exports no data {symbol!r}")
        return (self._memory_base + offset) & 0xFFFFFFFF

    def function_name(self, table_index: int) -> str | None:
        """Name of the function in one of its table slots, None when the slot is not its own."""
        function = self._functions_by_slot.get(table_index)
        if function is None:
            return next((name for name, slot in self._slots.items() if slot == table_index), None)
        return self._side.function_names().get(function, f"function[{function}]")

    def slot_of(self, symbol: str) -> int:
        """Table index of an exported function: the function's address for the guest.

        The same function has the same index for everybody who asks.

        Raises:
            NotFoundError: it exports no such function.
            OutOfMemoryError: the table cannot grow.
        """
        slot = self._slots.get(symbol)
        if slot is None:
            function = self._exports.get(symbol)
            if function is None:
                raise NotFoundError(f"module {self.name} exports no function {symbol!r}")
            index = self._side.function_exports[symbol]
            slot = next((at for at, other in self._functions_by_slot.items() if other == index), None)
            if slot is None:
                slot = self._space.place_function(function, self._resources)
            self._slots[symbol] = slot
        return slot

    def acquire(self) -> None:
        """Note that another module was linked against this one."""
        self._users += 1

    def release(self) -> None:
        """Undo one `acquire`."""
        self._users -= 1
        self._free_when_unused()

    def close(self) -> None:
        """Unload it: give memory and table slots back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._space.forget(self)
        self._free_when_unused()

    def _free_when_unused(self) -> None:
        if self._closed and not self._users:
            # With the space everything is gone already.
            (self._resources.pop_all if self._space.closed else self._resources.close)()

    def __enter__(self) -> LinkedModule:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
