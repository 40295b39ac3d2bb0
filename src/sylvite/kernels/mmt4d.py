"""``iree_uk_mmt4d``: the matrix product of packed operands that compiled modules import.

The compiler (see `sylvite.compile.tuning`) leaves the products of a model as calls to this symbol. One
archive so runs with fused multiply-add where the engine has relaxed SIMD, and without elsewhere.

Source: the signature and flags of IREE's microkernel library (``exported_bits.h``, ``mmt4d.h``), 3.13.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType
from .gemm import Block, ElementKind, emit_block
from .halves import Conversions, HalfKind, emit_conversions
from .widening import emit_widening_driver

__all__ = ["MMT4D_PARAMETERS", "PRODUCT_TYPES", "TILE_SHAPES", "ProductType", "emit_mmt4d"]

_I32 = ValueType.I32

MMT4D_PARAMETERS = (_I32,) * 17
"""lhs, offset, stride0, rhs, offset, stride0, out, offset, stride0 (in elements), M1, N1, K1, M0, N0, K0,
flags, cpu data."""

_ELEMENT_BYTES = {"f32": 4, "i32": 4, "i8": 1, "i16": 2, "f16": 2, "bf16": 2}

_TYPE_MASK = 0xFF
_ACCUMULATE = 0x100
_K_BLOCK = 512
"""Steps along K between stores of the result: a group of right tiles then fits the first-level cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """A combination of element kind and tile sizes that has microkernels of its own."""

    kind: str
    m0: int
    n0: int
    k0: int

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of the operands."""
        return _ELEMENT_BYTES[self.kind]

    def blocks(self, *, relaxed: bool) -> list[Block]:
        """Microkernels by the number of right tiles they take, fewest first."""
        group = {1: 8, 2: 4}.get(self.m0, 2)
        return [
            Block(
                kind=self.kind,
                # A single narrow tile leaves registers for all eight rows of a panel.
                rows=min(self.m0, 8 if tiles == 1 else 4),
                tiles=tiles,
                panel_rows=self.m0,
                tile_columns=self.n0,
                relaxed=relaxed and self.kind == ElementKind.F32,
                unroll=16 if self.kind == ElementKind.F32 and self.m0 >= 4 else 8,
            )
            for tiles in (1, 2, 4, 8)
            if tiles <= group
        ]


TILE_SHAPES = tuple(
    TileShape(kind=kind, m0=m0, n0=4, k0=k0)
    for kind, k0 in ((ElementKind.F32, 1), (ElementKind.I8, 2), (ElementKind.I16, 2))
    for m0 in (1, 2, 4, 8)
)
"""Tiles the compiler chooses for 128-bit vectors; anything else takes the plain loop."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProductType:
    """A combination of element types, by its number in the flags."""

    flag: int
    operands: str
    result: str

    @property
    def is_half(self) -> bool:
        """Whether the operands are widened to floats first."""
        return self.operands in (HalfKind.F16, HalfKind.BF16)


PRODUCT_TYPES = (
    ProductType(flag=1, operands=ElementKind.F32, result="f32"),
    ProductType(flag=2, operands=ElementKind.I8, result="i32"),
    ProductType(flag=3, operands=HalfKind.F16, result="f32"),
    ProductType(flag=4, operands=HalfKind.F16, result="f16"),
    ProductType(flag=5, operands=HalfKind.BF16, result="f32"),
    ProductType(flag=6, operands=HalfKind.BF16, result="bf16"),
    ProductType(flag=7, operands=ElementKind.I16, result="i32"),
)
"""What ``iree_uk_mmt4d`` multiplies. Sums of halves are floats, rounded once."""


def emit_mmt4d(module: ModuleBuilder, stack_pointer: int, *, relaxed: bool) -> FunctionBuilder:
    """Emit ``iree_uk_mmt4d`` and its microkernels into ``module``, which has a memory.

    Args:
        module: gets the functions.
        stack_pointer: global with the top of the guest's stack.
        relaxed: fuse multiplications and additions of floats.
    """
    shapes = {shape: _emit_driver(module, shape, relaxed=relaxed) for shape in TILE_SHAPES}
    conversions = {kind: emit_conversions(module, kind) for kind in (HalfKind.F16, HalfKind.BF16)}
    entry = module.function("iree_uk_mmt4d", MMT4D_PARAMETERS, [_I32], export=True)
    kind = entry.local(_I32, "kind")
    entry.get(15).i32(_TYPE_MASK).emit("i32.and").set(kind)
    for product in PRODUCT_TYPES:
        drivers = _drivers(module, product, shapes, conversions, stack_pointer)
        plain = _emit_plain(module, product, conversions.get(product.operands))
        entry.get(kind).i32(product.flag).emit("i32.eq")
        with entry.if_():
            for shape, driver in drivers:
                entry.i32(1)
                for local, value in ((12, shape.m0), (13, shape.n0), (14, shape.k0)):
                    entry.get(local).i32(value).emit("i32.eq").emit("i32.and")
                _call_if(entry, driver)
            _call(entry, plain)
    # The caller does not look at a result: element types nobody handles must not pass for a product.
    entry.emit("unreachable")
    return entry


def _drivers(
    module: ModuleBuilder,
    product: ProductType,
    shapes: dict[TileShape, FunctionBuilder],
    conversions: dict[str, Conversions],
    stack_pointer: int,
) -> list[tuple[TileShape, FunctionBuilder]]:
    """Fast products of a type by the tiles they are for."""
    if not product.is_half:
        return [(shape, driver) for shape, driver in shapes.items() if shape.kind == product.operands]
    return [
        (
            shape,
            emit_widening_driver(
                module,
                f"mmt4d_{product.operands}_{product.result}_{shape.m0}x{shape.n0}x{shape.k0}",
                driver,
                conversions[product.operands],
                stack_pointer,
                m0=shape.m0,
                narrow=product.result != "f32",
            ),
        )
        for shape, driver in shapes.items()
        if shape.kind == ElementKind.F32
    ]


def _call_if(entry: FunctionBuilder, driver: FunctionBuilder) -> None:
    with entry.if_():
        _call(entry, driver)


def _call(entry: FunctionBuilder, driver: FunctionBuilder) -> None:
    for parameter in range(len(MMT4D_PARAMETERS)):
        entry.get(parameter)
    entry.call(driver).i32(0).emit("return")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """Locals of an operand: address of its first element, and bytes from a panel to the next."""

    address: int
    stride: int


def _operands(function: FunctionBuilder, sizes: tuple[int, int, int]) -> list[_Operand]:
    """Turn addresses, offsets and strides in elements into bytes, in the parameters themselves."""
    operands = []
    for number, size in enumerate(sizes):
        address, offset, stride = 3 * number, 3 * number + 1, 3 * number + 2
        function.get(address).get(offset).i32(size).emit("i32.mul").emit("i32.add").set(address)
        function.get(stride).i32(size).emit("i32.mul").set(stride)
        operands.append(_Operand(address=address, stride=stride))
    return operands


def _add(function: FunctionBuilder, target: int, *terms: int) -> None:
    """``target = sum of locals``."""
    function.get(terms[0])
    for term in terms[1:]:
        function.get(term).emit("i32.add")
    function.set(target)


def _emit_driver(module: ModuleBuilder, shape: TileShape, *, relaxed: bool) -> FunctionBuilder:
    """Loops over blocks of K, groups of right tiles and left panels, calling the microkernels."""
    blocks = shape.blocks(relaxed=relaxed)
    kernels = [emit_block(module, block) for block in blocks]
    function = module.function(f"mmt4d_{shape.kind}_{shape.m0}x{shape.n0}x{shape.k0}", MMT4D_PARAMETERS, [])
    left, right, out = _operands(function, (shape.operand_bytes, shape.operand_bytes, 4))
    m1, n1, k1, flags = 9, 10, 11, 15
    steps = function.local(_I32, "steps")
    accumulate = function.local(_I32, "accumulate")
    columns = function.local(_I32, "columns")
    right_tile = function.local(_I32, "right_tile")
    out_tile = function.local(_I32, "out_tile")
    function.get(flags).i32(_ACCUMULATE).emit("i32.and").set(accumulate)
    with function.loop() as next_block:
        function.get(k1).i32(_K_BLOCK).get(k1).i32(_K_BLOCK).emit("i32.lt_u").emit("select").set(steps)
        function.get(n1).set(columns)
        function.get(right.address).set(right_tile)
        function.get(out.address).set(out_tile)
        with function.block() as no_columns, function.loop() as next_group:
            function.get(columns).emit("i32.eqz").br_if(no_columns)
            _emit_group(
                function,
                blocks,
                kernels,
                {
                    "left": left.address,
                    "left_stride": left.stride,
                    "right_tile": right_tile,
                    "right_stride": right.stride,
                    "out_tile": out_tile,
                    "out_stride": out.stride,
                    "columns": columns,
                    "panels": m1,
                    "steps": steps,
                    "accumulate": accumulate,
                },
            )
            function.br(next_group)
        function.i32(1).set(accumulate)
        for operand, step in ((left, blocks[0].left_step), (right, blocks[0].right_step)):
            function.get(operand.address).get(steps).i32(step).emit("i32.mul").emit("i32.add")
            function.set(operand.address)
        function.get(k1).get(steps).emit("i32.sub").tee(k1).br_if(next_block)
    return function


def _emit_group(
    function: FunctionBuilder, blocks: list[Block], kernels: list[FunctionBuilder], names: dict[str, int]
) -> None:
    """All left panels times as many right tiles as a microkernel takes; advances to the next tiles."""
    with function.block() as finished:
        for block, kernel in reversed(list(zip(blocks, kernels, strict=True))):
            with function.block() as too_few:
                function.get(names["columns"]).i32(block.tiles).emit("i32.lt_u").br_if(too_few)
                _emit_panels(function, block, kernel, names)
                out_bytes = block.tiles * block.panel_rows * block.tile_columns * 4
                function.get(names["out_tile"]).i32(out_bytes).emit("i32.add").set(names["out_tile"])
                function.get(names["right_tile"]).get(names["right_stride"]).i32(block.tiles)
                function.emit("i32.mul").emit("i32.add").set(names["right_tile"])
                function.get(names["columns"]).i32(-block.tiles).emit("i32.add").set(names["columns"])
                function.br(finished)


def _emit_panels(
    function: FunctionBuilder, block: Block, kernel: FunctionBuilder, names: dict[str, int]
) -> None:
    panel = function.local(_I32)
    left = function.local(_I32)
    out = function.local(_I32)
    function.get(names["panels"]).set(panel)
    function.get(names["left"]).set(left)
    function.get(names["out_tile"]).set(out)
    element = block.left_step // block.panel_rows
    with function.block() as no_panels, function.loop() as next_panel:
        function.get(panel).emit("i32.eqz").br_if(no_panels)
        for row in range(0, block.panel_rows, block.rows):
            function.get(left).i32(row * element).emit("i32.add")
            function.get(names["right_tile"]).get(names["right_stride"])
            function.get(out).i32(row * block.tile_columns * 4).emit("i32.add")
            function.get(names["steps"]).get(names["accumulate"]).call(kernel)
        _add(function, left, left, names["left_stride"])
        _add(function, out, out, names["out_stride"])
        function.get(panel).i32(-1).emit("i32.add").set(panel)
        function.br(next_panel)


def _emit_plain(module: ModuleBuilder, product: ProductType, halves: Conversions | None) -> FunctionBuilder:
    """Any tile sizes, one element at a time."""
    function = module.function(f"mmt4d_plain_{product.operands}_{product.result}", MMT4D_PARAMETERS, [])
    _Plain(function, product, halves).emit()
    return function


class _Plain:
    """Emits the loops over all elements."""

    def __init__(self, function: FunctionBuilder, product: ProductType, halves: Conversions | None) -> None:
        self._function, self._product, self._halves = function, product, halves
        self._is_float = product.is_half or product.operands == ElementKind.F32
        size, out_size = _ELEMENT_BYTES[product.operands], _ELEMENT_BYTES[product.result]
        self._operands = list(
            zip(_operands(function, (size, size, out_size)), (size, size, out_size), strict=True)
        )
        self._address = function.local(_I32)
        self._total = function.local(ValueType.F32 if self._is_float else _I32)

    def emit(self) -> None:
        """The function's body."""
        m1, n1, k1, m0, n0, k0 = range(9, 15)
        function = self._function
        i1, j1, i0, j0, p1, p0 = (function.local(_I32) for _ in range(6))
        left, right, out = self._operands

        def element() -> None:
            # The result's tile is [j1][m0][n0].
            self._find(out, i1, ((j1, m0), (i0, n0)), j0)
            (function.f32(0.0) if self._is_float else function.i32(0)).set(self._total)
            function.get(15).i32(_ACCUMULATE).emit("i32.and")
            with function.if_():
                self._load(self._product.result)
                function.set(self._total)
            _repeat(function, p1, k1, lambda: _repeat(function, p0, k0, multiply))
            self._find(out, i1, ((j1, m0), (i0, n0)), j0)
            self._store()

        def multiply() -> None:
            for operand, panel, index, width in ((left, i1, i0, m0), (right, j1, j0, n0)):
                self._find(operand, panel, ((p1, width), (index, k0)), p0)
                self._load(self._product.operands)
            kind = "f32" if self._is_float else "i32"
            function.emit(f"{kind}.mul").get(self._total).emit(f"{kind}.add").set(self._total)

        loops = ((i1, m1), (j1, n1), (i0, m0), (j0, n0))

        def nest(depth: int) -> None:
            if depth == len(loops):
                element()
            else:
                _repeat(function, *loops[depth], lambda: nest(depth + 1))

        nest(0)

    def _find(
        self, operand: tuple[_Operand, int], panel: int, indices: tuple[tuple[int, int], ...], last: int
    ) -> None:
        """The address of element (panel, ((i * a) + j) * b + last), for indices (i, a) and (j, b)."""
        function, (base, size) = self._function, operand
        (first, first_width), (second, second_width) = indices
        function.get(first).get(first_width).emit("i32.mul").get(second).emit("i32.add")
        function.get(second_width).emit("i32.mul").get(last).emit("i32.add").i32(size).emit("i32.mul")
        function.get(base.address).emit("i32.add")
        function.get(panel).get(base.stride).emit("i32.mul").emit("i32.add").set(self._address)

    def _load(self, kind: str) -> None:
        loads = {"f32": "f32.load", "i32": "i32.load", "i8": "i32.load8_s", "i16": "i32.load16_s"}
        self._function.get(self._address).emit(loads.get(kind, "i32.load16_u"))
        if self._halves is not None and kind != "f32":
            self._function.call(self._halves.widen_one)

    def _store(self) -> None:
        function, kind = self._function, self._product.result
        function.get(self._address).get(self._total)
        if self._halves is not None and kind != "f32":
            function.call(self._halves.narrow_one).emit("i32.store16")
        else:
            function.emit(f"{kind}.store")


def _repeat(function: FunctionBuilder, index: int, count: int, body: Callable[[], None]) -> None:
    """``for index in range(count)``."""
    function.i32(0).set(index)
    with function.block() as done, function.loop() as again:
        function.get(index).get(count).emit("i32.ge_u").br_if(done)
        body()
        function.get(index).i32(1).emit("i32.add").set(index)
        function.br(again)
