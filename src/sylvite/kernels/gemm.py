"""Microkernels: one block of a matrix product on packed operands, emitted instruction by instruction.

Written directly because a compiler hoists the loads and loses the address offsets, after which the engine
spills. Here every load stands next to its use with a constant offset, and the accumulators of a block fit
the sixteen vector registers of the smallest machine.

Operands are in the packed layout of ``linalg.mmt4d``: the left one ``[K1][M0][K0]`` for a panel of M0
rows, the right one ``[K1][N0][K0]``, the result ``[M0][N0]`` a tile.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType

__all__ = ["BLOCK_PARAMETERS", "Block", "ElementKind", "emit_block"]

_I32, _V128 = ValueType.I32, ValueType.V128
_LANES = 4
_VECTOR_BYTES = 16

BLOCK_PARAMETERS = (_I32,) * 6
"""``block(left, right, right_stride, result, steps, accumulate)``: addresses of the panel's first row, of the
first right tile and of the first result tile, bytes from a right tile to the next, steps of K0 along K (may
be 0), and whether the result is added to what is there."""


class ElementKind:
    """Element types of a product."""

    F32 = "f32"
    I8 = "i8"
    I16 = "i16"


_STEP_BYTES = {ElementKind.F32: 4, ElementKind.I8: 2, ElementKind.I16: 4}
"""Bytes of a row or column that a step along K takes; integers go in pairs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one microkernel computes: ``rows`` by ``tiles * tile_columns`` elements of the result.

    Args:
        kind: ``f32`` (K0 is 1); ``i8`` or ``i16``: signed integers into 32-bit sums (K0 is 2).
        rows: rows computed; divides ``panel_rows``.
        tiles: right tiles side by side.
        panel_rows: M0, rows of a packed left panel and of a result tile.
        tile_columns: N0, columns of a right tile; a multiple of 4.
        relaxed: fuse multiplication and addition, with one rounding where the machine does so.
        unroll: steps along K in the body of the loop.
    """

    kind: str
    rows: int
    tiles: int
    panel_rows: int
    tile_columns: int
    relaxed: bool
    unroll: int = 16

    @property
    def left_step(self) -> int:
        """Bytes of the left panel a step along K takes."""
        return self.panel_rows * _STEP_BYTES[self.kind]

    @property
    def right_step(self) -> int:
        """Bytes of a right tile a step along K takes."""
        return self.tile_columns * _STEP_BYTES[self.kind]

    @property
    def vectors(self) -> int:
        """Vectors in a row of a tile."""
        return self.tile_columns // _LANES

    @property
    def name(self) -> str:
        """Name of the function."""
        fused = "_fused" if self.relaxed else ""
        shape = f"{self.rows}of{self.panel_rows}x{self.tiles}x{self.tile_columns}"
        return f"block_{self.kind}_{shape}{fused}"


@dataclasses.dataclass(slots=True, kw_only=True)
class _Locals:
    left: int
    right: list[int]
    steps: int
    result: int
    accumulate: int
    sums: list[list[int]]
    columns: list[int]
    row: int
    group: int


def emit_block(module: ModuleBuilder, block: Block) -> FunctionBuilder:
    """Emit the microkernel of ``block`` into ``module``; its parameters are `BLOCK_PARAMETERS`."""
    function = module.function(block.name, BLOCK_PARAMETERS, [])
    variables = _declare(function, block)
    _start(function, block, variables)
    _loop(function, block, variables)
    for index, address, offset in _result_places(block, variables):
        function.get(address).get(index).emit("v128.store", offset=offset)
    return function


def _declare(function: FunctionBuilder, block: Block) -> _Locals:
    left, right, stride, result, steps, accumulate = range(6)
    rights = [right] + [function.local(_I32) for _ in range(block.tiles - 1)]
    for previous, following in itertools.pairwise(rights):
        function.get(previous).get(stride).emit("i32.add").set(following)
    count = block.tiles * block.vectors
    return _Locals(
        left=left,
        right=rights,
        steps=steps,
        result=result,
        accumulate=accumulate,
        sums=[[function.local(_V128) for _ in range(count)] for _ in range(block.rows)],
        columns=[function.local(_V128) for _ in range(count)],
        row=function.local(_V128),
        group=function.local(_V128),
    )


def _result_places(block: Block, variables: _Locals) -> list[tuple[int, int, int]]:
    """(local, address local, offset) of every vector of the result."""
    places = []
    row_bytes = block.vectors * _VECTOR_BYTES
    for row, sums in enumerate(variables.sums):
        for column, index in enumerate(sums):
            tile, vector = divmod(column, block.vectors)
            offset = (tile * block.panel_rows + row) * row_bytes + vector * _VECTOR_BYTES
            places.append((index, variables.result, offset))
    return places


def _start(function: FunctionBuilder, block: Block, variables: _Locals) -> None:
    # Locals start as zero, which is what a product that does not accumulate wants.
    function.get(variables.accumulate)
    with function.if_():
        for index, address, offset in _result_places(block, variables):
            function.get(address).emit("v128.load", offset=offset).set(index)


_Step = Callable[[FunctionBuilder, Block, _Locals, int], None]


def _loop(function: FunctionBuilder, block: Block, variables: _Locals) -> None:
    """All steps along K.

    The body holds many steps with a way out after each: engines keep pure arithmetic for the end of a
    basic block, behind all loads, so that without these ends the registers would not suffice.
    """
    step = _STEPS[block.kind]
    with function.block() as done:
        function.get(variables.steps).emit("i32.eqz").br_if(done)
        with function.loop() as again:
            for number in range(block.unroll):
                step(function, block, variables, number)
                function.get(variables.steps).i32(-1).emit("i32.add").tee(variables.steps)
                if number < block.unroll - 1:
                    function.emit("i32.eqz").br_if(done)
            _advance(function, variables.left, block.left_step * block.unroll)
            for right in variables.right:
                _advance(function, right, block.right_step * block.unroll)
            function.br_if(again)


def _advance(function: FunctionBuilder, local: int, amount: int) -> None:
    function.get(local).i32(amount).emit("i32.add").set(local)


def _load_columns(
    function: FunctionBuilder, block: Block, variables: _Locals, number: int, instruction: str, width: int
) -> None:
    for column, index in enumerate(variables.columns):
        tile, vector = divmod(column, block.vectors)
        offset = number * block.right_step + vector * width
        function.get(variables.right[tile]).emit(instruction, offset=offset, align=0).set(index)


def _splat_row(function: FunctionBuilder, block: Block, variables: _Locals, number: int, row: int) -> None:
    """A row's element (of integers its pair along K) into all lanes of ``variables.row``.

    Four rows are loaded at once where there are four, and spread by shuffles: loads into a splat go through
    a general register on some engines.
    """
    size = block.left_step // block.panel_rows
    offset = number * block.left_step + size * row
    if block.rows % _LANES:
        function.get(variables.left)
        if block.kind == ElementKind.F32:
            function.emit("f32.load", offset=offset).emit("f32x4.splat")
        elif block.kind == ElementKind.I16:
            function.emit("v128.load32_splat", offset=offset, align=0)
        else:
            function.emit("v128.load16_splat", offset=offset, align=0).emit("i16x8.extend_low_i8x16_s")
        function.set(variables.row)
        return
    if row % _LANES == 0:
        load = "v128.load8x8_s" if block.kind == ElementKind.I8 else "v128.load"
        function.get(variables.left).emit(load, offset=offset, align=0).set(variables.group)
    first = 4 * (row % _LANES)
    lanes = [first, first + 1, first + 2, first + 3] * _LANES
    function.get(variables.group).get(variables.group).emit("i8x16.shuffle", *lanes).set(variables.row)


def _step_f32(function: FunctionBuilder, block: Block, variables: _Locals, number: int) -> None:
    _load_columns(function, block, variables, number, "v128.load", _VECTOR_BYTES)
    for row, sums in enumerate(variables.sums):
        _splat_row(function, block, variables, number, row)
        for place, (total, column) in enumerate(zip(sums, variables.columns, strict=True)):
            # Fused operations overwrite their first factor: let it be one that is not needed any more, where
            # there is one, which saves the engine a copy. The row is done with its last column, a column
            # with the last row.
            is_column_done = row == block.rows - 1 and place < len(sums) - 1
            first, second = (column, variables.row) if is_column_done else (variables.row, column)
            function.get(first).get(second)
            if block.relaxed:
                function.get(total).emit("f32x4.relaxed_madd")
            else:
                function.emit("f32x4.mul").get(total).emit("f32x4.add")
            function.set(total)


def _step_integers(function: FunctionBuilder, block: Block, variables: _Locals, number: int) -> None:
    # Two bytes along K become two 16-bit lanes; the dot product adds their products into 32 bits.
    if block.kind == ElementKind.I8:
        _load_columns(function, block, variables, number, "v128.load8x8_s", 8)
    else:
        _load_columns(function, block, variables, number, "v128.load", _VECTOR_BYTES)
    for row, sums in enumerate(variables.sums):
        _splat_row(function, block, variables, number, row)
        for total, column in zip(sums, variables.columns, strict=True):
            function.get(variables.row).get(column).emit("i32x4.dot_i16x8_s")
            function.get(total).emit("i32x4.add").set(total)


_STEPS: dict[str, _Step] = {
    ElementKind.F32: _step_f32,
    ElementKind.I8: _step_integers,
    ElementKind.I16: _step_integers,
}
