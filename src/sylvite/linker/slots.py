"""Slots of the one function table."""

from __future__ import annotations

from ..engines.base import Table
from ..errors import InvalidArgumentError
from .ranges import FreeRanges, round_up

__all__ = ["TableSlots"]


class TableSlots:
    """Hands out runs of table slots. Slot 0 stays null: it is the null function pointer.

    Args:
        table: the table; its present entries beyond slot 0 become free.
    """

    __slots__ = ("_end", "_free", "_live", "_table")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._free = FreeRanges()
        self._live: dict[int, int] = {}
        self._end = table.size
        if self._end > 1:
            self._free.insert(1, self._end - 1)

    @property
    def live_count(self) -> int:
        """Slots handed out now."""
        return sum(self._live.values())

    def allocate(self, count: int, alignment: int = 1) -> int:
        """Take ``count`` slots in a row, all null.

        Args:
            count: slots, at least 1.
            alignment: of the first slot, a power of two.

        Raises:
            InvalidArgumentError: ``count`` is not positive.
            OutOfMemoryError: the table cannot grow that far.
        """
        if count <= 0:
            raise InvalidArgumentError(f"count must be positive, got {count}")
        first = self._free.take(count, alignment)
        if first is None:
            # The guest may have grown the table; its entries are not ours.
            self._end = max(self._end, self._table.size)
            start = max(self._free.tail(self._end), 1)
            self._extend(round_up(start, alignment) + count - self._end)
            first = self._free.take(count, alignment)
            if first is None:
                raise InvalidArgumentError(f"no {count} slots aligned to {alignment} after growth")
        self._live[first] = count
        return first

    def free(self, first: int) -> None:
        """Give slots back and make them null, so that a stale pointer traps instead of calling.

        Raises:
            InvalidArgumentError: no slots were handed out at ``first``.
        """
        count = self._live.pop(first, None)
        if count is None:
            raise InvalidArgumentError(f"no slots live at table index {first}")
        for index in range(first, first + count):
            self._table.set(index, None)
        self._free.insert(first, count)

    def ensure_size(self, count: int) -> None:
        """Make the table at least ``count`` entries long; what is new becomes free.

        Raises:
            OutOfMemoryError: the table cannot grow that far.
        """
        missing = count - self._table.size
        if missing > 0:
            self._extend(missing)

    def _extend(self, delta: int) -> None:
        old = self._table.grow(delta)
        self._end = old + delta
        begin = max(old, 1)
        if begin < self._end:
            self._free.insert(begin, self._end - begin)
