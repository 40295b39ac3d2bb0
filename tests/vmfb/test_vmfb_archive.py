"""Opening archives: layouts, views in place, closing, versions, what is refused."""

from __future__ import annotations

import gc
import struct
import sys
import zipfile

import archive_writer as writer
import pytest

from sylvite import vmfb
from sylvite.errors import (
    ClosedError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    StatusCode,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)

EXTERNAL = {"external_data_offset": 0, "external_data_length": 5}


def small(**fields) -> dict:
    return writer.module(writer.RETURN_FIRST, **fields)


def zipped(values: dict, *contents: bytes, names=None, prefix_includes_itself: bool = False) -> bytes:
    """A zip archive as the compiler lays it out, padding included."""
    flatbuffer = writer.Layout().build(values)
    flatbuffer += bytes(-(4 + len(flatbuffer)) % 64)
    archive = writer.Zip()
    if prefix_includes_itself:
        flatbuffer = flatbuffer[: -4 or None]
        archive.add("module.fb", struct.pack("<I", len(flatbuffer) + 4) + flatbuffer)
    else:
        archive.add("module.fb", struct.pack("<I", len(flatbuffer)) + flatbuffer)
    for index, content in enumerate(contents):
        archive.add(names[index] if names else f"data{index}.bin", content)
    return archive.finish()


def with_segment(length: int = 5, offset: int | None = None) -> bytes:
    """A zip archive with a data segment that refers to its member."""
    probe = zipped(small(rodata_segments=[EXTERNAL | {"external_data_offset": 1}]), b"12345")
    members = vmfb.archive.zip_directory.read_directory(memoryview(probe), where="")
    base = -(-members[0].end // 64) * 64
    place = members[1].offset - base if offset is None else offset
    segment = {"external_data_offset": place, "external_data_length": length}
    return zipped(small(rodata_segments=[segment]), b"12345")


# What can be opened.


@pytest.mark.compiler
@pytest.mark.parametrize("fixture", ["every_operation", "model", "bare_model"])
def test_open_of_compiled_module_reads_path_and_bytes_alike(request, fixture):
    path = request.getfixturevalue(fixture)
    with vmfb.open_archive(path, verify_crc=True) as mapped, vmfb.open_archive(path.read_bytes()) as direct:
        assert mapped.module.name == direct.module.name
        assert mapped.module.functions == direct.module.functions
        assert mapped.module.where == str(path)
        assert direct.module.where == "module"
        for segment in mapped.module.rodata:
            assert mapped.rodata(segment.ordinal) == direct.rodata(segment.ordinal)


@pytest.mark.compiler
def test_open_of_zip_and_bare_model_give_the_same_module(model, bare_model):
    with vmfb.open_archive(model) as archive, vmfb.open_archive(bare_model) as bare:
        assert archive.module.imports == bare.module.imports
        assert archive.module.types == bare.module.types
        assert [f.block_count for f in archive.module.functions] == [
            f.block_count for f in bare.module.functions
        ]
        kernels = [a for a in archive.module.rodata if not a.is_embedded]
        assert kernels
        for segment in kernels:
            assert bare.rodata(segment.ordinal)[:4] == archive.rodata(segment.ordinal)[:4]
        assert bare.members == ()


@pytest.mark.compiler
def test_rodata_of_model_equals_the_zip_members(model):
    with vmfb.open_archive(model) as archive, zipfile.ZipFile(model) as members:
        external = [segment for segment in archive.module.rodata if segment.member]
        assert [member.name for member in archive.members] == members.namelist()
        for segment in external:
            assert bytes(archive.rodata(segment.ordinal)) == members.read(segment.member)


def test_module_fields_are_those_written():
    archive = vmfb.open_archive(
        writer.archive(
            small(
                attrs=[{"key": "a", "value": "b"}],
                dependencies=[{"name": "hal", "minimum_version": 7, "flags": 2}],
                imported_functions=[
                    {"full_name": "hal.buffer_view.create", "signature": {"calling_convention": "0rCID_r"}},
                    {"full_name": "x.y", "flags": 2},
                ],
                rwdata_segments=[{"byte_size": 12}],
                requirements=8,
            )
        )
    )
    module = archive.module
    assert (module.name, module.version, module.bytecode_version) == ("m", 3, (17, 0))
    assert dict(module.attrs) == {"a": "b"}
    assert module.dependencies[0].is_optional
    assert module.dependencies[0].minimum_version == 7
    first, second = module.imports
    assert (first.module_name, first.local_name, first.calling_convention) == (
        "hal",
        "buffer_view.create",
        "rCID_r",
    )
    assert (first.is_optional, second.is_optional, second.calling_convention) == (False, True, "")
    assert module.rwdata == (12,)
    assert (module.global_bytes, module.global_ref_count) == (16, 2)
    assert module.requirements == vmfb.isa.Feature.UNWIND
    assert module.export_ordinal("f0") == 0
    assert module.export_ordinal("absent") is None


@pytest.mark.parametrize("source_type", [bytes, bytearray, memoryview])
def test_open_accepts_any_contiguous_bytes(source_type):
    assert vmfb.open_archive(source_type(writer.archive(small()))).module.name == "m"


def test_open_of_text_or_strided_bytes_is_refused():
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        vmfb.open_archive(memoryview(writer.archive(small()))[::2])
    with pytest.raises(InvalidArgumentError, match="path or contiguous bytes"):
        vmfb.open_archive(17)  # type: ignore[arg-type]


def test_open_of_zip_whose_prefix_counts_itself_is_accepted():
    """The compiler writes the size of the zip member there."""
    data = zipped(small(), prefix_includes_itself=True)
    assert vmfb.open_archive(data).module.name == "m"


def test_open_of_bare_module_without_padding_is_accepted():
    flatbuffer = writer.Layout().build(small())
    assert vmfb.open_archive(struct.pack("<I", len(flatbuffer)) + flatbuffer).module.name == "m"


# Views.


def test_rodata_is_a_read_only_view_of_the_source():
    source = bytearray(with_segment())
    archive = vmfb.open_archive(source)
    view = archive.rodata(0)
    assert bytes(view) == b"12345"
    assert view.readonly
    source[archive.module.rodata[0].offset] = ord("X")
    assert bytes(view) == b"X2345"
    assert archive.module.rodata[0].member == "data0.bin"


def test_embedded_rodata_is_a_view_too():
    source = bytearray(writer.archive(small(rodata_segments=[{"embedded_data": b"inside"}])))
    archive = vmfb.open_archive(source)
    assert bytes(archive.rodata(0)) == b"inside"
    assert archive.module.rodata[0].is_embedded
    source[archive.module.rodata[0].offset] = ord("X")
    assert bytes(archive.rodata(0)) == b"Xnside"


def test_rodata_of_absent_segment_is_refused():
    archive = vmfb.open_archive(writer.archive(small()))
    with pytest.raises(InvalidArgumentError, match="no data segment 0: there are 0"):
        archive.rodata(0)


def test_close_with_views_alive_leaves_them_readable(tmp_path):
    path = tmp_path / "m.vmfb"
    path.write_bytes(with_segment())
    archive = vmfb.open_archive(path)
    view = archive.rodata(0)
    archive.close()
    archive.close()
    del archive
    gc.collect()
    assert bytes(view) == b"12345"


def test_use_after_close_is_refused_but_the_module_stays():
    archive = vmfb.open_archive(with_segment())
    with archive:
        assert not archive.is_closed
    assert archive.is_closed
    assert "closed" in repr(archive)
    assert archive.module.name == "m"
    assert vmfb.disassemble(archive.module)
    with pytest.raises(ClosedError, match="module is closed"):
        archive.rodata(0)


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def is_mapped(path) -> bool:
    with open("/proc/self/maps") as maps:
        return str(path) in maps.read()


@needs_proc
def test_file_is_unmapped_with_the_last_view(tmp_path):
    path = tmp_path / "unmapped.vmfb"
    path.write_bytes(with_segment())
    archive = vmfb.open_archive(path)
    view = archive.rodata(0)
    assert is_mapped(path)
    archive.close()
    assert is_mapped(path)
    view.release()
    del view
    assert not is_mapped(path)


@needs_proc
def test_failed_open_leaves_no_mapping(tmp_path):
    path = tmp_path / "bad.vmfb"
    path.write_bytes(with_segment()[:-1])
    with pytest.raises(FormatError):
        vmfb.open_archive(path)
    gc.collect()
    assert not is_mapped(path)


# What is refused.


def test_open_of_absent_file_names_it(tmp_path):
    with pytest.raises(NotFoundError, match=r"no such file: .*absent\.vmfb"):
        vmfb.open_archive(tmp_path / "absent.vmfb")


def test_open_of_folder_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        vmfb.open_archive(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0", b"PK\3\4", b"not a module at all, but text", bytes(1000)])
def test_open_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "else.vmfb"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        vmfb.open_archive(path)
    assert caught.value.where == str(path)
    if content:
        with pytest.raises(FormatError):
            vmfb.open_archive(content)


@pytest.mark.parametrize(("major", "minor"), [(16, 0), (17, 1), (18, 0), (0, 0), (65535, 65535)])
def test_open_of_other_version_names_both_and_the_compiler(major, minor):
    data = writer.archive(small(bytecode_version=major << 16 | minor))
    with pytest.raises(UnsupportedVersionError) as caught:
        vmfb.open_archive(data, where="old.vmfb")
    message = str(caught.value)
    for part in (f"{major}.{minor}", "17.0", "iree-base-compiler 3.13.0", "old.vmfb"):
        assert part in message
    assert caught.value.status is StatusCode.INCOMPATIBLE
    assert data[caught.value.offset : caught.value.offset + 4] == struct.pack("<I", major << 16 | minor)


@pytest.mark.compiler
@pytest.mark.parametrize("fixture", ["every_operation", "model", "bare_model"])
@pytest.mark.parametrize("cut", [1, 2, 16, 22, 63, 64, 65, 1000])
def test_open_of_file_cut_at_its_end_is_refused(request, fixture, cut):
    data = request.getfixturevalue(fixture).read_bytes()
    with pytest.raises(FormatError, match=r"cut off|beyond|does not fill|are too few"):
        vmfb.open_archive(data[:-cut])


@pytest.mark.compiler
@pytest.mark.parametrize("fixture", ["every_operation", "bare_model"])
def test_open_of_file_with_something_appended_is_refused(request, fixture):
    data = request.getfixturevalue(fixture).read_bytes()
    with pytest.raises(FormatError, match="appended"):
        vmfb.open_archive(data + b"\0")


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 1 << 40),
        (1 << 40, 5),
        ((1 << 64) - 1, 5),
        ((1 << 64) - 64, 128),
        (64, (1 << 64) - 64),
    ],
)
def test_open_of_segment_beyond_the_file_is_refused(offset, length):
    segment = {"external_data_offset": offset, "external_data_length": length}
    values = small(rodata_segments=[segment])
    for data in (zipped(values, b"12345"), writer.bare(writer.Layout().build(values), [b"12345"])):
        with pytest.raises(FormatError, match=r"rodata_segments\[0\]: .* reach beyond the data"):
            vmfb.open_archive(data)


@pytest.mark.parametrize(("length", "offset"), [(6, None), (200, 0), (5, 0)])
def test_open_of_segment_across_zip_structures_is_refused(length, offset):
    with pytest.raises(FormatError, match=r"not within one zip member|reach beyond the data"):
        vmfb.open_archive(with_segment(length, offset))


def test_open_of_bare_segment_is_the_data_after_the_flatbuffer():
    values = small(rodata_segments=[EXTERNAL, EXTERNAL | {"external_data_offset": 64}])
    archive = vmfb.open_archive(writer.bare(writer.Layout().build(values), [b"first", b"secnd"]))
    assert [bytes(archive.rodata(i)) for i in range(2)] == [b"first", b"secnd"]


def test_open_of_flatbuffer_with_wrong_checksum_is_refused():
    data = bytearray(zipped(small(), b"12345"))
    position = data.index(b"IREE") + 200
    data[position] ^= 1
    with pytest.raises(FormatError, match=r"member 'module.fb' has CRC-32"):
        vmfb.open_archive(data)


def test_open_of_data_with_wrong_checksum_is_refused_on_request():
    data = bytearray(with_segment())
    data[data.index(b"12345")] ^= 1
    assert bytes(vmfb.open_archive(data).rodata(0)) == b"02345"
    with pytest.raises(FormatError, match=r"member 'data0.bin' has CRC-32"):
        vmfb.open_archive(data, verify_crc=True)


# (changed fields, path, message)
BROKEN_FIELDS = [
    ({"name": ""}, "BytecodeModuleDef.name", "missing or empty"),
    ({"types": [{"full_name": ""}]}, "BytecodeModuleDef.types[0].full_name", "missing or empty"),
    ({"types": [{}]}, "BytecodeModuleDef.types[0].full_name", "missing or empty"),
    ({"dependencies": [{}]}, "BytecodeModuleDef.dependencies[0].name", "missing or empty"),
    ({"dependencies": [{"name": "a", "flags": 8}]}, "BytecodeModuleDef.dependencies[0].flags", "bits 0x8"),
    ({"imported_functions": [{}]}, "BytecodeModuleDef.imported_functions[0].full_name", "missing or empty"),
    (
        {"imported_functions": [{"full_name": "nodot"}]},
        "BytecodeModuleDef.imported_functions[0].full_name",
        "not of the form module.function",
    ),
    (
        {"imported_functions": [{"full_name": "a.b", "signature": {"calling_convention": "0q"}}]},
        "BytecodeModuleDef.imported_functions[0].signature.calling_convention",
        "unexpected 'q'",
    ),
    (
        {"imported_functions": [{"full_name": "a.b", "signature": {"calling_convention": "0CCiDD"}}]},
        "BytecodeModuleDef.imported_functions[0].signature.calling_convention",
        "unexpected 'C'",
    ),
    (
        {"imported_functions": [{"full_name": "a.b", "signature": {"calling_convention": "0Ci"}}]},
        "BytecodeModuleDef.imported_functions[0].signature.calling_convention",
        "span without an end",
    ),
    (
        {"exported_functions": [{"local_name": "f", "internal_ordinal": 1}]},
        "BytecodeModuleDef.exported_functions[0].internal_ordinal",
        "1 is not one of 1 functions",
    ),
    (
        {"exported_functions": [{"local_name": "f", "internal_ordinal": -1}]},
        "BytecodeModuleDef.exported_functions[0].internal_ordinal",
        "-1 is not one of",
    ),
    (
        {"exported_functions": [{"local_name": "f"}, {"local_name": "f"}]},
        "BytecodeModuleDef.exported_functions[1].local_name",
        "exported twice",
    ),
    ({"function_signatures": []}, "BytecodeModuleDef.function_descriptors", "1 descriptors for 0"),
    ({"module_state": {"global_bytes_capacity": -1}}, "module_state.global_bytes_capacity", "-1 is not"),
    ({"module_state": {"global_ref_count": 1 << 30}}, "module_state.global_ref_count", "is not within"),
    ({"attrs": [{"key": "a"}, {"key": "a"}]}, "BytecodeModuleDef.attrs[1].key", "given twice"),
    ({"rwdata_segments": [{"byte_size": -5}]}, "rwdata_segments[0].byte_size", "-5 is not within"),
    (
        {"debug_database": {"location_table": [(1, {"callee": 0, "caller": 1})]}},
        "location_table[0]",
        "only earlier",
    ),
    ({"debug_database": {"location_table": [(4, {"child_location": 7})]}}, "location_table[0]", "7; only"),
    ({"debug_database": {"location_table": [(3, {"locations": [-1]})]}}, "location_table[0]", "-1; only"),
    (
        {"debug_database": {"functions": [{"locations": [(0, 0)]}]}},
        "functions[0].locations[0].location",
        "0 is not one of 0 locations",
    ),
]


@pytest.mark.parametrize(("fields", "path", "message"), BROKEN_FIELDS)
def test_open_of_module_that_breaks_a_rule_names_the_field(fields, path, message):
    data = writer.archive(small(**fields))
    with pytest.raises(FormatError) as caught:
        vmfb.open_archive(data)
    assert path in caught.value.message
    assert message in caught.value.message
    assert 0 < caught.value.offset < len(data)


DESCRIPTORS = [
    ((-8, 8, 0, 0, 1, 1, 1), "bytecode_offset", 0),
    ((9, 1, 0, 0, 1, 1, 1), "bytecode_offset", 0),
    ((0, 9, 0, 0, 1, 1, 1), "bytecode_length", 4),
    ((0x7FFFFFF0, 0x7FFFFFF0, 0, 0, 1, 1, 1), "bytecode_offset", 0),
    ((4, 0x7FFFFFFF, 0, 0, 1, 1, 1), "bytecode_length", 4),
    ((0, -1, 0, 0, 1, 1, 1), "bytecode_length", 4),
    ((0, 0, 0, 0, 1, 1, 1), "bytecode_length", 4),
    ((0, 8, 0, 1, 1, 1, 1), "reserved", 12),
    ((0, 8, 0, 0, 0, 1, 1), "block_count", 14),
    ((0, 8, 0, 0, -1, 1, 1), "block_count", 14),
    ((0, 8, 0, 0, 1, -1, 1), "i32_register_count", 16),
    ((0, 8, 0, 0, 1, 1, -1), "ref_register_count", 18),
    ((0, 8, 0, 0, 1, 1, 0x4000), "ref_register_count", 18),
]


@pytest.mark.parametrize(("descriptor", "field", "place"), DESCRIPTORS)
def test_open_of_broken_function_descriptor_names_the_field(descriptor, field, place):
    built = writer.Layout()
    values = small(function_descriptors=[descriptor])
    data = writer.bare(built.build(values))
    with pytest.raises(FormatError) as caught:
        vmfb.open_archive(data)
    assert caught.value.message.startswith(f"BytecodeModuleDef.function_descriptors[0].{field}: ")
    expected = 4 + built.places["BytecodeModuleDef.function_descriptors"] + 4 + place
    assert caught.value.offset == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"requirements": 16},
        {"function_descriptors": [(0, 8, 0x80000000, 0, 1, 1, 1)]},
        {"function_signatures": [{"calling_convention": "1i_i"}]},
    ],
)
def test_open_of_module_that_needs_something_unknown_is_refused(fields):
    with pytest.raises(UnsupportedFeatureError):
        vmfb.open_archive(writer.archive(small(**fields)))


def test_open_of_functions_that_share_all_bytecode_is_refused():
    """Thousands of functions over one large range would be verified for minutes."""
    body = writer.encode("block", *["const.i32.zero", ("H", 0)] * 2000, "return", *writer.registers(0))
    values = writer.module(body)
    values["function_descriptors"] *= 500
    values["function_signatures"] *= 500
    with pytest.raises(FormatError, match="functions cover"):
        vmfb.open_archive(writer.archive(values))


def test_open_of_functions_that_share_a_range_is_accepted():
    values = small()
    values["function_descriptors"] *= 4
    values["function_signatures"] *= 4
    assert len(vmfb.open_archive(writer.archive(values)).module.functions) == 4
