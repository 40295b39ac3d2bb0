"""The verifying flatbuffer reader: against iree-dump-module, and against malformed buffers."""

from __future__ import annotations

import json
import struct
import time

import archive_writer as writer
import pytest

from sylvite import vmfb
from sylvite.errors import FormatError
from sylvite.vmfb import isa
from sylvite.vmfb.archive import _flatbuffer_range, _module_member
from sylvite.vmfb.flatbuffer import ByteSpan, Limits, Record, StructVector, read_root
from sylvite.vmfb.schema import BYTES, MODULE_SCHEMA, STRING, Scalar, Schema, Table, Union, Vector
from sylvite.vmfb.zip_directory import is_zip, read_directory


def read(data: bytes, schema: Schema = MODULE_SCHEMA, limits: Limits | None = None) -> Record:
    return read_root(memoryview(data), schema, file_offset=100, where="test", limits=limits)


# Against the tool.


def to_json(record: Record, data: bytes) -> dict:
    """A record as the tool prints it: without absent fields and defaults."""
    result = {}
    for name, field in MODULE_SCHEMA.tables[record.type]:
        value = record[name]
        if isinstance(field, Scalar):
            if value == field.default:
                continue
            result[name] = flags(value) if name == "requirements" else value
        elif value is not None:
            result[name] = to_json_value(field, value, data)
            if isinstance(field, Vector) and isinstance(field.element, Union):
                result[f"{name}_type"] = ["NONE" if entry is None else entry.type for entry in value]
    if record.type == "ImportFunctionDef" and record["flags"] == 2:
        result["flags"] = "OPTIONAL"
    return result


def flags(value: int) -> str:
    return " ".join(feature.name for feature in isa.Feature if feature & value)


def to_json_value(field, value, data: bytes):
    if isinstance(value, ByteSpan):
        return list(data[value.offset : value.offset + value.length])
    if isinstance(value, StructVector):
        names = [name for name, _ in MODULE_SCHEMA.structs[field.element.name]]
        entries = [dict(zip(names, item, strict=True)) for item in value.items]
        for entry in entries:
            if "requirements" in entry:
                entry["requirements"] = flags(entry["requirements"]) or 0
        return entries
    if isinstance(value, Record):
        return to_json(value, data)
    if isinstance(value, tuple):
        return [to_json_value(field, entry, data) for entry in value]
    return value


@pytest.mark.compiler
@pytest.mark.parametrize("fixture", ["printable_operations", "model", "bare_model"])
def test_reader_of_compiled_module_agrees_with_the_tool(request, dump, fixture):
    path = request.getfixturevalue(fixture)
    data = path.read_bytes()
    view = memoryview(data)
    start, end = 0, len(data)
    if is_zip(view):
        start, end = _module_member(read_directory(view, where=""), "")
    start, end, _ = _flatbuffer_range(view, start, end, "", is_zip=is_zip(view))
    root = read_root(view[start:end], MODULE_SCHEMA, file_offset=start, where="")
    assert to_json(root, data) == json.loads(dump(path, "--output=flatbuffer-json"))


def test_reader_of_written_module_agrees_with_the_tool(tmp_path, dump):
    """The tests' writer makes files IREE reads too, so what it breaks was right before."""
    data = writer.archive(
        writer.module(
            writer.RETURN_FIRST,
            attrs=[{"key": "k", "value": "v"}],
            dependencies=[{"name": "hal", "minimum_version": 7}],
            imported_functions=[
                {"full_name": "a.b.c", "flags": 2, "signature": {"calling_convention": "0v_v"}}
            ],
            rodata_segments=[{"embedded_data": b"abc", "compression_type": (1, {})}],
            debug_database={
                "location_table": [None, (2, {"filename": "f", "line": 1}), (3, {"locations": [1, 0]})],
                "functions": [{"local_name": "f0", "locations": [(1, 2)]}],
            },
        )
    )
    path = tmp_path / "written.vmfb"
    path.write_bytes(data)
    root = read_root(memoryview(data)[4:], MODULE_SCHEMA, file_offset=4, where="")
    expected = json.loads(dump(path, "--output=flatbuffer-json"))
    expected["rodata_segments"][0].pop("compression_type_type")
    assert to_json(root, data) == expected


# Malformed buffers. Positions in messages are offset by 100, where the buffer is said to start.

NODE = Schema(
    root="Node",
    identifier=b"TEST",
    tables={
        "Node": (
            ("number", Scalar("Q")),
            ("text", STRING),
            ("child", Table("Node")),
            ("children", Vector(Table("Node"))),
            ("data", BYTES),
            ("wide", Vector(Scalar("Q"))),
            ("choice", Union("Choice")),
            ("choices", Vector(Union("Choice"))),
        )
    },
    structs={},
    unions={"Choice": ("Node",)},
    required=frozenset(),
)


def layout(values: dict) -> tuple[bytearray, dict[str, int]]:
    built = writer.Layout(NODE)
    return bytearray(built.build(values)), built.places


FULL = {
    "number": 7,
    "text": "hello",
    "child": {"number": 1, "text": "inner"},
    "children": [{"number": 2}, {"number": 3, "text": "hello"}],
    "data": b"12345",
    "wide": [1, 2, 3],
    "choice": (1, {"text": "chosen"}),
    "choices": [(1, {"number": 4}), None],
}


def test_reader_of_full_table_returns_every_value():
    data, _ = layout(FULL)
    root = read(data, NODE)
    assert (root["number"], root["text"], root["wide"]) == (7, "hello", (1, 2, 3))
    assert [child["number"] for child in root["children"]] == [2, 3]
    assert (root["child"]["text"], root["child"]["child"], root["child"]["data"]) == ("inner", None, None)
    span = root["data"]
    assert data[span.offset - 100 : span.offset - 100 + span.length] == b"12345"
    assert root["choice"]["text"] == "chosen"
    assert [entry and entry["number"] for entry in root["choices"]] == [4, None]
    assert root["children"][0].path == "Node.children[0]"
    assert root.has("text")
    assert not root["child"].has("data")
    assert root["child"].field_offset("data") == root["child"].offset


def poke(data: bytearray, position: int, code: str, value: int) -> bytearray:
    struct.pack_into("<" + code, data, position, value)
    return data


# (place, format, new value or function of the old one, path in the message, message)
LIES = [
    ("Node.text#field", "I", 0, "Node.text", "offset is zero"),
    ("Node.text#field", "I", 0xFFFFFFFC, "Node.text", "points beyond the flatbuffer"),
    ("Node.text#field", "I", lambda v: v + 1, "Node.text", "string is not aligned to 4"),
    ("Node.text", "I", 0x7FFFFFFF, "Node.text", "string of 2147483652 bytes reaches beyond"),
    ("Node.text", "I", 0xFFFFFFFF, "Node.text", "reaches beyond"),
    ("Node.text", "I", 4, "Node.text", "does not end in a zero byte"),
    ("Node.children", "I", 0x40000001, "Node.children", "vector of 1073741825 of 4294967300 bytes"),
    ("Node.wide", "I", 0x20000001, "Node.wide", "vector of 536870913"),
    ("Node.data", "I", 0xFFFFFFFF, "Node.data", "vector of 4294967295"),
    ("Node.child#field", "I", lambda v: v + 2, "Node.child", "table is not aligned to 4"),
    ("Node.child", "i", 0x7FFFFFFF, "Node.child", "vtable"),
    ("Node.child", "i", -0x80000000, "Node.child", "vtable"),
    ("Node.child", "i", lambda v: v + 1, "Node.child", "vtable is not aligned to 2"),
    ("Node.child#vtable", "H", 3, "Node.child", "vtable size 3"),
    ("Node.child#vtable", "H", 2, "Node.child", "vtable size 2"),
    ("Node.child#vtable", "H", 0xFFFE, "Node.child", "vtable of 65534 bytes reaches beyond"),
    ("Node.child#vtable+2", "H", 3, "Node.child", "table size 3"),
    ("Node.child#vtable+2", "H", 0xFFFF, "Node.child", "table of 65535 bytes reaches beyond"),
    ("Node.child#vtable+4", "H", 2, "Node.child.number", "field at 2 of 8 bytes is not within"),
    ("Node.child#vtable+4", "H", 0xFFF8, "Node.child.number", "field at 65528"),
    ("Node.child#vtable+4", "H", 12, "Node.child.number", "field"),
    ("Node.choice.type#field", "B", 2, "Node.choice", "Choice has no member 2"),
    ("Node.choices.types", "I", 1, "Node.choices", "1 union types for 2 values"),
]


@pytest.mark.parametrize(("place", "code", "value", "path", "message"), LIES)
def test_reader_of_lying_structure_names_it(place, code, value, path, message):
    data, places = layout(FULL)
    name, _, more = place.partition("+")
    position = places[name] + int(more or 0)
    old = struct.unpack_from("<" + code, data, position)[0]
    poke(data, position, code, value(old) if callable(value) else value)
    with pytest.raises(FormatError) as caught:
        read(data, NODE)
    assert caught.value.message.startswith(f"{path}: ")
    assert message in caught.value.message
    assert caught.value.where == "test"
    assert 100 <= caught.value.offset < 100 + len(data)


def test_reader_of_string_that_is_not_utf8_names_the_byte():
    data, places = layout(FULL)
    data[places["Node.text"] + 6] = 0xFF
    with pytest.raises(FormatError, match=r"Node\.text: string is not UTF-8") as caught:
        read(data, NODE)
    assert caught.value.offset == 100 + places["Node.text"] + 6


def test_reader_of_union_without_type_is_refused():
    data, places = layout({"choice": (1, {"number": 1})})
    vtable = places["Node#vtable"]
    poke(data, vtable + 4 + 2 * 6, "H", 0)
    with pytest.raises(FormatError, match="union value without a type"):
        read(data, NODE)


def test_reader_of_union_without_value_is_refused():
    data, places = layout({"choice": (1, {"number": 1})})
    poke(data, places["Node#vtable"] + 4 + 2 * 7, "H", 0)
    with pytest.raises(FormatError, match="union type without a value"):
        read(data, NODE)


def test_reader_of_wrong_identifier_is_refused():
    data, _ = layout(FULL)
    data[4:8] = b"ELSE"
    with pytest.raises(FormatError, match="file identifier is b'ELSE'"):
        read(data, NODE)


def test_reader_of_missing_required_field_is_refused():
    values = writer.module(writer.RETURN_FIRST)
    del values["name"]
    with pytest.raises(FormatError, match=r"BytecodeModuleDef\.name: required field is missing"):
        read(writer.Layout().build(values))


def test_reader_of_nested_tables_stops_at_the_depth_limit():
    values: dict = {"number": 0}
    for _ in range(200):
        values = {"child": values}
    data, _ = layout(values)
    with pytest.raises(FormatError, match="nested more than 64 deep"):
        read(data, NODE)
    assert read(data, NODE, Limits(max_depth=1000))["child"]["child"] is not None


def test_reader_of_many_tables_stops_at_the_table_limit():
    data, _ = layout({"children": [{"number": i} for i in range(50)]})
    with pytest.raises(FormatError, match="more than 50 tables"):
        read(data, NODE, Limits(max_tables=50))
    assert len(read(data, NODE, Limits(max_tables=51))["children"]) == 50


def test_reader_of_table_that_contains_itself_is_refused():
    """Offsets are unsigned, so a cycle needs an offset that wraps around."""
    data, places = layout({"child": {"number": 1}})
    field = places["Node.child#field"]
    poke(data, field, "I", (places["Node"] - field) & 0xFFFFFFFF)
    with pytest.raises(FormatError, match="points beyond"):
        read(data, NODE)


def shared_vectors(levels: int, width: int) -> bytes:
    """Levels of vectors whose entries all point to the one table of the next level."""
    data = bytearray(b"\0\0\0\0TEST")
    vtable = len(data)
    data += struct.pack("<8H", 16, 8, 0, 0, 0, 4, 0, 0)
    struct.pack_into("<I", data, 0, len(data) - 0)
    for _ in range(levels):
        table = len(data)
        data += struct.pack("<iII", table - vtable, 4, width)
        vector_entries = len(data)
        end = vector_entries + 4 * width
        data += b"".join(struct.pack("<I", end - (vector_entries + 4 * i)) for i in range(width))
    table = len(data)
    data += struct.pack("<hhi", 4, 4, 4)
    struct.pack_into("<I", data, table - 4, table + 4 - (table - 4))
    for i in range(width):
        place = table - 4 * width + 4 * i
        struct.pack_into("<I", data, place, table + 4 - place)
    return bytes(data)


def test_reader_of_shared_tables_takes_time_linear_in_the_file():
    """40 levels of 50 references each would be 50**40 tables if each were read again."""
    data = shared_vectors(40, 50)
    start = time.process_time()
    record = read(data, NODE)
    assert time.process_time() - start < 5
    for _ in range(40):
        record = record["children"][-1]
    assert record["number"] == 0


def test_reader_of_overlapping_vectors_exhausts_its_budget():
    """Each of many vectors starts within the last one and reaches to the end of the buffer."""
    count = 4000
    values = {"children": [{"wide": [0]}] * count}
    data, places = layout(values)
    data += bytes(8 * count)
    for i in range(count):
        start = places[f"Node.children[{i}].wide"]
        poke(data, start, "I", (len(data) - start - 4) // 8)
    started = time.process_time()
    with pytest.raises(FormatError, match="overlap beyond the reading budget"):
        read(data, NODE)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("length", range(60))
def test_reader_of_truncated_buffer_is_refused(length):
    data, _ = layout(FULL)
    with pytest.raises(FormatError):
        read(data[:length], NODE)


def test_reader_of_future_version_does_not_read_the_rest():
    """Modules of other versions may have other tables: only the version is read before it is refused."""
    built = writer.Layout()
    data = bytearray(built.build(writer.module(writer.RETURN_FIRST, bytecode_version=18 << 16)))
    poke(data, built.places["BytecodeModuleDef.types#field"], "I", 0xFFFFFFFF)
    with pytest.raises(FormatError, match=r"bytecode version 18\.0"):
        vmfb.open_archive(writer.bare(bytes(data)))
