from __future__ import annotations

import time

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError
from sylvite.wasm import Feature
from sylvite.wasm.instructions import INSTRUCTIONS


def required(text: str) -> set[str]:
    return {feature.value for feature in wasm.features.required(wasm.decode(wasmtime.wat2wasm(text)))}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_required_finds_the_feature_of_every_instruction(name: str) -> None:
    """The fast scan and the instruction table agree. The code need not validate."""
    info = INSTRUCTIONS[name]
    if name in ("if", "else", "end", "block", "loop", "try_table"):
        text = {"try_table": "try_table end"}.get(name, "if else end")
    else:
        words = {
            "memarg": "",
            "lane": "1",
            "shuffle": " ".join(map(str, range(16))),
            "labels": "0 0",
            "type": "(type 0)",
            "v128": "i64x2 1 2",
            "heaptype": "func",
            "valtypes": "(result i32)",
            "zero": "",
        }
        mnemonic = "select" if name == "select_t" else name
        text = mnemonic + " " + " ".join(words.get(o.kind, "0") for o in info.operands if o.kind != "memory")
        text = {
            "table.init": "table.init 0",
            "call_indirect": "call_indirect (type 0)",
            "return_call_indirect": "return_call_indirect (type 0)",
        }.get(name, text)
    preamble = "(type (func)) (memory 1) (table 1 funcref) (global i32 (i32.const 0))"
    found = required(f"(module {preamble} (func i32.const 1 drop {text} nop nop))")
    expected = set() if info.feature is None else {info.feature.value}
    assert found - expected <= {"bulk-memory", "exception-handling"}
    assert expected <= found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(module)", set()),
        ("(module (memory 1 2 shared))", {"atomics"}),
        ("(module (memory i64 1))", {"memory64"}),
        ("(module (table i64 1 funcref))", {"memory64"}),
        ("(module (memory 1) (memory 1))", {"multimemory"}),
        ("(module (memory 1) (memory 1) (func (drop (i32.load 1 (i32.const 0)))))", {"multimemory"}),
        ("(module (func (result i32 i32) unreachable))", {"multivalue"}),
        ("(module (func (param i32) local.get 0 (block (param i32) drop)))", {"multivalue"}),
        ("(module (func (local v128)))", {"simd128"}),
        ("(module (global v128 (v128.const i64x2 0 0)))", {"simd128"}),
        ("(module (func (local externref)))", {"reference-types"}),
        ("(module (table 1 externref))", {"reference-types"}),
        ("(module (table 1 funcref) (table 1 funcref))", {"reference-types"}),
        ("(module (func) (elem func 0))", {"bulk-memory"}),
        ('(module (data "x"))', {"bulk-memory"}),
        ("(module (tag))", {"exception-handling"}),
        ('(module (import "a" "b" (global (mut i32))))', {"mutable-globals"}),
        ('(module (global (export "g") (mut i32) (i32.const 0)))', {"mutable-globals"}),
        ("(module (global (mut i32) (i32.const 0)))", set()),
        ("(module (global i32 (i32.add (i32.const 1) (i32.const 2))))", {"extended-const"}),
        ("(module (func (i64.const 0xfdfefdfe) drop (f64.const nan:0xfd0102030405) drop))", set()),
    ],
)
def test_required_looks_at_records_and_immediates(text: str, expected: set[str]) -> None:
    assert required(text) == expected


@pytest.mark.compiler
def test_required_of_compiled_modules_matches_their_flags(compiled: dict[str, bytes]) -> None:
    found = {name: wasm.features.required(wasm.decode(data)) for name, data in compiled.items()}
    for name, features in found.items():
        claimed = wasm.target_features.read(wasm.decode(compiled[name]))
        assert {feature.value for feature in features} <= claimed.keys(), name
    assert Feature.SIMD not in found["linked-plain"]
    assert {Feature.SIMD, Feature.SATURATING} <= found["linked-simd"]
    assert Feature.RELAXED_SIMD not in found["linked-simd"]
    assert Feature.SIMD in found["iree-0"]


def test_required_malformed_body_is_refused_with_its_offset() -> None:
    data = b"\0asm\1\0\0\0\1\4\1\x60\0\0\3\2\1\0\x0a\6\1\4\0\1\xff\x0b"
    with pytest.raises(FormatError, match="unknown opcode 0xff") as caught:
        wasm.features.required(wasm.decode(data))
    assert caught.value.offset == data.index(b"\xff")


def test_decode_and_required_of_five_megabytes_are_fast() -> None:
    builder = wasm.ModuleBuilder()
    builder.add_memory(1)
    for number in range(500):
        function = builder.function(f"f{number}", params=[wasm.ValueType.I32])
        acc = function.local(wasm.ValueType.V128)
        function.get(acc)
        for step in range(40):
            function.get(0).emit("v128.load", offset=step * 16).emit("f32x4.add")
        function.set(acc)
    module = builder.module()
    module = wasm.Module(
        types=module.types,
        memories=module.memories,
        functions=module.functions * 20,
        code=module.code * 20,
        data=(wasm.DataSegment(data=bytes(1_000_000)),),
    )
    data = wasm.encode(module)
    assert len(data) > 4_000_000
    begin = time.process_time()
    decoded = wasm.decode(data)
    decoding = time.process_time() - begin
    assert wasm.features.required(decoded) == {Feature.SIMD, Feature.BULK_MEMORY}
    scanning = time.process_time() - begin - decoding
    assert decoding < 1, f"decoding took {decoding:.2f} s"
    assert scanning < 3, f"scanning took {scanning:.2f} s"
