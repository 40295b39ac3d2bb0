import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from parameter_samples import (
    ARRAYS,
    GGUF_PAIRS,
    SAMPLES,
    gguf_bytes,
    gguf_string,
    irpa_bytes,
    safetensors_bytes,
)

from sylvite.errors import (
    ClosedError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from sylvite.vm.parameters import (
    ParameterFile,
    Splat,
    open_parameters,
    read_parameters,
    write_archive,
)
from sylvite.vm.parameters.element_types import GGML_TYPES, SAFETENSORS_TYPES
from sylvite.vm.parameters.gguf import read_gguf
from sylvite.vm.parameters.irpa import read_archive
from sylvite.vm.parameters.safetensors import read_safetensors

READERS = {"irpa": read_archive, "safetensors": read_safetensors, "gguf": read_gguf}


def read(data, kind):
    return READERS[kind](ParameterFile(data, name=f"sample.{kind}"))


@pytest.mark.parametrize("kind", READERS)
def test_reader_sample_finds_every_parameter_with_its_bytes(kind):
    index = read(SAMPLES[kind], kind)
    assert set(index) - {"splat"} == set(ARRAYS)
    for key, array in ARRAYS.items():
        assert index[key].byte_length == array.nbytes
        assert index[key].read() == array.tobytes()


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_reader_typed_format_gives_arrays(kind):
    index = read(SAMPLES[kind], kind)
    for key, array in ARRAYS.items():
        found = index[key].array()
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_entry_views_are_zero_copy_and_outlive_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file(ARRAYS, path)
    with open_parameters(path) as index:
        weight = index["weight"].array()
        assert not weight.flags.owndata
        assert not weight.flags.writeable
        entry = index["weight"]
    np.testing.assert_array_equal(weight, ARRAYS["weight"])
    with pytest.raises(ClosedError):
        entry.view()


def test_entry_span_outside_says_both_lengths():
    entry = read(SAMPLES["irpa"], "irpa")["weight"]
    with pytest.raises(InvalidArgumentError, match=r"wants 100 bytes at offset 0 .*'weight'.* has 48 bytes"):
        entry.view(0, 100)
    with pytest.raises(InvalidArgumentError):
        entry.view(-1, 4)


def test_lookup_missing_names_scope_key_and_closest():
    index = read(SAMPLES["irpa"], "irpa")
    with pytest.raises(NotFoundError, match=r"'wieght' in scope 'model' \(5 parameters; closest: 'weight'"):
        index.lookup("wieght", scope="model")


def test_splat_read_follows_the_phase():
    entry = read(SAMPLES["irpa"], "irpa")["splat"]
    assert entry.storage == Splat(pattern=b"\1\2\3\4")
    assert entry.read(3, 6) == b"\4\1\2\3\4\1"
    with pytest.raises(InvalidArgumentError, match="splat"):
        entry.view()


def test_open_parameters_goes_by_contents_then_name(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(SAMPLES["irpa"])
    with open_parameters(path) as index:
        assert "weight" in index
    path.write_bytes(b"something else")
    with pytest.raises(FormatError, match="not a parameter file"):
        open_parameters(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="empty"):
        open_parameters(path)
    with pytest.raises(NotFoundError):
        open_parameters(tmp_path / "missing.irpa")


def test_open_parameters_directory_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError):
        open_parameters(tmp_path)


# -- irpa ------------------------------------------------------------------------------------------------


def patched(kind, offset, layout, *values):
    data = bytearray(SAMPLES[kind])
    struct.pack_into(layout, data, offset, *values)
    return bytes(data)


FIRST_ENTRY = 96


@pytest.mark.parametrize(
    ("offset", "layout", "value", "error", "text", "place"),
    [
        (0, "<I", 0, FormatError, "not a parameter archive", 0),
        (4, "<H", 1, UnsupportedVersionError, "version 1.0", 4),
        (6, "<H", 3, UnsupportedVersionError, "version 0.3", 4),
        (8, "<Q", 96, FormatError, "header of 96 bytes", 8),
        (16, "<Q", 7, FormatError, "next archive", 16),
        (16, "<Q", 1 << 63, FormatError, "next archive", 16),
        (32, "<Q", 1 << 60, FormatError, "entries do not fit", 32),
        (32, "<Q", 6, FormatError, "ends before entry 5", None),
        (48, "<Q", (1 << 64) - 1, FormatError, "entry table spans", 40),
        (56, "<Q", (1 << 64) - 8, FormatError, "metadata segment spans", 56),
        (80, "<Q", 1 << 40, FormatError, "storage segment spans", 72),
        (FIRST_ENTRY, "<Q", 0, FormatError, "entry 0 has 0 bytes", FIRST_ENTRY),
        (FIRST_ENTRY, "<Q", 1 << 50, FormatError, "entry 0 has", FIRST_ENTRY),
        (FIRST_ENTRY, "<Q", 61, FormatError, "'weight'.*bytes short", FIRST_ENTRY + 60),
        (
            FIRST_ENTRY + 8,
            "<I",
            9,
            UnsupportedFeatureError,
            "'weight': unknown entry type 9",
            FIRST_ENTRY + 8,
        ),
        (FIRST_ENTRY + 20, "<Q", 1 << 63, FormatError, "entry name spans", FIRST_ENTRY + 20),
        (
            FIRST_ENTRY + 36,
            "<QQ",
            (5, 1 << 62),
            FormatError,
            "metadata of parameter 'weight'",
            FIRST_ENTRY + 36,
        ),
        (FIRST_ENTRY + 52, "<Q", 48, FormatError, "'weight': alignment 48", FIRST_ENTRY + 52),
        (FIRST_ENTRY + 60, "<Q", 1, FormatError, "'weight': offset 1 is not aligned", FIRST_ENTRY + 60),
        (FIRST_ENTRY + 68, "<Q", 1 << 62, FormatError, "'weight' spans", FIRST_ENTRY + 60),
        (FIRST_ENTRY + 60, "<Q", (1 << 64) - 32, FormatError, "'weight' spans", FIRST_ENTRY + 60),
    ],
)
def test_irpa_malformed_field_is_refused_with_its_place(offset, layout, value, error, text, place):
    values = value if isinstance(value, tuple) else (value,)
    with pytest.raises(error, match=text) as caught:
        read(patched("irpa", offset, layout, *values), "irpa")
    if place is not None:
        assert caught.value.offset == place


SPLAT_ENTRY = FIRST_ENTRY + 4 * 80


@pytest.mark.parametrize(
    ("offset", "layout", "value", "text"),
    [
        (84, "<B", 3, "'splat': a pattern of 3 bytes"),
        (84, "<B", 0, "'splat': a pattern of 0 bytes"),
        (60, "<Q", 63, "'splat': 63 bytes"),
    ],
)
def test_irpa_malformed_splat_is_refused(offset, layout, value, text):
    with pytest.raises(FormatError, match=text):
        read(patched("irpa", SPLAT_ENTRY + offset, layout, value), "irpa")


def test_irpa_duplicate_key_is_refused():
    data = bytearray(irpa_bytes({"a": b"x", "b": b"y"}))
    names = data.index(b"ab")
    data[names : names + 2] = b"aa"
    with pytest.raises(FormatError, match="'a' is there twice"):
        read(bytes(data), "irpa")


def test_irpa_key_that_is_not_text_is_refused():
    data = bytearray(irpa_bytes({"a": b"x"}))
    data[data.index(b"a", FIRST_ENTRY)] = 0xFF
    with pytest.raises(FormatError, match="entry name is not UTF-8"):
        read(bytes(data), "irpa")


def test_irpa_linked_archives_are_joined():
    first, second = irpa_bytes({"a": b"first"}), irpa_bytes({"b": b"second"})
    data = bytearray(first + second)
    struct.pack_into("<Q", data, 16, len(first))
    index = read(bytes(data), "irpa")
    assert index["a"].read() == b"first"
    assert index["b"].read() == b"second"


def test_irpa_many_headers_over_one_table_are_refused():
    header_count, entry_count = 50, 200
    table = struct.pack("<QIQQQQQQ", 60, 0, 0, 0, 0, 0, 0, 0).ljust(64, b"\0") * entry_count
    data = b""
    for number in range(header_count):
        following = 96 if number + 1 < header_count else 0
        begin = 96 * (header_count - number)
        fields = (0x41505249, 0, 0, 88, following, 0, entry_count, begin, len(table), 0, 0, 0, 0)
        data += struct.pack("<IHHQQQ7Q", *fields).ljust(96, b"\0")
    with pytest.raises(FormatError, match="entries do not fit"):
        read(data + table, "irpa")


def external_archive(path_text, offset, byte_length):
    names = b"w" + path_text.encode()
    entry = struct.pack("<QIQQQQQQ", 92, 3, 0, 0, 1, 0, 0, 0)
    entry += struct.pack("<QQQQ", 1, len(names) - 1, offset, byte_length)
    table = entry + bytes(-len(entry) % 16)
    header = struct.pack(
        "<IHHQQQ7Q", 0x41505249, 0, 0, 88, 0, 0, 1, 96, len(table), 96 + len(table), len(names), 0, 0
    )
    return header + bytes(8) + table + names


def test_irpa_external_entry_reads_a_neighbour(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"0123456789")
    (tmp_path / "m.irpa").write_bytes(external_archive("data/w.bin", 2, 5))
    with open_parameters(tmp_path / "m.irpa") as index:
        assert index["w"].read() == b"23456"


@pytest.mark.parametrize("path", ["../w.bin", "/etc/hostname", "a/../../w.bin", "C:\\w.bin", "\\w.bin", ""])
def test_irpa_external_entry_cannot_leave_the_folder(tmp_path, path):
    (tmp_path / "w.bin").write_bytes(b"secret")
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "m.irpa").write_bytes(external_archive(path, 0, 1))
    with pytest.raises(FormatError, match="parameter path"):
        open_parameters(folder / "m.irpa")


def test_irpa_external_entry_outside_of_its_file_or_without_folder_is_refused(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"12")
    (tmp_path / "m.irpa").write_bytes(external_archive("w.bin", 1, 2))
    with pytest.raises(FormatError, match=r"'w' in 'w\.bin' spans bytes 1 to 3 of 2"):
        open_parameters(tmp_path / "m.irpa")
    with pytest.raises(FormatError, match="has no folder"):
        read(external_archive("w.bin", 0, 1), "irpa")


def test_irpa_writer_round_trip(tmp_path):
    bf16 = np.arange(5).astype(ml_dtypes.bfloat16)
    values = {"ü": bf16, "t": np.arange(6).reshape(2, 3).T, "empty": b"", "s": (6, Splat(pattern=b"ab"))}
    path = write_archive(tmp_path / "w.irpa", values)
    with open_parameters(path) as index:
        assert list(index) == list(values)
        assert index["ü"].read() == bf16.tobytes()
        assert index["t"].read() == values["t"].tobytes()
        assert index["s"].read() == b"ababab"
    assert not list(tmp_path.glob("*.partial"))


def test_irpa_writer_bad_values_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="do not repeat"):
        write_archive(tmp_path / "w.irpa", {"s": (5, Splat(pattern=b"ab"))})
    with pytest.raises(InvalidArgumentError, match="'x' is a str"):
        write_archive(tmp_path / "w.irpa", {"x": "text"})
    assert not list(tmp_path.iterdir())


# -- safetensors -----------------------------------------------------------------------------------------


def header_of(**changes):
    record = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    record = {key: value for key, value in record.items() if value is not None}
    return json.dumps({"a": record}).encode()


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", r"does not begin with '\{'"),
        (b"[]", r"does not begin with '\{'"),
        (b'{"a": ', "not JSON"),
        (b"{" + b'"a":[' * 5000, "not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1}', "'a': the record is not an object"),
        (b'{"a": {}, "a": {}}', "'a' is there twice"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b'{"__metadata__": {"x": 1}}', "not an object of strings"),
        (header_of(dtype=None), "dtype is not a string"),
        (header_of(dtype="F99"), "unknown dtype 'F99'"),
        (header_of(shape=[-1]), "shape holds -1"),
        (header_of(shape=[True, 2]), "shape holds True"),
        (header_of(shape=[1.0, 2]), "shape holds 1.0"),
        (header_of(shape=None), "shape is not a list"),
        (header_of(shape=[3]), "needs 12 bytes and has 8"),
        (header_of(shape=[1 << 40, 1 << 40]), "needs"),
        (header_of(data_offsets=[8, 0]), "data_offsets 8 to 0"),
        (header_of(data_offsets=[0, 1 << 62]), "data_offsets 0 to"),
        (header_of(data_offsets=[0]), "1 numbers instead of 2"),
        (header_of(data_offsets=[1, 9]), "data_offsets 1 to 9 of 8"),
        (header_of(shape=[1], data_offsets=[4, 8]), "'a': begins at 4 and leaves a gap"),
        (header_of(shape=[1], data_offsets=[0, 4]), "end at 4 of 8"),
        (header_of(dtype="F4", shape=[3], data_offsets=[0, 8]), "needs 1.5 bytes"),
        (
            json.dumps({k: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for k in "ab"}).encode(),
            "'b': begins at 0 and overlaps",
        ),
        (b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "not Unicode text"),
    ],
)
def test_safetensors_malformed_header_is_refused(header, text):
    data = safetensors_bytes({}, header=header) + bytes(8)
    with pytest.raises(FormatError, match=text):
        read(data, "safetensors")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 63), struct.pack("<Q", 9) + b"{}"])
def test_safetensors_cut_header_is_refused(data):
    with pytest.raises(FormatError, match="header"):
        read(data, "safetensors")


def test_safetensors_reference_library_agrees_on_every_type():
    for name, kind in SAFETENSORS_TYPES.items():
        shape = [8]
        size = kind.bit_length(8) // 8
        header = header_of(dtype=name, shape=shape, data_offsets=[0, size])
        data = safetensors_bytes({}, header=header) + bytes(size)
        assert read(data, "safetensors")["a"].byte_length == size
        ((key, info),) = safetensors.deserialize(data)
        assert (key, info["dtype"], info["shape"]) == ("a", name, shape)


def test_safetensors_names_need_not_be_plain():
    arrays = {"a/b.c": np.ones(2, np.float32), "ключ": np.ones(1, np.int8), "": np.ones(3, np.int8)}
    index = read(safetensors.numpy.save(arrays), "safetensors")
    assert set(index) == set(arrays)


# -- gguf ------------------------------------------------------------------------------------------------


def pair(key, kind, *, raw):
    return gguf_string(key) + struct.pack("<I", kind) + raw


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (gguf_bytes(magic=b"GGML"), FormatError, "not a GGUF file"),
        (b"GGUF", FormatError, "version needs 4 bytes"),
        (gguf_bytes(version=1), UnsupportedVersionError, "version 1"),
        (gguf_bytes(version=4), UnsupportedVersionError, "version 4"),
        (gguf_bytes(version=3 << 24), UnsupportedFeatureError, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), FormatError, "tensors do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), FormatError, "metadata pairs do not fit"),
        (gguf_bytes(pairs=[pair("k", 13, raw=b"")]), FormatError, "'k': unknown value type 13"),
        (gguf_bytes(pairs=[pair("k", 9, raw=struct.pack("<IQ", 13, 0))]), FormatError, "'k': unknown value"),
        (
            gguf_bytes(pairs=[pair("k", 9, raw=struct.pack("<IQ", 4, 1 << 62))]),
            FormatError,
            "elements of 'k' do not fit",
        ),
        (
            gguf_bytes(pairs=[pair("k", 9, raw=struct.pack("<IQ", 9, 1) * 9 + struct.pack("<IQ", 4, 0))]),
            FormatError,
            "nested deeper",
        ),
        (gguf_bytes(pairs=[pair("general.alignment", 5, raw=bytes(4))]), FormatError, "not a uint32"),
        (
            gguf_bytes(pairs=[pair("general.alignment", 4, raw=struct.pack("<I", 24))]),
            FormatError,
            "24, not a power of two",
        ),
        (gguf_bytes([("t", (4,), 99, 0)]), UnsupportedFeatureError, "'t': unknown ggml type 99"),
        (gguf_bytes([("t", (1,) * 9, 0, 0)]), FormatError, "'t' has 9 dimensions"),
        (gguf_bytes([("t", (33,), 8, 0)]), FormatError, "'t': rows of 33 elements"),
        (gguf_bytes([("t", (4,), 0, 4)]), FormatError, "'t': offset 4 is not a multiple of 32"),
        (gguf_bytes([("t", (4,), 0, 1 << 40)]), FormatError, "'t' spans bytes"),
        (gguf_bytes([("t", (1 << 63, 1 << 63), 0, 0)]), FormatError, "'t' spans bytes"),
        (gguf_bytes([("t", (16,), 0, 0), ("u", (4,), 0, 32)]), FormatError, "'u' begins at 32 before"),
        (gguf_bytes([("t", (4,), 0, 0), ("t", (4,), 0, 32)]), FormatError, "'t' is there twice"),
        (gguf_bytes([(b"\xff", (4,), 0, 0)]), FormatError, "tensor name is not UTF-8"),
    ],
)
def test_gguf_malformed_is_refused(data, error, text):
    with pytest.raises(error, match=text) as caught:
        read(data, "gguf")
    assert caught.value.offset is not None


def test_gguf_other_alignment_is_honoured():
    pairs = [pair("general.alignment", 4, raw=struct.pack("<I", 256))]
    index = read(gguf_bytes([("t", (4,), 0, 0)], pairs=pairs, alignment=256), "gguf")
    assert index["t"].storage.offset == 256


def test_gguf_metadata_of_every_kind_is_walked_over():
    assert set(read(gguf_bytes(pairs=GGUF_PAIRS), "gguf")) == set(ARRAYS)


def test_gguf_reference_writer_and_type_table_agree(tmp_path):
    gguf = pytest.importorskip("gguf")
    for number, sizes in gguf.GGML_QUANT_SIZES.items():
        kind = GGML_TYPES[int(number)]
        assert (kind.block_length, kind.block_bits) == (sizes[0], 8 * sizes[1]), number
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test")
    writer.add_array("tokens", ["a", "b"])
    arrays = {"f": np.arange(12, dtype=np.float32).reshape(3, 4), "h": np.ones(7, np.float16)}
    for key, array in arrays.items():
        writer.add_tensor(key, array)
    blocks = gguf.quants.quantize(
        np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_parameters(tmp_path / "m.gguf") as index:
        for key, array in arrays.items():
            np.testing.assert_array_equal(index[key].array(), array)
        assert index["q"].read() == blocks.tobytes()
        assert index["q"].shape == (2, 32)
        with pytest.raises(InvalidArgumentError, match="q8_0 is a quantised type"):
            index["q"].array()


def test_read_parameters_takes_bytes():
    assert "weight" in read_parameters(ParameterFile(SAMPLES["gguf"], name="memory"))


def test_parameter_file_writable_over_read_only_bytes_is_refused():
    with pytest.raises(InvalidArgumentError, match="read-only"):
        ParameterFile(b"x", name="x", writable=True)
