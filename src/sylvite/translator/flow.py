"""Control flow: which blocks need a label, and which branches can close a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from ..vmfb.bytecode import DecodedFunction

__all__ = ["Flow", "analyze_flow", "recursive_functions"]


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """``order`` numbers reachable blocks in reverse post-order; ``entries`` counts the branches to
    each (and the function's entry)."""

    order: Mapping[int, int]
    entries: Mapping[int, int]

    def is_backward(self, source: int, target: int) -> bool:
        """Whether a branch may close a loop. Every cycle contains such a branch."""
        return self.order[target] <= self.order[source]


def analyze_flow(function: DecodedFunction) -> Flow:
    """Number the blocks reachable from the first and count the branches to them."""
    successors = [
        tuple(branch.block for branch in block.instructions[-1].branches) for block in function.blocks
    ]
    finished = _post_order(0, successors)
    entries = dict.fromkeys(finished, 0)
    entries[0] = 1
    for block in finished:
        for target in successors[block]:
            entries[target] += 1
    order = {block: number for number, block in enumerate(reversed(finished))}
    return Flow(order, entries)


def _post_order(root: int, successors: Sequence[Sequence[int]]) -> list[int]:
    finished: list[int] = []
    seen = {root}
    stack = [(root, iter(successors[root]))]
    while stack:
        node, remaining = stack[-1]
        for target in remaining:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(successors[target])))
                break
        else:
            finished.append(node)
            stack.pop()
    return finished


def recursive_functions(calls: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """The functions that can reach themselves through ``calls`` (caller -> callees)."""
    return frozenset(
        function for component in _components(calls) for function in component if _is_cyclic(component, calls)
    )


def _is_cyclic(component: Sequence[int], calls: Mapping[int, Iterable[int]]) -> bool:
    return len(component) > 1 or component[0] in calls.get(component[0], ())


def _components(graph: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan's algorithm, without recursion)."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    components: list[list[int]] = []
    for root in graph:
        if root in numbers:
            continue
        stack = [(root, iter(graph[root]))]
        numbers[root] = lowest[root] = len(numbers)
        open_nodes.append(root)
        is_open.add(root)
        while stack:
            node, remaining = stack[-1]
            for target in remaining:
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    open_nodes.append(target)
                    is_open.add(target)
                    stack.append((target, iter(graph.get(target, ()))))
                    break
                if target in is_open:
                    lowest[node] = min(lowest[node], numbers[target])
            else:
                stack.pop()
                if stack:
                    lowest[stack[-1][0]] = min(lowest[stack[-1][0]], lowest[node])
                if lowest[node] == numbers[node]:
                    start = open_nodes.index(node)
                    components.append(open_nodes[start:])
                    is_open.difference_update(open_nodes[start:])
                    del open_nodes[start:]
    return components
