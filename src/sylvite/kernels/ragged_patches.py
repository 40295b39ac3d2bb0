"""``sylvite_ragged_patches_f32``: patches of an image as packed columns, where tiles do not end with rows.

`sylvite.kernels.patches` wants rows of the result that are whole tiles. Here a tile is any 4 or 8 results
that follow each other, from one row or from several, and the last one may be filled up with zeros. Strides
are free, so that channels may come last in the image.
"""

from __future__ import annotations

from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType

__all__ = ["RAGGED_PATCHES_NAME", "RAGGED_PATCHES_PARAMETERS", "emit_ragged_patches"]

_I32 = ValueType.I32
_LANES = 4

RAGGED_PATCHES_NAME = "sylvite_ragged_patches_f32"

RAGGED_PATCHES_PARAMETERS = (_I32,) * 17
"""image, offset, out, offset, first tile, tiles, columns of a tile (a multiple of 4), channels, filter
height, filter width (all 1 at least), columns of a row of the result, results, then distances in the image:
between rows and columns of the result, between channels, rows and columns of a patch. All in elements;
``out`` begins with the first tile: ``[tile][channel][filter row][filter column][column]``."""


def emit_ragged_patches(module: ModuleBuilder) -> FunctionBuilder:
    """Emit ``sylvite_ragged_patches_f32`` into ``module``, which has a memory."""
    function = module.function(RAGGED_PATCHES_NAME, RAGGED_PATCHES_PARAMETERS, [], export=True)
    _RaggedPatches(function).emit()
    return function


class _RaggedPatches:
    """Emits the loops: over groups of four columns, and for each over the elements of a patch."""

    def __init__(self, function: FunctionBuilder) -> None:
        self._function = function
        self._image, self._out, self._first, self._tiles, self._tile_columns = 0, 2, 4, 5, 6
        self._patch = (7, 8, 9)
        self._columns, self._count, self._row_step, self._column_step = 10, 11, 12, 13
        self._strides = (14, 15, 16)
        self._tile_step, self._tile_bytes = (function.local(_I32) for _ in range(2))
        self._number, self._group = (function.local(_I32) for _ in range(2))
        self._target, self._column = (function.local(_I32) for _ in range(2))
        self._cursors = [function.local(_I32) for _ in range(3)]
        self._counters = [function.local(_I32) for _ in range(3)]
        self._lanes = [function.local(_I32) for _ in range(_LANES)]
        self._mask, self._vector = (function.local(ValueType.V128) for _ in range(2))

    def emit(self) -> None:
        """The function's body."""
        f = self._function
        for base in (self._image, self._out):
            f.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
        for distance in (self._row_step, self._column_step, *self._strides):
            f.get(distance).i32(2).emit("i32.shl").set(distance)
        f.get(self._tile_columns).i32(2).emit("i32.shl").tee(self._tile_step)
        for extent in self._patch:
            f.get(extent).emit("i32.mul")
        f.set(self._tile_bytes)
        f.get(self._first).get(self._tile_columns).emit("i32.mul").set(self._number)
        with f.block() as over, f.loop() as next_tile:
            f.get(self._tiles).emit("i32.eqz").br_if(over)
            f.i32(0).set(self._group)
            with f.loop() as next_group:
                f.get(self._out).get(self._group).i32(2).emit("i32.shl").emit("i32.add").set(self._target)
                self._find_lanes()
                self._walk()
                f.get(self._number).i32(_LANES).emit("i32.add").set(self._number)
                f.get(self._group).i32(_LANES).emit("i32.add").tee(self._group)
                f.get(self._tile_columns).emit("i32.lt_u").br_if(next_group)
            f.get(self._out).get(self._tile_bytes).emit("i32.add").set(self._out)
            f.get(self._tiles).i32(1).emit("i32.sub").set(self._tiles)
            f.br(next_tile)

    def _find_lanes(self) -> None:
        """Where the patches of four columns begin, and a mask of the columns that there are."""
        f = self._function
        f.i32(0).emit("i32x4.splat").set(self._mask)
        for lane, place in enumerate(self._lanes):
            f.get(self._number).i32(lane).emit("i32.add").set(self._column)
            # Columns behind the last read what the first one reads, and are masked.
            f.get(self._column).get(self._count).emit("i32.lt_u")
            with f.if_():
                f.get(self._mask).i32(-1).emit("i32x4.replace_lane", lane).set(self._mask)
                f.else_()
                f.i32(0).set(self._column)
            f.get(self._image)
            f.get(self._column).get(self._columns).emit("i32.div_u")
            f.get(self._row_step).emit("i32.mul").emit("i32.add")
            f.get(self._column).get(self._columns).emit("i32.rem_u")
            f.get(self._column_step).emit("i32.mul").emit("i32.add").set(place)

    def _walk(self) -> None:
        """All elements of the four patches; one load for each four where they are neighbours."""
        f = self._function
        first, *others = self._lanes
        f.i32(0)
        for lane, place in enumerate(others, 1):
            f.get(place).get(first).emit("i32.sub").i32(4 * lane).emit("i32.ne").emit("i32.or")
        with f.if_():
            self._elements(self._gather)
            f.else_()
            self._elements(self._load)

    def _elements(self, load: Callable[[], None]) -> None:
        f = self._function
        channels, rows, columns = zip(self._cursors, self._counters, self._patch, self._strides, strict=True)

        def nest(loops: list[tuple[int, int, int, int]], origin: int | None) -> None:
            cursor, counter, extent, stride = loops[0]
            if origin is None:
                f.i32(0).set(cursor)
            else:
                f.get(origin).set(cursor)
            f.get(extent).set(counter)
            with f.loop() as again:
                if loops[1:]:
                    nest(loops[1:], cursor)
                else:
                    f.get(self._target)
                    load()
                    f.get(self._mask).emit("v128.and").emit("v128.store", align=0)
                    f.get(self._target).get(self._tile_step).emit("i32.add").set(self._target)
                f.get(cursor).get(stride).emit("i32.add").set(cursor)
                f.get(counter).i32(-1).emit("i32.add").tee(counter).br_if(again)

        nest([channels, rows, columns], None)

    def _load(self) -> None:
        """Four neighbours."""
        f = self._function
        f.get(self._lanes[0]).get(self._cursors[-1]).emit("i32.add").emit("v128.load", align=0)

    def _gather(self) -> None:
        """Four elements from anywhere."""
        f = self._function
        for lane, place in enumerate(self._lanes):
            f.get(place).get(self._cursors[-1]).emit("i32.add")
            if lane == 0:
                f.emit("v128.load32_zero", align=0)
            else:
                f.get(self._vector).emit("v128.load32_lane", lane, align=0)
            f.set(self._vector)
        f.get(self._vector)
