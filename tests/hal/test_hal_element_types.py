"""Element types: encodings, names, dtypes. The oracle is iree.runtime's own enumeration."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from sylvite.errors import InvalidArgumentError
from sylvite.hal import (
    ELEMENT_TYPES,
    ElementType,
    NumericalType,
    element_type_from_name,
    element_type_from_numpy,
    element_type_from_value,
)

# Our names against iree.runtime.HalElementType's.
IREE_NAMES = {
    "i1": "BOOL_8",
    "i4": "INT_4",
    "si4": "SINT_4",
    "ui4": "UINT_4",
    "f16": "FLOAT_16",
    "f32": "FLOAT_32",
    "f64": "FLOAT_64",
    "bf16": "BFLOAT_16",
    "complex<f32>": "COMPLEX_64",
    "complex<f64>": "COMPLEX_128",
    "f8E5M2": "FLOAT_8_E5M2",
    "f8E4M3FN": "FLOAT_8_E4M3_FN",
    "f8E5M2FNUZ": "FLOAT_8_E5M2_FNUZ",
    "f8E4M3FNUZ": "FLOAT_8_E4M3_FNUZ",
    "opaque8": "OPAQUE_8",
    "opaque16": "OPAQUE_16",
    "opaque32": "OPAQUE_32",
    "opaque64": "OPAQUE_64",
} | {
    f"{prefix}{bits}": f"{iree}_{bits}"
    for bits in (8, 16, 32, 64)
    for prefix, iree in (("i", "INT"), ("si", "SINT"), ("ui", "UINT"))
}


@pytest.mark.parametrize(("name", "iree_name"), IREE_NAMES.items())
def test_element_type_value_agrees_with_iree_runtime(name, iree_name):
    runtime = pytest.importorskip("iree.runtime")
    assert element_type_from_name(name).value == int(getattr(runtime.HalElementType, iree_name))


@pytest.mark.parametrize("element_type", ELEMENT_TYPES, ids=str)
def test_element_type_round_trips_through_value_and_name(element_type):
    assert element_type_from_value(element_type.value) == element_type
    assert element_type_from_name(element_type.name) == element_type
    signed = element_type.value - (1 << 32) if element_type.value >> 31 else element_type.value
    assert element_type_from_value(signed) == element_type


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.bool_, "i1"),
        (np.int8, "i8"),
        (np.uint8, "ui8"),
        (np.int64, "i64"),
        (np.float16, "f16"),
        (np.float32, "f32"),
        (np.complex128, "complex<f64>"),
    ],
)
def test_element_type_from_numpy_dtype_has_that_dtype(dtype, name):
    element_type = element_type_from_numpy(dtype)
    assert element_type.name == name
    assert element_type.numpy_dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["<U4", object, ">f4", "M8[s]", [("a", "i4")]])
def test_element_type_from_foreign_dtype_is_refused(dtype):
    with pytest.raises(InvalidArgumentError, match="has no element type"):
        element_type_from_numpy(np.dtype(dtype))


def test_element_type_bf16_with_ml_dtypes_is_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bf16 = element_type_from_name("bf16")
    assert bf16.numpy_dtype == np.dtype(ml_dtypes.bfloat16)
    assert element_type_from_numpy(ml_dtypes.bfloat16) == bf16
    assert element_type_from_numpy(ml_dtypes.float8_e4m3fn).name == "f8E4M3FN"


def test_element_type_bf16_without_ml_dtypes_is_uint16(monkeypatch):
    element_types = importlib.import_module("sylvite.hal.element_types")
    caches = (element_types._extension_dtype, element_types._numpy_dtype, element_types._by_dtype)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for cache in caches:
        cache.cache_clear()
    try:
        assert element_type_from_name("bf16").numpy_dtype == np.dtype(np.uint16)
        assert element_type_from_numpy(np.uint16).name == "ui16"
    finally:
        monkeypatch.undo()
        for cache in caches:
            cache.cache_clear()


@pytest.mark.parametrize(
    ("name", "shape", "byte_length"),
    [
        ("f32", (2, 3), 24),
        ("f32", (), 4),
        ("f32", (0, 7), 0),
        ("i1", (3,), 3),
        ("i4", (3,), 2),
        ("complex<f64>", (2,), 32),
    ],
)
def test_element_type_byte_length_of_shape(name, shape, byte_length):
    assert element_type_from_name(name).byte_length(shape) == byte_length


def test_element_type_below_a_byte_has_no_dtype_and_says_so():
    with pytest.raises(InvalidArgumentError, match="less than a byte"):
        _ = element_type_from_name("i4").numpy_dtype


@pytest.mark.parametrize(("name", "same"), [("cf64", "complex<f32>"), ("x8", "opaque8"), ("*16", "opaque16")])
def test_element_type_name_of_iree_tools_is_known(name, same):
    assert element_type_from_name(name) == element_type_from_name(same)


@pytest.mark.parametrize("name", ["", "f", "q8", "f0", "f999", "tensor", "i1x"])
def test_element_type_name_unknown_is_refused(name):
    with pytest.raises(InvalidArgumentError, match="unknown element type"):
        element_type_from_name(name)


@pytest.mark.parametrize("value", [0x21010020, 0x99000020, 0x21000120])
def test_element_type_value_malformed_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="element type"):
        element_type_from_value(value)


def test_element_type_signedness_does_not_matter_for_compatibility():
    i32, ui32, f32 = map(element_type_from_name, ("i32", "ui32", "f32"))
    assert i32.is_compatible_with(ui32)
    assert not i32.is_compatible_with(f32)
    assert not i32.is_compatible_with(element_type_from_name("i64"))
    assert ElementType(NumericalType.INTEGER, 7).name == "0x10000007"
