"""`sylvite.verify`: which differences count, what is said about them, and modules that cannot be verified."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import sylvite
from sylvite.errors import InvalidArgumentError, UnsupportedFeatureError, VerificationError
from sylvite.model import verify as _verify  # noqa: F401 - the function hides the module of its name
from sylvite.model.verify import Tolerances, _compared

PROGRAM = """
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def compared(value, reference, **tolerances):
    return _compared("y", np.asarray(value), np.asarray(reference), Tolerances(**tolerances))


@pytest.mark.parametrize(
    ("value", "reference", "tolerances", "wrong", "error"),
    [
        (np.float32([1, 2.001]), np.float32([1, 2]), {}, 0, 1e-3),
        (np.float32([1, 2.01]), np.float32([1, 2]), {}, 1, 1e-2),
        (np.float32([1, 2.01]), np.float32([1, 2]), {"atol": 0.1}, 0, 1e-2),
        (np.float32([1, 2.01]), np.float32([1, 2]), {"rtol": 0.1}, 0, 1e-2),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), {}, 0, 0),
        (np.float32([np.inf]), np.float32([-np.inf]), {}, 1, np.inf),
        (np.float32([1]), np.float32([np.inf]), {"rtol": 1.0}, 1, np.inf),
        (np.float32([np.nan]), np.float32([0]), {"atol": 1e9}, 1, np.inf),
        (np.float32([0]), np.float32([np.nan]), {}, 1, np.inf),
        (np.float32([]), np.float32([]), {}, 0, 0),
        (np.float32(3), np.float32(3), {}, 0, 0),
        (np.int64([2**63 - 1]), np.int64([-(2**63)]), {}, 1, float(2**64)),
        (np.int8([1, -128]), np.int8([1, 127]), {"atol": 254}, 1, 255),
        (np.uint8([7]), np.uint8([8]), {"atol": 1}, 0, 1),
        (np.array([True, False]), np.array([True, True]), {}, 1, 1),
        (np.complex64([1 + 1j]), np.complex64([1]), {}, 1, 1),
        (np.array([1], ml_dtypes.bfloat16), np.array([3], ml_dtypes.bfloat16), {}, 1, 2),
    ],
)
def test_comparison_counts_what_is_beyond_the_tolerance(value, reference, tolerances, wrong, error):
    found = compared(value, reference, **tolerances)
    assert found.wrong_count == wrong
    assert found.passed == (wrong == 0)
    assert found.largest_error == pytest.approx(error, rel=1e-2)


def test_comparison_says_where_the_largest_error_is():
    reference = np.zeros((2, 3), np.float32)
    value = reference.copy()
    value[1, 2], value[0, 1] = 0.5, 0.25
    found = compared(value, reference)
    assert (found.index, found.value, found.wrong_count) == ((1, 2), 0.5, 2)
    assert str(found) == (
        "y float32[2, 3]: largest error 0.5, 0.5 for 0.0 at [1, 2]; 2 of 6 elements differ by more"
    )
    assert str(compared(reference, reference)) == "y float32[2, 3]: equal"


def test_comparison_of_other_shapes_and_types_fails():
    for value in (np.zeros(3, np.float32), np.zeros(2, np.float64)):
        found = compared(value, np.zeros(2, np.float32))
        assert not found.passed
        assert "for float32[2]" in str(found)


def test_comparison_of_other_things_than_numbers_is_by_identity():
    assert _compared("y", None, None, Tolerances()).passed
    assert not _compared("y", None, 3, Tolerances()).passed
    assert _compared("y", 3, 3, Tolerances()).passed


@pytest.mark.compiler
def test_verify_compares_two_devices():
    pytest.importorskip("iree.compiler")
    x = np.float32([1, 2, 3, 4])
    found = sylvite.verify(PROGRAM, [x], device="local-task://2")
    assert (found.passed, found.largest_error, found.function) == (True, 0.0, "twice")
    assert "local" in found.device
    assert sylvite.verify(PROGRAM, {"input0": x}, device="local-task://2", function="twice").passed
    with pytest.raises(InvalidArgumentError, match="a sequence or a mapping"):
        sylvite.verify(PROGRAM, x, device="local-task://2")


@pytest.mark.compiler
def test_verify_of_wrong_results_raises_with_the_numbers(monkeypatch):
    pytest.importorskip("iree.compiler")
    import sys

    module = sys.modules["sylvite.model.verify"]
    load = module.load

    def load_wrong(source, *, device, **options):
        return load(
            PROGRAM.replace("%x, %x", "%x, %zero").replace(
                "  %y", "  %zero = arith.constant dense<0.0> : tensor<4xf32>\n  %y"
            )
            if device != "local-sync"
            else source,
            device=device,
            **options,
        )

    monkeypatch.setattr(module, "load", load_wrong)
    with pytest.raises(
        VerificationError, match=r"output0 float32\[4\]: largest error 4, 4.0 for 8.0 at \[3\]"
    ) as raised:
        sylvite.verify(PROGRAM, [np.float32([1, 2, 3, 4])], device="local-task://2")
    assert raised.value.verification.outputs[0].wrong_count == 4


@pytest.mark.compiler
def test_verify_of_a_module_without_cpu_code_says_what_to_do(tmp_path):
    pytest.importorskip("iree.compiler")
    for target, error in (("webgpu", UnsupportedFeatureError), ("wasm32,webgpu", None)):
        artifact = sylvite.compile(PROGRAM, target, output=tmp_path / f"{target}.vmfb")
        options = {"device": "local-task://2"}
        if error is None:
            assert sylvite.verify(artifact.path, [np.zeros(4, np.float32)], **options).passed
        else:
            with pytest.raises(error, match=r"no code for local-sync.*--target wasm32,webgpu"):
                sylvite.verify(artifact.path, [np.zeros(4, np.float32)], **options)
