"""Comparing layouts across targets: by value, and through every pointer that can be followed.

Each target's type graph is folded into small integers: two types get the same number exactly when
their sizes, alignments, members, offsets and element formats agree. What is reachable from a type is the
sequence of such numbers in breadth-first order, so cycles need no special care.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterator, Sequence

from .debug_info import VOID, CType, TypeGraph
from .oracle import TargetView
from .targets import Target

__all__ = ["Difference", "Interner", "LayoutReader", "first_difference", "own_difference"]

Difference = str
"""One plain sentence that names what differs."""

_RECORDS = ("struct", "union")


class Interner:
    """Numbers for values, shared by all targets."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        """The number of ``value``; equal values have equal numbers."""
        return self._numbers.setdefault(value, len(self._numbers))


class LayoutReader:
    """The layouts of one target, folded."""

    def __init__(self, target: Target, view: TargetView, intern: Interner) -> None:
        self.target = target
        self.view = view
        self.graph: TypeGraph = view.graph
        self._intern = intern
        self._own: dict[int, int] = {}
        self._reach: dict[int, int] = {}
        self._neighbours: dict[int, tuple[tuple[str, int], ...]] = {}

    def own(self, index: int) -> int:
        """The number of a type's own layout, members included by value, pointees not."""
        index = self.graph.plain(index)
        known = self._own.get(index)
        if known is None:
            known = self._own[index] = self._intern(self._describe(self.graph.nodes[index]))
        return known

    def _describe(self, node: CType) -> Hashable:
        if node.kind == "basic":
            return ("basic", node.size, self.view.long_double if node.name == "long double" else "")
        if node.kind in _RECORDS:
            order = self.target.byte_order if any(field.bits for field in node.fields) else ""
            fields = tuple((f.name, f.offset, f.bits, self.own(f.type)) for f in node.fields)
            return (node.kind, node.size, node.align, order, fields)
        if node.kind == "array":
            return ("array", node.count, self.own(node.target))
        if node.kind == "function":
            return ("function",)
        return (node.kind, node.size)

    def neighbours(self, index: int) -> tuple[tuple[str, int], ...]:
        """Types that the type at ``index`` leads to, each with a few words for the way there."""
        known = self._neighbours.get(index)
        if known is None:
            known = self._neighbours[index] = tuple(self._find_neighbours(index))
        return known

    def _find_neighbours(self, index: int) -> Iterator[tuple[str, int]]:
        node = self.graph.nodes[index]
        if node.kind in _RECORDS:
            for field in node.fields:
                yield field.name or "(unnamed)", self.graph.plain(field.type)
        elif node.kind in ("pointer", "array"):
            yield "", self.graph.plain(node.target)
        elif node.kind == "function":
            yield "result", self.graph.plain(node.target)
            for number, parameter in enumerate(node.parameters):
                yield f"parameter {number + 1}", self.graph.plain(parameter)

    def walk(self, index: int) -> Iterator[int]:
        """Every type reachable from ``index``, itself first, each once, breadth first."""
        start = self.graph.plain(index)
        seen = {start}
        queue = collections.deque([start])
        while queue:
            here = queue.popleft()
            yield here
            for _, there in self.neighbours(here):
                if there not in seen:
                    seen.add(there)
                    queue.append(there)

    def reach(self, index: int) -> int:
        """The number of everything reachable from a type."""
        index = self.graph.plain(index)
        known = self._reach.get(index)
        if known is None:
            # Each layout once: whether uint64_t and size_t are one C type or two makes no difference.
            sequence = tuple(dict.fromkeys(self.own(item) for item in self._in_memory(index)))
            known = self._reach[index] = self._intern(("reach", sequence))
        return known

    def _in_memory(self, index: int) -> Iterator[int]:
        """Types that lie in memory somewhere behind a type; what callbacks pass by value does not."""
        seen = {(index, True)}
        queue = collections.deque([(index, True)])
        while queue:
            here, counted = queue.popleft()
            kind = self.graph.nodes[here].kind
            if counted and here != VOID and kind not in ("forward", "function"):
                yield here
            for _, there in self.neighbours(here):
                step = (there, kind != "function")
                if step not in seen:
                    seen.add(step)
                    queue.append(step)

    def by_value(self, function: int) -> tuple[int, ...]:
        """Numbers of the records a function passes or returns by value."""
        return tuple(
            self.own(index)
            for _, index in self.neighbours(function)
            if self.graph.nodes[index].kind in _RECORDS
        )

    def folds_records(self, function: int) -> bool:
        """Whether a function passes a record by value that code may hold as one integer: several members,
        or members that overlap, in one register. Optimizers then bake the byte order in."""
        for _, index in self.neighbours(function):
            if self.graph.nodes[index].kind in _RECORDS:
                leaves = list(self._leaves(index, 0))
                if len(leaves) > 1 and any(size != 64 for _, size in leaves):
                    return True
        return False

    def _leaves(self, index: int, base: int) -> Iterator[tuple[int, int]]:
        """(offset, size) in bits of the scalars in a value."""
        node = self.graph.nodes[self.graph.plain(index)]
        if node.kind in _RECORDS:
            for field in node.fields:
                yield from self._leaves(field.type, base + field.offset)
        elif node.kind == "array" and node.count > 0:
            # Two elements tell as much as all of them.
            for number in range(min(node.count, 2)):
                yield from self._leaves(node.target, base + number)
        else:
            yield base, node.size

    def pointees(self, function: int) -> tuple[int, ...]:
        """Numbers of everything a function's parameters and result lead to through pointers."""
        found = []
        for _, index in self.neighbours(function):
            node = self.graph.nodes[index]
            if node.kind == "pointer":
                found.append(self.reach(node.target))
            elif node.kind in _RECORDS:
                found.extend(self.reach(step) for step in self._pointed(index))
        return tuple(found)

    def _pointed(self, record: int) -> list[int]:
        """Targets of the pointers inside a record that is passed by value."""
        found: list[int] = []
        for _, index in self.neighbours(record):
            node = self.graph.nodes[index]
            while node.kind == "array":
                index = self.graph.plain(node.target)
                node = self.graph.nodes[index]
            if node.kind == "pointer":
                found.append(node.target)
            elif node.kind in _RECORDS:
                found.extend(self._pointed(index))
        return found


def _bytes(bits: int) -> str:
    whole, rest = divmod(bits, 8)
    text = f"{whole} byte{'' if whole == 1 else 's'}"
    return text if not rest else f"{text} and {rest} bits"


def _record_difference(a: LayoutReader, b: LayoutReader, left: CType, right: CType, name: str) -> str:
    on = (a.target.name, b.target.name)
    if len(left.fields) != len(right.fields):
        return f"{name} has {len(left.fields)} members on {on[0]} and {len(right.fields)} on {on[1]}"
    for mine, other in zip(left.fields, right.fields, strict=True):
        member = mine.name or "an unnamed member"
        if mine.name != other.name:
            return (
                f"{name} has member {member} on {on[0]} and {other.name or 'an unnamed one'} there on {on[1]}"
            )
        if mine.offset != other.offset:
            return (
                f"member {member} of {name} lies at {_bytes(mine.offset)} on {on[0]} "
                f"and at {_bytes(other.offset)} on {on[1]}"
            )
        if mine.bits != other.bits:
            return (
                f"bit-field {member} of {name} is {mine.bits} bits wide on {on[0]}, {other.bits} on {on[1]}"
            )
        if a.own(mine.type) != b.own(other.type):
            return own_difference(a, b, mine.type, other.type, f"member {member} of {name}")
    if left.size != right.size:
        return f"{name} is {_bytes(left.size)} long on {on[0]} and {_bytes(right.size)} on {on[1]}"
    if left.align != right.align:
        return f"{name} is aligned to {_bytes(left.align)} on {on[0]} and to {_bytes(right.align)} on {on[1]}"
    return f"bit-fields of {name} are allocated from opposite ends on {on[0]} and {on[1]}"


def own_difference(a: LayoutReader, b: LayoutReader, left: int, right: int, place: str) -> Difference:
    """Why two targets' own layouts of one type differ; ``place`` says where the type was found."""
    mine, other = a.graph.nodes[a.graph.plain(left)], b.graph.nodes[b.graph.plain(right)]
    name = a.graph.name(left)
    on = (a.target.name, b.target.name)
    if mine.kind != other.kind:
        return f"{place} is {name} on {on[0]} and {b.graph.name(right)} on {on[1]}"
    if mine.kind in _RECORDS:
        return _record_difference(a, b, mine, other, name if mine.name else place)
    if mine.kind == "array":
        if mine.count != other.count:
            return f"{place} has {mine.count} elements on {on[0]} and {other.count} on {on[1]}"
        return own_difference(a, b, mine.target, other.target, f"an element of {place}")
    if mine.size == other.size:
        return f"{place} ({name}) has another number format on {on[0]} than on {on[1]}"
    return f"{place} ({name}) is {_bytes(mine.size)} on {on[0]} and {_bytes(other.size)} on {on[1]}"


def first_difference(
    a: LayoutReader, b: LayoutReader, left: int, right: int, names: Sequence[str] = ()
) -> Difference | None:
    """Walk two targets' graphs side by side from a function (or any type) and describe the first type
    whose layout differs. ``names`` are the function's parameter names."""
    start = (a.graph.plain(left), b.graph.plain(right))
    seen = {start}
    queue: collections.deque[tuple[int, int, str, bool]] = collections.deque([(*start, "", False)])
    while queue:
        here, there, way, in_memory = queue.popleft()
        passed = a.graph.nodes[here].kind == "function"
        pairs = list(zip(a.neighbours(here), b.neighbours(there), strict=False))
        if way and in_memory and a.own(here) != b.own(there):
            return own_difference(a, b, here, there, f"what {way} leads to")
        for number, ((word, mine), (_, other)) in enumerate(pairs):
            if (mine, other) in seen:
                continue
            seen.add((mine, other))
            step = word
            if not way and 0 < number <= len(names) and names[number - 1]:
                step = f"parameter {names[number - 1]}"
            words = way if way and not step else f"{way}.{step}".strip(".")
            queue.append((mine, other, words, not passed or a.graph.nodes[mine].kind in _RECORDS))
    return None
