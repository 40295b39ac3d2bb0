"""Free ranges of a line of addresses or slots: best fit, split, coalesce."""

from __future__ import annotations

import bisect

__all__ = ["FreeRanges", "round_up"]


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


class FreeRanges:
    """Disjoint, never adjacent free ranges, findable by address and by length."""

    __slots__ = ("_by_length", "_lengths", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lengths: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []

    def insert(self, start: int, length: int) -> None:
        """Add a range, merging it with the neighbours it touches."""
        position = bisect.bisect_left(self._starts, start)
        if position < len(self._starts) and self._starts[position] == start + length:
            following = self._starts[position]
            length += self._remove(position, following)
        if position > 0:
            previous = self._starts[position - 1]
            if previous + self._lengths[previous] == start:
                length += self._remove(position - 1, previous)
                start = previous
                position -= 1
        self._starts.insert(position, start)
        self._lengths[start] = length
        bisect.insort(self._by_length, (length, start))

    def take(self, length: int, alignment: int) -> int | None:
        """Cut an aligned range of ``length`` bytes out of the shortest free range that holds it."""
        for index in range(bisect.bisect_left(self._by_length, (length, 0)), len(self._by_length)):
            available, start = self._by_length[index]
            address = round_up(start, alignment)
            if address + length <= start + available:
                self._remove(bisect.bisect_left(self._starts, start), start)
                if address > start:
                    self.insert(start, address - start)
                if address + length < start + available:
                    self.insert(address + length, start + available - address - length)
                return address
        return None

    def tail(self, end: int) -> int:
        """Start of the free range that ends at ``end``, or ``end`` when none does."""
        if self._starts:
            last = self._starts[-1]
            if last + self._lengths[last] == end:
                return last
        return end

    def items(self) -> list[tuple[int, int]]:
        """All ranges as ``(start, length)`` by address."""
        return [(start, self._lengths[start]) for start in self._starts]

    @property
    def total(self) -> int:
        """Bytes in all ranges."""
        return sum(self._lengths.values())

    @property
    def longest(self) -> int:
        """Bytes in the longest range."""
        return self._by_length[-1][0] if self._by_length else 0

    def _remove(self, position: int, start: int) -> int:
        del self._starts[position]
        length = self._lengths.pop(start)
        del self._by_length[bisect.bisect_left(self._by_length, (length, start))]
        return length
