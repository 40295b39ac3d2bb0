"""Sets of byte ranges, for who has the newest bytes of what."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Ranges"]


class Ranges:
    """A set of bytes, kept as sorted ranges that neither touch nor overlap."""

    __slots__ = ("_ranges",)

    def __init__(self, *ranges: tuple[int, int]) -> None:
        self._ranges: list[tuple[int, int]] = []
        for begin, end in ranges:
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def copy(self) -> Ranges:
        """The same bytes, to change apart."""
        copied = Ranges()
        copied._ranges = self._ranges.copy()
        return copied

    def clear(self) -> None:
        """Take every byte out."""
        self._ranges.clear()

    def add(self, begin: int, end: int) -> None:
        """Put the bytes ``[begin, end)`` in."""
        if begin >= end:
            return
        kept = []
        for known in self._ranges:
            if known[1] < begin or known[0] > end:
                kept.append(known)
            else:
                begin, end = min(begin, known[0]), max(end, known[1])
        kept.append((begin, end))
        self._ranges = sorted(kept)

    def remove(self, begin: int, end: int) -> None:
        """Take the bytes ``[begin, end)`` out."""
        kept = []
        for known in self._ranges:
            kept += [
                part
                for part in ((known[0], min(known[1], begin)), (max(known[0], end), known[1]))
                if part[0] < part[1]
            ]
        self._ranges = kept

    def within(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of it inside ``[begin, end)``."""
        parts = ((max(begin, known[0]), min(end, known[1])) for known in self._ranges)
        return [part for part in parts if part[0] < part[1]]
