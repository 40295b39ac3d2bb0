"""Signatures and conversions, without a compiler or an engine: on the null device."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite.compile import ArgumentSpec, FunctionSpec
from sylvite.drivers import create_device
from sylvite.errors import FormatError, InvalidArgumentError
from sylvite.hal import BufferView, element_type_from_name
from sylvite.model import Argument, Signature, ValueKind
from sylvite.model.arrays import check_array, from_program, to_array, to_program
from sylvite.model.signature import signature_from_spec
from sylvite.model.variants import bind_dims
from sylvite.vm import VmBuffer

WHERE = "input 'x' of f"


def tensor(dtype: str, *shape: int | str | None, name: str = "x") -> Argument:
    return Argument(name=name, kind=ValueKind.TENSOR, element_type=element_type_from_name(dtype), shape=shape)


@pytest.fixture
def device():
    with create_device("null") as device:
        yield device


# Signatures.


def test_signature_prints_names_dtypes_and_shapes():
    signature = Signature(
        name="f",
        inputs=(tensor("f32", 1, "N"), tensor("i64", None, name="ids")),
        outputs=(tensor("i1", 2, name="y"),),
    )
    assert str(signature) == "f(x: float32[1, N], ids: int64[?]) -> (y: bool[2])"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, 2, 3), {}, "takes 2 inputs, got 3"),
        ((1,), {}, "inputs missing: b"),
        ((1,), {"a": 2}, "'a' of f is given by position and by name"),
        ((1, 2), {"c": 2}, "f has no input 'c'"),
    ],
)
def test_signature_bind_wrong_call_is_refused(args, kwargs, message):
    signature = Signature(name="f", inputs=(tensor("f32", name="a"), tensor("f32", name="b")), outputs=())
    with pytest.raises(InvalidArgumentError, match=message):
        signature.bind(args, kwargs)


def test_signature_bind_orders_names():
    signature = Signature(name="f", inputs=(tensor("f32", name="a"), tensor("f32", name="b")), outputs=())
    assert signature.bind((), {"b": 2, "a": 1}) == [1, 2]
    assert signature.bind((1,), {"b": 2}) == [1, 2]


def test_signature_of_unknown_dtype_is_refused():
    spec = FunctionSpec(name="f", inputs=(ArgumentSpec(name="x", dtype="float33", shape=()),), outputs=())
    with pytest.raises(FormatError, match="unknown dtype 'float33'"):
        signature_from_spec(spec)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "bfloat16", "float8_e4m3fn", "int4"])
def test_signature_of_known_dtypes(dtype):
    spec = FunctionSpec(name="f", inputs=(ArgumentSpec(name="x", dtype=dtype, shape=(1,)),), outputs=())
    assert signature_from_spec(spec).inputs[0].element_type is not None


# Checks.


@pytest.mark.parametrize(
    ("array", "argument", "message"),
    [
        (np.zeros(4), tensor("f32", 4), r"expected float32\[4\], got float64\[4\]; .* x.astype\('float32'\)"),
        (np.zeros(4, np.float32), tensor("f32", 5), r"expected float32\[5\], got float32\[4\]"),
        (np.zeros((4, 1), np.float32), tensor("f32", 4), r"got float32\[4, 1\]"),
        (np.zeros(4, ">f4"), tensor("f32", 4), "big endian"),
        (np.zeros(4, np.uint32), tensor("si32", 4), "got uint32"),
        (np.zeros(4, np.int64), tensor("i32", 4), "got int64"),
        (
            np.zeros((2, 3), np.float32),
            tensor("f32", "N", "N"),
            r"expected float32\[N, N\], got float32\[2, 3\]",
        ),
        (np.zeros(2, np.int8), tensor("i4", 4), "pass a BufferView of packed elements"),
    ],
)
def test_check_array_mismatch_says_what_was_expected(array, argument, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        check_array(array, argument, WHERE)
    assert str(caught.value).startswith(WHERE)


@pytest.mark.parametrize(
    ("array", "argument"),
    [
        (np.zeros((2, 2), np.float32), tensor("f32", "N", "N")),
        (np.zeros((2, 7), np.float32), tensor("f32", 2, None)),
        (np.zeros(4, np.uint8), tensor("i8", 4)),
        (np.zeros(4, np.uint8), tensor("ui8", 4)),
        (np.zeros((), np.bool_), tensor("i1")),
        (np.zeros(3), Argument(name="x", kind=ValueKind.TENSOR)),
    ],
)
def test_check_array_match_is_accepted(array, argument):
    check_array(array, argument, WHERE)


# Inputs.


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, 2], "f32", np.array([1, 2], np.float32)),
        ([1.5, 2], "f16", np.array([1.5, 2], np.float16)),
        ([[1], [2]], "i64", np.array([[1], [2]], np.int64)),
        ([1, 255], "ui8", np.array([1, 255], np.uint8)),
        (7, "i32", np.array(7, np.int32)),
        (True, "i1", np.array(True)),
        (1, "f64", np.array(1.0)),
    ],
)
def test_to_array_python_numbers_take_the_declared_dtype(value, dtype, expected):
    array = to_array(value, tensor(dtype), WHERE)
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([1.5], "i32", "got values of kind float64"),
        ([256], "ui8", "a value is outside of uint8"),
        ([-1], "ui8", "a value is outside of uint8"),
        ([[1], [1, 2]], "f32", "input 'x' of f"),
        (["a"], "f32", "got a list that holds a"),
        (object(), "f32", "cannot take a object"),
        ({"a": 1}, "f32", "cannot take a dict"),
        (None, "f32", "cannot take a NoneType"),
    ],
)
def test_to_array_what_is_no_number_is_refused(value, dtype, message):
    with pytest.raises(InvalidArgumentError, match=message):
        to_array(value, tensor(dtype), WHERE)


def test_to_array_lists_of_arrays_keep_their_dtype():
    array = to_array([np.float64(1), np.float64(2)], tensor("f32", 2), WHERE)
    assert array.dtype == np.float64


def test_to_array_takes_dlpack_without_copying():
    source = np.arange(4, dtype=np.float32)

    class Tensor:
        def __dlpack__(self, **arguments):
            return source.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return source.__dlpack_device__()

    assert np.shares_memory(to_array(Tensor(), tensor("f32", 4), WHERE), source)


def test_to_array_dlpack_of_another_device_is_refused():
    class Tensor:
        def __dlpack__(self, **arguments):
            raise BufferError("on a GPU")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(InvalidArgumentError, match="cannot take a Tensor"):
        to_array(Tensor(), tensor("f32", 4), WHERE)


@pytest.mark.parametrize(
    ("value", "bits", "expected"),
    [
        (3, "i32", 3),
        (np.int64(3), "i64", 3),
        (2**32 - 1, "ui32", -1),
        (True, "i1", 1),
        (np.array([5]), "i32", 5),
    ],
)
def test_to_program_integers_are_signed(device, value, bits, expected):
    argument = Argument(name="x", kind=ValueKind.INTEGER, element_type=element_type_from_name(bits))
    assert to_program(value, argument, device, WHERE) == expected


@pytest.mark.parametrize("value", [1.5, "1", [1, 2], 2**40, None])
def test_to_program_what_is_no_i32_is_refused(device, value):
    argument = Argument(name="x", kind=ValueKind.INTEGER, element_type=element_type_from_name("i32"))
    with pytest.raises(InvalidArgumentError, match="input 'x' of f"):
        to_program(value, argument, device, WHERE)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("i32", 2**31, "2147483648 does not fit in 32 bits, -2147483648 to 2147483647"),
        ("ui32", -1, "-1 does not fit in 32 bits, 0 to 4294967295"),
        ("i64", 2**63, "does not fit in 64 bits"),
        ("i64", 2**2000, "does not fit in 64 bits"),
        ("f32", 1e300, "1e\\+300 is outside of float32"),
        ("f64", 2**2000, "the number is outside of float64"),
    ],
)
def test_to_program_number_out_of_range_is_refused(device, dtype, value, message):
    element_type = element_type_from_name(dtype)
    kind = ValueKind.FLOAT if element_type.is_float else ValueKind.INTEGER
    argument = Argument(name="n", kind=kind, element_type=element_type)
    with pytest.raises(InvalidArgumentError, match=message):
        to_program(value, argument, device, WHERE)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("ui32", 2**32 - 1, -1),
        ("i32", -(2**31), -(2**31)),
        ("i1", True, 1),
        ("f32", float("inf"), float("inf")),
    ],
)
def test_to_program_number_at_the_end_of_its_range_is_taken(device, dtype, value, expected):
    element_type = element_type_from_name(dtype)
    kind = ValueKind.FLOAT if element_type.is_float else ValueKind.INTEGER
    argument = Argument(name="n", kind=kind, element_type=element_type)
    assert to_program(value, argument, device, WHERE) == expected


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("i64", [1, 2, 3, 2**70], r"a value is outside of int64\[4\]"),
        ("i64", [1, 2, 3, 2**63], "a value is outside of int64"),
        ("f32", [1.0, 2**2000], r"a value is outside of float32\[4\]"),
        ("f32", "abcd", r"expected float32\[4\], cannot take a str; accepted are arrays"),
        ("f32", ["a", "b"], r"expected float32\[4\], got a list that holds a str; numbers are accepted"),
        ("f32", [1, None], "got a list that holds a NoneType"),
    ],
)
def test_to_array_list_that_does_not_fit_is_refused(dtype, value, message):
    with pytest.raises(InvalidArgumentError, match=message):
        to_array(value, tensor(dtype, 4), WHERE)


def test_to_array_integers_that_a_float_holds_are_taken():
    array = to_array([1, 2**70], tensor("f32", 2), WHERE)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.array([1, 2.0**70], np.float32))


def test_check_array_of_text_says_what_is_accepted():
    with pytest.raises(InvalidArgumentError, match=r"got <U1\[4\]; accepted are arrays, \(nested\) lists"):
        check_array(np.array(list("abcd")), tensor("f32", 4), WHERE)


def test_to_program_buffers_are_wrapped(device):
    argument = Argument(name="x", kind=ValueKind.BUFFER)
    assert bytes(to_program(b"abc", argument, device, WHERE)) == b"abc"
    assert bytes(to_program("abc", argument, device, WHERE)) == b"abc"
    with pytest.raises(InvalidArgumentError, match="expected bytes, got int"):
        to_program(3, argument, device, WHERE)


# Results.


def test_from_program_values_of_all_kinds():
    assert from_program(3, None, copy=False) == 3
    assert from_program(None, None, copy=False) is None
    assert bytes(from_program(VmBuffer(b"abc"), None, copy=False)) == b"abc"
    assert from_program(VmBuffer(b"abc"), None, copy=True) == b"abc"


def test_from_program_signless_bytes_take_the_declared_dtype(device):
    view = BufferView.from_numpy(device.allocator, np.array([1, -1], np.int8))
    result = from_program(view, tensor("ui8", 2), copy=False)
    assert result.dtype == np.uint8


# Dims.


def test_bind_dims_reads_extents_and_refuses_disagreement():
    signature = Signature(
        name="f", inputs=(tensor("f32", "N", 3, name="a"), tensor("f32", "N", "M", name="b")), outputs=()
    )
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 5), np.float32)
    assert bind_dims(signature, [a, b]) == {"N": 2, "M": 5}
    with pytest.raises(InvalidArgumentError, match="dim N is 4 here but 2 in input 'a'"):
        bind_dims(signature, [a, np.zeros((4, 5), np.float32)])
