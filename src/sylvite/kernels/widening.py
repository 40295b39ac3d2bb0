"""Products of half-precision operands: widen a part of both to floats, multiply that, go on.

A part is small enough for the first-level cache and used by many products, so that widening costs little; the
products are those of floats. Sums are floats throughout, also where the result is narrow: it is rounded once.

The parts lie on the guest's stack, which every thread has one of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType
from .halves import Conversions

__all__ = ["emit_widening_driver"]

_I32 = ValueType.I32
_PARAMETERS = (_I32,) * 17
_ACCUMULATE = 0x100
_TYPE_F32 = 1
_N0 = 4

_PANELS = 8
_TILES = 32
_STEPS = 64
"""Most left panels, right tiles and steps along K in a part."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Part:
    """Locals of the part at hand: what is left to do, and how much of it this part takes."""

    panels: int
    tiles: int
    steps: int
    panels_left: int
    tiles_left: int
    steps_left: int
    left: int
    right: int
    out: int
    left_at: int
    right_at: int
    out_at: int
    accumulate: int
    wide_left: int
    wide_right: int
    wide_out: int
    index: int


def emit_widening_driver(
    module: ModuleBuilder,
    name: str,
    product: FunctionBuilder,
    conversions: Conversions,
    stack_pointer: int,
    *,
    m0: int,
    narrow: bool,
) -> FunctionBuilder:
    """Emit a product with the parameters of ``iree_uk_mmt4d`` for tiles of ``m0`` by 4, K0 1.

    Args:
        module: gets the function.
        name: of the function.
        product: the product of floats for the same tiles.
        conversions: of the operands' type.
        stack_pointer: global with the top of the guest's stack.
        m0: rows of a left panel.
        narrow: the result is of the operands' type, not f32.
    """
    function = module.function(name, _PARAMETERS, [])
    left_bytes, right_bytes = 4 * _PANELS * _STEPS * m0, 4 * _TILES * _STEPS * _N0
    out_bytes = 4 * _PANELS * _TILES * m0 * _N0 if narrow else 0
    frame = left_bytes + right_bytes + out_bytes
    part = _Part(**{field.name: function.local(_I32) for field in dataclasses.fields(_Part)})
    emitter = _Emitter(function, part, product, conversions, m0=m0, narrow=narrow)
    emitter.prepare_operands()
    function.emit("global.get", stack_pointer).i32(frame).emit("i32.sub").tee(part.wide_left)
    function.emit("global.set", stack_pointer)
    function.get(part.wide_left).i32(left_bytes).emit("i32.add").tee(part.wide_right)
    function.i32(right_bytes).emit("i32.add").set(part.wide_out)
    emitter.walk()
    function.emit("global.get", stack_pointer).i32(frame).emit("i32.add").emit("global.set", stack_pointer)
    return function


class _Emitter:
    """Emits the loops over parts."""

    def __init__(
        self,
        function: FunctionBuilder,
        part: _Part,
        product: FunctionBuilder,
        conversions: Conversions,
        *,
        m0: int,
        narrow: bool,
    ) -> None:
        self._function, self._part, self._product = function, part, product
        self._conversions, self._m0, self._narrow = conversions, m0, narrow
        self._out_size = 2 if narrow else 4

    def prepare_operands(self) -> None:
        """Addresses and strides in bytes, in the parameters themselves."""
        function = self._function
        for base, size in ((0, 2), (3, 2), (6, self._out_size)):
            function.get(base).get(base + 1).i32(size).emit("i32.mul").emit("i32.add").set(base)
            function.get(base + 2).i32(size).emit("i32.mul").set(base + 2)

    def walk(self) -> None:
        """Blocks of panels, of tiles in them, of steps in those."""
        function, part = self._function, self._part
        m1, n1, k1, flags = 9, 10, 11, 15

        def panels() -> None:
            function.get(3).set(part.right).get(part.out).set(part.out_at)
            self._blocks(part.tiles_left, n1, part.tiles, _TILES, tiles)
            self._advance(part.left, part.panels, stride=2)
            self._advance(part.out, part.panels, stride=8)

        def tiles() -> None:
            function.get(part.left).set(part.left_at).get(part.right).set(part.right_at)
            function.get(flags).i32(_ACCUMULATE).emit("i32.and").set(part.accumulate)
            self._load_result()
            # A product of no steps stores zeros, or what there was; it takes one turn.
            self._blocks(part.steps_left, k1, part.steps, _STEPS, steps, at_least_once=True)
            self._store_result()
            self._advance(part.right, part.tiles, stride=5)
            function.get(part.out_at).get(part.tiles).i32(self._m0 * _N0 * self._out_size).emit("i32.mul")
            function.emit("i32.add").set(part.out_at)

        def steps() -> None:
            self._widen(part.left_at, 2, part.panels, self._m0, part.wide_left)
            self._widen(part.right_at, 5, part.tiles, _N0, part.wide_right)
            self._multiply()
            for cursor, width in ((part.left_at, self._m0), (part.right_at, _N0)):
                function.get(cursor).get(part.steps).i32(2 * width).emit("i32.mul").emit("i32.add").set(
                    cursor
                )
            function.i32(_ACCUMULATE).set(part.accumulate)

        function.get(0).set(part.left).get(6).set(part.out)
        self._blocks(part.panels_left, m1, part.panels, _PANELS, panels)

    def _blocks(
        self,
        left: int,
        total: int,
        size: int,
        most: int,
        body: Callable[[], None],
        *,
        at_least_once: bool = False,
    ) -> None:
        """``body`` for blocks of up to ``most``, their size in ``size``."""
        function = self._function
        function.get(total).set(left)
        with function.block() as done, function.loop() as again:
            if not at_least_once:
                function.get(left).emit("i32.eqz").br_if(done)
            function.get(left).i32(most).get(left).i32(most).emit("i32.lt_u").emit("select").set(size)
            body()
            function.get(left).get(size).emit("i32.sub").tee(left)
            if at_least_once:
                function.emit("i32.eqz").br_if(done)
                function.br(again)
            else:
                function.br_if(again)

    def _advance(self, cursor: int, count: int, *, stride: int) -> None:
        self._function.get(cursor).get(count).get(stride).emit("i32.mul").emit("i32.add").set(cursor)

    def _widen(self, source: int, stride: int, count: int, width: int, target: int) -> None:
        """``count`` panels of ``width`` by the part's steps, densely behind one another."""
        function, part = self._function, self._part

        def one() -> None:
            function.get(source).get(part.index).get(stride).emit("i32.mul").emit("i32.add")
            function.get(target).get(part.index).get(part.steps).emit("i32.mul").i32(4 * width)
            function.emit("i32.mul").emit("i32.add")
            function.get(part.steps).i32(width).emit("i32.mul").call(self._conversions.widen)

        self._repeat(count, one)

    def _repeat(self, count: int, body: Callable[[], None]) -> None:
        function, index = self._function, self._part.index
        function.i32(0).set(index)
        with function.block() as done, function.loop() as again:
            function.get(index).get(count).emit("i32.ge_u").br_if(done)
            body()
            function.get(index).i32(1).emit("i32.add").set(index)
            function.br(again)

    def _multiply(self) -> None:
        function, part, tile = self._function, self._part, self._m0 * _N0
        for wide, width in ((part.wide_left, self._m0), (part.wide_right, _N0)):
            function.get(wide).i32(0).get(part.steps).i32(width).emit("i32.mul")
        if self._narrow:
            function.get(part.wide_out).i32(0).get(part.tiles).i32(tile).emit("i32.mul")
        else:
            function.get(part.out_at).i32(0).get(8).i32(2).emit("i32.shr_u")
        function.get(part.panels).get(part.tiles).get(part.steps).i32(self._m0).i32(_N0).i32(1)
        function.get(part.accumulate).i32(_TYPE_F32).emit("i32.or").i32(0).call(self._product)

    def _convert_result(self, conversion: FunctionBuilder, *, is_load: bool) -> None:
        """Rows of result tiles between memory and the wide part."""
        function, part, tile = self._function, self._part, self._m0 * _N0

        def one() -> None:
            def memory() -> None:
                function.get(part.out_at).get(part.index).get(8).emit("i32.mul").emit("i32.add")

            def wide() -> None:
                function.get(part.wide_out).get(part.index).get(part.tiles).emit("i32.mul").i32(4 * tile)
                function.emit("i32.mul").emit("i32.add")

            for push in (memory, wide) if is_load else (wide, memory):
                push()
            function.get(part.tiles).i32(tile).emit("i32.mul").call(conversion)

        self._repeat(part.panels, one)

    def _load_result(self) -> None:
        if self._narrow:
            self._function.get(self._part.accumulate)
            with self._function.if_():
                self._convert_result(self._conversions.widen, is_load=True)

    def _store_result(self) -> None:
        if self._narrow:
            self._convert_result(self._conversions.narrow, is_load=False)
