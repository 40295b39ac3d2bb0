"""``sylvite_softmax_f32``: the softmax of rows.

Compiled code takes the exponential of every element twice, walks four rows at once with a horizontal step
per vector, and calls out for every maximum. Here a row is read three times while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType, vector
from .vector_math import emit_exp, new_vectors, splat

__all__ = ["NAN_TO_ZERO", "SOFTMAX_NAME", "SOFTMAX_PARAMETERS", "emit_softmax"]

_I32 = ValueType.I32
_VECTOR_BYTES = 16
_LANES = 4
_UNROLL = 4

SOFTMAX_NAME = "sylvite_softmax_f32"

SOFTMAX_PARAMETERS = (_I32,) * 9
"""in, offset, row stride, out, offset, row stride (in elements), rows, columns (1 at least), flags. Rows are
dense; in and out may be the same."""

NAN_TO_ZERO = 1
"""Flag: results that are NaN, those of rows of nothing but minus infinity, become 0."""

_SWAP_HALVES = tuple((byte + 8) % 16 for byte in range(16))
_SWAP_PAIRS = tuple(byte ^ 4 for byte in range(16))


def emit_softmax(module: ModuleBuilder, *, relaxed: bool) -> FunctionBuilder:
    """Emit ``sylvite_softmax_f32`` into ``module``, which has a memory."""
    function = module.function(SOFTMAX_NAME, SOFTMAX_PARAMETERS, [], export=True)
    source, source_stride, target, target_stride = 0, 2, 3, 5
    rows, columns, flags = 6, 7, 8
    for base in (0, 3):
        function.get(base).get(base + 1).i32(2).emit("i32.shl").emit("i32.add").set(base)
        function.get(base + 2).i32(2).emit("i32.shl").set(base + 2)
    row = _Row(function, source, target, columns, flags, relaxed=relaxed)
    with function.block() as done, function.loop() as again:
        function.get(rows).emit("i32.eqz").br_if(done)
        row.find_top()
        row.exponentiate()
        row.divide()
        for base, stride in ((source, source_stride), (target, target_stride)):
            function.get(base).get(stride).emit("i32.add").set(base)
        function.get(rows).i32(-1).emit("i32.add").set(rows)
        function.br(again)
    return function


class _Row:
    """Emits the three passes over a row."""

    def __init__(
        self, function: FunctionBuilder, source: int, target: int, columns: int, flags: int, *, relaxed: bool
    ) -> None:
        self._function = function
        self._source, self._target, self._columns, self._flags = source, target, columns, flags
        self._relaxed = relaxed
        self._here, self._there, self._rest = (function.local(_I32) for _ in range(3))
        self._value, self._top, self._keep = new_vectors(function, 3)
        self._totals = new_vectors(function, _UNROLL)
        self._scratch = new_vectors(function, 3)

    def _sweep(self, source: int, whole: Callable[[int], object], single: Callable[[], object]) -> None:
        """``whole(number)`` for vectors, ``number`` counting those of one turn of the loop from 0, and
        ``single()`` for the elements left over."""
        function, rest = self._function, self._rest
        function.get(source).set(self._here).get(self._target).set(self._there)
        function.get(self._columns).set(rest)
        for vectors in (_UNROLL, 1):
            with function.block() as done, function.loop() as again:
                function.get(rest).i32(vectors * _LANES).emit("i32.lt_u").br_if(done)
                for number in range(vectors):
                    whole(number)
                self._advance(vectors * _LANES)
                function.br(again)
        with function.block() as done, function.loop() as again:
            function.get(rest).emit("i32.eqz").br_if(done)
            single()
            self._advance(1)
            function.br(again)

    def _advance(self, elements: int) -> None:
        for cursor in (self._here, self._there):
            self._function.get(cursor).i32(4 * elements).emit("i32.add").set(cursor)
        self._function.get(self._rest).i32(-elements).emit("i32.add").set(self._rest)

    def _load(self, number: int) -> FunctionBuilder:
        return self._function.get(self._here).emit("v128.load", offset=number * _VECTOR_BYTES, align=0)

    def _load_single(self) -> FunctionBuilder:
        return self._function.get(self._here).emit("v128.load32_splat", align=0)

    def _store(self, number: int, value: int) -> None:
        self._function.get(self._there).get(value)
        self._function.emit("v128.store", offset=number * _VECTOR_BYTES, align=0)

    def _store_single(self, value: int) -> None:
        self._function.get(self._there).get(value).emit("v128.store32_lane", 0, align=0)

    def _reduce(self, operation: str, result: int) -> None:
        """Combine the totals, and their lanes, into all lanes of ``result``."""
        function, totals = self._function, self._totals
        for first, second, into in ((0, 1, 0), (2, 3, 2), (0, 2, 0)):
            function.get(totals[first]).get(totals[second]).emit(operation).set(totals[into])
        for order in (_SWAP_HALVES, _SWAP_PAIRS):
            function.get(totals[0]).get(totals[0]).get(totals[0]).emit("i8x16.shuffle", *order)
            function.emit(operation).set(totals[0])
        function.get(totals[0]).set(result)

    def find_top(self) -> None:
        """The greatest element into all lanes. A NaN may be passed over: it shows up in the sum."""
        function = self._function

        def merge(load: Callable[[], object], total: int) -> None:
            function.get(total)
            load()
            function.emit("f32x4.pmax").set(total)

        for total in self._totals:
            splat(function, float("-inf")).set(total)
        self._sweep(
            self._source,
            lambda number: merge(lambda: self._load(number), self._totals[number]),
            lambda: merge(self._load_single, self._totals[0]),
        )
        self._reduce("f32x4.pmax", self._top)

    def exponentiate(self) -> None:
        """The exponentials of the distances to the top, and their sum into all lanes of the top."""
        function, value = self._function, self._value

        def exponential() -> None:
            function.get(self._top).emit("f32x4.sub").set(value)
            emit_exp(function, value, self._scratch, relaxed=self._relaxed)

        def whole(number: int) -> None:
            self._load(number)
            exponential()
            self._store(number, value)
            function.get(self._totals[number]).get(value).emit("f32x4.add").set(self._totals[number])

        def single() -> None:
            self._load_single()
            exponential()
            self._store_single(value)
            function.get(self._totals[0]).get(value)
            function.emit("v128.const", vector("i32x4", (-1, 0, 0, 0))).emit("v128.and")
            function.emit("f32x4.add").set(self._totals[0])

        for total in self._totals:
            splat(function, 0.0).set(total)
        self._sweep(self._source, whole, single)
        self._reduce("f32x4.add", self._top)

    def divide(self) -> None:
        """Divide by the sum."""
        function, value, keep = self._function, self._value, self._keep
        # NaN is in all of a row or in none of it: the sum has it.
        function.i32(-1).emit("i32x4.splat").set(keep)
        function.get(self._flags).i32(NAN_TO_ZERO).emit("i32.and")
        with function.if_():
            function.get(self._top).get(self._top).emit("f32x4.eq").set(keep)

        def quotient() -> None:
            function.get(self._top).emit("f32x4.div").get(keep).emit("v128.and").set(value)

        def whole(number: int) -> None:
            self._load(number)
            quotient()
            self._store(number, value)

        def single() -> None:
            self._load_single()
            quotient()
            self._store_single(value)

        self._sweep(self._target, whole, single)
