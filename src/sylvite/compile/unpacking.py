"""Products that write their result where it belongs, without a pass that unpacks it.

A packed product makes tiles. The compiler adds bias and activation in tiles, and then copies:
``linalg.unpack`` to rows, and ``linalg.pack`` to the tiles of the next product. Both only move elements, and
with extents that the tiles divide, memory with rows is memory with (row tile, row, column tile, column). So
the loop that adds the bias can write there itself, and the copies vanish.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import re

__all__ = ["write_in_place"]

_V = r"%[\w$#]+"
_SIZES = r"[0-9]+(?:x[0-9]+)*"
_TAIL = re.compile(
    rf"(?P<indent> *)(?P<result>{_V}) = linalg\.generic \{{indexing_maps = \[(?P<maps>[^\]]*)\], "
    rf"(?P<ins>[^\n]*) outs\({_V} : tensor<(?P<tiles>{_SIZES})x(?P<type>\w+)>\) (?P<config>[^\n]*)\n"
    rf"(?P<body> *\^bb0\([^\n]*(?P<out>{_V}): \w+\):\n(?:(?! *\}} -> )[^\n]*\n)*)"
    rf" *\}} -> tensor<(?P=tiles)x(?P=type)>\n"
    rf" *(?P<empty>{_V}) = tensor\.empty\(\) : tensor<(?P<rows>{_SIZES})x(?P=type)>\n"
    rf" *(?P<unpacked>{_V}) = linalg\.unpack (?P=result) outer_dims_perm = \[(?P<outer>[0-9, ]+)\] "
    rf"inner_dims_pos = \[(?P<inner>[0-9, ]+)\] inner_tiles = \[[0-9, ]+\] into (?P=empty) "
    rf"(?:\{{[^\n]*\}} )?: tensor<(?P=tiles)x(?P=type)> -> tensor<(?P=rows)x(?P=type)>\n"
    rf"(?: *(?P<empty2>{_V}) = tensor\.empty\(\) : tensor<(?P<packed>{_SIZES})x(?P=type)>\n"
    rf" *(?P<pack>{_V}) = linalg\.pack (?P=unpacked) outer_dims_perm = \[(?P<outer2>[0-9, ]+)\] "
    rf"inner_dims_pos = \[(?P<inner2>[0-9, ]+)\] inner_tiles = \[(?P<tiles2>[0-9, ]+)\] into (?P=empty2) "
    rf"(?:\{{[^\n]*\}} )?: tensor<(?P=rows)x(?P=type)> -> tensor<(?P=packed)x(?P=type)>\n)?"
    rf" *iree_codegen\.store_to_buffer (?P<stored>{_V}), (?P<buffer>{_V}) : [^\n]*\n"
)
_LAYOUT = re.compile(r"memref<[0-9x]+x\w+(?:, strided<\[(?P<strides>[0-9, ]+)\], offset: \?>)?, #hal")


def write_in_place(block: str) -> str:
    """Let the last loop of the executable in ``block`` write its result unpacked; see the module."""
    tail = _TAIL.search(block)
    if tail is None or not _is_plain(block, tail):
        return block
    view = _view(tail)
    binding = re.search(
        rf"^ *{re.escape(tail['buffer'])} = hal\.interface\.binding\.subspan [^\n]*\n", block, re.M
    )
    if view is None or binding is None:
        return block
    layout = _LAYOUT.search(binding[0])
    if layout is None:
        return block
    strides = layout["strides"]
    memref = _memref(view, tail["type"], None if strides is None else _numbers(strides))
    if memref is None:
        return block
    changed_binding = binding[0].replace(layout[0], memref + ", #hal")
    text = _rewritten(tail, view, memref)
    return (block[: tail.start()] + text + block[tail.end() :]).replace(binding[0], changed_binding)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The result's memory with tiles apart: extents, the loop that runs along each, and, by extent, the axis
    of the memory it is a part of with its factor."""

    extents: tuple[int, ...]
    loops: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.replace("x", ", ").split(", ")]


def _is_plain(block: str, tail: re.Match[str]) -> bool:
    """Whether the result is used nowhere else, is written in the order of its loops, and not read."""
    rank = tail["tiles"].count("x") + 1
    loops = ", ".join(f"d{axis}" for axis in range(rank))
    body = tail["body"].partition("\n")[2]
    return (
        tail["maps"].endswith(f"affine_map<({loops}) -> ({loops})>")
        and tail["stored"] == (tail["pack"] or tail["unpacked"])
        and not re.search(rf"{re.escape(tail['out'])}\b", body)
        and len(re.findall(rf"{re.escape(tail['buffer'])}\b", block)) == 2
        and "linalg.unpack" not in block.replace(tail[0], "")
    )


_Piece = tuple[int, int, tuple[int, int]]
"""Extent, loop, and (axis of the memory, factor of its stride)."""


class _Unpacking:
    """Which loops run along a dimension of the rows: one over tiles and, where it is tiled, one inside."""

    def __init__(self, tail: re.Match[str]) -> None:
        self.rows, self._tiles = _numbers(tail["rows"]), _numbers(tail["tiles"])
        self._outer, self._inner = _numbers(tail["outer"]), _numbers(tail["inner"])

    def tile(self, dimension: int) -> int:
        """The tile's extent along a dimension."""
        if dimension not in self._inner:
            return 1
        return self._tiles[len(self.rows) + self._inner.index(dimension)]

    def over(self, dimension: int, axis: int, factor: int) -> _Piece:
        """The loop over tiles."""
        loop = self._outer.index(dimension)
        return self._tiles[loop], loop, (axis, factor)

    def inside(self, dimension: int, axis: int) -> list[_Piece]:
        """The loop inside a tile, where there is one."""
        if dimension not in self._inner:
            return []
        loop = len(self.rows) + self._inner.index(dimension)
        return [(self._tiles[loop], loop, (axis, 1))]

    def whole(self, dimension: int, axis: int) -> list[_Piece]:
        """All of a dimension along one axis."""
        return [self.over(dimension, axis, self.tile(dimension)), *self.inside(dimension, axis)]

    def divides(self) -> bool:
        """Whether there are no partial tiles."""
        return all(
            self.over(dimension, 0, 1)[0] * self.tile(dimension) == extent
            for dimension, extent in enumerate(self.rows)
        )


def _view(tail: re.Match[str]) -> _View | None:
    """The view that the result is written through; ``None`` when there is none."""
    unpacking = _Unpacking(tail)
    if not unpacking.divides():
        return None
    if tail["pack"] is None:
        rank = range(len(unpacking.rows))
        pieces = [piece for dimension in rank for piece in unpacking.whole(dimension, dimension)]
    else:
        packed = _packed_pieces(tail, unpacking)
        if packed is None:
            return None
        pieces = packed
    extents, loops, parts = zip(*pieces, strict=True)
    return _View(extents=extents, loops=loops, parts=parts)


def _packed_pieces(tail: re.Match[str], unpacking: _Unpacking) -> list[_Piece] | None:
    """The pieces of a result that is packed again: dimensions by the same tiles, or by tiles of one."""
    outer, inner, tiles = (_numbers(tail[name]) for name in ("outer2", "inner2", "tiles2"))
    pieces: list[_Piece] = []
    shape: list[int] = []
    for axis, dimension in enumerate(outer):
        tile = tiles[inner.index(dimension)] if dimension in inner else 1
        if tile == 1:
            pieces += unpacking.whole(dimension, axis)
        elif tile == unpacking.tile(dimension):
            pieces.append(unpacking.over(dimension, axis, 1))
        else:
            return None
        shape.append(unpacking.rows[dimension] // tile)
    for position, dimension in enumerate(inner):
        if tiles[position] != 1:
            pieces += unpacking.inside(dimension, len(outer) + position)
    return pieces if [*shape, *tiles] == _numbers(tail["packed"]) else None


def _memref(view: _View, type_name: str, strides: list[int] | None) -> str | None:
    """The type of the memory, without what follows its layout."""
    shape = "x".join(map(str, view.extents))
    if strides is None:
        return f"memref<{shape}x{type_name}"
    if len(strides) <= max(axis for axis, _ in view.parts):
        return None
    spread = ", ".join(str(strides[axis] * factor) for axis, factor in view.parts)
    return f"memref<{shape}x{type_name}, strided<[{spread}], offset: ?>"


def _rewritten(tail: re.Match[str], view: _View, memref: str) -> str:
    """The last loop and the store."""
    indent, result = tail["indent"], tail["result"]
    tensor = f"tensor<{'x'.join(map(str, view.extents))}x{tail['type']}>"
    rank = len(view.loops)
    loops = ", ".join(f"d{axis}" for axis in range(rank))
    target = ", ".join(f"d{loop}" for loop in view.loops)
    others = tail["maps"][: tail["maps"].rindex("affine_map")]
    return (
        f"{indent}%in_place = tensor.empty() : {tensor}\n"
        f"{indent}{result} = linalg.generic {{indexing_maps = [{others}"
        f"affine_map<({loops}) -> ({target})>], {tail['ins']} outs(%in_place : {tensor}) {tail['config']}\n"
        f"{tail['body']}{indent}}} -> {tensor}\n"
        f"{indent}iree_codegen.store_to_buffer {result}, {tail['buffer']} : {tensor} into {memref}, "
        "#hal.descriptor_type<storage_buffer>>\n"
    )
