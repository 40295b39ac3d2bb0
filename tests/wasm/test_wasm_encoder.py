from __future__ import annotations

import dataclasses

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import InvalidArgumentError
from sylvite.wasm.instructions import encode_body
from sylvite.wasm.leb import encode_unsigned

TEXTS = [
    "(module)",
    "(module (memory 1 2 shared))",
    "(module (memory i64 1 5))",
    "(module (table i64 1 10 externref))",
    "(module (func) (func) (table 3 funcref) (table 3 funcref) (elem (table 1) (i32.const 0) func 0 1))",
    "(module (func) (table 3 funcref) (elem (i32.const 0) funcref (ref.func 0)))",
    "(module (table 3 externref) (elem (i32.const 0) externref (ref.null extern)))",
    "(module (func) (elem declare func 0) (elem func 0) (elem declare funcref (ref.null func)))",
    '(module (memory 1) (memory 1) (data (memory 1) (i32.const 5) "x") (data "y"))',
    '(module (tag (param i32)) (import "a" "b" (tag (param f64))))',
    "(module (global (mut v128) (v128.const i64x2 1 2)) (global f64 (f64.const nan:0x123)))",
    "(module (func (result i32 i64) i32.const 1 i64.const 2) (start 1) (func))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_encode_every_record_canonically_gives_the_bytes_of_wasmtime(text: str) -> None:
    data = bytes(wasmtime.wat2wasm(text))
    module = wasm.decode(data)
    assert wasm.encode(module) == data
    assert wasm.encode(module, canonical=True) == data


def test_encode_small_module_both_ways(small_module: bytes) -> None:
    module = wasm.decode(small_module)
    assert wasm.encode(module) == small_module
    assert wasm.encode(module, canonical=True) == small_module


@pytest.mark.compiler
def test_encode_compiler_output_is_byte_exact(compiled: dict[str, bytes], judge: wasmtime.Engine) -> None:
    assert {"clang-plain", "linked-simd", "linked-relaxed", "iree-0"} <= compiled.keys()
    for name, data in compiled.items():
        module = wasm.decode(data, where=name)
        assert wasm.encode(module) == data, name
        canonical = wasm.encode(module, canonical=True)
        assert wasm.decode(canonical) == module, name
        if not name.startswith("clang"):  # objects may lack what validation wants
            wasmtime.Module.validate(judge, canonical)
            wasm.validate(module)
        for body in module.code:
            runs, code, _ = body.split()
            again = encode_body(body.instructions())
            # Relocatable code pads its integers; the meaning must be the same.
            rebuilt = wasm.FunctionBody(data=body.data[: len(body.data) - len(code)] + again)
            assert [(i.name, i.immediates) for i in rebuilt.instructions()] == [
                (i.name, i.immediates) for i in body.instructions()
            ]
            assert rebuilt.locals == runs


@pytest.mark.compiler
def test_encode_objects_really_hold_padded_integers(compiled: dict[str, bytes]) -> None:
    """The byte-exact test would prove little on canonical input only."""
    data = compiled["clang-simd"]
    assert wasm.encode(wasm.decode(data), canonical=True) != data


def padded(value: int, length: int) -> bytes:
    raw = bytearray(encode_unsigned(value).ljust(length, b"\0"))
    for i in range(length - 1):
        raw[i] |= 0x80
    return bytes(raw)


def test_encode_keeps_padding_empty_sections_and_custom_positions() -> None:
    custom = b"\0" + padded(6, 5) + padded(1, 4) + b"ab"
    parts = [b"\0asm\1\0\0\0", custom, b"\1" + padded(1, 3) + b"\0", custom, custom, b"\3\1\0", b"\2"[:0]]
    parts += [custom, b"\x0a\2\x80\0", custom]
    data = b"".join(parts)
    module = wasm.decode(data)
    assert [section.after.name for section in module.customs] == [
        "CUSTOM",
        "TYPE",
        "TYPE",
        "FUNCTION",
        "CODE",
    ]
    assert wasm.encode(module) == data
    assert len(wasm.encode(module, canonical=True)) < len(data)


def test_encode_after_replacing_a_section_leaves_the_others_as_they_were(small_module: bytes) -> None:
    module = wasm.decode(small_module)
    exports = (*module.exports, wasm.Export(name="again", kind=wasm.ExternKind.FUNCTION, index=1))
    changed = wasm.encode(dataclasses.replace(module, exports=exports))
    assert wasm.decode(changed).exports == exports
    assert wasm.decode(changed).code == module.code
    assert wasm.encode(dataclasses.replace(module, exports=module.exports)) == small_module


def test_encode_replacing_a_custom_section_keeps_its_position() -> None:
    data = b"\0asm\1\0\0\0" + b"\0\2\1a" + b"\1\1\0" + b"\0\2\1b" + b"\3\1\0"
    module = wasm.decode(data)
    changed = dataclasses.replace(module.customs[1], data=b"!")
    encoded = wasm.encode(dataclasses.replace(module, customs=(module.customs[0], changed)))
    assert encoded == b"\0asm\1\0\0\0" + b"\0\2\1a" + b"\1\1\0" + b"\0\3\1b!" + b"\3\1\0"


def test_encode_active_elements_without_offset_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="offset"):
        wasm.encode(wasm.Module(elements=(wasm.ElementSegment(functions=(0,)),)))
