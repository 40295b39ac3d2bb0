"""MLIR functions that programs of several tests hold."""

from __future__ import annotations

SPIN = """
func.func @spin(%n: tensor<i32>) -> tensor<i32> {
  %0 = tensor.empty() : tensor<i32>
  %c = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []}
      ins(%n : tensor<i32>) outs(%0 : tensor<i32>) {
  ^bb0(%a: i32, %o: i32):
    %zero = arith.constant 0 : i32
    %two = arith.constant 2 : i32
    %one = arith.constant 1 : i32
    %r = scf.while (%x = %a) : (i32) -> i32 {
      %more = arith.cmpi ne, %x, %zero : i32
      scf.condition(%more) %x : i32
    } do {
    ^bb0(%x: i32):
      %y = arith.muli %x, %x : i32
      %z = arith.addi %y, %two : i32
      %w = arith.ori %z, %one : i32
      scf.yield %w : i32
    }
    linalg.yield %r : i32
  } -> tensor<i32>
  return %c : tensor<i32>
}
"""
"""``spin(n)`` returns 0 for 0, and never returns for anything else."""
