"""``sylvite_winograd_image_f32`` and ``sylvite_winograd_product_f32``: 3x3 convolutions by F(2x2, 3x3).

A tile of 2x2 results depends on 4x4 of the image. Sums of these, and of the filter's taps, turn the 36
multiplications of a tile and channel into 16: one product of matrices for each of 16 points, filters by
channels times channels by tiles. The results are sums of the points' products.

The image's side is computed once, into the buffer that would hold its patches (see `patches`), of which it
takes less than half: ``[row of tiles][block of 4 tiles][point][channel][4]``. The filters' side is computed
by each call from the filters as a product packs them, eight at a time, and stays on the guest's stack.
Results are in the tiles of a product of packed operands, so that what follows need not know.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType
from .gemm import Block, ElementKind, emit_block
from .vector_math import new_vectors

__all__ = [
    "WINOGRAD_IMAGE_NAME",
    "WINOGRAD_IMAGE_PARAMETERS",
    "WINOGRAD_PRODUCT_NAME",
    "WINOGRAD_PRODUCT_PARAMETERS",
    "emit_winograd",
]

_I32 = ValueType.I32

WINOGRAD_IMAGE_NAME = "sylvite_winograd_image_f32"

WINOGRAD_IMAGE_PARAMETERS = (_I32,) * 9
"""image, offset, channel stride, row stride, out, offset, out's stride (not used: dense), channels, columns
of the result (a multiple of 4). Strides in elements; the image begins at the first of the four rows that a
row of tiles depends on, and has two columns more than the result."""

WINOGRAD_PRODUCT_NAME = "sylvite_winograd_product_f32"

WINOGRAD_PRODUCT_PARAMETERS = (_I32,) * 14
"""filters, offset, panel stride, image's side, offset, stride of a row of tiles, out, offset, panel stride,
tile stride, panels, channels, rows of tiles, columns of the result. Strides in elements. Filters are packed
by eight: ``[panel][channel][3][3][8]``; the result is ``[panel][tile][8][4]``, four columns a tile, row by
row."""

_POINTS = 16
_VECTOR = 16
_PANEL = 8
_TILE_BYTES = _PANEL * _VECTOR
"""A tile of the result: eight filters by four columns."""


def emit_winograd(module: ModuleBuilder, stack_pointer: int, *, relaxed: bool) -> None:
    """Emit both functions into ``module``, which has a memory.

    Args:
        module: gets the functions.
        stack_pointer: global with the top of the guest's stack.
        relaxed: fuse multiplications and additions of the products.
    """
    _emit_image(module)
    filters, results = _emit_filters(module), _emit_results(module)
    wide, narrow = (
        emit_block(
            module,
            Block(
                kind=ElementKind.F32,
                rows=rows,
                tiles=tiles,
                panel_rows=_PANEL,
                tile_columns=4,
                relaxed=relaxed,
                unroll=16,
            ),
        )
        for rows, tiles in ((4, 2), (8, 1))
    )
    _Product(module, stack_pointer, filters, results, wide, narrow).emit()


def _shuffle(function: FunctionBuilder, first: int, second: int, *lanes: int) -> FunctionBuilder:
    """Push words of two vectors."""
    function.get(first).get(second)
    return function.emit("i8x16.shuffle", *(4 * lane + byte for lane in lanes for byte in range(4)))


def _combine(function: FunctionBuilder, operation: str, first: int, second: int) -> FunctionBuilder:
    return function.get(first).get(second).emit(f"f32x4.{operation}")


def _move(function: FunctionBuilder, cursor: int, distance: int) -> None:
    function.get(cursor).get(distance).emit("i32.add").set(cursor)


def _down(function: FunctionBuilder, counter: int) -> FunctionBuilder:
    """Push the counter, less one."""
    return function.get(counter).i32(-1).emit("i32.add").tee(counter)


_INPUT_POINTS = (("sub", 0, 2), ("add", 1, 2), ("sub", 2, 1), ("sub", 1, 3))
"""The image's points along one axis, by elements of a tile."""


def _emit_image(module: ModuleBuilder) -> None:
    """One row of tiles."""
    function = module.function(WINOGRAD_IMAGE_NAME, WINOGRAD_IMAGE_PARAMETERS, [], export=True)
    image, channel_stride, row_stride, out, channels, columns = 0, 2, 3, 4, 7, 8
    here, target, rest, point_step, block_step = (function.local(_I32) for _ in range(5))
    for base in (image, out):
        function.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
    for stride in (channel_stride, row_stride):
        function.get(stride).i32(2).emit("i32.shl").set(stride)
    function.get(channels).i32(_VECTOR).emit("i32.mul").tee(point_step)
    function.i32(_POINTS).emit("i32.mul").set(block_step)
    cursor = function.local(_I32)
    rows = [new_vectors(function, 3) for _ in range(4)]
    points = [new_vectors(function, 3) for _ in range(4)]

    def load(*, is_half: bool) -> None:
        """Ten columns of four rows, or the first six."""
        function.get(here).set(cursor)
        for row in rows:
            kinds = (
                ("v128.load", "v128.load64_zero")
                if is_half
                else ("v128.load", "v128.load", "v128.load64_zero")
            )
            for index, (vector, kind) in enumerate(zip(row, kinds, strict=False)):
                function.get(cursor).emit(kind, offset=_VECTOR * index, align=0).set(vector)
            if is_half:
                function.i32(0).emit("i32x4.splat").set(row[2])
            _move(function, cursor, row_stride)

    def transform() -> None:
        for point, (operation, first, second) in zip(points, _INPUT_POINTS, strict=True):
            for vector, one, other in zip(point, rows[first], rows[second], strict=True):
                _combine(function, operation, one, other).set(vector)
        even, odd, even2, odd2 = (row[0] for row in rows)
        function.get(target).set(cursor)
        for low, middle, high in points:
            _shuffle(function, low, middle, 0, 2, 4, 6).set(even)
            _shuffle(function, low, middle, 1, 3, 5, 7).set(odd)
            _shuffle(function, even, high, 1, 2, 3, 4).set(even2)
            _shuffle(function, odd, high, 1, 2, 3, 5).set(odd2)
            elements = (even, odd, even2, odd2)
            for operation, first, second in _INPUT_POINTS:
                function.get(cursor)
                _combine(function, operation, elements[first], elements[second]).emit("v128.store", align=0)
                _move(function, cursor, point_step)

    def all_channels(*, is_half: bool) -> None:
        """A block of tiles. Channels are inside, so that what is written lies in the first-level cache."""
        function.get(image).set(here).get(out).set(target).get(channels).set(rest)
        with function.loop() as next_channel:
            load(is_half=is_half)
            transform()
            _move(function, here, channel_stride)
            function.get(target).i32(_VECTOR).emit("i32.add").set(target)
            _down(function, rest).br_if(next_channel)

    with function.block() as no_block, function.loop() as next_block:
        function.get(columns).i32(8).emit("i32.lt_s").br_if(no_block)
        all_channels(is_half=False)
        function.get(image).i32(32).emit("i32.add").set(image)
        _move(function, out, block_step)
        function.get(columns).i32(-8).emit("i32.add").set(columns)
        function.br(next_block)
    function.get(columns)
    with function.if_():
        all_channels(is_half=True)


def _emit_filters(module: ModuleBuilder) -> FunctionBuilder:
    """``(filters, out, channels)``: points of eight filters, ``[channel][3][3][8]`` to
    ``[point][channel][8]``."""
    function = module.function("winograd_filters", (_I32,) * 3, [])
    filters, out, channels = range(3)
    step, cursor = function.local(_I32), function.local(_I32)
    taps = [new_vectors(function, 3) for _ in range(3)]
    points = [new_vectors(function, 3) for _ in range(4)]
    half, total = new_vectors(function, 2)

    def expand(elements: Sequence[int], store: Callable[[int, Callable[[], object]], object]) -> None:
        """Four points of three taps: the first, half of the sum with and without sign, the last."""
        first, middle, last = elements
        store(0, lambda: function.get(first))
        _combine(function, "add", first, last).set(total)
        for point, operation in ((1, "add"), (2, "sub")):
            store(
                point,
                lambda operation=operation: (
                    _combine(function, operation, total, middle)  # type: ignore[misc]
                    .get(half)
                    .emit("f32x4.mul")
                ),
            )
        store(3, lambda: function.get(last))

    def keep(column: int) -> Callable[[int, Callable[[], object]], object]:
        def store(point: int, push: Callable[[], object]) -> object:
            push()
            return function.set(points[point][column])

        return store

    def write(_: int, push: Callable[[], object]) -> None:
        function.get(cursor)
        push()
        function.emit("v128.store", align=0)
        _move(function, cursor, step)

    function.f32(0.5).emit("f32x4.splat").set(half)
    function.get(channels).i32(_PANEL * 4).emit("i32.mul").set(step)
    with function.loop() as next_channel:
        for offset in range(0, _PANEL * 4, _VECTOR):
            for row, vectors in enumerate(taps):
                for column, tap in enumerate(vectors):
                    place = (3 * row + column) * _PANEL * 4 + offset
                    function.get(filters).emit("v128.load", offset=place, align=0).set(tap)
            for column in range(3):
                expand([row[column] for row in taps], keep(column))
            function.get(out).i32(offset).emit("i32.add").set(cursor)
            for point in points:
                expand(point, write)
        function.get(filters).i32(9 * _PANEL * 4).emit("i32.add").set(filters)
        function.get(out).i32(_PANEL * 4).emit("i32.add").set(out)
        _down(function, channels).br_if(next_channel)
    return function


def _emit_results(module: ModuleBuilder) -> FunctionBuilder:
    """``(products, out, tile stride, row bytes, is half)``: 2x8 results of eight filters, of 4 tiles.

    Products of a point are ``2 * _TILE_BYTES`` from those of the next.
    """
    function = module.function("winograd_results", (_I32,) * 5, [])
    products, out, tile_stride, row_bytes, is_half = range(5)
    left, below = function.local(_I32), function.local(_I32)
    sums = [new_vectors(function, 4) for _ in range(2)]
    m = new_vectors(function, 4)
    low, high = new_vectors(function, 2)

    def reduce(elements: Sequence[int], results: Sequence[int]) -> None:
        """The two results of four points along one axis."""
        first, second, third, fourth = elements
        _combine(function, "add", first, second).get(third).emit("f32x4.add").set(results[0])
        _combine(function, "sub", second, third).get(fourth).emit("f32x4.sub").set(results[1])

    function.i32(_PANEL).set(left)
    with function.loop() as next_filter:
        for column in range(4):
            for row in range(4):
                offset = (4 * row + column) * 2 * _TILE_BYTES
                function.get(products).emit("v128.load", offset=offset, align=0).set(m[row])
            reduce(m, [row[column] for row in sums])
        function.get(out).get(row_bytes).emit("i32.add").set(below)
        for vectors, target in zip(sums, (out, below), strict=True):
            reduce(vectors, (low, high))
            function.get(target)
            _shuffle(function, low, high, 0, 4, 1, 5).emit("v128.store", align=0)
            function.get(is_half).emit("i32.eqz")
            with function.if_():
                function.get(target).get(tile_stride).emit("i32.add")
                _shuffle(function, low, high, 2, 6, 3, 7).emit("v128.store", align=0)
        for cursor in (products, out):
            function.get(cursor).i32(_VECTOR).emit("i32.add").set(cursor)
        _down(function, left).br_if(next_filter)
    return function


class _Product:
    """Emits ``sylvite_winograd_product_f32``."""

    def __init__(
        self,
        module: ModuleBuilder,
        stack_pointer: int,
        filters: FunctionBuilder,
        results: FunctionBuilder,
        wide: FunctionBuilder,
        narrow: FunctionBuilder,
    ) -> None:
        self._function = module.function(WINOGRAD_PRODUCT_NAME, WINOGRAD_PRODUCT_PARAMETERS, [], export=True)
        self._stack_pointer = stack_pointer
        self._filters, self._results = filters, results
        self._wide, self._narrow = wide, narrow
        local = self._function.local
        self._frame, self._points, self._products = local(_I32), local(_I32), local(_I32)
        self._right, self._target, self._rest, self._tile_rows = (local(_I32) for _ in range(4))
        self._point_step, self._block_step, self._row_bytes = (local(_I32) for _ in range(3))
        self._left, self._here, self._result, self._count = (local(_I32) for _ in range(4))
        self._image, self._out = local(_I32), local(_I32)

    def emit(self) -> None:
        """The function's body."""
        function = self._function
        filters, image, out = 0, 3, 6
        panel_stride, row_stride, out_stride, tile_stride = 2, 5, 8, 9
        panels, channels, rows, columns = 10, 11, 12, 13
        for base in (filters, image, out):
            function.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
        for stride in (panel_stride, row_stride, out_stride, tile_stride):
            function.get(stride).i32(2).emit("i32.shl").set(stride)
        function.get(channels).i32(_VECTOR).emit("i32.mul").tee(self._point_step)
        function.i32(_POINTS).emit("i32.mul").set(self._block_step)
        function.get(columns).i32(2).emit("i32.shr_u").get(tile_stride).emit("i32.mul").set(self._row_bytes)
        # The filters' points, then the products of up to eight tiles.
        function.get(channels).i32(_POINTS * _PANEL * 4).emit("i32.mul")
        function.i32(_POINTS * 2 * _TILE_BYTES).emit("i32.add").set(self._frame)
        function.emit("global.get", self._stack_pointer).get(self._frame).emit("i32.sub").tee(self._products)
        function.emit("global.set", self._stack_pointer)
        function.get(self._products).i32(_POINTS * 2 * _TILE_BYTES).emit("i32.add").set(self._points)
        with function.loop() as next_panel:
            function.get(filters).get(self._points).get(channels).call(self._filters)
            function.get(image).set(self._image).get(out).set(self._out).get(rows).set(self._tile_rows)
            with function.loop() as next_row:
                self._row(columns, channels, tile_stride)
                _move(function, self._image, row_stride)
                function.get(self._out).get(self._row_bytes).i32(1).emit("i32.shl").emit("i32.add").set(
                    self._out
                )
                _down(function, self._tile_rows).br_if(next_row)
            _move(function, filters, panel_stride)
            _move(function, out, out_stride)
            _down(function, panels).br_if(next_panel)
        function.emit("global.get", self._stack_pointer).get(self._frame).emit("i32.add")
        function.emit("global.set", self._stack_pointer)

    def _row(self, columns: int, channels: int, tile_stride: int) -> None:
        """A row of tiles: two blocks of four at a time, then one, then half of one."""
        function = self._function
        function.get(self._image).set(self._right).get(self._out).set(self._target)
        function.get(columns).set(self._rest)
        for blocks, kernel, calls in ((2, self._wide, (0, 4)), (1, self._narrow, (0,))):
            with function.block() as too_few, function.loop() as again:
                # The last block may be half of one.
                function.get(self._rest).i32(8 * blocks - 4).emit("i32.lt_s").br_if(too_few)
                self._products_of(kernel, calls, channels)
                for block in range(blocks):
                    function.get(self._products).i32(block * _TILE_BYTES).emit("i32.add")
                    function.get(self._target).get(tile_stride).get(self._row_bytes)
                    function.get(self._rest).i32(8).emit("i32.lt_s").call(self._results)
                    function.get(self._target).get(tile_stride).i32(1).emit("i32.shl").emit("i32.add")
                    function.set(self._target)
                    function.get(self._rest).i32(-8).emit("i32.add").set(self._rest)
                function.get(self._right).get(self._block_step).i32(blocks).emit("i32.mul").emit("i32.add")
                function.set(self._right)
                function.br(again)

    def _products_of(self, kernel: FunctionBuilder, first_rows: Sequence[int], channels: int) -> None:
        """The products of all points for some blocks of tiles."""
        function = self._function
        function.get(self._points).set(self._left).get(self._right).set(self._here)
        function.get(self._products).set(self._result).i32(_POINTS).set(self._count)
        with function.loop() as next_point:
            for row in first_rows:
                function.get(self._left).i32(4 * row).emit("i32.add")
                function.get(self._here).get(self._block_step)
                function.get(self._result).i32(_VECTOR * row).emit("i32.add")
                function.get(channels).i32(0).call(kernel)
            function.get(self._left).get(self._point_step).i32(1).emit("i32.shl").emit("i32.add").set(
                self._left
            )
            _move(function, self._here, self._point_step)
            function.get(self._result).i32(2 * _TILE_BYTES).emit("i32.add").set(self._result)
            _down(function, self._count).br_if(next_point)
