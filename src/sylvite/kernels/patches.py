"""``sylvite_patches_f32``: patches of an image as packed columns of a matrix product.

A convolution becomes a product of its filters with patches of the image, and a product wants its right side
in tiles of four columns: ``[block of 4][channel][filter row][filter column][4]``. With a stride of 1 such a
tile is four neighbours of the image, one vector. Compiled code copies elements one by one, twice.
"""

from __future__ import annotations

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType

__all__ = ["PATCHES_NAME", "PATCHES_PARAMETERS", "PATCH_TILE", "emit_patches"]

_I32 = ValueType.I32

PATCHES_NAME = "sylvite_patches_f32"

PATCHES_PARAMETERS = (_I32,) * 12
"""image, offset, channel stride, row stride, out, offset, out's stride (not used: dense), blocks, channels,
filter height, filter width (all 1 at least), stride along a row. Strides in elements; the image begins at the
first row that the patches touch."""

PATCH_TILE = 4
"""Columns of a tile."""


def emit_patches(module: ModuleBuilder) -> FunctionBuilder:
    """Emit ``sylvite_patches_f32`` into ``module``, which has a memory."""
    function = module.function(PATCHES_NAME, PATCHES_PARAMETERS, [], export=True)
    image, channel_stride, row_stride, target = 0, 2, 3, 4
    blocks, channels, height, width, stride = 7, 8, 9, 10, 11
    channel, row, here = (function.local(_I32) for _ in range(3))
    channel_count, row_count, column_count = (function.local(_I32) for _ in range(3))
    tile = function.local(ValueType.V128)
    for base in (image, target):
        function.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
    for distance in (channel_stride, row_stride, stride):
        function.get(distance).i32(2).emit("i32.shl").set(distance)

    def count_down(counter: int) -> FunctionBuilder:
        return function.get(counter).i32(-1).emit("i32.add").tee(counter)

    def step(cursor: int, distance: int) -> None:
        function.get(cursor).get(distance).emit("i32.add").set(cursor)

    cursor = function.local(_I32)

    def gather_tile() -> None:
        function.get(here).emit("v128.load32_zero", align=0).set(tile).get(here).set(cursor)
        for lane in range(1, PATCH_TILE):
            step(cursor, stride)
            function.get(cursor).get(tile).emit("v128.load32_lane", lane, align=0).set(tile)
        function.get(target).get(tile).emit("v128.store", align=0)

    def filter_row(*, is_dense: bool) -> None:
        function.get(width).set(column_count).get(row).set(here)
        with function.loop() as columns:
            if is_dense:
                function.get(target).get(here).emit("v128.load", align=0).emit("v128.store", align=0)
            else:
                gather_tile()
            function.get(target).i32(4 * PATCH_TILE).emit("i32.add").set(target)
            function.get(here).i32(4).emit("i32.add").set(here)
            count_down(column_count)
            function.br_if(columns)

    def walk(*, is_dense: bool) -> None:
        with function.loop() as next_block:
            function.get(channels).set(channel_count).get(image).set(channel)
            with function.loop() as next_channel:
                function.get(height).set(row_count).get(channel).set(row)
                with function.loop() as next_row:
                    filter_row(is_dense=is_dense)
                    step(row, row_stride)
                    count_down(row_count)
                    function.br_if(next_row)
                step(channel, channel_stride)
                count_down(channel_count)
                function.br_if(next_channel)
            function.get(image).get(stride).i32(2).emit("i32.shl").emit("i32.add").set(image)
            count_down(blocks)
            function.br_if(next_block)

    function.get(stride).i32(4).emit("i32.eq")
    with function.if_():
        walk(is_dense=True)
        function.emit("return")
    walk(is_dense=False)
    return function
