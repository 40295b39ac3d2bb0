"""The bytecode decoder: values of every field kind, and malformed bytecode."""

from __future__ import annotations

import math

import archive_writer as writer
import pytest
import vm_programs
from archive_writer import encode, registers

from sylvite import vmfb
from sylvite.errors import FormatError, InvalidArgumentError
from sylvite.vmfb import isa
from sylvite.vmfb.bytecode import Branch, FunctionRef, Reg, _Decoder, decode_function
from sylvite.vmfb.isa import ValueType

I32, I64, F32, F64, REF, ANY = (
    ValueType.I32,
    ValueType.I64,
    ValueType.F32,
    ValueType.F64,
    ValueType.REF,
    ValueType.ANY,
)


def decode(*parts):
    """Decode one function without verifying what it refers to."""
    archive = vmfb.open_archive(writer.archive(writer.module(encode(*parts))), verify=False)
    return decode_function(archive.module, 0)


def first(*parts):
    """The first instruction of a block that begins with ``parts``."""
    return decode("block", *parts, "return", *registers()).blocks[0].instructions[0]


def test_decode_of_registers_gives_type_and_move_bit():
    assert first("add.i32", ("3H", 1, 2, 3)).values == (Reg(1, I32), Reg(2, I32), Reg(3, I32))
    assert first("mul.f64", ("3H", 0, 2, 4)).values == (Reg(0, F64), Reg(2, F64), Reg(4, F64))
    assert first("assign.ref", ("2H", 0xC005, 0x8006)).values == (Reg(5, REF, True), Reg(6, REF))


def test_decode_of_immediates_gives_signed_numbers():
    assert first("const.i32", ("iH", -5, 1)).values == (-5, Reg(1, I32))
    assert first("const.i64", ("qH", -(1 << 63), 2)).values == (-(1 << 63), Reg(2, I64))
    assert first("const.f32", ("fH", 0.5, 1)).values == (0.5, Reg(1, F32))
    assert math.isnan(first("const.f64", ("dH", math.nan, 2)).values[0])


def test_decode_of_ordinals():
    assert first("global.load.i32", ("IH", 12, 1)).values == (12, Reg(1, I32))
    assert first("const.ref.rodata", ("IH", 7, 0x8001)).values == (7, Reg(1, REF))
    assert first("global.load.ref", ("IIH", 3, 1, 0x8001)).values == (3, 1, Reg(1, REF))
    instruction = first("import.resolved", ("IH", 0x80000002, 1))
    assert instruction["callee"] == FunctionRef(2, True)
    assert instruction["result"] == Reg(1, I32)
    with pytest.raises(KeyError):
        instruction["absent"]


def test_decode_of_calls_aligns_lists_and_marks_plain_arguments():
    call = first("call", ("I", 1), *registers(1, 0x8002), *registers(0xC003))
    assert call["callee"] == FunctionRef(1, False)
    assert call["operands"] == (Reg(1, ANY), Reg(2, REF))
    assert call["results"] == (Reg(3, REF, True),)
    call = first(
        "call.variadic", ("I", 0x80000000), *registers(0xFFFF, 2, 0), *registers(1, 2, 3), *registers()
    )
    assert call["segments"] == (-1, 2, 0)
    assert call["results"] == ()


def test_decode_of_strings():
    text = "ä message"
    raw = text.encode()
    instruction = first("trace", (f"H{len(raw)}s", len(raw), raw), *registers(1))
    assert instruction.values == (text, (Reg(1, ANY),))


def test_decode_of_branches_resolves_blocks():
    condition = ["block", "cond_br", ("HI", 0, 24), ("5H", 2, 1, 3, 2, 4), ("I", 36), *registers()]
    function = decode(
        *condition,
        *("block", "br", ("I", 36), ("3H", 1, 0x8000, 0xC001)),
        *("block", "return", *registers(0)),
    )
    assert [block.pc for block in function.blocks] == [0, 24, 36]
    entry = function.blocks[0].instructions[-1]
    assert entry["condition"] == Reg(0, I32)
    assert entry["true_target"] == Branch(1, 24, ((Reg(1, ANY), Reg(3, ANY)), (Reg(2, ANY), Reg(4, ANY))))
    assert entry["false_target"] == Branch(2, 36, ())
    assert entry.branches == (entry["true_target"], entry["false_target"])
    middle = function.blocks[1].instructions[-1]
    assert middle["target"].remaps == ((Reg(0, REF), Reg(1, REF, True)),)


def test_decode_of_branch_table_gives_every_case():
    body = [
        *("block", "br_table", ("HI", 0, 34), *registers(), ("H", 2)),
        *(("I", 34), *registers(), ("I", 34), *registers()),
        *("block",),
    ]
    prefix = encode(*body[:-1])
    target = len(prefix)
    body = [part if part != ("HI", 0, 34) else ("HI", 0, target) for part in body]
    body = [part if part != ("I", 34) else ("I", target) for part in body]
    function = decode(*body, "return", *registers())
    table = function.blocks[0].instructions[0]
    assert table["default"] == Branch(1, target, ())
    assert table["cases"] == (Branch(1, target, ()), Branch(1, target, ()))
    assert table.branches == (Branch(1, target, ()),) * 3
    assert function.blocks[1].pc == target


@pytest.mark.compiler
def test_decode_of_compiled_functions_covers_every_byte_and_finds_all_blocks(every_operation, model):
    for path in (every_operation, model):
        module = vmfb.open_archive(path).module
        for function in module.functions:
            decoded = decode_function(module, function.ordinal)
            assert len(decoded.blocks) == function.block_count
            assert decoded.blocks[0].pc == 0
            pcs = [i.pc for block in decoded.blocks for i in block.instructions]
            assert pcs == sorted(set(pcs))
            for block in decoded.blocks:
                assert [i.op.is_terminator for i in block.instructions].index(True) == (
                    len(block.instructions) - 1
                )
                for branch in block.instructions[-1].branches:
                    assert decoded.blocks[branch.block].pc == branch.target


@pytest.mark.compiler
def test_decode_of_compiled_operations_gives_typed_operands(every_operation):
    """Every written operation is where its function says, with registers of its own types."""
    module = vmfb.open_archive(every_operation).module
    for op in isa.OPERATIONS:
        if op.name in vm_programs.NOT_WRITTEN:
            continue
        function = decode_function(module, module.export_ordinal(vm_programs.function_name(op)))
        found = [i for block in function.blocks for i in block.instructions if i.op is op]
        assert found, op.name
        for field, value in zip(op.fields, found[0].values, strict=True):
            if field.kind is isa.FieldKind.REGISTER:
                assert value.bank is field.type, op.name


def test_decode_of_absent_function_is_refused():
    module = vmfb.open_archive(writer.archive(writer.module(writer.RETURN_FIRST))).module
    for ordinal in (-1, 1):
        with pytest.raises(InvalidArgumentError, match=f"no function {ordinal}"):
            decode_function(module, ordinal)


# (parts, where the error is, message)
MALFORMED = [
    (["return", *registers()], 0, "instruction outside of a block"),
    (["block", "block"], 1, "block marker within a block"),
    (["block"], 0, "block without a terminator"),
    (["block", "add.i32", ("3H", 0, 0, 0)], 0, "block without a terminator"),
    (["block", 137], 1, "unknown opcode 0x89"),
    (["block", 0xDF], 1, "unknown opcode 0xdf"),
    (["block", 0xE0, 62], 1, "unknown opcode 0xe0 0x3e"),
    (["block", 0xE1, 64], 1, "unknown opcode 0xe1 0x40"),
    (["block", 0xE0], 2, "ends within an instruction"),
    (["block", "add.i32", ("2H", 0, 0)], 6, "ends within an instruction"),
    (["block", "const.i64", ("i", 0)], 2, "ends within an instruction"),
    (["block", "return", ("H", 5)], 4, "ends within an instruction"),
    (["block", "return", ("H", 0xFFFF)], 4, "ends within an instruction"),
    (["block", "fail", ("HH", 0, 100)], 6, "ends within an instruction"),
    (["block", "br", ("IH", 0, 0x8000), 0], 8, "ends within an instruction"),
    (["block", "br", ("I", 5), *registers()], 1, "branch target 0x5 is not the start of a block"),
    (["block", "br", ("I", 0xFFFFFFFF), *registers()], 1, "branch target 0xffffffff"),
    (["block", "add.i32", ("3H", 0x8000, 0, 0)], 2, "'left' of type i32 names a reference register"),
    (["block", "list.size", ("2H", 0, 0)], 2, "'list' of type ref names a value register"),
    (["block", "list.size", ("2H", 0xC000, 0)], 2, "'list' must not have the MOVE bit"),
    (["block", "switch.i32", ("2H", 0, 0), *registers(0x8000), ("H", 0)], 6, "mixes register files"),
    (["block", "fail", ("HH2s", 0, 2, b"\xff\xfe")], 6, "'message' is not UTF-8"),
    (["block", "br", ("I", 0), ("3H", 1, 0, 0x8000)], 6, "between the value and the reference file"),
]


@pytest.mark.parametrize(("parts", "place", "message"), MALFORMED)
def test_decode_of_malformed_bytecode_names_the_place(parts, place, message):
    body = encode(*parts)
    data = writer.archive(writer.module(body))
    with pytest.raises(FormatError, match=message) as caught:
        vmfb.open_archive(data, where="bad.vmfb")
    start = data.index(body)
    assert caught.value.offset == start + place
    assert caught.value.where == "function f0 of bad.vmfb"


def test_decode_of_operations_cut_short_reads_nothing_beyond():
    """Whatever lies behind a function, only its own bytes count."""
    for op in isa.OPERATIONS:
        full = encode("block", op.name, *[0] * 40)
        for length in range(len(full)):
            decoder = _Decoder(full[:length], 0, "")
            try:
                decoder.blocks()
            except FormatError:
                assert decoder.pc <= length + 1
            else:
                assert length == 0 or op.is_terminator, op.name
