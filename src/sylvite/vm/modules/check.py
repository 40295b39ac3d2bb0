"""The ``check`` module: what IREE's test programs call to judge their own results.

Source: IREE's ``check.imports.mlir`` and ``iree/modules/check/module.cc``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError, ProgramError, StatusCode
from ...hal.buffer_view import BufferView
from ...hal.device import Device
from ...hal.element_types import NumericalType
from ..native import NativeFunction, NativeModule
from .arguments import expect
from .formatting import format_buffer_view, type_name

__all__ = ["CheckModule"]


class _State:
    """Failures of one context."""

    __slots__ = ("failures", "keep_going")

    def __init__(self, failures: list[str], keep_going: bool) -> None:
        self.failures = failures
        self.keep_going = keep_going

    def fail(self, message: str) -> None:
        """Note a failure; raise it unless the module was told to keep going.

        Raises:
            ProgramError: What did not hold.
        """
        self.failures.append(message)
        if not self.keep_going:
            raise ProgramError(message, status=StatusCode.ABORTED)


def _difference(lhs: BufferView, rhs: BufferView) -> str | None:
    if lhs.element_type != rhs.element_type:
        return f"element types {type_name(lhs.element_type)} and {type_name(rhs.element_type)} differ"
    if lhs.shape != rhs.shape:
        return f"shapes {lhs.shape} and {rhs.shape} differ"
    return None


def _report(state: _State, reason: str, lhs: BufferView, rhs: BufferView) -> None:
    state.fail(f"{reason}\n  lhs: {format_buffer_view(lhs)}\n  rhs: {format_buffer_view(rhs)}")


def expect_true(state: _State, value: int) -> None:
    """The value is not zero."""
    if not value:
        state.fail("expected a true value, got 0")


def expect_false(state: _State, value: int) -> None:
    """The value is zero."""
    if value:
        state.fail(f"expected a false value, got {value}")


def expect_all_true(state: _State, device: Device, view: BufferView) -> None:
    """No element is zero.

    Raises:
        InvalidArgumentError: The elements are neither integers nor f32 nor f64.
    """
    expect(device, Device, "device")
    view = expect(view, BufferView, "operand")
    kind = view.element_type
    if not kind.is_integer and type_name(kind) not in ("f32", "f64"):
        raise InvalidArgumentError(f"expect_all_true does not take {type_name(kind)} elements")
    array = view.numpy()
    if not np.all(array):
        place = np.unravel_index(int(np.argmin(array.astype(bool))), array.shape)
        state.fail(f"element {list(map(int, place))} is zero: {format_buffer_view(view)}")


def expect_eq(state: _State, device: Device, lhs: BufferView, rhs: BufferView) -> None:
    """Both have the same type, shape and bytes (so NaN equals itself and -0 is not 0)."""
    expect(device, Device, "device")
    lhs, rhs = expect(lhs, BufferView, "lhs"), expect(rhs, BufferView, "rhs")
    reason = _difference(lhs, rhs)
    if reason is None:
        same = np.array_equal(lhs.buffer.view(0, lhs.byte_length), rhs.buffer.view(0, rhs.byte_length))
        reason = None if same else "elements differ"
    if reason is not None:
        _report(state, f"expected equal tensors: {reason}", lhs, rhs)


def expect_almost_eq(
    state: _State, device: Device, lhs: BufferView, rhs: BufferView, atol: float, rtol: float
) -> None:
    """Both have the same type and shape, and ``|lhs - rhs| <= atol + rtol * |rhs|`` everywhere; NaN equals
    NaN.

    Raises:
        InvalidArgumentError: The elements are no real floating-point numbers.
    """
    expect(device, Device, "device")
    lhs, rhs = expect(lhs, BufferView, "lhs"), expect(rhs, BufferView, "rhs")
    reason = _difference(lhs, rhs)
    if reason is None:
        kind = lhs.element_type
        if not kind.is_float or kind.numerical_type is NumericalType.FLOAT_COMPLEX:
            raise InvalidArgumentError(f"expect_almost_eq does not take {type_name(kind)} elements")
        # Only f64 needs more than f32's range; comparing in f64 is exact for all of them.
        actual, expected = (view.numpy().astype(np.float64) for view in (lhs, rhs))
        with np.errstate(invalid="ignore"):
            close = np.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
        if not np.all(close):
            place = np.unravel_index(int(np.argmin(close)), close.shape)
            reason = (
                f"element {list(map(int, place))} is {actual[place]:g} and should be {expected[place]:g} "
                f"(atol {atol:g}, rtol {rtol:g})"
            )
    if reason is not None:
        _report(state, f"expected nearly equal tensors: {reason}", lhs, rhs)


TABLE: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("expect_true", "i_v", expect_true),
    ("expect_false", "i_v", expect_false),
    ("expect_all_true", "rr_v", expect_all_true),
    ("expect_eq", "rrr_v", expect_eq),
    ("expect_almost_eq", "rrrff_v", expect_almost_eq),
)
"""Every import of the module, version 0: name, calling convention, function."""

_FUNCTIONS = {
    name: NativeFunction(name=name, calling_convention=convention, call=call)
    for name, convention, call in TABLE
}


class CheckModule(NativeModule):
    """Checks for test programs.

    Args:
        keep_going: Collect failures in `failures` instead of raising the first one.
    """

    name = "check"
    version = 0

    def __init__(self, *, keep_going: bool = False) -> None:
        self.failures: list[str] = []
        self._keep_going = keep_going

    @property
    def functions(self) -> Mapping[str, NativeFunction]:
        """Functions by local name."""
        return _FUNCTIONS

    def create_state(self) -> _State:
        """State of one context; failures go to the module's list."""
        return _State(self.failures, self._keep_going)
