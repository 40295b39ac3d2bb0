"""The instruction table against wasmtime's text parser (opcodes, immediates) and validator (types)."""

from __future__ import annotations

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError, UnsupportedFeatureError
from sylvite.wasm.instructions import (
    INSTRUCTIONS,
    Catch,
    Instruction,
    InstructionInfo,
    MemoryArgument,
    decode_body,
    encode_body,
)

# Text and expected value of one immediate of each kind. The module around it has types, functions,
# tables, memories, globals, segments and a tag with these indices.
IMMEDIATES: dict[str, tuple[str, object]] = {
    "label": ("0", 0),
    "labels": ("0 0 0", (0, 0, 0)),
    "function": ("0", 0),
    "local": ("1", 1),
    "global": ("1", 1),
    "data": ("1", 1),
    "element": ("1", 1),
    "tag": ("0", 0),
    "i32": ("-123456789", -123456789),
    "i64": ("-1234567890123456789", -1234567890123456789),
    "f32": ("-nan:0x200001", bytes.fromhex("0100a0ff")),
    "f64": ("nan:0x4000000000001", bytes.fromhex("010000000000f47f")),
    "v128": ("i32x4 1 2 3 0xffffffff", bytes.fromhex("010000000200000003000000ffffffff")),
    "shuffle": ("31 0 1 2 3 4 5 6 7 8 9 10 11 12 13 30", bytes((31, *range(14), 30))),
    "blocktype": ("(result i32)", wasm.ValueType.I32),
    "valtypes": ("(result externref)", (wasm.ValueType.EXTERNREF,)),
    "heaptype": ("extern", wasm.ValueType.EXTERNREF),
    "catches": (
        "(catch 0 0) (catch_ref 0 0) (catch_all 0) (catch_all_ref 0)",
        (Catch(0, 0), Catch(0, 0, True), Catch(None, 0), Catch(None, 0, True)),
    ),
    "zero": ("", 0),
}

PREAMBLE = """
  (type (func)) (type (func (param i32) (result i64)))
  (memory {address} 1) (memory {address} 1 {shared})
  (table {address} 1 funcref) (table {address} 1 funcref)
  (tag (type 0))
  (global i32 (i32.const 0)) (global (mut i32) (i32.const 0))
  (elem func 0) (elem func 0) (data "") (data "")
"""
STRUCTURED = {
    "block": "block {} unreachable end",
    "loop": "loop {} unreachable end",
    "if": "if {} unreachable else unreachable end",
    "else": "if unreachable else unreachable end",
    "end": "block end",
    "try_table": "try_table {} unreachable end",
}


def preamble(address: str = "", shared: str = "") -> str:
    return PREAMBLE.format(address=address, shared=shared)


def spell(info: InstructionInfo) -> tuple[str, list[object]]:
    """Text of an instruction with typical immediates, and the values the decoder must give."""
    words: list[str] = []
    values: list[object] = []
    tables_seen = 0
    for operand in info.operands:
        if operand.kind == "lane":
            text, value = str(operand.limit - 1), operand.limit - 1
        elif operand.kind == "memarg":
            text, value = "offset=70000", MemoryArgument(operand.limit, 70000)
        elif operand.kind == "type":
            text, value = "(type 1)", 1
        elif operand.kind in ("table", "memory"):
            # Different indices, so that a wrong order shows.
            tables_seen += 1
            index = 1 if tables_seen == 1 else 0
            text, value = str(index), index
        else:
            text, value = IMMEDIATES[operand.kind]
        words.append(text)
        values.append(value)
    if info.name in ("call_indirect", "return_call_indirect", "memory.init", "table.init"):
        words.reverse()  # the text format puts the table or memory first, the binary format last
    name = "select" if info.name == "select_t" else info.name
    if info.name in STRUCTURED:
        return STRUCTURED[info.name].format(" ".join(words)), values
    return f"{name} {' '.join(words)}", values


def find(instructions: list[Instruction], name: str) -> Instruction:
    return next(item for item in instructions if item.name == name)


@pytest.fixture(scope="module")
def spelled() -> dict[str, tuple[list[object], wasm.FunctionBody]]:
    """One function per instruction, assembled by wasmtime."""
    functions = []
    expected = []
    for info in INSTRUCTIONS.values():
        text, values = spell(info)
        functions.append(f"(func {text})")
        expected.append(values)
    module = wasm.decode(wasmtime.wat2wasm(f"(module {preamble()} {' '.join(functions)})"))
    return dict(zip(INSTRUCTIONS, zip(expected, module.code, strict=True), strict=True))


def test_table_is_complete() -> None:
    """Counts from the indices of instructions in the specification and the proposals."""
    by_feature: dict[object, int] = {}
    for info in INSTRUCTIONS.values():
        by_feature[info.feature] = by_feature.get(info.feature, 0) + 1
    assert by_feature[wasm.Feature.SIMD] == 236
    assert by_feature[wasm.Feature.RELAXED_SIMD] == 20
    assert by_feature[wasm.Feature.THREADS] == 67
    assert by_feature[None] == 172
    assert by_feature[wasm.Feature.SATURATING] == 8
    assert by_feature[wasm.Feature.SIGN_EXTENSION] == 5


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_assembled_by_wasmtime_decodes_and_encodes_the_same(
    name: str, spelled: dict[str, tuple[list[object], wasm.FunctionBody]]
) -> None:
    values, body = spelled[name]
    instructions = body.instructions()
    found = find(instructions, name)
    assert list(found.immediates) == values
    _, code, _ = body.split()
    assert encode_body(instructions) == code
    assert code[found.offset :].startswith(INSTRUCTIONS[name].opcode_bytes)


def typed_function(info: InstructionInfo, address: str) -> str:
    """A function whose parameters are exactly what the instruction pops, and results what it pushes."""
    signature = info.signature
    assert signature is not None
    pops = [address if t is None else t.text for t in signature.pops]
    pushes = [address if t is None else t.text for t in signature.pushes]
    gets = " ".join(f"local.get {i}" for i in range(len(pops)))
    return f"(func (param {' '.join(pops)}) (result {' '.join(pushes)}) {gets} {spell(info)[0]})"


@pytest.mark.parametrize("address", ["i32", "i64"])
def test_signatures_of_the_table_validate_in_wasmtime(judge: wasmtime.Engine, address: str) -> None:
    functions = [
        typed_function(info, address) for info in INSTRUCTIONS.values() if info.signature is not None
    ]
    assert len(functions) > 480
    text = f"(module {preamble(address if address == 'i64' else '')} {' '.join(functions)})"
    data = wasmtime.wat2wasm(text)
    wasmtime.Module.validate(judge, data)
    wasm.validate(wasm.decode(data))


@pytest.mark.parametrize(
    "name",
    [name for name, info in INSTRUCTIONS.items() if info.signature is not None and info.signature.pops],
)
def test_signature_with_a_wrong_operand_is_refused_as_in_wasmtime(judge: wasmtime.Engine, name: str) -> None:
    info = INSTRUCTIONS[name]
    assert info.signature is not None
    right = typed_function(info, "i32")
    wrong = right.replace("(param ", "(param externref ", 1)
    data = wasmtime.wat2wasm(f"(module {preamble()} {wrong})")
    with pytest.raises(wasmtime.WasmtimeError):
        wasmtime.Module.validate(judge, data)
    with pytest.raises(FormatError, match=r"needs|is left|are left"):
        wasm.validate(wasm.decode(data))


def test_decode_body_nested_blocks_without_recursion() -> None:
    depth = 50_000
    code = b"\x02\x40" * depth + b"\x0b" * (depth + 1)
    assert len(decode_body(code)) == 2 * depth + 1


def test_decode_body_large_offset_of_a_64_bit_memory() -> None:
    data = wasmtime.wat2wasm(
        "(module (memory i64 1) (func (drop (i32.load offset=0xffffffffff align=1 (i64.const 0)))))"
    )
    instructions = wasm.decode(data).code[0].instructions()
    assert find(instructions, "i32.load").immediates == (MemoryArgument(0, 0xFFFFFFFFFF),)


def test_decode_body_memory_index_round_trips() -> None:
    data = wasmtime.wat2wasm(
        "(module (memory 1) (memory 1) (func (drop (i32.load 1 offset=8 (i32.const 0)))))"
    )
    body = wasm.decode(data).code[0]
    assert find(body.instructions(), "i32.load").immediates == (MemoryArgument(2, 8, 1),)
    assert encode_body(body.instructions()) == body.split()[1]


@pytest.mark.parametrize(
    ("code", "message", "offset"),
    [
        ("", "unexpected end", 100),
        ("01", "unexpected end", 101),
        ("4180", "unexpected end", 102),
        ("0b0b", "1 bytes after the final end", 101),
        ("050b", "else without if", 100),
        ("0440050505", "else without if", 103),
        ("ff0b", "unknown opcode 0xff", 100),
        ("fd9a010b", "unknown opcode 0xfd 0x9a", 100),
        ("fdffffffff1f0b", "integer is too large for a u32", 101),
        ("41ffffffffffff0b", "longer than an s32", 101),
        ("41ffffffff4f0b", "too large for an s32", 101),
        ("fd0d000102030405060708090a0b0c0d0e200b", "shuffle lane 32", 102),
        ("fd15100b", "lane 16 of a vector with 16 lanes", 102),
        ("fe03010b", "zero byte expected", 102),
        ("0effffff7f000b", "branch targets", 101),
        ("027a0b0b", "value type 0x7a is unknown", 101),
        ("28c001000b", "alignment", 101),
        ("4300000b", "unexpected end", 104),
    ],
)
def test_decode_body_malformed_names_message_and_offset(code: str, message: str, offset: int) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        decode_body(bytes.fromhex(code), base=100)
    assert caught.value.offset == offset
    assert caught.value.where == "function body"


@pytest.mark.parametrize(("code", "proposal"), [("fb000b", "garbage"), ("0640", "legacy"), ("14", "typed")])
def test_decode_body_unsupported_proposal_is_named(code: str, proposal: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=proposal):
        decode_body(bytes.fromhex(code))


def test_decode_body_padded_integers_are_accepted_and_shortened() -> None:
    padded = bytes.fromhex("41808080800020808080800028828080800080808080001a1a0b")
    instructions = decode_body(padded)
    assert [i.immediates for i in instructions[:3]] == [(0,), (0,), (MemoryArgument(2, 0),)]
    assert encode_body(instructions).hex() == "410020002802001a1a0b"
