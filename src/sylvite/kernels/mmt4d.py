"""``iree_uk_mmt4d``: the matrix product of packed operands that compiled modules import.

The compiler (see `sylvite.compile.tuning`) leaves the products of a model as calls to this symbol. One
archive so runs with fused multiply-add where the engine has relaxed SIMD, and without elsewhere.

Source: the signature and flags of IREE's microkernel library (``exported_bits.h``, ``mmt4d.h``), 3.13.
"""

from __future__ import annotations

import dataclasses

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType
from .gemm import Block, ElementKind, emit_block

__all__ = ["MMT4D_PARAMETERS", "TILE_SHAPES", "emit_mmt4d"]

_I32 = ValueType.I32

MMT4D_PARAMETERS = (_I32,) * 17
"""lhs, offset, stride0, rhs, offset, stride0, out, offset, stride0 (in elements), M1, N1, K1, M0, N0, K0,
flags, cpu data."""

_TYPE_MASK = 0xFF
_TYPE_F32 = 1
_TYPE_I8 = 2
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
        return 4 if self.kind == ElementKind.F32 else 1

    @property
    def type_flag(self) -> int:
        """The type in the flags."""
        return _TYPE_F32 if self.kind == ElementKind.F32 else _TYPE_I8

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
    for kind, k0 in ((ElementKind.F32, 1), (ElementKind.I8, 2))
    for m0 in (1, 2, 4, 8)
)
"""Tiles the compiler chooses for 128-bit vectors; anything else takes the plain loop."""


def emit_mmt4d(module: ModuleBuilder, *, relaxed: bool) -> FunctionBuilder:
    """Emit ``iree_uk_mmt4d`` and its microkernels into ``module``, which has a memory."""
    drivers = [(shape, _emit_driver(module, shape, relaxed=relaxed)) for shape in TILE_SHAPES]
    plain = {flag: _emit_plain(module, flag) for flag in (_TYPE_F32, _TYPE_I8)}
    entry = module.function("iree_uk_mmt4d", MMT4D_PARAMETERS, [_I32], export=True)
    m0, n0, k0, flags = 12, 13, 14, 15
    kind = entry.local(_I32, "kind")
    entry.get(flags).i32(_TYPE_MASK).emit("i32.and").set(kind)
    for shape, driver in drivers:
        entry.get(kind).i32(shape.type_flag).emit("i32.eq")
        for local, value in ((m0, shape.m0), (n0, shape.n0), (k0, shape.k0)):
            entry.get(local).i32(value).emit("i32.eq").emit("i32.and")
        _call_if(entry, driver)
    for flag, driver in plain.items():
        entry.get(kind).i32(flag).emit("i32.eq")
        _call_if(entry, driver)
    # The caller does not look at a result: element types nobody handles must not pass for a product.
    entry.emit("unreachable")
    return entry


def _call_if(entry: FunctionBuilder, driver: FunctionBuilder) -> None:
    with entry.if_():
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


def _emit_plain(module: ModuleBuilder, type_flag: int) -> FunctionBuilder:
    """Any tile sizes, one element at a time."""
    is_f32 = type_flag == _TYPE_F32
    size = 4 if is_f32 else 1
    function = module.function(f"mmt4d_plain_{type_flag}", MMT4D_PARAMETERS, [])
    left, right, out = _operands(function, (size, size, 4))
    m1, n1, k1, m0, n0, k0, flags = 9, 10, 11, 12, 13, 14, 15
    i1, j1, i0, j0, p1, p0 = (function.local(_I32) for _ in range(6))
    a, b, c = (function.local(_I32) for _ in range(3))
    total = function.local(ValueType.F32 if is_f32 else _I32)
    load, add, mul, store = (
        ("f32.load", "f32.add", "f32.mul", "f32.store")
        if is_f32
        else ("i32.load8_s", "i32.add", "i32.mul", "i32.store")
    )

    def element(base: _Operand, panel: int, index: int, width: int, inner: int, address: int) -> None:
        # address = base + panel * stride + (index * width + inner) * size; the caller adds the rest
        function.get(base.address).get(panel).get(base.stride).emit("i32.mul").emit("i32.add")
        function.get(index).get(width).emit("i32.mul").get(inner).emit("i32.add")
        function.i32(4 if base is out else size).emit("i32.mul").emit("i32.add").set(address)

    def body() -> None:
        # The result's tile is [j1][m0][n0].
        function.get(j1).get(m0).emit("i32.mul").get(i0).emit("i32.add").set(c)
        element(out, i1, c, n0, j0, c)
        zero = function.f32(0.0) if is_f32 else function.i32(0)
        zero.set(total)
        function.get(flags).i32(_ACCUMULATE).emit("i32.and")
        with function.if_():
            function.get(c).emit("f32.load" if is_f32 else "i32.load").set(total)
        _repeat(function, p1, k1, inner_product)
        function.get(c).get(total).emit(store)

    def inner_product() -> None:
        function.get(p1).get(m0).emit("i32.mul").get(i0).emit("i32.add").set(a)
        function.get(p1).get(n0).emit("i32.mul").get(j0).emit("i32.add").set(b)
        _repeat(function, p0, k0, one)

    def one() -> None:
        for operand, panel, index in ((left, i1, a), (right, j1, b)):
            function.get(operand.address).get(panel).get(operand.stride).emit("i32.mul").emit("i32.add")
            function.get(index).get(k0).emit("i32.mul").get(p0).emit("i32.add")
            function.i32(size).emit("i32.mul").emit("i32.add").emit(load)
        function.emit(mul).get(total).emit(add).set(total)

    loops = ((i1, m1), (j1, n1), (i0, m0), (j0, n0))

    def nest(depth: int) -> None:
        if depth == len(loops):
            body()
            return
        _repeat(function, *loops[depth], lambda: nest(depth + 1))

    nest(0)
    return function


def _repeat(function: FunctionBuilder, index: int, count: int, body: object) -> None:
    """``for index in range(count)``."""
    function.i32(0).set(index)
    with function.block() as done, function.loop() as again:
        function.get(index).get(count).emit("i32.ge_u").br_if(done)
        body()  # type: ignore[operator]
        function.get(index).i32(1).emit("i32.add").set(index)
        function.br(again)
