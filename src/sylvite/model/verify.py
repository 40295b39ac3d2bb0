"""`verify`: the results of a device against those of another one that is trusted.

GPU drivers get things wrong that no error reports. The CPU device computes the same model with code of its
own; floating-point results differ in the last digits, because sums have another order there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, UnsupportedFeatureError, VerificationError
from ..hal import Device
from .load import load
from .model import Model
from .source import is_module

__all__ = [
    "REFERENCE",
    "OutputComparison",
    "Tolerances",
    "Verification",
    "compare_results",
    "load_reference",
    "verify",
]

REFERENCE: Final = "local-sync"
"""The device that is trusted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """How far results may be apart: ``abs(value - reference) <= atol + rtol * abs(reference)``.

    Args:
        atol: absolute; ``None`` for 1e-4 between floating-point numbers, nothing between integers.
        rtol: relative, between floating-point numbers only; ``None`` for 1e-3.
    """

    atol: float | None = None
    rtol: float | None = None

    def bounds(self, reference: npt.NDArray[Any]) -> npt.NDArray[np.float64] | float:
        """The largest error for each element of a reference."""
        if reference.dtype.kind in "biu":
            return self.atol or 0.0
        atol = 1e-4 if self.atol is None else self.atol
        rtol = 1e-3 if self.rtol is None else self.rtol
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(atol + rtol * np.abs(reference), np.float64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One output on both devices.

    Args:
        name: of the output.
        kind: dtype and shape, as in messages.
        largest_error: the largest absolute difference; infinite where only one of the two is NaN or the same
            infinity, NaN when the outputs cannot be compared.
        index: where that is; ``None`` without a difference.
        value, reference: the elements there.
        wrong_count: elements beyond the tolerance.
        count: all elements.
        problem: why the outputs cannot be compared, or nothing.
    """

    name: str
    kind: str
    largest_error: float
    index: tuple[int, ...] | None
    value: Any
    reference: Any
    wrong_count: int
    count: int
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether all elements are within the tolerance."""
        return not self.problem and not self.wrong_count

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; elements as text, errors that are no numbers as nothing."""
        is_finite = np.isfinite(self.largest_error)
        return {
            "name": self.name,
            "kind": self.kind,
            "passed": self.passed,
            "largest_error": self.largest_error if is_finite else None,
            "index": None if self.index is None else list(self.index),
            "value": None if self.index is None else str(self.value),
            "reference": None if self.index is None else str(self.reference),
            "wrong_count": self.wrong_count,
            "count": self.count,
            "problem": self.problem,
        }

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        text = f"{self.name} {self.kind}: "
        if self.index is None:
            return text + "equal"
        place = ", ".join(map(str, self.index))
        text += f"largest error {self.largest_error:.3g}, {self.value} for {self.reference} at [{place}]"
        return (
            f"{text}; {self.wrong_count} of {self.count} elements differ by more"
            if self.wrong_count
            else text
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a comparison of two devices found.

    Args:
        function: the function that was called.
        device, reference: names of the devices.
        outputs: a comparison for each output.
    """

    function: str
    device: str
    reference: str
    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def largest_error(self) -> float:
        """The largest absolute difference of any output."""
        return max((output.largest_error for output in self.outputs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "device": self.device,
            "reference": self.reference,
            "passed": self.passed,
            "outputs": [output.to_json() for output in self.outputs],
        }

    def check(self) -> None:
        """Refuse results that are beyond the tolerance.

        Raises:
            VerificationError
        """
        wrong = [str(output) for output in self.outputs if not output.passed]
        if wrong:
            raise VerificationError(
                f"{self.function} gives other results on {self.device} than on {self.reference}: "
                + "; ".join(wrong),
                verification=self,
            )


def compare_results(
    name: str, model: Model, values: Any, reference: Model, expected: Any, tolerances: Tolerances
) -> Verification:
    """Hold what function ``name`` of a model returned against what it did on the reference, both as
    `Function.run` returns them."""
    names = [output.name for output in model.signature(name).outputs]
    pairs = zip(names, _listed(values), _listed(expected), strict=True)
    return Verification(
        function=name,
        device=model.device.name,
        reference=reference.device.name,
        outputs=tuple(_compared(output, value, want, tolerances) for output, value, want in pairs),
    )


def _listed(results: Any) -> list[Any]:
    return [] if results is None else list(results) if isinstance(results, tuple) else [results]


def _compared(name: str, value: Any, reference: Any, tolerances: Tolerances) -> OutputComparison:
    if value is None or reference is None or not (_is_numeric(value) and _is_numeric(reference)):
        problem = "" if value is reference else f"{value!r:.80} for {reference!r:.80}"
        return _uncompared(name, type(reference).__name__, problem)
    got, want = np.asarray(value), np.asarray(reference)
    kind = _kind(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return _uncompared(name, kind, f"{_kind(got)} for {kind}")
    errors = _errors(got, want)
    # Bounds of infinities are infinite, those of NaN are none.
    wrong = (errors > 0) & (np.isinf(errors) | ~(errors <= tolerances.bounds(want)))
    flat = int(np.argmax(errors)) if errors.size else 0
    index = tuple(map(int, np.unravel_index(flat, want.shape))) if errors.size and errors.flat[flat] else None
    return OutputComparison(
        name=name,
        kind=kind,
        largest_error=float(errors.flat[flat]) if errors.size else 0.0,
        index=index,
        value=None if index is None else got[index],
        reference=None if index is None else want[index],
        wrong_count=int(np.count_nonzero(wrong)),
        count=want.size,
    )


def _uncompared(name: str, kind: str, problem: str) -> OutputComparison:
    return OutputComparison(
        name=name,
        kind=kind,
        largest_error=float("nan") if problem else 0.0,
        index=None,
        value=None,
        reference=None,
        wrong_count=0,
        count=1,
        problem=problem,
    )


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | int | float | complex)


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _errors(value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Absolute differences; nothing between equal infinities and between NaNs, else infinite with them."""
    if value.dtype.kind in "biu":
        if value.dtype.kind == "b":
            return np.asarray(value != reference, np.float64)
        # Differences of signed integers fit the unsigned type of their width.
        larger, smaller = np.maximum(value, reference), np.minimum(value, reference)
        unsigned = np.dtype(f"u{value.dtype.itemsize}")
        return np.asarray(larger.astype(unsigned) - smaller.astype(unsigned), np.float64)
    wide = np.complex128 if value.dtype.kind == "c" else np.float64
    got, want = value.astype(wide), reference.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.asarray(np.abs(got - want), np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.asarray(np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors)))


def load_reference(source: Any, device: str = REFERENCE, **options: Any) -> Model:
    """Load a model on the device that is trusted.

    Args:
        source: see `load`.
        device: the device.
        options: see `load`.

    Raises:
        UnsupportedFeatureError: a compiled module without code for that device; says what to do.
        SylviteError: see `load`.
    """
    try:
        return load(source, device=device, **options)
    except UnsupportedFeatureError as error:
        if not is_module(source) or "is compiled for" not in error.message:
            raise
        raise UnsupportedFeatureError(
            f"there is nothing to verify with: the module holds no code for {device}. Verify the model "
            "itself, or compile it for both: `sylvite compile MODEL --target wasm32,webgpu -o MODEL.vmfb`",
            where=error.where,
        ) from error


def verify(
    source: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    device: str | Device = "webgpu",
    reference: str = REFERENCE,
    function: str | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    **options: Any,
) -> Verification:
    """Call a model on a device and on one that is trusted, and compare the results.

    Args:
        source: a model, or a module compiled for both devices (``target="wasm32,webgpu"``).
        inputs: of the function, by position or by name.
        device: what to verify.
        reference: what to trust.
        function: which function; by default what calling the model calls.
        atol, rtol: see `Tolerances`.
        options: see `load`.

    Raises:
        VerificationError: an output is beyond the tolerance; its ``verification`` holds the numbers.
        UnsupportedFeatureError: a compiled module without code for one of the devices; says what to do.
        SylviteError: see `load` and `Function.run`.
    """
    if isinstance(inputs, np.ndarray | str) or not isinstance(inputs, Sequence | Mapping):
        raise InvalidArgumentError("inputs must be a sequence or a mapping by name")
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    with (
        load_reference(source, reference, **options) as trusted,
        load(source, device=device, **options) as model,
    ):
        chosen = model.main if function is None else model.functions[function]
        expected = trusted.functions[chosen.name].run(positional, named)
        values = chosen.run(positional, named)
        found = compare_results(
            chosen.name, model, values, trusted, expected, Tolerances(atol=atol, rtol=rtol)
        )
    found.check()
    return found
