"""What is read from the text of a program: which dispatches touch which memory."""

from __future__ import annotations

import pytest

from sylvite.compile.dataflow import Flow, Region, executable_name

EXECUTABLE = """  hal.executable private @"a b$0" {
          %0 = hal.interface.constant.load layout(<>) ordinal(0) : i32
          %1 = hal.interface.constant.load layout(<>) ordinal(1) : i32
          %2 = arith.index_castui %0 : i32 to index
          %3 = arith.index_castui %1 : i32 to index
          %4:2 = util.assume.int
              %2[<umin = 0, umax = 64>, <umin = 8>],
              %3<umin = 64, udiv = 64>
            : index, index
          %c128 = arith.constant 128 : index
          %5 = hal.interface.binding.subspan layout(<>) binding(0) offset(%4#0) : memref<4xf32>
          %6 = hal.interface.binding.subspan layout(<>) binding(1) offset(%c128) : memref<4xf32>
          %7 = hal.interface.binding.subspan layout(<>) binding(1) offset(%4#1) : memref<4xf32>
          %8 = hal.interface.binding.subspan layout(<>) binding(2) offset(%9) : memref<4xf32>
  }
"""
PROGRAM = """  util.func public @f() {
    %3 = stream.cmd.execute on(#d) await(%2) => with(%0 as %arg3: !r{%c9}, %result_0 as %arg4: !r{%c9}) {
      stream.cmd.fill %c0_i8, %arg4[%c64_1 for %c8] : i8 -> !r{%c9}
      stream.cmd.concurrent {
        stream.cmd.dispatch @"a b$0"::@t::@"a b$0_f"(%c256_i32, %c32_i32_5 : i32, i32) {
          ro %arg3[%c0 for %c9] : !r{%c9},
          rw %arg4[%c16 for %c9] : !r{%c9},
          wo %arg4[%c0 for %c9] : !r{%c9}
        }
      }
    } => !stream.timepoint
  }
"""


def commands(program, executable=EXECUTABLE):
    flow = Flow()
    found = flow.add('"a b$0"', executable)
    for line in program.splitlines(keepends=True):
        flow.read(line)
    return found, list(flow.programs())


def test_flow_finds_offsets_in_the_executable_and_in_the_program():
    executable, [program] = commands(PROGRAM)
    assert executable.regions["%5"] == Region(binding=0, offset=None, operand=0)
    assert executable.regions["%6"] == Region(binding=1, offset=128)
    fill, group, dispatch = program
    assert (fill.reads, list(fill.writes)) == ((), [("%result_0", 64)])
    assert (list(group.reads), list(group.writes)) == ([], [])
    assert dispatch.name == '"a b$0"'
    assert dispatch.reads == [("%0", 256), ("%result_0", 144), ("%result_0", 48)]
    # The offset of the last is nothing that could be followed.
    assert dispatch.writes == [("%result_0", 144), ("%result_0", 48), ("%result_0", None)]


@pytest.mark.parametrize("line", ["    cf.br ^bb1\n", "    scf.while (%x = %y) {\n"])
def test_flow_of_a_function_with_branches_has_no_places(line):
    _, [program] = commands(PROGRAM.replace("    %3 = stream", f"{line}    %3 = stream"))
    assert program[-1].bindings == ()
    assert program[-1].place(Region(binding=0, offset=0)) is None


def test_executable_name_is_that_of_executables():
    assert executable_name(EXECUTABLE) == '"a b$0"'
    assert executable_name("  hal.executable private @_encoding_0 {\n") == "_encoding_0"
    assert executable_name(PROGRAM) is None
