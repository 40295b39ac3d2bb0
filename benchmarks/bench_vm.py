"""What an instruction of the virtual machine costs, beside IREE's interpreter.

usage: python -m benchmarks.bench_vm [--json FILE]

Each program is a loop of one kind of work, compiled by iree-compile. Results are compared first; then
both sides run in turn and the best of several runs counts, in processor time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from iree.compiler.tools.binaries import find_tool

from sylvite.vm import BytecodeModule, Context
from sylvite.vmfb.bytecode import decode_function

ROUNDS = 20_000
REPEATS = 7

BODIES = {
    "loop alone": "%x = vm.xor.i32 %s, %i : i32",
    "4 x i32 arithmetic": "%a = vm.mul.i32 %s, %i : i32\n%b = vm.add.i32 %a, %one : i32\n"
    "%c = vm.shl.i32 %b, %one : i32\n%x = vm.xor.i32 %c, %i : i32",
    "4 x i64 arithmetic": "%w = vm.ext.i32.i64.s %s : i32 -> i64\n%a = vm.mul.i64 %w, %w : i64\n"
    "%b = vm.add.i64 %a, %w : i64\n%x = vm.trunc.i64.i32 %b : i64 -> i32",
    "4 x f32 arithmetic": "%f = vm.cast.si32.f32 %i : i32 -> f32\n%a = vm.mul.f32 %f, %f : f32\n"
    "%b = vm.add.f32 %a, %f : f32\n%x = vm.cast.f32.si32 %b : f32 -> i32",
    "global load and store": "%g = vm.global.load.i32 @g : i32\n%x = vm.xor.i32 %g, %i : i32\n"
    "vm.global.store.i32 %x, @g : i32",
    "buffer load and store": "%v = vm.buffer.load.i32 %buffer[%zero64] : !vm.buffer -> i32\n"
    "%x = vm.xor.i32 %v, %i : i32\nvm.buffer.store.i32 %x, %buffer[%zero64] : i32 -> !vm.buffer",
    "call": "%x = vm.call @callee(%s, %i) : (i32, i32) -> i32",
}


def program(body: str) -> str:
    return f"""vm.module @bench {{
vm.global.i32 mutable @g = 0 : i32
vm.func private @callee(%a: i32, %b: i32) -> i32 attributes {{inlining_policy = #util.inline.never}} {{
  %r = vm.xor.i32 %a, %b : i32
  vm.return %r : i32
}}
vm.export @run
vm.func @run(%n: i32) -> i32 {{
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  %zero64 = vm.const.i64 0
  %size = vm.const.i64 64
  %buffer = vm.buffer.alloc %size, %one : !vm.buffer
  vm.br ^loop(%zero, %zero : i32, i32)
^loop(%i: i32, %s: i32):
  {body}
  %j = vm.add.i32 %i, %one : i32
  %more = vm.cmp.lt.i32.s %j, %n : i32
  vm.cond_br %more, ^loop(%j, %x : i32, i32), ^done
^done:
  vm.return %x : i32
}}
}}
"""


def iree_call(path: Path) -> Callable[[int], int]:
    import iree.runtime as rt

    instance = rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(path))
    context = rt.VmContext(instance, [module])
    function = module.lookup_function("run")

    def call(rounds: int) -> int:
        inputs, outputs = rt.VmVariantList(1), rt.VmVariantList(1)
        inputs.push_int(rounds)
        context.invoke(function, inputs, outputs)
        return outputs.get_variant(0)

    return call


def instructions_per_round(module: BytecodeModule) -> int:
    """Instructions of the block that branches to itself."""
    ordinal = module.definition.export_ordinal("run")
    for index, block in enumerate(decode_function(module.definition, ordinal).blocks):
        if any(branch.block == index for branch in block.instructions[-1].branches):
            return len(block.instructions)
    raise RuntimeError("the loop is not one block")


def measure(name: str, body: str, folder: Path) -> dict[str, object]:
    source = folder / "bench.mlir"
    source.write_text(program(body))
    path = folder / f"{name.replace(' ', '_')}.vmfb"
    subprocess.run([find_tool("iree-compile"), "--compile-mode=vm", str(source), "-o", str(path)], check=True)
    module = BytecodeModule.open(path)
    with Context([module]) as context:
        sides = {"sylvite": context.lookup("bench.run"), "iree": iree_call(path)}
        if sides["sylvite"](ROUNDS) != sides["iree"](ROUNDS):
            raise RuntimeError(f"{name}: results differ")
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(REPEATS):
            for side, call in sides.items():
                start = time.process_time_ns()
                call(ROUNDS)
                best[side] = min(best[side], (time.process_time_ns() - start) / ROUNDS)
    count = instructions_per_round(module)
    return {"program": name, "instructions": count, **{side: best[side] / count for side in best}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, body, Path(folder)) for name, body in BODIES.items()]
    print(f"{'program':24} {'instructions':>12} {'Sylvite ns':>11} {'IREE ns':>9}   per instruction")
    for row in rows:
        print(f"{row['program']:24} {row['instructions']:12} {row['sylvite']:11.0f} {row['iree']:9.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
