"""The disassembler against iree-dump-module."""

from __future__ import annotations

import archive_writer as writer
import pytest
import vm_programs
from archive_writer import encode, registers

from sylvite import vmfb
from sylvite.errors import InvalidArgumentError
from sylvite.vmfb import isa

# Written by hand because no compiled program contains them, see `vm_programs.NOT_WRITTEN`.
BY_HAND = {
    "global.load.indirect.f32": encode(
        "block", "global.load.indirect.f32", ("2H", 0, 1), "return", *registers(1)
    ),
    "assign.ref": encode("block", "assign.ref", ("2H", 0xC000, 0x8001), "return", *registers(0x8001)),
    "cond_break": encode(
        "block", "cond_break", ("HI", 0, 14), "align", ("3H", 1, 0, 1), "block", "return", *registers(1)
    ),
}
for _source, _result in (("si32", "f64"), ("ui32", "f64"), ("f64", "si32"), ("f64", "ui32")):
    BY_HAND[f"cast.{_source}.{_result}"] = encode(
        "block", f"cast.{_source}.{_result}", ("2H", 0, 2), "return", *registers(2)
    )
CONVENTIONS = {
    "global.load.indirect.f32": "0i_f",
    "assign.ref": "0r_r",
    "cond_break": "0i_i",
    "cast.si32.f64": "0i_F",
    "cast.ui32.f64": "0i_F",
    "cast.f64.si32": "0F_i",
    "cast.f64.ui32": "0F_i",
}


def text_of(path) -> str:
    with vmfb.open_archive(path) as archive:
        return vmfb.disassemble(archive.module, rodata=archive.rodata)


@pytest.mark.compiler
@pytest.mark.parametrize("fixture", ["printable_operations", "model", "bare_model"])
def test_disassembly_of_compiled_module_equals_the_tools(request, dump, fixture):
    path = request.getfixturevalue(fixture)
    assert text_of(path) == dump(path, "--output=disassembly")


@pytest.mark.compiler
def test_disassembly_with_offsets_equals_the_tools(printable_operations, dump):
    expected = dump(
        printable_operations, "--output=disassembly", "--bytecode_offsets", "--function=op_br_table"
    )
    module = vmfb.open_archive(printable_operations).module
    ours = vmfb.disassemble_function(module, module.export_ordinal("op_br_table"), show_offsets=True)
    assert expected.endswith("\n\n" + ours)


def test_disassembly_of_hand_written_operations_equals_the_tools(tmp_path, dump):
    module = writer.module(
        *BY_HAND.values(),
        conventions=[CONVENTIONS[name] for name in BY_HAND],
        blocks=[2 if name == "cond_break" else 1 for name in BY_HAND],
    )
    path = tmp_path / "hand.vmfb"
    path.write_bytes(writer.archive(module))
    text = text_of(path)
    assert text == dump(path, "--output=disassembly")
    for name in BY_HAND:
        assert f"vm.{name} " in text


def test_disassembly_of_float_constants_equals_the_tools(tmp_path, dump):
    wide = [0.0, -0.0, 1e300, 5e-324, 0.1, -1 / 3, 1e16, 123456789.0, float("inf"), -float("inf")]
    single = [0.0, -0.0, 1e30, 1e-45, 0.1, -1 / 3, 1e9, 1e10, float("inf"), -float("inf")]
    parts = ["block"]
    for value in wide:
        parts += ["const.f64", ("dH", value, 0)]
    for value in single:
        parts += ["const.f32", ("fH", value, 0)]
    for bits in (0x7FC00000, 0xFFC00000):
        parts += ["const.f32", ("IH", bits, 0)]
    path = tmp_path / "floats.vmfb"
    path.write_bytes(writer.archive(writer.module(encode(*parts, "return", *registers(0)))))
    assert text_of(path) == dump(path, "--output=disassembly")


@pytest.mark.compiler
def test_compiled_and_hand_written_modules_use_every_operation(every_operation, model):
    seen = {"block", *BY_HAND}
    for path in (every_operation, model):
        module = vmfb.open_archive(path).module
        for function in module.functions:
            for block in vmfb.bytecode.decode_function(module, function.ordinal).blocks:
                seen.update(instruction.op.name for instruction in block.instructions)
    assert seen == set(isa.BY_NAME)


@pytest.mark.compiler
@pytest.mark.parametrize("name", sorted(vm_programs.TOOL_CANNOT_PRINT))
def test_disassembly_of_what_the_tool_cannot_print_names_the_operation(every_operation, name):
    module = vmfb.open_archive(every_operation).module
    text = vmfb.disassemble_function(module, module.export_ordinal("op_" + name.replace(".", "_")))
    assert f"vm.{name} " in text
    assert "vm.return" in text


def test_disassembly_of_absent_function_is_refused():
    module = vmfb.open_archive(writer.archive(writer.module(writer.RETURN_FIRST))).module
    with pytest.raises(InvalidArgumentError, match="no function 1"):
        vmfb.disassemble_function(module, 1)
