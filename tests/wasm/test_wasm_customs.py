"""The readers and writers of custom sections, on what compilers wrote."""

from __future__ import annotations

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError
from sylvite.wasm.dylink import DylinkImport, DylinkInfo, SymbolFlags
from sylvite.wasm.leb import encode_name, encode_unsigned


def module_with(section: wasm.CustomSection) -> wasm.Module:
    return wasm.decode(wasm.encode(wasm.Module(customs=(section,))))


@pytest.mark.compiler
def test_custom_sections_of_compilers_are_read_and_written_the_same(compiled: dict[str, bytes]) -> None:
    seen = set()
    for name, data in compiled.items():
        module = wasm.decode(data)
        for part in (wasm.dylink, wasm.names, wasm.target_features, wasm.producers):
            custom = module.custom(part.SECTION_NAME)
            if custom is not None:
                seen.add(part.SECTION_NAME)
                assert part.section(part.read(module)).data == custom.data, (name, part)  # type: ignore[arg-type]
    assert seen == {"dylink.0", "name", "target_features", "producers"}


@pytest.mark.compiler
def test_dylink_of_a_linked_module_states_its_data_and_functions(compiled: dict[str, bytes]) -> None:
    module = wasm.decode(compiled["linked-simd"])
    info = wasm.dylink.read(module)
    assert info is not None
    # weights (16), position (4), pointer (4), aligned to 16 by the vectorizer at most
    assert 24 <= info.memory_size <= 48
    assert info.memory_alignment in (2, 3, 4)
    assert {item.name for item in module.imports} >= {"memory", "__memory_base", "counter"}
    assert wasm.target_features.read(module)["simd128"] == "+"
    assert "dot" in wasm.names.read(module).functions.values()
    assert wasm.dylink.read(wasm.decode(compiled["linked-plain"])) is None


@pytest.mark.compiler
def test_dylink_of_an_iree_executable_counts_its_table_slots(compiled: dict[str, bytes]) -> None:
    module = wasm.decode(compiled["iree-0"])
    info = wasm.dylink.read(module)
    assert info is not None
    slots = sum(len(segment.functions or ()) for segment in module.elements)
    assert info.table_size == slots >= 2
    assert info.memory_size >= sum(len(segment.data) for segment in module.data) > 0


def test_dylink_every_field_round_trips() -> None:
    info = DylinkInfo(
        memory_size=1000,
        memory_alignment=4,
        table_size=3,
        table_alignment=1,
        needed=("liba.so", "libb.so"),
        export_info={"f": SymbolFlags.WEAK | SymbolFlags.TLS},
        imports=(DylinkImport(module="env", name="g", flags=SymbolFlags.UNDEFINED | SymbolFlags(0x4000)),),
        runtime_path=("$ORIGIN",),
        unknown=((9, b"future"),),
    )
    assert wasm.dylink.read(module_with(wasm.dylink.section(info))) == info
    assert info.import_info == {"g": SymbolFlags.UNDEFINED | SymbolFlags(0x4000)}


def test_dylink_that_is_not_first_is_refused() -> None:
    data = (
        b"\0asm\1\0\0\0"
        + b"\1\1\0"
        + wasm.encode(wasm.Module(customs=(wasm.dylink.section(DylinkInfo()),)))[8:]
    )
    with pytest.raises(FormatError, match="before all others"):
        wasm.dylink.read(wasm.decode(data))


def test_dylink_alignment_that_is_impossible_is_refused_at_its_offset() -> None:
    contents = b"\1\4\0\x20\0\0"
    module = module_with(wasm.CustomSection(name="dylink.0", data=contents, after=wasm.SectionId.CUSTOM))
    with pytest.raises(FormatError, match=r"alignment 2\*\*32") as caught:
        wasm.dylink.read(module)
    assert caught.value.offset == 8 + 2 + 9 + 3


def test_names_of_wasmtime_are_read() -> None:
    module = wasm.decode(
        wasmtime.wat2wasm("""(module $m (func $f (param $p i32) (local $q f32) (block $b)) (memory $mem 1)
        (table $t 1 funcref) (global $g i32 (i32.const 0)) (elem $e func $f) (data $d "x") (type $ty (func))
        (tag $tag))""")
    )
    names = wasm.names.read(module)
    assert names == wasm.names.NameMap(
        module="m",
        functions={0: "f"},
        locals={0: {0: "p", 1: "q"}},
        labels={0: {0: "b"}},
        types={0: "ty"},
        tables={0: "t"},
        memories={0: "mem"},
        globals={0: "g"},
        elements={0: "e"},
        data={0: "d"},
        tags={0: "tag"},
    )
    custom = module.custom("name")
    assert custom is not None
    assert wasm.names.section(names).data == custom.data


def test_names_missing_section_is_empty() -> None:
    assert wasm.names.read(wasm.Module()) == wasm.names.NameMap()
    assert wasm.target_features.read(wasm.Module()) == {}
    assert wasm.producers.read(wasm.Module()) == {}


def test_names_malformed_does_not_hinder_decoding() -> None:
    module = module_with(wasm.CustomSection(name="name", data=b"\1\x05\xff\xff\xff\xff\x0f"))
    with pytest.raises(FormatError, match="count of names is 4294967295"):
        wasm.names.read(module)


def test_target_features_unknown_prefix_is_refused() -> None:
    data = encode_unsigned(1) + b"*" + encode_name("simd128")
    with pytest.raises(FormatError, match=r"prefix '\*'"):
        wasm.target_features.read(module_with(wasm.CustomSection(name="target_features", data=data)))
