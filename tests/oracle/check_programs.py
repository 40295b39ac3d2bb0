# ruff: noqa: E501 - lines of MLIR

"""Programs for the comparison of Sylvite with native IREE: MLIR text and the inputs to run it with.

Each program is one module with several functions, compiled once for wasm32 and once for the host.
"""

import dataclasses
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

FLOATS = ("f32", "f16", "bf16", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
DTYPES = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
# Results of transcendental functions may differ in the last bits: the host has FMA, wasm has not.
TOLERANCES = {"f64": 1e-6, "f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}


@dataclasses.dataclass(frozen=True)
class Program:
    """One module. ``inputs`` gives the arguments of each function."""

    name: str
    source: str
    inputs: dict[str, Callable[[np.random.Generator], list]]
    slow: bool = False


def floats(dtype, *shape, low=-2.0, high=2.0):
    return lambda rng: rng.uniform(low, high, shape).astype(DTYPES[dtype])


def integers(dtype, *shape, low=None, high=None):
    info = np.iinfo(DTYPES[dtype])
    low, high = info.min if low is None else low, info.max if high is None else high
    return lambda rng: rng.integers(low, high, shape, DTYPES[dtype], endpoint=True)


def bools(*shape):
    return lambda rng: rng.integers(0, 2, shape).astype(np.bool_)


def arguments(*makers):
    return lambda rng: [maker(rng) if callable(maker) else maker for maker in makers]


def tensor(dtype, *shape):
    return f"tensor<{'x'.join([*map(str, shape), dtype])}>"


def function(name, parameters, body, results):
    """A function of MLIR text; ``results`` are pairs of value and type."""
    head = ", ".join(f"%{key}: {kind}" for key, kind in parameters.items())
    kinds = ", ".join(kind for _, kind in results)
    values = ", ".join(value for value, _ in results)
    return f"func.func @{name}({head}) -> ({kinds}) {{\n{body}\n  return {values} : {kinds}\n}}\n"


def elementwise_function(name, dtype, operators, parameters, shape):
    kind = tensor(dtype, *shape)
    lines, results = [], []
    for operator in operators:
        value = f"%{operator}"
        operands = ", ".join(f"%{key}" for key in parameters)
        lines.append(f"  {value} = stablehlo.{operator} {operands} : {kind}")
        results.append((value, kind))
    return function(name, dict.fromkeys(parameters, kind), "\n".join(lines), results)


UNARY = (
    *("abs", "negate", "floor", "ceil", "sign", "round_nearest_afz", "round_nearest_even"),
    *("exponential", "exponential_minus_one", "logistic"),
)
NOT_F64 = ("tanh", "sine", "cosine", "cbrt")  # the compiler leaves these to a libm it does not link
POSITIVE = ("log", "log_plus_one", "sqrt", "rsqrt")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
INTEGER_BINARY = (
    *("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical"),
)
COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def elementwise_program(name, dtypes, *, slow):
    source, inputs = [], {}
    shape = (3, 7)
    for dtype in dtypes:
        for group, operators, names, maker in (
            ("unary", UNARY if dtype == "f64" else (*UNARY, *NOT_F64), "x", floats(dtype, *shape)),
            ("positive", POSITIVE, "x", floats(dtype, *shape, low=0.1, high=9)),
            ("binary", BINARY if dtype == "f64" else (*BINARY, "atan2"), "xy", floats(dtype, *shape)),
            ("power", ("power",), "xy", floats(dtype, *shape, low=0.1, high=3)),
        ):
            source.append(elementwise_function(f"{group}_{dtype}", dtype, operators, names, shape))
            inputs[f"{group}_{dtype}"] = arguments(*[maker] * len(names))
    return Program(name, "\n".join(source), inputs, slow=slow)


def integer_program(name, dtypes, *, slow):
    source, inputs = [], {}
    shape = (29,)
    for dtype in dtypes:
        bits = np.iinfo(DTYPES[dtype]).bits
        source.append(elementwise_function(f"binary_{dtype}", dtype, INTEGER_BINARY, "xy", shape))
        inputs[f"binary_{dtype}"] = arguments(
            integers(dtype, *shape), integers(dtype, *shape, low=1, high=bits - 1)
        )
        kind, mask = tensor(dtype, *shape), tensor("i1", *shape)
        lines, results = [], []
        for order in COMPARISONS:
            lines.append(f"  %{order} = stablehlo.compare {order}, %x, %y : ({kind}, {kind}) -> {mask}")
            results.append((f"%{order}", mask))
        lines.append(f"  %pick = stablehlo.select %LT, %x, %y : {mask}, {kind}")
        lines += [
            f"  %{one} = stablehlo.{one} %x : {kind}" for one in ("count_leading_zeros", "popcnt", "not")
        ]
        results += [(f"%{one}", kind) for one in ("pick", "count_leading_zeros", "popcnt", "not")]
        source.append(function(f"compare_{dtype}", {"x": kind, "y": kind}, "\n".join(lines), results))
        inputs[f"compare_{dtype}"] = arguments(*[integers(dtype, *shape, low=-3, high=3)] * 2)
    source.append(elementwise_function("logic_i1", "i1", ("and", "or", "xor"), "xy", shape))
    inputs["logic_i1"] = arguments(bools(*shape), bools(*shape))
    return Program(name, "\n".join(source), inputs, slow=slow)


UNPACK_I4 = """
func.func @unpack_i4() -> (tensor<8xi32>, tensor<8xi32>) {
  %x = util.unfoldable_constant dense<[-8, -1, 0, 1, 7, 3, -4, 5]> : tensor<8xi4>
  %empty = tensor.empty() : tensor<8xi32>
  %s:2 = linalg.generic {
    indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]
  } ins(%x : tensor<8xi4>) outs(%empty, %empty : tensor<8xi32>, tensor<8xi32>) {
  ^bb0(%v: i4, %a: i32, %b: i32):
    %signed = arith.extsi %v : i4 to i32
    %unsigned = arith.extui %v : i4 to i32
    linalg.yield %signed, %unsigned : i32, i32
  } -> (tensor<8xi32>, tensor<8xi32>)
  return %s#0, %s#1 : tensor<8xi32>, tensor<8xi32>
}
"""


def convert_program(name, origins, *, slow):
    source, inputs = [UNPACK_I4], {"unpack_i4": arguments()}
    shape = (11,)
    for origin in origins:
        lines, results = [], []
        for target in ("i1", *INTEGERS, *FLOATS):
            # The compiler cannot turn integers into bf16, on the host neither.
            to_bf16 = target == "bf16" and origin not in FLOATS
            if target == origin or to_bf16 or (target == "i1" and origin in FLOATS):
                continue
            kind = tensor(target, *shape)
            lines.append(f"  %{target} = stablehlo.convert %x : ({tensor(origin, *shape)}) -> {kind}")
            results.append((f"%{target}", kind))
        source.append(function(f"from_{origin}", {"x": tensor(origin, *shape)}, "\n".join(lines), results))
        if origin == "i1":
            maker = bools(*shape)
        elif origin in FLOATS:
            maker = floats(origin, *shape, low=-100, high=100)
        else:
            maker = integers(origin, *shape, low=-100, high=100)
        inputs[f"from_{origin}"] = arguments(maker)
    return Program(name, "\n".join(source), inputs, slow=slow)


def reduce_text(name, value, initial, reducer, dtype, shape, axes):
    left = [extent for axis, extent in enumerate(shape) if axis not in axes]
    return (
        f"  {name} = stablehlo.reduce({value} init: {initial}) applies stablehlo.{reducer} across dimensions = "
        f"{list(axes)} : ({tensor(dtype, *shape)}, {tensor(dtype)}) -> {tensor(dtype, *left)}"
    ), tensor(dtype, *left)


def reduction_program(name, dtypes, *, slow):
    source, inputs = [], {}
    shape = (5, 6, 7)
    for dtype in dtypes:
        lines, results = [], []
        numeric = "1.0" if dtype in FLOATS else "1"
        zero = "0.0" if dtype in FLOATS else "0"
        lines.append(f"  %zero = stablehlo.constant dense<{zero}> : {tensor(dtype)}")
        lines.append(f"  %one = stablehlo.constant dense<{numeric}> : {tensor(dtype)}")
        for number, (reducer, initial, axes) in enumerate(
            (
                ("add", "%zero", (2,)),
                ("add", "%zero", (0, 1, 2)),
                ("maximum", "%zero", (1,)),
                ("minimum", "%zero", (0, 2)),
                ("multiply", "%one", (0,)),
            )
        ):
            text, kind = reduce_text(f"%r{number}", "%x", initial, reducer, dtype, shape, axes)
            lines.append(text)
            results.append((f"%r{number}", kind))
        source.append(function(f"reduce_{dtype}", {"x": tensor(dtype, *shape)}, "\n".join(lines), results))
        maker = floats(dtype, *shape, low=0.5, high=1.5) if dtype in FLOATS else integers(dtype, *shape)
        inputs[f"reduce_{dtype}"] = arguments(maker)
    return Program(name, "\n".join(source), inputs, slow=slow)


CONTRACTION = Program(
    "contraction",
    """
func.func @softmax(%x: tensor<4x33xf32>) -> tensor<4x33xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
      : (tensor<4x33xf32>, tensor<f32>) -> tensor<4xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x33xf32>
  %d = stablehlo.subtract %x, %mb : tensor<4x33xf32>
  %e = stablehlo.exponential %d : tensor<4x33xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<4x33xf32>, tensor<f32>) -> tensor<4xf32>
  %sb = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x33xf32>
  %r = stablehlo.divide %e, %sb : tensor<4x33xf32>
  return %r : tensor<4x33xf32>
}
func.func @argmax(%x: tensor<6x9xf32>) -> (tensor<6xf32>, tensor<6xi32>) {
  %i = stablehlo.iota dim = 1 : tensor<6x9xi32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.reduce(%x init: %low), (%i init: %zero) across dimensions = [1]
      : (tensor<6x9xf32>, tensor<6x9xi32>, tensor<f32>, tensor<i32>) -> (tensor<6xf32>, tensor<6xi32>)
      reducer(%a: tensor<f32>, %b: tensor<f32>) (%p: tensor<i32>, %q: tensor<i32>) {
    %ge = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %ge, %a, %b : tensor<i1>, tensor<f32>
    %w = stablehlo.select %ge, %p, %q : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }
  return %r#0, %r#1 : tensor<6xf32>, tensor<6xi32>
}
func.func @any_and_all(%x: tensor<4x9xi1>) -> (tensor<4xi1>, tensor<9xi1>) {
  %false = stablehlo.constant dense<false> : tensor<i1>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %any = stablehlo.reduce(%x init: %false) applies stablehlo.or across dimensions = [1]
      : (tensor<4x9xi1>, tensor<i1>) -> tensor<4xi1>
  %all = stablehlo.reduce(%x init: %true) applies stablehlo.and across dimensions = [0]
      : (tensor<4x9xi1>, tensor<i1>) -> tensor<9xi1>
  return %any, %all : tensor<4xi1>, tensor<9xi1>
}
func.func @matmul_f32(%a: tensor<17x33xf32>, %b: tensor<33x9xf32>) -> tensor<17x9xf32> {
  %r = stablehlo.dot %a, %b : (tensor<17x33xf32>, tensor<33x9xf32>) -> tensor<17x9xf32>
  return %r : tensor<17x9xf32>
}
func.func @matmul_f16(%a: tensor<5x16xf16>, %b: tensor<16x8xf16>) -> tensor<5x8xf32> {
  %r = stablehlo.dot %a, %b : (tensor<5x16xf16>, tensor<16x8xf16>) -> tensor<5x8xf32>
  return %r : tensor<5x8xf32>
}
func.func @matmul_i8(%a: tensor<8x32xi8>, %b: tensor<32x16xi8>) -> tensor<8x16xi32> {
  %r = stablehlo.dot %a, %b : (tensor<8x32xi8>, tensor<32x16xi8>) -> tensor<8x16xi32>
  return %r : tensor<8x16xi32>
}
func.func @batch_matmul(%a: tensor<3x4x8xf32>, %b: tensor<3x8x5xf32>) -> tensor<3x4x5xf32> {
  %r = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<3x4x8xf32>, tensor<3x8x5xf32>) -> tensor<3x4x5xf32>
  return %r : tensor<3x4x5xf32>
}
""",
    {
        "softmax": arguments(floats("f32", 4, 33, low=-8, high=8)),
        "argmax": arguments(floats("f32", 6, 9)),
        "any_and_all": arguments(bools(4, 9)),
        "matmul_f32": arguments(floats("f32", 17, 33), floats("f32", 33, 9)),
        "matmul_f16": arguments(floats("f16", 5, 16), floats("f16", 16, 8)),
        "matmul_i8": arguments(integers("i8", 8, 32), integers("i8", 32, 16)),
        "batch_matmul": arguments(floats("f32", 3, 4, 8), floats("f32", 3, 8, 5)),
    },
)


CONVOLUTION = Program(
    "convolution",
    """
func.func @conv_nhwc(%x: tensor<1x9x9x3xf32>, %w: tensor<3x3x3x8xf32>) -> tensor<1x5x5x8xf32> {
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x9x9x3xf32>, tensor<3x3x3x8xf32>) -> tensor<1x5x5x8xf32>
  return %r : tensor<1x5x5x8xf32>
}
func.func @conv_nchw_dilated(%x: tensor<2x3x10x10xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<2x4x6x6xf32> {
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
      window = {rhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<2x3x10x10xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x6x6xf32>
  return %r : tensor<2x4x6x6xf32>
}
func.func @conv_depthwise(%x: tensor<1x8x8x4xf32>, %w: tensor<3x3x1x4xf32>) -> tensor<1x8x8x4xf32> {
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
      : (tensor<1x8x8x4xf32>, tensor<3x3x1x4xf32>) -> tensor<1x8x8x4xf32>
  return %r : tensor<1x8x8x4xf32>
}
func.func @conv_i8(%x: tensor<1x6x6x2xi8>, %w: tensor<3x3x2x4xi8>) -> tensor<1x4x4x4xi32> {
  %empty = tensor.empty() : tensor<1x4x4x4xi32>
  %zero = arith.constant 0 : i32
  %init = linalg.fill ins(%zero : i32) outs(%empty : tensor<1x4x4x4xi32>) -> tensor<1x4x4x4xi32>
  %r = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<1x6x6x2xi8>, tensor<3x3x2x4xi8>) outs(%init : tensor<1x4x4x4xi32>) -> tensor<1x4x4x4xi32>
  return %r : tensor<1x4x4x4xi32>
}
func.func @max_pool(%x: tensor<1x8x8x4xf32>) -> tensor<1x4x4x4xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %r = "stablehlo.reduce_window"(%x, %low) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
      : (tensor<1x8x8x4xf32>, tensor<f32>) -> tensor<1x4x4x4xf32>
  return %r : tensor<1x4x4x4xf32>
}
""",
    {
        "conv_nhwc": arguments(floats("f32", 1, 9, 9, 3), floats("f32", 3, 3, 3, 8)),
        "conv_nchw_dilated": arguments(floats("f32", 2, 3, 10, 10), floats("f32", 4, 3, 3, 3)),
        "conv_depthwise": arguments(floats("f32", 1, 8, 8, 4), floats("f32", 3, 3, 1, 4)),
        "conv_i8": arguments(integers("i8", 1, 6, 6, 2), integers("i8", 3, 3, 2, 4)),
        "max_pool": arguments(floats("f32", 1, 8, 8, 4)),
    },
)


MOVEMENT = Program(
    "movement",
    """
func.func @gather(%x: tensor<10x4xf32>, %i: tensor<6x1xi32>) -> tensor<6x4xf32> {
  %r = "stablehlo.gather"(%x, %i) {
    dimension_numbers = #stablehlo.gather<
      offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 4>, indices_are_sorted = false
  } : (tensor<10x4xf32>, tensor<6x1xi32>) -> tensor<6x4xf32>
  return %r : tensor<6x4xf32>
}
func.func @scatter_add(%x: tensor<8x3xf32>, %i: tensor<5x1xi32>, %u: tensor<5x3xf32>) -> tensor<8x3xf32> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {
    scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>,
    indices_are_sorted = false, unique_indices = false
  } : (tensor<8x3xf32>, tensor<5x1xi32>, tensor<5x3xf32>) -> tensor<8x3xf32>
  return %r : tensor<8x3xf32>
}
func.func @slices(%x: tensor<6x8xf32>, %i: tensor<i32>, %j: tensor<i32>)
    -> (tensor<2x3xf32>, tensor<6x8xf32>, tensor<3x2xf32>) {
  %d = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3] : (tensor<6x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
  %n = stablehlo.negate %d : tensor<2x3xf32>
  %u = stablehlo.dynamic_update_slice %x, %n, %j, %i
      : (tensor<6x8xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<6x8xf32>
  %s = stablehlo.slice %x [0:6:2, 1:8:4] : (tensor<6x8xf32>) -> tensor<3x2xf32>
  return %d, %u, %s : tensor<2x3xf32>, tensor<6x8xf32>, tensor<3x2xf32>
}
func.func @shapes(%x: tensor<2x3xi16>) -> (tensor<3x2xi16>, tensor<2x6xi16>, tensor<5x5xi16>, tensor<6xi16>, tensor<2x3xi16>) {
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xi16>) -> tensor<3x2xi16>
  %c = stablehlo.concatenate %x, %x, dim = 1 : (tensor<2x3xi16>, tensor<2x3xi16>) -> tensor<2x6xi16>
  %v = stablehlo.constant dense<9> : tensor<i16>
  %p = stablehlo.pad %x, %v, low = [1, 0], high = [1, 0], interior = [1, 1] : (tensor<2x3xi16>, tensor<i16>) -> tensor<5x5xi16>
  %f = stablehlo.reshape %x : (tensor<2x3xi16>) -> tensor<6xi16>
  %r = stablehlo.reverse %x, dims = [0, 1] : tensor<2x3xi16>
  return %t, %c, %p, %f, %r : tensor<3x2xi16>, tensor<2x6xi16>, tensor<5x5xi16>, tensor<6xi16>, tensor<2x3xi16>
}
func.func @sort(%x: tensor<3x16xi32>) -> tensor<3x16xi32> {
  %r = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %l = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<3x16xi32>) -> tensor<3x16xi32>
  return %r : tensor<3x16xi32>
}
func.func @iota() -> (tensor<4x5xi32>, tensor<4x5xf32>) {
  %i = stablehlo.iota dim = 0 : tensor<4x5xi32>
  %f = stablehlo.iota dim = 1 : tensor<4x5xf32>
  return %i, %f : tensor<4x5xi32>, tensor<4x5xf32>
}
func.func @passed_through(%x: tensor<4xi8>, %y: tensor<2xf64>) -> (tensor<2xf64>, tensor<4xi8>) {
  return %y, %x : tensor<2xf64>, tensor<4xi8>
}
func.func @empty(%x: tensor<0x4xf32>) -> tensor<0x4xf32> {
  %r = stablehlo.add %x, %x : tensor<0x4xf32>
  return %r : tensor<0x4xf32>
}
""",
    {
        "gather": arguments(floats("f32", 10, 4), integers("i32", 6, 1, low=0, high=9)),
        "scatter_add": arguments(
            floats("f32", 8, 3),
            lambda rng: np.array([[1], [0], [7], [1], [3]], np.int32),
            floats("f32", 5, 3),
        ),
        "slices": arguments(
            floats("f32", 6, 8), integers("i32", low=0, high=3), integers("i32", low=0, high=3)
        ),
        "shapes": arguments(integers("i16", 2, 3)),
        "sort": arguments(integers("i32", 3, 16, low=-9, high=9)),
        "iota": arguments(),
        "passed_through": arguments(integers("i8", 4), floats("f64", 2)),
        "empty": arguments(floats("f32", 0, 4)),
    },
)


DYNAMIC = Program(
    "dynamic",
    """
func.func @add(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %r = arith.addf %x, %y : tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func @matmul(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %a, %c0 : tensor<?x?xf32>
  %n = tensor.dim %b, %c1 : tensor<?x?xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @extent(%x: tensor<?x?xi8>) -> (i64, i64) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %x, %c0 : tensor<?x?xi8>
  %n = tensor.dim %x, %c1 : tensor<?x?xi8>
  %a = arith.index_cast %m : index to i64
  %b = arith.index_cast %n : index to i64
  return %a, %b : i64, i64
}
func.func @row_sums(%x: tensor<?x?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x?xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%m) : tensor<?xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %r = linalg.reduce ins(%x : tensor<?x?xf32>) outs(%f : tensor<?xf32>) dimensions = [1]
    (%v: f32, %a: f32) {
      %s = arith.addf %v, %a : f32
      linalg.yield %s : f32
    }
  return %r : tensor<?xf32>
}
func.func @concat_slices(%x: tensor<?xi32>, %n: index) -> tensor<?xi32> {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %x, %c0 : tensor<?xi32>
  %rest = arith.subi %d, %n : index
  %a = tensor.extract_slice %x[0] [%n] [1] : tensor<?xi32> to tensor<?xi32>
  %b = tensor.extract_slice %x[%n] [%rest] [1] : tensor<?xi32> to tensor<?xi32>
  %r = tensor.concat dim(0) %b, %a : (tensor<?xi32>, tensor<?xi32>) -> tensor<?xi32>
  return %r : tensor<?xi32>
}
""",
    {
        "add": arguments(floats("f32", 5, 4), floats("f32", 5, 4)),
        "matmul": arguments(floats("f32", 6, 10), floats("f32", 10, 3)),
        "extent": arguments(integers("i8", 3, 5)),
        "row_sums": arguments(floats("f32", 7, 12)),
        "concat_slices": arguments(integers("i32", 9), 3),
    },
)


CONTROL = Program(
    "control",
    """
func.func @collatz(%n: i32) -> i32 {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %r:2 = scf.while (%v = %n, %steps = %c0) : (i32, i32) -> (i32, i32) {
    %more = arith.cmpi ne, %v, %c1 : i32
    scf.condition(%more) %v, %steps : i32, i32
  } do {
  ^bb0(%v: i32, %steps: i32):
    %odd = arith.andi %v, %c1 : i32
    %is_odd = arith.cmpi ne, %odd, %c0 : i32
    %next = scf.if %is_odd -> i32 {
      %t = arith.muli %v, %c3 : i32
      %u = arith.addi %t, %c1 : i32
      scf.yield %u : i32
    } else {
      %h = arith.divsi %v, %c2 : i32
      scf.yield %h : i32
    }
    %count = arith.addi %steps, %c1 : i32
    scf.yield %next, %count : i32, i32
  }
  return %r#1 : i32
}
func.func @newton(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %limit = stablehlo.constant dense<8> : tensor<i32>
  %half = stablehlo.constant dense<0.5> : tensor<4xf32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %q = stablehlo.divide %x, %y : tensor<4xf32>
    %s = stablehlo.add %y, %q : tensor<4xf32>
    %h = stablehlo.multiply %s, %half : tensor<4xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %h : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}
func.func @power(%x: tensor<3x3xf32>, %n: index) -> tensor<3x3xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x) -> tensor<3x3xf32> {
    %p = func.call @square_step(%a, %x) : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    scf.yield %p : tensor<3x3xf32>
  }
  return %r : tensor<3x3xf32>
}
func.func private @square_step(%a: tensor<3x3xf32>, %b: tensor<3x3xf32>) -> tensor<3x3xf32> {
  %r = stablehlo.dot %a, %b : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
  return %r : tensor<3x3xf32>
}
func.func @choose(%flag: tensor<i1>, %x: tensor<4xi32>) -> tensor<4xi32> {
  %r = "stablehlo.if"(%flag) ({
    %a = stablehlo.add %x, %x : tensor<4xi32>
    stablehlo.return %a : tensor<4xi32>
  }, {
    %b = stablehlo.negate %x : tensor<4xi32>
    stablehlo.return %b : tensor<4xi32>
  }) : (tensor<i1>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}
func.func @scalars(%a: i64, %b: f32, %c: f64, %d: i8) -> (i64, f32, f64, i8) {
  %two = arith.constant 2 : i64
  %x = arith.muli %a, %two : i64
  %y = arith.mulf %b, %b : f32
  %z = arith.divf %c, %c : f64
  %w = arith.addi %d, %d : i8
  return %x, %y, %z, %w : i64, f32, f64, i8
}
util.global private mutable @counter = dense<0> : tensor<2xi32>
func.func @count(%x: tensor<2xi32>) -> tensor<2xi32> {
  %old = util.global.load @counter : tensor<2xi32>
  %new = arith.addi %old, %x : tensor<2xi32>
  util.global.store %new, @counter : tensor<2xi32>
  return %new : tensor<2xi32>
}
""",
    {
        "collatz": arguments(27),
        "newton": arguments(floats("f32", 4, low=1, high=50)),
        "power": arguments(floats("f32", 3, 3, low=-0.5, high=0.5), 5),
        "choose": arguments(bools(), integers("i32", 4, low=-9, high=9)),
        "scalars": arguments(1 << 40, 1.5, math.pi, 100),
        "count": arguments(integers("i32", 2, low=0, high=9)),
    },
)


CHECKS = """
func.func @holds_elementwise() {
  %a = util.unfoldable_constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %b = util.unfoldable_constant dense<[0.5, 0.25, -3.0, 4.0]> : tensor<4xf32>
  %r = stablehlo.multiply %a, %b : tensor<4xf32>
  check.expect_almost_eq_const(%r, dense<[0.5, 0.5, -9.0, 16.0]> : tensor<4xf32>) : tensor<4xf32>
  return
}
func.func @holds_equal() {
  %a = util.unfoldable_constant dense<[1, 2, 3]> : tensor<3xi32>
  %r = stablehlo.add %a, %a : tensor<3xi32>
  check.expect_eq_const(%r, dense<[2, 4, 6]> : tensor<3xi32>) : tensor<3xi32>
  check.expect_all_true(%r) : tensor<3xi32>
  return
}
func.func @holds_scalars() {
  %one = util.unfoldable_constant 1 : i32
  %zero = util.unfoldable_constant 0 : i32
  check.expect_true(%one) : i32
  check.expect_false(%zero) : i32
  return
}
func.func @holds_f16() {
  %a = util.unfoldable_constant dense<[1.0, 2.0]> : tensor<2xf16>
  %r = stablehlo.exponential %a : tensor<2xf16>
  check.expect_almost_eq_const(%r, dense<[2.718, 7.389]> : tensor<2xf16>, atol 1.0e-02, rtol 0.0) : tensor<2xf16>
  return
}
func.func @fails_equal() {
  %a = util.unfoldable_constant dense<[1, 2, 3]> : tensor<3xi32>
  %r = stablehlo.add %a, %a : tensor<3xi32>
  check.expect_eq_const(%r, dense<[2, 4, 7]> : tensor<3xi32>) : tensor<3xi32>
  return
}
func.func @fails_almost() {
  %a = util.unfoldable_constant dense<[1.0, 2.0]> : tensor<2xf32>
  %r = stablehlo.add %a, %a : tensor<2xf32>
  check.expect_almost_eq_const(%r, dense<[2.0, 4.5]> : tensor<2xf32>) : tensor<2xf32>
  return
}
func.func @fails_true() {
  %zero = util.unfoldable_constant 0 : i32
  check.expect_true(%zero) : i32
  return
}
func.func @fails_all_true() {
  %a = util.unfoldable_constant dense<[1, 0, 3]> : tensor<3xi32>
  check.expect_all_true(%a) : tensor<3xi32>
  return
}
"""


# Without a host to compare with: numpy judges.
LIBM = "\n".join(
    [
        elementwise_function("unary", "f64", NOT_F64[:3], "x", (3, 7)),
        elementwise_function("binary", "f64", ("atan2",), "xy", (3, 7)),
    ]
)


def programs():
    """Every program to compare."""
    return (
        elementwise_program("elementwise_f32", ("f32",), slow=False),
        elementwise_program("elementwise_f16", ("f16",), slow=True),
        elementwise_program("elementwise_bf16", ("bf16",), slow=True),
        elementwise_program("elementwise_f64", ("f64",), slow=True),
        integer_program("integer_i8", ("i8",), slow=False),
        integer_program("integer", ("i16", "i32", "i64"), slow=True),
        convert_program("convert_narrow", ("i1", "f16"), slow=False),
        convert_program("convert", (*INTEGERS, "bf16", "f32", "f64"), slow=True),
        reduction_program("reduction_narrow", ("bf16", "f64", "i8"), slow=False),
        reduction_program("reduction", ("f32", "f16", "i16", "i32", "i64"), slow=True),
        CONTRACTION,
        CONVOLUTION,
        MOVEMENT,
        DYNAMIC,
        CONTROL,
    )
