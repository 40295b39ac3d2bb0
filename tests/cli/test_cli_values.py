from __future__ import annotations

import numpy as np
import pytest

from sylvite.cli.console import ByteSize, Dim, Duration, format_bytes
from sylvite.cli.values import Tolerance, compare, format_result, parse_inputs, parse_value, write_outputs
from sylvite.errors import FormatError, InvalidArgumentError, NotFoundError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x2xf32=1 2 3 4", np.array([[1, 2], [3, 4]], np.float32)),
        ("2x2xf32=[[1 2][3 4]]", np.array([[1, 2], [3, 4]], np.float32)),
        ("2x2xi32=1,2, 3,4", np.array([[1, 2], [3, 4]], np.int32)),
        ("4xf32=2", np.full(4, 2, np.float32)),
        ("2xf16", np.zeros(2, np.float16)),
        ("f64=0.5", np.array(0.5)),
        ("0x3xf32=", np.zeros((0, 3), np.float32)),
        ("0x3xf32", np.zeros((0, 3), np.float32)),
        ("3xi1=1 0 true", np.array([True, False, True])),
        ("2xi8=-1 0x10", np.array([-1, 16], np.int8)),
        ("2xui8=255 0", np.array([255, 0], np.uint8)),
        ("2xsi64=-9223372036854775808 1", np.array([-(2**63), 1])),
        ("2xf32=inf nan", np.array([np.inf, np.nan], np.float32)),
        ("2xcomplex<f32>=1+2j 3", np.array([1 + 2j, 3], np.complex64)),
    ],
)
def test_parse_value_tensors(text, expected):
    value = parse_value(text)
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("-1.5", -1.5), ("0x10", 16), ("1e3", 1000.0)])
def test_parse_value_numbers(text, expected):
    assert parse_value(text) == expected
    assert type(parse_value(text)) is type(expected)
    assert parse_value("(null)") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x2xf32=1 2 3", "2x2xf32 has 4 elements, 3 are given"),
        ("2xf32=a b", "does not hold elements of f32"),
        ("2xui8=1 256", "does not hold elements of ui8"),
        ("2xi32=1.5 2", "does not hold elements of i32"),
        ("2xq32=1 2", "unknown element type 'q32'"),
        ("hello world", "cannot read 'hello world'"),
        ("", "cannot read ''"),
        ("99999x99999xf32=1", "larger than guest memory"),
        ("4xi4=1", "less than a byte"),
    ],
)
def test_parse_value_malformed_is_refused(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parse_value(text)


def test_parse_inputs_reads_files(tmp_path):
    first, second = np.arange(3, dtype=np.float32), np.array([[1], [2]])
    with (tmp_path / "two.npy").open("wb") as file:
        np.save(file, first)
        np.save(file, second)
    (tmp_path / "raw.bin").write_bytes(first.tobytes())
    values = parse_inputs([f"@{tmp_path / 'two.npy'}", f"3xf32=@{tmp_path / 'raw.bin'}", "1"])
    np.testing.assert_array_equal(values[0], first)
    np.testing.assert_array_equal(values[1], second)
    np.testing.assert_array_equal(values[2], first)
    assert values[3] == 1


def test_parse_inputs_bad_files_are_refused(tmp_path):
    (tmp_path / "raw.bin").write_bytes(b"12345")
    (tmp_path / "bad.npy").write_bytes(b"not numpy")
    (tmp_path / "empty.npy").write_bytes(b"")
    with (tmp_path / "objects.npy").open("wb") as file:
        np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(InvalidArgumentError, match="has 5 bytes; the shape takes 8"):
        parse_inputs([f"2xf32=@{tmp_path / 'raw.bin'}"])
    for name in ("bad.npy", "objects.npy", "empty.npy"):
        with pytest.raises(FormatError, match=name):
            parse_inputs([f"@{tmp_path / name}"])
    with pytest.raises(NotFoundError):
        parse_inputs(["@nowhere.npy"])
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        parse_inputs([f"@{tmp_path}"])


def test_format_result_elides_long_tensors():
    assert format_result(np.arange(5, dtype=np.float32), limit=3) == ["hal.buffer_view", "5xf32=0 1 2..."]
    assert format_result(7) == ["i32=7"]
    assert format_result(1 << 40) == [f"i64={1 << 40}"]
    assert format_result(0.5) == ["f32=0.5"]
    assert format_result(None) == ["(null)"]


def test_write_outputs_appends_arrays_to_one_file(tmp_path, capsys):
    path = tmp_path / "o.npy"
    path.write_bytes(b"old")
    a, b = np.arange(3), np.ones((2, 2), np.float32)
    write_outputs([a, b, a], [f"@{path}", f"@{path}", "-"])
    first, second = parse_inputs([f"@{path}"])
    np.testing.assert_array_equal(first, a)
    np.testing.assert_array_equal(second, b)
    assert capsys.readouterr().out == "result[2]: hal.buffer_view\n3xi64=0 1 2\n"
    write_outputs([b], [str(tmp_path / "o.bin")])
    assert (tmp_path / "o.bin").read_bytes() == b.tobytes()
    with pytest.raises(InvalidArgumentError, match="2 outputs to write, but the function has 1"):
        write_outputs([a], ["@a.npy", "@b.npy"])
    with pytest.raises(InvalidArgumentError, match="cannot write"):
        write_outputs([a], [f"@{tmp_path / 'no' / 'a.npy'}"])


@pytest.mark.parametrize(
    ("values", "expected", "problem"),
    [
        ([np.ones(2, np.float32)], ["2xf32=1"], None),
        ([np.ones(2, np.float32)], ["2xf32=1.00005"], None),
        ([np.ones(2, np.float32)], ["2xf32=1 1.1"], "result[0]: element 1 is 1.0, expected 1.10"),
        ([np.ones(2, np.float32)], ["2xf64=1"], "result[0]: is float32[2], expected float64[2]"),
        ([np.ones(2, np.float32)], ["3xf32=1"], "result[0]: is float32[2], expected float32[3]"),
        ([np.ones(2, np.float32)], ["(ignored)"], None),
        ([np.ones(2, np.int32)], ["2xi32=1 2"], "(1 of 2 elements differ)"),
        ([np.full(2, np.nan, np.float32)], ["2xf32=nan"], None),
        ([3, None], ["3", "(null)"], None),
        ([3, 4], ["3", "5"], "result[1]: element 0 is 4, expected 5"),
        ([None], ["3"], "result[0]: is None, expected 3"),
        ([3], ["3", "4"], "2 outputs are expected, but there are 1"),
        ([np.float16([1.0005])], ["1xf16=1"], None),
    ],
)
def test_compare_reports_the_first_difference(values, expected, problem):
    problems = compare(values, expected, Tolerance())
    if problem is None:
        assert problems == []
    else:
        assert problem in problems[0]


def test_compare_tolerances_are_absolute_plus_relative():
    value = [np.array([100.0])]
    assert compare(value, ["1xf64=101"], Tolerance(atol=0, rtol=0.02)) == []
    assert compare(value, ["1xf64=101"], Tolerance(atol=1, rtol=0)) == []
    assert compare(value, ["1xf64=101"], Tolerance(atol=0.5, rtol=0)) != []


@pytest.mark.parametrize(
    ("text", "count"),
    [("65536", 65536), ("1KiB", 1024), ("512MiB", 512 << 20), ("1G", 1 << 30), ("1.5k", 1536), ("2kB", 2000)],
)
def test_byte_size_units(text, count):
    assert ByteSize().convert(text, None, None) == count


@pytest.mark.parametrize(
    ("text", "count"), [("2s", 2 * 10**9), ("500ms", 5 * 10**8), ("1.5", 1500000000), ("3us", 3000)]
)
def test_duration_units(text, count):
    assert Duration().convert(text, None, None) == count


@pytest.mark.parametrize(
    ("kind", "text"), [(ByteSize(), "big"), (Duration(), "-1s"), (Dim(), "N"), (Dim(), "=1"), (Dim(), "N=x")]
)
def test_option_types_refuse_other_texts(kind, text):
    import click

    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


def test_dim_names_may_hold_anything_before_the_last_equals_sign():
    assert Dim().convert("a.0=b=3", None, None) == ("a.0=b", 3)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
)
def test_format_bytes_units(count, text):
    assert format_bytes(count) == text
