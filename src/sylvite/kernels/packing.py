"""``iree_uk_pack`` and ``iree_uk_unpack``: between plain matrices and tiles.

Both walk tiles; the element (i, j) of tile (p, q) stands at ``p*P + q*Q + i*T + j*U`` of the tiled side,
whatever was transposed. The usual shapes have loops of their own: tiles a column wide (four rows are
transposed in registers), and tiles whose rows are whole vectors.

Source: the signatures and flags of IREE's microkernel library (``exported_bits.h``, ``pack.h``,
``unpack.h``), version 3.13.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType

__all__ = ["PACK_PARAMETERS", "UNPACK_PARAMETERS", "emit_pack", "emit_unpack"]

_I32, _I64, _V128 = ValueType.I32, ValueType.I64, ValueType.V128

PACK_PARAMETERS = (_I32,) * 14 + (_I64, _I32, _I32)
"""in, offset, stride0, stride1, out, offset, stride0, stride1, in sizes (2), out sizes (4), padding, flags,
cpu data; strides in elements."""

UNPACK_PARAMETERS = (_I32,) * 16
"""in, offset, stride0, stride1, out, offset, stride0, stride1, in sizes (4), out sizes (2), flags, cpu
data."""

_TYPE_MASK = 0xFF
_TRANSPOSE_INNER = 0x100
_TRANSPOSE_OUTER = 0x200
_SIZES = {1: 4, 2: 1, 3: 4, 4: 2, 5: 2}
"""Bytes of an element by the type in the flags: f32, i8, i32, f16, bf16."""

_LOADS = {1: "i32.load8_u", 2: "i32.load16_u", 4: "i32.load"}
_STORES = {1: "i32.store8", 2: "i32.store16", 4: "i32.store"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Locals of a walk over tiles. Sizes are counts; steps are in bytes."""

    tiled: int
    plain: int
    outer0: int
    outer1: int
    tile0: int
    tile1: int
    outer_step0: int
    outer_step1: int
    inner_step0: int
    inner_step1: int
    plain_step0: int
    plain_step1: int
    extent0: int
    extent1: int
    padding: int


_WALK_TYPES = (_I32,) * 14 + (_I64,)


def emit_pack(module: ModuleBuilder) -> FunctionBuilder:
    """Emit ``iree_uk_pack`` into ``module``, which has a memory."""
    walks = {size: _emit_walk(module, size, is_pack=True) for size in (1, 2, 4)}
    entry = module.function("iree_uk_pack", PACK_PARAMETERS, [_I32], export=True)
    _emit_entry(
        entry,
        walks,
        plain=(0, 1, 2, 3),
        tiled=(4, 5, 6, 7),
        extents=(8, 9),
        tiles=(10, 11, 12, 13),
        padding=14,
        flags=15,
    )
    return entry


def emit_unpack(module: ModuleBuilder) -> FunctionBuilder:
    """Emit ``iree_uk_unpack`` into ``module``, which has a memory."""
    walks = {size: _emit_walk(module, size, is_pack=False) for size in (1, 2, 4)}
    entry = module.function("iree_uk_unpack", UNPACK_PARAMETERS, [_I32], export=True)
    _emit_entry(
        entry,
        walks,
        plain=(4, 5, 6, 7),
        tiled=(0, 1, 2, 3),
        extents=(12, 13),
        tiles=(8, 9, 10, 11),
        padding=None,
        flags=14,
    )
    return entry


def _emit_entry(
    entry: FunctionBuilder,
    walks: dict[int, FunctionBuilder],
    *,
    plain: tuple[int, int, int, int],
    tiled: tuple[int, int, int, int],
    extents: tuple[int, int],
    tiles: tuple[int, int, int, int],
    padding: int | None,
    flags: int,
) -> None:
    """Choose the walk by the element's size, and undo the transpositions."""
    kind = entry.local(_I32)
    entry.get(flags).i32(_TYPE_MASK).emit("i32.and").set(kind)
    for size, walk in walks.items():
        entry.i32(0)
        for type_flag, its_size in _SIZES.items():
            if its_size == size:
                entry.get(kind).i32(type_flag).emit("i32.eq").emit("i32.or")
        with entry.if_():
            for base in (tiled, plain):
                entry.get(base[0]).get(base[1]).i32(size).emit("i32.mul").emit("i32.add")
            outer, inner = tiles[:2], tiles[2:]
            for pair, flag in ((outer, _TRANSPOSE_OUTER), (inner, _TRANSPOSE_INNER)):
                for first, second in (pair, pair[::-1]):
                    entry.get(second).get(first)
                    entry.get(flags).i32(flag).emit("i32.and").emit("select")
            strides = tiled[2:]
            for first, second in (strides, strides[::-1]):
                entry.get(second).get(first)
                entry.get(flags).i32(_TRANSPOSE_OUTER).emit("i32.and").emit("select")
                entry.i32(size).emit("i32.mul")
            # Steps inside a tile, which is dense: its last stored dimension has step 1.
            entry.i32(1).get(inner[1]).get(flags).i32(_TRANSPOSE_INNER).emit("i32.and").emit("select")
            entry.i32(size).emit("i32.mul")
            entry.get(inner[1]).i32(1).get(flags).i32(_TRANSPOSE_INNER).emit("i32.and").emit("select")
            entry.i32(size).emit("i32.mul")
            for stride in plain[2:]:
                entry.get(stride).i32(size).emit("i32.mul")
            entry.get(extents[0]).get(extents[1])
            if padding is None:
                entry.i64(0)
            else:
                entry.get(padding)
            entry.call(walk).i32(0).emit("return")
    # The caller does not look at a result: element types nobody handles must not pass for a copy.
    entry.emit("unreachable")


def _emit_walk(module: ModuleBuilder, size: int, *, is_pack: bool) -> FunctionBuilder:
    """The loops over tiles for elements of ``size`` bytes."""
    name = f"{'pack' if is_pack else 'unpack'}_{8 * size}"
    function = module.function(name, _WALK_TYPES, [])
    walk = _Walk(**{field.name: i for i, field in enumerate(dataclasses.fields(_Walk))})
    tile0, tile1, row0, row1 = (function.local(_I32) for _ in range(4))
    tiled, plain = function.local(_I32), function.local(_I32)
    rows, columns = function.local(_I32), function.local(_I32)

    def tile() -> None:
        for index, extent, width, first, valid in (
            (tile0, walk.extent0, walk.tile0, row0, rows),
            (tile1, walk.extent1, walk.tile1, row1, columns),
        ):
            function.get(index).get(width).emit("i32.mul").set(first)
            _minimum_of_rest(function, extent, first, width, valid)
        _address(function, walk.tiled, ((tile0, walk.outer_step0), (tile1, walk.outer_step1)), tiled)
        _address(function, walk.plain, ((row0, walk.plain_step0), (row1, walk.plain_step1)), plain)
        cursor = _Cursor(tiled=tiled, plain=plain, rows=rows, columns=columns, column=row1)
        _emit_tile(function, walk, cursor, size, is_pack=is_pack)

    if size == 4 and is_pack:
        _emit_column_tiles(function, walk)
    if size == 4:
        _emit_vector_rows(function, walk, is_pack=is_pack)
    _repeat(function, tile0, walk.outer0, lambda: _repeat(function, tile1, walk.outer1, tile))
    return function


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """Locals for one tile: where it is on both sides, and how much of it is inside the matrix."""

    tiled: int
    plain: int
    rows: int
    columns: int
    column: int


def _minimum_of_rest(function: FunctionBuilder, extent: int, first: int, width: int, result: int) -> None:
    """``result = clamp(extent - first, 0, width)``."""
    function.get(extent).get(first).emit("i32.sub").tee(result).get(width).get(result).get(width)
    function.emit("i32.lt_s").emit("select").tee(result).i32(0).get(result).i32(0)
    function.emit("i32.gt_s").emit("select").set(result)


def _address(function: FunctionBuilder, base: int, terms: tuple[tuple[int, int], ...], result: int) -> None:
    function.get(base)
    for index, step in terms:
        function.get(index).get(step).emit("i32.mul").emit("i32.add")
    function.set(result)


def _repeat(function: FunctionBuilder, index: int, count: int, body: Callable[[], None]) -> None:
    """``for index in range(count)``."""
    function.i32(0).set(index)
    with function.block() as done, function.loop() as again:
        function.get(index).get(count).emit("i32.ge_s").br_if(done)
        body()
        function.get(index).i32(1).emit("i32.add").set(index)
        function.br(again)


def _emit_tile(function: FunctionBuilder, walk: _Walk, cursor: _Cursor, size: int, *, is_pack: bool) -> None:
    """One tile, row by row; rows of whole vectors that are dense on both sides a vector at a time."""
    i, j = function.local(_I32), function.local(_I32)
    tiled, plain = function.local(_I32), function.local(_I32)
    here_tiled, here_plain = function.local(_I32), function.local(_I32)
    source, target = (here_plain, here_tiled) if is_pack else (here_tiled, here_plain)
    limit_rows = walk.tile0 if is_pack else cursor.rows
    limit_columns = walk.tile1 if is_pack else cursor.columns
    lanes = 16 // size

    def element() -> None:
        _address(function, tiled, ((j, walk.inner_step1),), here_tiled)
        _address(function, plain, ((j, walk.plain_step1),), here_plain)
        if is_pack:
            function.get(i).get(cursor.rows).emit("i32.lt_s")
            function.get(j).get(cursor.columns).emit("i32.lt_s").emit("i32.and")
            with function.if_():
                function.get(target).get(source).emit(_LOADS[size]).emit(_STORES[size])
                function.else_()
                function.get(target).get(walk.padding).emit("i32.wrap_i64").emit(_STORES[size])
        else:
            function.get(target).get(source).emit(_LOADS[size]).emit(_STORES[size])

    def row() -> None:
        _address(function, cursor.tiled, ((i, walk.inner_step0),), tiled)
        _address(function, cursor.plain, ((i, walk.plain_step0),), plain)
        with function.block() as done:
            with function.block() as scalar:
                function.get(walk.inner_step1).i32(size).emit("i32.ne").br_if(scalar)
                function.get(walk.plain_step1).i32(size).emit("i32.ne").br_if(scalar)
                function.get(cursor.columns).get(walk.tile1).emit("i32.ne").br_if(scalar)
                function.get(walk.tile1).i32(lanes - 1).emit("i32.and").br_if(scalar)
                function.get(i).get(cursor.rows).emit("i32.ge_s").br_if(scalar)
                function.i32(0).set(j)
                with function.loop() as again:
                    function.get(j).get(walk.tile1).emit("i32.ge_s").br_if(done)
                    for side, base in ((here_tiled, tiled), (here_plain, plain)):
                        function.get(base).get(j).i32(size).emit("i32.mul").emit("i32.add").set(side)
                    function.get(target).get(source).emit("v128.load", align=0)
                    function.emit("v128.store", align=0)
                    function.get(j).i32(lanes).emit("i32.add").set(j)
                    function.br(again)
            _repeat(function, j, limit_columns, element)

    _repeat(function, i, limit_rows, row)


def _emit_vector_rows(function: FunctionBuilder, walk: _Walk, *, is_pack: bool) -> None:
    """Whole tiles of rows of four 32-bit elements, dense on both sides, along the rows of the matrix.

    Does everything and returns, or nothing.
    """
    tile0, tile1, row = (function.local(_I32) for _ in range(3))
    tiled, plain = function.local(_I32), function.local(_I32)
    source, target = (plain, tiled) if is_pack else (tiled, plain)
    with function.block() as unfit:
        for local, value in ((walk.tile1, 4), (walk.inner_step1, 4), (walk.plain_step1, 4)):
            function.get(local).i32(value).emit("i32.ne").br_if(unfit)
        for outer, tile, extent in (
            (walk.outer0, walk.tile0, walk.extent0),
            (walk.outer1, walk.tile1, walk.extent1),
        ):
            function.get(outer).get(tile).emit("i32.mul").get(extent).emit("i32.ne").br_if(unfit)

        def copy() -> None:
            function.get(target).get(source).emit("v128.load", align=0).emit("v128.store", align=0)
            function.get(tiled).get(walk.outer_step1).emit("i32.add").set(tiled)
            function.get(plain).i32(16).emit("i32.add").set(plain)

        def one_row() -> None:
            function.get(tile0).get(walk.outer_step0).emit("i32.mul").get(walk.tiled).emit("i32.add")
            function.get(row).get(walk.inner_step0).emit("i32.mul").emit("i32.add").set(tiled)
            function.get(tile0).get(walk.tile0).emit("i32.mul").get(row).emit("i32.add")
            function.get(walk.plain_step0).emit("i32.mul").get(walk.plain).emit("i32.add").set(plain)
            _repeat(function, tile1, walk.outer1, copy)

        _repeat(function, tile0, walk.outer0, lambda: _repeat(function, row, walk.tile0, one_row))
        function.emit("return")


def _emit_column_tiles(function: FunctionBuilder, walk: _Walk) -> None:
    """Pack into tiles of one column and a multiple of four rows, for 32-bit elements of dense matrix rows.

    Takes whole groups of four columns of whole tiles off the walk's extents only when it can do
    everything; else it does nothing.
    """
    tile0, row, column = (function.local(_I32) for _ in range(3))
    target, source = function.local(_I32), function.local(_I32)
    vectors = [function.local(_V128) for _ in range(4)]
    pairs = [function.local(_V128) for _ in range(4)]
    sources = [source] + [function.local(_I32) for _ in range(3)]
    with function.block() as unfit:
        function.get(walk.tile1).i32(1).emit("i32.ne").br_if(unfit)
        function.get(walk.tile0).i32(3).emit("i32.and").br_if(unfit)
        function.get(walk.inner_step0).i32(4).emit("i32.ne").br_if(unfit)
        function.get(walk.plain_step1).i32(4).emit("i32.ne").br_if(unfit)
        function.get(walk.outer1).i32(3).emit("i32.and").br_if(unfit)
        function.get(walk.outer1).get(walk.extent1).emit("i32.ne").br_if(unfit)
        function.get(walk.outer0).get(walk.tile0).emit("i32.mul").get(walk.extent0)
        function.emit("i32.ne").br_if(unfit)

        def four_rows() -> None:
            function.get(tile0).get(walk.outer_step0).emit("i32.mul").get(walk.tiled).emit("i32.add")
            function.get(row).i32(4).emit("i32.mul").emit("i32.add").set(target)
            function.get(tile0).get(walk.tile0).emit("i32.mul").get(row).emit("i32.add")
            function.get(walk.plain_step0).emit("i32.mul").get(walk.plain).emit("i32.add").set(source)
            for previous, following in itertools.pairwise(sources):
                function.get(previous).get(walk.plain_step0).emit("i32.add").set(following)
            _repeat_by(function, column, walk.outer1, 4, transpose)

        def transpose() -> None:
            for address, vector in zip(sources, vectors, strict=True):
                function.get(address).emit("v128.load", align=0).set(vector)
                function.get(address).i32(16).emit("i32.add").set(address)
            _transpose(function, vectors, pairs)
            for vector in vectors:
                function.get(target).get(vector).emit("v128.store", align=0)
                function.get(target).get(walk.outer_step1).emit("i32.add").set(target)

        _repeat(function, tile0, walk.outer0, lambda: _repeat_by(function, row, walk.tile0, 4, four_rows))
        function.emit("return")


def _repeat_by(
    function: FunctionBuilder, index: int, count: int, step: int, body: Callable[[], None]
) -> None:
    """``for index in range(0, count, step)``."""
    function.i32(0).set(index)
    with function.block() as done, function.loop() as again:
        function.get(index).get(count).emit("i32.ge_s").br_if(done)
        body()
        function.get(index).i32(step).emit("i32.add").set(index)
        function.br(again)


def _words(*lanes: int) -> list[int]:
    return [4 * lane + byte for lane in lanes for byte in range(4)]


def _transpose(function: FunctionBuilder, rows: list[int], pairs: list[int]) -> None:
    """Transpose four vectors of four words in place."""
    for number, (first, second, lanes) in enumerate(
        ((0, 1, (0, 4, 1, 5)), (0, 1, (2, 6, 3, 7)), (2, 3, (0, 4, 1, 5)), (2, 3, (2, 6, 3, 7)))
    ):
        function.get(rows[first]).get(rows[second]).emit("i8x16.shuffle", *_words(*lanes)).set(pairs[number])
    for number, (first, second, lanes) in enumerate(
        ((0, 2, (0, 1, 4, 5)), (0, 2, (2, 3, 6, 7)), (1, 3, (0, 1, 4, 5)), (1, 3, (2, 3, 6, 7)))
    ):
        function.get(pairs[first]).get(pairs[second]).emit("i8x16.shuffle", *_words(*lanes)).set(rows[number])
