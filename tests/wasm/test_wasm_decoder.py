from __future__ import annotations

import tracemalloc

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError, UnsupportedFeatureError, UnsupportedVersionError
from sylvite.wasm.leb import encode_name, encode_unsigned

HEADER = b"\0asm\1\0\0\0"


def section(number: int, contents: bytes) -> bytes:
    return bytes((number,)) + encode_unsigned(len(contents)) + contents


def test_decode_small_module_finds_every_item(small_module: bytes) -> None:
    module = wasm.decode(small_module)
    assert [(i.module, i.name, i.kind.name) for i in module.imports] == [
        ("env", "f", "FUNCTION"),
        ("env", "g", "GLOBAL"),
        ("env", "m", "MEMORY"),
    ]
    assert module.imports[2].description == wasm.MemoryType(minimum=1, maximum=4)
    assert module.tables == (wasm.TableType(minimum=4),)
    assert module.function_type(0) == wasm.FunctionType(
        parameters=(wasm.ValueType.I32, wasm.ValueType.F32), results=(wasm.ValueType.I32,)
    )
    assert module.export("run").index == 2
    assert module.start == 1
    assert module.data_count == 2
    assert [segment.mode.name for segment in module.elements] == ["ACTIVE", "PASSIVE", "DECLARATIVE"]
    assert module.elements[0].functions == (2, 0)
    assert module.data[0].offset is None
    assert module.data[1].data == b"ac\0tive"
    assert [(run.count, run.type.name) for run in module.code[1].locals] == [(1, "F64"), (1, "V128")]
    assert wasm.names.read(module).functions == {0: "imported", 1: "begin", 2: "run"}


def test_expression_evaluate_extended_constant(small_module: bytes) -> None:
    module = wasm.decode(small_module)
    assert module.globals[1].initializer.evaluate(lambda index: 1000 + index) == 1016
    assert module.globals[0].initializer.evaluate(lambda index: 0) == -5
    big = wasm.expression(
        ("i32.const", 2**31 - 1), ("i32.const", 2), ("i32.mul",), ("i32.const", 3), ("i32.add",)
    )
    assert big.evaluate(lambda index: 0) == 1


def test_decode_keeps_offsets_of_bodies_and_customs(small_module: bytes) -> None:
    module = wasm.decode(small_module)
    for body in module.code:
        assert small_module[body.offset : body.offset + len(body.data)] == body.data
    for custom in module.customs:
        assert small_module[custom.offset : custom.offset + len(custom.data)] == custom.data


@pytest.mark.parametrize(
    ("data", "message", "where", "offset"),
    [
        (b"", "not a WebAssembly module", "module", 0),
        (b"\0asm\1\0\0", "not a WebAssembly module", "module", 0),
        (b"\x7fELF\1\0\0\0", "not a WebAssembly module", "module", 0),
        (HEADER + b"\x0e\x00", "section id 14 is unknown", "module", 8),
        (HEADER + b"\x01", "unexpected end", "module", 9),
        (HEADER + b"\x01\x05\x00", "type section of 5 bytes, but only 1 follow", "module", 8),
        (HEADER + section(1, b"\0") * 2, "type section appears twice", "module", 11),
        (HEADER + section(2, b"\0") + section(1, b"\0"), "comes after the import section", "module", 11),
        (HEADER + section(10, b"\0") + section(12, b"\0"), "data count section comes after", "module", 11),
        (HEADER + section(1, b"\0\0"), "1 trailing bytes", "module, type section", 11),
        (HEADER + section(1, b"\xff\xff\xff\xff\x0f"), "more than 1000000", "module, type section", 10),
        (HEADER + section(1, b"\x05\x60\0\0"), "only 3 bytes follow", "module, type section", 10),
        (HEADER + section(1, b"\1\x61\0\0"), "type form 0x61 is unknown", "module, type section", 11),
        (HEADER + section(1, b"\1\x60\1\x7f"), "unexpected end", "module, type section", 14),
        (HEADER + section(1, b"\1\x60\1\x01\0"), "value type 0x01 is unknown", "module, type section", 13),
        (HEADER + section(2, b"\1\1a\1\xff\2\0\0"), "not valid UTF-8", "module, import section", 14),
        (HEADER + section(2, b"\1\1a\1b\5\0"), "kind 0x05 is unknown", "module, import section", 15),
        (HEADER + section(5, b"\1\x10\0"), "limits flags 0x10 are unknown", "module, memory section", 11),
        (HEADER + section(6, b"\1\x7f\2\x41\0\x0b"), "mutability 0x02", "module, global section", 12),
        (HEADER + section(6, b"\1\x7f\0\x41\0"), "unexpected end", "module, global section", 15),
        (HEADER + section(9, b"\1\x08\0\0"), "element segment flags 0x8", "module, element section", 11),
        (HEADER + section(11, b"\1\3\0\0"), "data segment flags 0x3", "module, data section", 11),
        (HEADER + section(11, b"\1\1\x7fa"), "127 bytes wanted, 1 left", "module, data section", 13),
        (HEADER + section(0, b"\5abc"), "5 bytes wanted, 3 left", "module, custom section", 11),
    ],
)
def test_decode_malformed_names_message_section_and_offset(
    data: bytes, message: str, where: str, offset: int
) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        wasm.decode(data)
    assert (caught.value.where, caught.value.offset) == (where, offset)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (((3, b"\1\0"),), "0 bodies follow|type index 0 out of range"),
        (((1, b"\1\x60\0\0"), (3, b"\1\0")), "1 functions are declared but 0 bodies"),
        (((1, b"\1\x60\0\0"), (3, b"\1\1"), (10, b"\1\2\0\x0b")), "type index 1 out of range"),
        (((7, b"\1\1a\0\0"),), "function index 0 out of range"),
        (((5, b"\1\0\0"), (7, b"\2\1a\2\0\1a\2\0")), "export name 'a' appears twice"),
        (((8, b"\0"),), "function index 0 out of range"),
        (((1, b"\1\x60\1\x7f\0"), (2, b"\1\1a\1b\0\0"), (8, b"\0")), "start function has type"),
        (((5, b"\1\1\2\1"),), "minimum 2 is above its maximum 1"),
        (((5, b"\1\0\x81\x80\x04"),), "memory size is above 65536"),
        (((5, b"\1\2\1"),), "shared memory has no maximum"),
        (((9, b"\1\0\x41\0\x0b\0"),), "table index 0 out of range"),
        (((4, b"\1\x70\0\0"), (9, b"\1\0\x41\0\x0b\1\0")), "function index 0 out of range"),
        (((11, b"\1\0\x41\0\x0b\0"),), "memory index 0 out of range"),
        (((12, b"\1"),), "1 data segments are declared but 0 follow"),
    ],
)
def test_decode_inconsistent_sections_are_refused_as_in_wasmtime(
    sections: tuple[tuple[int, bytes], ...], message: str, judge: wasmtime.Engine
) -> None:
    data = HEADER + b"".join(section(*item) for item in sections)
    with pytest.raises(wasmtime.WasmtimeError):
        wasmtime.Module.validate(judge, data)
    with pytest.raises(FormatError, match=message):
        wasm.decode(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HEADER + section(1, b"\1\x5f\0"), "garbage-collection"),
        (HEADER + section(1, b"\1\x60\1\x6e\0"), "typed-reference"),
        (HEADER + section(4, b"\1\x40\0\x70\0\0\xd0\x70\x0b"), "tables with an initializer"),
        (HEADER + section(5, b"\1\x08\0\0"), "custom page sizes"),
    ],
)
def test_decode_proposals_we_lack_are_named(data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=message):
        wasm.decode(data)


def test_decode_component_is_another_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="component"):
        wasm.decode(b"\0asm\x0d\0\1\0")


def test_decode_size_lies_allocate_nothing() -> None:
    lies = [
        HEADER + section(number, b"\xff\xff\xff\xff\x0f" + b"\0" * 50)
        for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)
    ]
    tracemalloc.start()
    for data in lies:
        with pytest.raises(FormatError):
            wasm.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_body_with_too_many_locals_is_refused() -> None:
    body = wasm.FunctionBody(data=b"\1" + encode_unsigned(2**32 - 1) + b"\x7f\x0b", offset=50)
    with pytest.raises(FormatError, match="4294967295 locals") as caught:
        body.instructions()
    assert caught.value.offset == 51


def test_decode_names_the_file_it_was_given() -> None:
    with pytest.raises(FormatError, match=r"in kernel.wasm, custom section at offset"):
        wasm.decode(HEADER + section(0, b"\5abc"), where="kernel.wasm")


def test_decode_accepts_any_buffer(small_module: bytes) -> None:
    assert wasm.decode(memoryview(small_module)) == wasm.decode(bytearray(small_module))


def test_decode_long_name_is_refused() -> None:
    data = HEADER + section(0, encode_name("n" * 100_001))
    with pytest.raises(FormatError, match="name of 100001 bytes"):
        wasm.decode(data)
