"""Small models of every kind of file, compiled once, for others to damage."""

from __future__ import annotations

from pathlib import Path

import malformed_mutations as mutations
import numpy as np

import sylvite
from sylvite.vm.parameters import write_archive

PROGRAM = """
util.global private mutable @count = dense<0> : tensor<i32>
func.func @scale(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x3xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x3xf32>) -> tensor<4x3xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x3xf32>)
      outs(%fill : tensor<4x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
func.func @any(%a: tensor<?xi32>, %n: i32) -> (tensor<?xi32>, i32) {
  %0 = arith.muli %a, %a : tensor<?xi32>
  %one = arith.constant 1 : i32
  %zero = arith.constant 0 : i32
  %sum = scf.while (%x = %n) : (i32) -> i32 {
    %more = arith.cmpi sgt, %x, %zero : i32
    scf.condition(%more) %x : i32
  } do {
    ^bb0(%x: i32):
    %y = arith.subi %x, %one : i32
    scf.yield %y : i32
  }
  return %0, %sum : tensor<?xi32>, i32
}
func.func @step() -> tensor<i32> {
  %old = util.global.load @count : tensor<i32>
  %one = arith.constant dense<1> : tensor<i32>
  %new = arith.addi %old, %one : tensor<i32>
  util.global.store %new, @count : tensor<i32>
  return %new : tensor<i32>
}
"""

PARAMETRIZED = """
util.global private @w = #stream.parameter.named<"model"::"w"> : tensor<16xf32>
util.global private @b = #stream.parameter.named<"model"::"b"> : tensor<16xf32>
func.func @main(%a: tensor<16xf32>) -> tensor<16xf32> {
  %w = util.global.load @w : tensor<16xf32>
  %b = util.global.load @b : tensor<16xf32>
  %0 = arith.mulf %a, %w : tensor<16xf32>
  %1 = arith.addf %0, %b : tensor<16xf32>
  return %1 : tensor<16xf32>
}
"""

CONTROL = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def onnx_model() -> bytes:
    """A convolution, a reshape with a constant shape, a matrix product, a branch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    def branch(name: str, op: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3])
        return helper.make_graph([helper.make_node(op, ["product"], [name])], name, [], [output])

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "kernel"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Reshape", ["r", "shape"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["product"]),
            helper.make_node(
                "If", ["flag"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs")
            ),
        ],
        "sample",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [
            weight("kernel", 2, 1, 3, 3),
            weight("w", 32, 3),
            numpy_helper.from_array(np.array([1, -1], np.int64), "shape"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def write(directory: Path) -> None:
    """Write all samples into ``directory``."""
    import safetensors.numpy

    modules = {"program": PROGRAM, "parametrized": PARAMETRIZED}
    (directory / "graph.onnx").write_bytes(onnx_model())
    (directory / "graph.zip").write_bytes(sylvite.compile(onnx_model()).path.read_bytes())
    (directory / "control.module").write_bytes(sylvite.compile(CONTROL).path.read_bytes())
    for name, source in modules.items():
        (directory / f"{name}.zip").write_bytes(sylvite.compile(source).path.read_bytes())
    for path in directory.glob("*.zip"):
        path.with_suffix(".bare").write_bytes(mutations.bare_archive(path.read_bytes()))
    weights = {"w": np.arange(16, dtype=np.float32), "b": np.ones(16, np.float32)}
    write_archive(directory / "weights.irpa", weights)
    (directory / "weights.safetensors").write_bytes(safetensors.numpy.save(weights, {"format": "np"}))
