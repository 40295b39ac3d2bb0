import ml_dtypes
import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import InvalidArgumentError, ProgramError
from sylvite.hal import BufferView
from sylvite.vm.modules import CheckModule
from sylvite.vm.modules.formatting import format_buffer_view


@pytest.fixture(scope="module")
def device():
    with drivers.create_device("null") as device:
        yield device


@pytest.fixture
def check(device):
    module = CheckModule()
    state = module.create_state()

    def call(name, *values):
        values = [
            BufferView.from_numpy(device.allocator, value) if isinstance(value, np.ndarray) else value
            for value in values
        ]
        leading = () if name in ("expect_true", "expect_false") else (device,)
        return module.functions[name].call(state, *leading, *values)

    return call


def array(*values, dtype=np.float32):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("expect_true", (1,)),
        ("expect_true", (-1,)),
        ("expect_false", (0,)),
        ("expect_all_true", (array(1, 2),)),
        ("expect_all_true", (array(1, -1, dtype=np.int8),)),
        ("expect_all_true", (array(dtype=np.int8),)),
        ("expect_eq", (array(1, np.nan), array(1, np.nan))),
        ("expect_eq", (array(1, dtype=np.int64), array(1, dtype=np.int64))),
        ("expect_almost_eq", (array(1, np.nan, np.inf), array(1.00001, np.nan, np.inf), 1e-4, 0.0)),
        ("expect_almost_eq", (array(1000), array(1001), 0.0, 0.01)),
        (
            "expect_almost_eq",
            (array(1, dtype=ml_dtypes.bfloat16), array(1, dtype=ml_dtypes.bfloat16), 0.0, 0.0),
        ),
    ],
)
def test_check_that_holds_passes(check, name, values):
    assert check(name, *values) is None


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("expect_true", (0,), "true value"),
        ("expect_false", (2,), "false value, got 2"),
        ("expect_all_true", (array(1, 0, 1),), r"element \[1\] is zero: 3xf32=1 0 1"),
        ("expect_eq", (array(0.0), array(-0.0)), "elements differ\n  lhs: 1xf32=0\n  rhs: 1xf32=-0"),
        ("expect_eq", (array(1), array(1, 1)), "shapes"),
        ("expect_eq", (array(1), array(1, dtype=np.int32)), "element types f32 and i32"),
        (
            "expect_almost_eq",
            (array([1, 2]), array([1, 3]), 0.5, 0.0),
            r"element \[0, 1\] is 2 and should be 3",
        ),
        ("expect_almost_eq", (array(np.inf), array(-np.inf), 1.0, 1.0), "is inf"),
        ("expect_almost_eq", (array(1), array(np.inf), 1.0, 1.0), "should be inf"),
        ("expect_almost_eq", (array(np.nan), array(1), 9.0, 9.0), "is nan"),
    ],
)
def test_check_that_does_not_hold_raises_with_the_values(check, name, values, text):
    with pytest.raises(ProgramError, match=text):
        check(name, *values)


def test_check_elements_it_cannot_judge_are_refused(check):
    with pytest.raises(InvalidArgumentError, match="i32"):
        check("expect_almost_eq", array(1, dtype=np.int32), array(1, dtype=np.int32), 0.0, 0.0)
    with pytest.raises(InvalidArgumentError, match="f16"):
        check("expect_all_true", array(1, dtype=np.float16))
    with pytest.raises(InvalidArgumentError, match="lhs"):
        check("expect_eq", None, None)


def test_check_module_keeps_going_when_told(device):
    module = CheckModule(keep_going=True)
    state = module.create_state()
    module.functions["expect_true"].call(state, 0)
    module.functions["expect_false"].call(state, 3)
    assert len(module.failures) == 2


# What iree-run-module (3.13.0) prints for these tensors.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (array([1, 2.5, -3e10], [np.nan, np.inf, 1e-7]), "2x3xf32=[1 2.5 -3E+10][NAN INF 1E-07]"),
        (np.array(0.1, np.float32), "f32=0.1"),
        (np.zeros((0, 3), np.float32), "0x3xf32="),
        (
            array(1, 2, 3, 4, 5, 6, 7, -8, dtype=np.int8).reshape(2, 2, 2),
            "2x2x2xi8=[[1 2][3 4]][[5 6][7 -8]]",
        ),
        (array(0.1, 1e300, -0.0, 123456789, dtype=np.float64), "4xf64=0.1 1E+300 -0 1.23457E+08"),
        (array(0.1, 65504, 1, 2, dtype=np.float16), "4xf16=0.0999756 65504 1 2"),
        (array(0.1, 3, 1, 2, dtype=ml_dtypes.bfloat16), "4xbf16=0.100098 3 1 2"),
        (array(1 + 2j, dtype=np.complex64), "1xcf64=0000803F00000040"),
    ],
)
def test_format_buffer_view_writes_what_irees_tools_write(device, value, text):
    assert format_buffer_view(BufferView.from_numpy(device.allocator, value)) == text


def test_format_buffer_view_cuts_long_tensors(device):
    view = BufferView.from_numpy(device.allocator, np.zeros(2000, np.int8))
    assert format_buffer_view(view, limit=3) == "2000xi8=0 0 0..."
