"""Our own boundary under the guard: the layouts in `sylvite.abi.structs` against what clang lays out for
wasm32 from a header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .oracle import Examination
from .targets import TARGETS

if TYPE_CHECKING:
    from .structs import Struct

__all__ = ["compare_structs"]


def compare_structs(
    examination: Examination, structs: Mapping[str, Struct], target: str = "wasm32"
) -> list[str]:
    """Compare struct tables with the oracle's layouts. ``structs`` maps C names (tag or typedef) to tables.

    Returns one sentence per disagreement; an empty list means that sizes, alignments and the offsets of
    all members agree in order. Names of members are not compared.
    """
    view = examination.view(TARGETS[target].name)
    problems: list[str] = []
    for name, table in structs.items():
        root = view.graph.roots.get(f"s:{name}")
        if root is None:
            problems.append(f"{name}: the header does not define it")
            continue
        node = view.graph.nodes[view.graph.plain(root)]
        if node.size // 8 != table.byte_length:
            problems.append(f"{name}: {table.byte_length} bytes in the table, {node.size // 8} in the header")
        if node.align and node.align // 8 != table.alignment:
            problems.append(
                f"{name}: alignment {table.alignment} in the table, {node.align // 8} in the header"
            )
        theirs = list(_leaves(view.graph, root))
        mine = list(_table_leaves(table))
        if mine != theirs:
            problems.append(f"{name}: members at {mine} in the table, at {theirs} in the header")
    return problems


def _leaves(graph: Any, index: int, base: int = 0) -> Iterator[tuple[int, int]]:
    """(offset, size) in bytes of every scalar in a record, bit-fields of one unit joined."""
    node = graph.nodes[graph.plain(index)]
    if node.kind == "struct":
        seen_unit = -1
        for field in node.fields:
            if field.bits:
                size = graph.nodes[graph.plain(field.type)].size
                unit = field.offset // size
                if unit != seen_unit:
                    yield (base + unit * size) // 8, size // 8
                seen_unit = unit
            else:
                seen_unit = -1
                yield from _leaves(graph, field.type, base + field.offset)
    elif node.kind == "array":
        size = graph.nodes[graph.plain(node.target)].size
        for number in range(max(node.count, 0)):
            yield from _leaves(graph, node.target, base + number * size)
    else:
        yield base // 8, node.size // 8


def _table_leaves(table: Struct) -> Iterator[tuple[int, int]]:
    for _, offset, type_ in table.members():
        count = getattr(type_, "count", 1)
        size = type_.byte_length // count
        for number in range(count):
            yield offset + number * size, size
