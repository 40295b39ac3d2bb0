"""Products with something fused behind them write their result in place, bit for bit what unpacking gave."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sylvite
from sylvite.compile import tuning
from sylvite.compile.unpacking import write_in_place

pytestmark = pytest.mark.compiler

DENSE = """
  %e{i} = tensor.empty() : tensor<{b}{m}x{n}xf32>
  %s{i} = linalg.fill ins(%zero : f32) outs(%e{i} : tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>
  %y{i} = linalg.{op} ins({x}, %w{i} : tensor<{b}{m}x{k}xf32>, tensor<{b}{k}x{n}xf32>)
    outs(%s{i} : tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>
  %z{i} = linalg.generic {{indexing_maps = [affine_map<({d}) -> ({d})>, affine_map<({d}) -> ({last})>,
    affine_map<({d}) -> ({d})>], iterator_types = [{loops}]}}
    ins(%y{i}, %b{i} : tensor<{b}{m}x{n}xf32>, tensor<{n}xf32>) outs(%e{i} : tensor<{b}{m}x{n}xf32>) {{
  ^bb0(%in: f32, %bias: f32, %out: f32):
    %sum = arith.addf %in, %bias : f32
    %value = arith.maximumf %sum, %zero : f32
    linalg.yield %value : f32
  }} -> tensor<{b}{m}x{n}xf32>
"""


def network(batch, m, extents):
    """Products with bias and relu one behind the other: rows by ``extents``."""
    b = "" if batch is None else f"{batch}x"
    rank = 2 if batch is None else 3
    loops = [f"d{axis}" for axis in range(rank)]
    arguments, text, x = [f"%x: tensor<{b}{m}x{extents[0]}xf32>"], "", "%x"
    for i, (k, n) in enumerate(itertools.pairwise(extents)):
        arguments += [f"%w{i}: tensor<{b}{k}x{n}xf32>", f"%b{i}: tensor<{n}xf32>"]
        text += DENSE.format(
            b=b,
            m=m,
            n=n,
            k=k,
            i=i,
            x=x,
            op="matmul" if batch is None else "batch_matmul",
            d=", ".join(loops),
            last=loops[-1],
            loops=", ".join(['"parallel"'] * rank),
        )
        x = f"%z{i}"
    result = f"tensor<{b}{m}x{extents[-1]}xf32>"
    return (
        f"func.func @net({', '.join(arguments)}) -> {result} {{\n  %zero = arith.constant 0.0 : f32\n"
        f"{text}  return {x} : {result}\n}}\n"
    )


def operands(batch, m, extents):
    rng = np.random.default_rng(21)
    lead = () if batch is None else (batch,)
    arrays = [rng.standard_normal((*lead, m, extents[0]))]
    for k, n in itertools.pairwise(extents):
        arrays += [rng.standard_normal((*lead, k, n)), rng.standard_normal(n)]
    return [array.astype(np.float32) for array in arrays]


CASES = [
    (None, 64, (32, 48)),
    (None, 64, (32, 48, 40)),
    (None, 128, (96, 384, 256)),
    (3, 24, (16, 24)),
    (2, 16, (8, 32, 16)),
    (None, 37, (32, 50)),
    (None, 1, (32, 48)),
    (None, 40, (8, 30, 24)),
]


@pytest.mark.parametrize(("batch", "m", "extents"), CASES)
def test_compile_product_written_in_place_has_the_bits_of_an_unpacked_one(batch, m, extents, monkeypatch):
    text, inputs = network(batch, m, extents), operands(batch, m, extents)
    changed = []

    def noted(block):
        result = write_in_place(block)
        changed.append(result != block)
        return result

    results = []
    for replacement in (noted, lambda block: block):
        monkeypatch.setattr(tuning, "write_in_place", replacement)
        artifact = sylvite.compile(text, cache=False)
        assert artifact.notes == ()
        with sylvite.load(artifact) as model:
            results.append(np.array(model(*inputs)))
    divides = m % 8 == 0 and all(n % 8 == 0 for n in extents[1:])
    assert len(changed) == len(extents) - 1
    assert all(changed) or not divides
    np.testing.assert_array_equal(results[0], results[1])
    want = inputs[0].astype(np.float64)
    for w, bias in zip(inputs[1::2], inputs[2::2], strict=True):
        want = np.maximum(want @ w + bias, 0)
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=1e-3)


TEXT = """\
          %8 = hal.interface.binding.subspan layout(<x>) binding(1) alignment(64) offset(%c0) : \
memref<128x384xf32$L, #hal.descriptor_type<storage_buffer>>
          %14 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, \
affine_map<(d0, d1, d2, d3) -> (d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], \
iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%13, %9 : tensor<16x96x8x4xf32>, \
tensor<96x4xf32>) outs(%11 : tensor<16x96x8x4xf32>) attrs =  {lowering_config = #c} {
          ^bb0(%in: f32, %in_0: f32, %out: f32):
            %16 = arith.addf %in, $O : f32
            linalg.yield %16 : f32
          } -> tensor<16x96x8x4xf32>
          %15 = tensor.empty() : tensor<128x384xf32>
          %unpack = linalg.unpack %14 outer_dims_perm = $P inner_dims_pos = [0, 1] inner_tiles = [8, 4] \
into %15 {lowering_config = #d} : tensor<16x96x8x4xf32> -> tensor<128x384xf32>
          iree_codegen.store_to_buffer %unpack, %8 : tensor<128x384xf32> into memref<128x384xf32$L, #hal>
"""


def text(*, layout="", operand="%in_0", order="[0, 1]"):
    return TEXT.replace("$L", layout).replace("$O", operand).replace("$P", order)


def test_write_in_place_spreads_the_memory_over_tiles():
    for layout, spread in (
        ("", ""),
        (", strided<[384, 1], offset: ?>", ", strided<[3072, 384, 4, 1], offset: ?>"),
        (", strided<[500, 1], offset: ?>", ", strided<[4000, 500, 4, 1], offset: ?>"),
    ):
        changed = write_in_place(text(layout=layout))
        assert "linalg.unpack" not in changed
        assert changed.count(f"memref<16x8x96x4xf32{spread}, #hal") == 2
        assert "affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>], iterator_types" in changed
        assert "outs(%in_place : tensor<16x8x96x4xf32>) attrs" in changed


@pytest.mark.parametrize(
    "other",
    [
        text(operand="%out"),
        text().replace("[0, 1] inner_tiles = [8, 4]", "[1, 0] inner_tiles = [8, 4]"),
        text().replace("128x384xf32", "127x384xf32"),
        text() + "          iree_codegen.store_to_buffer %y, %8 : tensor<4xf32> into memref<4xf32>\n",
        text().replace("(d0, d1, d2, d3)>], iter", "(d1, d0, d2, d3)>], iter"),
    ],
    ids=[
        "result is read",
        "tiles are of other extents",
        "tiles do not divide",
        "stored twice",
        "other order",
    ],
)
def test_write_in_place_leaves_other_loops(other):
    assert write_in_place(other) == other
