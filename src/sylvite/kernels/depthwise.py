"""``sylvite_depthwise_f32``: depthwise convolutions of planes, four columns of several rows at a time.

Every result is the sum over the filter's rows and columns in order, from 0: the order of the compiler's
loops, whose code is scalar where a row steps by more than one element.
"""

from __future__ import annotations

import dataclasses

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType
from .vector_math import Push, multiply_add, new_vectors

__all__ = ["DEPTHWISE_NAME", "DEPTHWISE_PARAMETERS", "MOST_FILTER_COLUMNS", "emit_depthwise"]

_I32, _V128 = ValueType.I32, ValueType.V128

DEPTHWISE_NAME = "sylvite_depthwise_f32"

DEPTHWISE_PARAMETERS = (_I32,) * 19
"""image, offset, channel stride, row stride, filter, offset, channel stride, out, offset, channel stride, row
stride, channels, rows and columns of the result, filter rows, filter columns (up to `MOST_FILTER_COLUMNS`),
step along the columns, step along a row, zeros to write behind the rows of each channel. Strides in elements;
rows are dense, a filter is dense; all counts but the zeros are 1 at least. Nothing is read but what the
results depend on."""

MOST_FILTER_COLUMNS = 7

_LANES = 4
_ROW_BLOCKS = (4, 2, 1)

_BLOCK_PARAMETERS = (_I32,) * 10
"""image, its row stride, image rows between rows of the result, bytes between columns, filter, out, its row
stride, columns, filter rows, filter columns; strides in bytes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A function for ``rows`` rows of the result: ``lanes`` columns at a time, ``step`` elements apart."""

    rows: int
    lanes: int
    step: int
    relaxed: bool


def emit_depthwise(module: ModuleBuilder, *, relaxed: bool) -> FunctionBuilder:
    """Emit ``sylvite_depthwise_f32`` into ``module``, which has a memory.

    Args:
        module: gets the functions.
        relaxed: fuse multiplications and additions.
    """
    vectors = {
        step: [
            _emit_block(module, _Block(rows=rows, lanes=_LANES, step=step, relaxed=relaxed))
            for rows in _ROW_BLOCKS
        ]
        for step in (1, 2)
    }
    single = _emit_block(module, _Block(rows=1, lanes=1, step=0, relaxed=relaxed))
    function = module.function(DEPTHWISE_NAME, DEPTHWISE_PARAMETERS, [], export=True)
    strides = (2, 3, 6, 9, 10, 17)
    for base in (0, 4, 7):
        function.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
    for stride in strides:
        function.get(stride).i32(2).emit("i32.shl").set(stride)
    # Bytes of the image between rows of the result.
    function.get(3).get(16).emit("i32.mul").set(16)
    image, out, rows = (function.local(_I32) for _ in range(3))

    def rows_by(count: int, block: FunctionBuilder) -> None:
        """Blocks of ``count`` rows, as long as there are so many."""
        with function.block() as done, function.loop() as again:
            function.get(rows).i32(count).emit("i32.lt_u").br_if(done)
            for argument in (image, 3, 16, 17, 4, out, 10, 13, 14, 15):
                function.get(argument)
            function.call(block)
            for cursor, stride in ((image, 16), (out, 10)):
                function.get(cursor).get(stride).i32(count).emit("i32.mul").emit("i32.add").set(cursor)
            function.get(rows).i32(-count).emit("i32.add").set(rows)
            function.br(again)

    def has_vectors(step: int) -> None:
        function.get(13).i32(_LANES).emit("i32.ge_u")
        function.get(17).i32(4 * step).emit("i32.eq").emit("i32.and")

    with function.loop() as next_channel:
        function.get(0).set(image).get(7).set(out).get(12).set(rows)
        for step, blocks in vectors.items():
            has_vectors(step)
            with function.if_():
                for count, block in zip(_ROW_BLOCKS, blocks, strict=True):
                    rows_by(count, block)
        rows_by(1, single)
        function.get(out).i32(0).get(18).i32(2).emit("i32.shl").emit("memory.fill")
        for cursor, stride in ((0, 2), (4, 6), (7, 9)):
            function.get(cursor).get(stride).emit("i32.add").set(cursor)
        function.get(11).i32(-1).emit("i32.add").tee(11).br_if(next_channel)
    return function


def _emit_block(module: ModuleBuilder, block: _Block) -> FunctionBuilder:
    """All columns of some rows; the last vector overlaps the one before where the columns do not divide."""
    name = f"depthwise_{block.rows}x{block.lanes}_{block.step}"
    function = module.function(name, _BLOCK_PARAMETERS, [])
    image, row_stride, result_step, column_step, taps, out, out_stride, columns, height, width = range(10)
    cursors = [function.local(_I32) for _ in range(block.rows)]
    sums = new_vectors(function, block.rows)
    column, tap, rows_left, columns_left, here = (function.local(_I32) for _ in range(5))
    locals_ = _Locals(cursors=cursors, sums=sums, tap=tap, factor=new_vectors(function, 1)[0])
    function.get(columns).i32(-block.lanes).emit("i32.add").set(columns)
    with function.loop() as next_columns:
        function.get(taps).set(tap).get(height).set(rows_left)
        function.get(image).get(column).get(column_step).emit("i32.mul").emit("i32.add").set(here)
        for index, (cursor, total) in enumerate(zip(cursors, sums, strict=True)):
            function.get(here).get(result_step).i32(index).emit("i32.mul").emit("i32.add").set(cursor)
            function.i32(0).emit("i32x4.splat").set(total)
        with function.loop() as next_row:
            function.get(width).set(columns_left)
            with function.block() as row_done:
                for number in range(MOST_FILTER_COLUMNS):
                    # A way out after each tap keeps the engine from moving all loads to the front.
                    _emit_tap(function, block, locals_, number)
                    function.get(columns_left).i32(-1).emit("i32.add").tee(columns_left)
                    function.emit("i32.eqz").br_if(row_done)
            function.get(tap).get(width).i32(2).emit("i32.shl").emit("i32.add").set(tap)
            for cursor in cursors:
                function.get(cursor).get(row_stride).emit("i32.add").set(cursor)
            function.get(rows_left).i32(-1).emit("i32.add").tee(rows_left).br_if(next_row)
        function.get(out).get(column).i32(2).emit("i32.shl").emit("i32.add").set(here)
        for total in sums:
            function.get(here).get(total)
            if block.lanes == 1:
                function.emit("v128.store32_lane", 0, align=0)
            else:
                function.emit("v128.store", align=0)
            function.get(here).get(out_stride).emit("i32.add").set(here)
        _next_columns(function, column, columns, block.lanes)
        function.br_if(next_columns)
    return function


def _next_columns(function: FunctionBuilder, column: int, last: int, lanes: int) -> None:
    """Push whether there are more columns, having moved to them: ``column = min(column + lanes, last)``."""
    before = function.local(_I32)
    function.get(column).set(before)
    function.get(column).i32(lanes).emit("i32.add").tee(column).get(last)
    function.get(column).get(last).emit("i32.lt_s").emit("select").set(column)
    function.get(before).get(last).emit("i32.lt_s")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Locals:
    cursors: list[int]
    sums: list[int]
    tap: int
    factor: int


def _emit_tap(function: FunctionBuilder, block: _Block, variables: _Locals, number: int) -> None:
    """One column of the filter for all rows."""
    function.get(variables.tap).emit("f32.load", offset=4 * number).emit("f32x4.splat").set(variables.factor)
    for cursor, total in zip(variables.cursors, variables.sums, strict=True):
        # The loaded factor comes first, since fused operations overwrite it.
        multiply_add(
            function,
            _elements(function, block, cursor, 4 * number),
            _local(function, variables.factor),
            _local(function, total),
            relaxed=block.relaxed,
        ).set(total)


def _local(function: FunctionBuilder, index: int) -> Push:
    return lambda: function.get(index)


def _elements(function: FunctionBuilder, block: _Block, cursor: int, offset: int) -> Push:
    """Pushes the elements of a row that a tap multiplies."""

    def push() -> None:
        function.get(cursor)
        if block.lanes == 1:
            function.emit("v128.load32_zero", offset=offset, align=0)
        else:
            function.emit("v128.load", offset=offset, align=0)
        if block.step == 2:
            # Elements 0, 2 of the first vector, and 4, 6 from one that ends there.
            function.get(cursor).emit("v128.load", offset=offset + 12, align=0)
            function.emit("i8x16.shuffle", *(4 * lane + byte for lane in (0, 2, 5, 7) for byte in range(4)))

    return push
