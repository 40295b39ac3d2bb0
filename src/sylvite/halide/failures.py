"""What ``halide_error_*`` calls mean, as one table.

Source: ``HalideRuntime.h``: ``halide_error_code_t`` and the functions' parameters after the user context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import PipelineError
from ..wasm.types import ValueType
from .types import HalideType, plain_name

__all__ = ["FAILURES", "GENERIC_CODE", "Failure", "FailureKind", "failure_named"]

GENERIC_CODE: Final = -1

_I32, _I64, _F64 = ValueType.I32, ValueType.I64, ValueType.F64
_PARAMETER_TYPES: Final = {"s": _I32, "i": _I32, "t": _I32, "l": _I64, "u": _I64, "d": _F64}

Value = int | float | str


@dataclasses.dataclass(frozen=True, slots=True)
class FailureKind:
    """One error function.

    Args:
        reason: the function's name without ``halide_error_``.
        code: the code it returns.
        parameters: ``name:kind`` in order; kinds are ``s`` text, ``i`` i32, ``l`` i64, ``u`` u64, ``d`` f64,
            ``t`` the word of a type.
        message: a format over the parameters.
    """

    reason: str
    code: int
    parameters: tuple[tuple[str, str], ...]
    message: str

    @property
    def parameter_types(self) -> tuple[ValueType, ...]:
        """Types of the function's parameters, the user context first."""
        return (_I32, *(_PARAMETER_TYPES[kind] for _, kind in self.parameters))

    def decode(self, values: tuple[int | float, ...], read_text: Callable[[int], str]) -> Failure:
        """The failure that a call with ``values`` (without the user context) reports."""
        details: dict[str, Value] = {}
        for (name, kind), value in zip(self.parameters, values, strict=True):
            if kind == "s":
                details[name] = plain_name(read_text(int(value)))
            elif kind == "t":
                details[name] = str(HalideType.from_word(int(value) & 0xFFFFFFFF))
            elif kind == "u":
                details[name] = int(value) & 0xFFFFFFFFFFFFFFFF
            else:
                details[name] = value
        return Failure(kind=self, details=details)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One reported failure."""

    kind: FailureKind
    details: Mapping[str, Value]

    @property
    def buffer(self) -> str | None:
        """Name of the buffer, parameter or stage concerned."""
        for name in ("buffer", "parameter", "func", "stage"):
            if name in self.details:
                return _bare(str(self.details[name]))
        return None

    def to_error(self, pipeline: str) -> PipelineError:
        """The exception to raise for it."""
        dimension = self.details.get("dimension")
        return PipelineError(
            self.kind.message.format(**self.details),
            reason=self.kind.reason,
            code=self.kind.code,
            buffer=self.buffer,
            dimension=int(dimension) if dimension is not None else None,
            details=self.details,
            kernel=pipeline,
        )


def _bare(name: str) -> str:
    """A buffer's name without what Halide writes before it."""
    return plain_name(name.removeprefix("Input buffer ").removeprefix("Output buffer "))


def _kind(reason: str, code: int, parameters: str, message: str) -> FailureKind:
    pairs = tuple((name, kind) for name, _, kind in (item.partition(":") for item in parameters.split()))
    return FailureKind(reason, code, pairs, message)


_RANGES = "dimension:i min_touched:i max_touched:i min_valid:i max_valid:i"

FAILURES: Final[Mapping[str, FailureKind]] = {
    f"halide_error_{kind.reason}": kind
    for kind in (
        _kind(
            "bounds_inference_call_failed",
            -1,
            "stage:s result:i",
            "bounds inference of extern stage {stage} failed with code {result}",
        ),
        _kind(
            "extern_stage_failed", -1, "stage:s result:i", "extern stage {stage} failed with code {result}"
        ),
        _kind(
            "explicit_bounds_too_small",
            -2,
            "func:s variable:s min_bound:i max_bound:i min_required:i max_required:i",
            "bounds given for {variable} of {func} ({min_bound} to {max_bound}) do not cover what is "
            "required ({min_required} to {max_required})",
        ),
        _kind("bad_type", -3, "buffer:s given:t required:t", "{buffer} has type {required}, given {given}"),
        _kind(
            "bad_dimensions",
            -43,
            "buffer:s given:i required:i",
            "{buffer} has {required} dimensions, given {given}",
        ),
        _kind(
            "access_out_of_bounds",
            -4,
            f"buffer:s {_RANGES}",
            "{buffer} is accessed at {min_touched} to {max_touched} in dimension {dimension}, but goes from "
            "{min_valid} to {max_valid} there",
        ),
        _kind(
            "buffer_allocation_too_large",
            -5,
            "buffer:s size:u maximum:u",
            "{buffer} would take {size} bytes, the most is {maximum}",
        ),
        _kind(
            "buffer_extents_negative",
            -28,
            "buffer:s dimension:i extent:i",
            "{buffer} has the negative extent {extent} in dimension {dimension}",
        ),
        _kind(
            "buffer_extents_too_large",
            -6,
            "buffer:s size:l maximum:l",
            "{buffer} spans {size} elements, the most is {maximum}",
        ),
        _kind(
            "constraints_make_required_region_smaller",
            -7,
            "buffer:s dimension:i constrained_min:i constrained_extent:i required_min:i required_extent:i",
            "the constraints on {buffer} allow only {constrained_extent} elements from {constrained_min} in "
            "dimension {dimension}, but {required_extent} from {required_min} are required",
        ),
        _kind(
            "constraint_violated",
            -8,
            "variable:s value:i constrained:s required:i",
            "{variable} is {value}, but must be {constrained} = {required}",
        ),
        *(
            _kind(
                f"param_too_small_{suffix}",
                -9,
                f"parameter:s value:{kind} minimum:{kind}",
                "{parameter} is {value}, the least allowed is {minimum}",
            )
            for suffix, kind in (("i64", "l"), ("u64", "u"), ("f64", "d"))
        ),
        *(
            _kind(
                f"param_too_large_{suffix}",
                -10,
                f"parameter:s value:{kind} maximum:{kind}",
                "{parameter} is {value}, the most allowed is {maximum}",
            )
            for suffix, kind in (("i64", "l"), ("u64", "u"), ("f64", "d"))
        ),
        _kind("out_of_memory", -11, "", "the pipeline ran out of memory"),
        _kind("buffer_argument_is_null", -12, "buffer:s", "{buffer} is null"),
        _kind(
            "debug_to_file_failed",
            -13,
            "func:s file:s result:i",
            "{func} could not be written to {file} (code {result}): pipelines have no files",
        ),
        _kind(
            "unaligned_host_ptr", -24, "buffer:s alignment:i", "{buffer} is not aligned to {alignment} bytes"
        ),
        _kind("host_is_null", -34, "buffer:s", "{buffer} has no memory"),
        _kind(
            "bad_fold",
            -25,
            "func:s variable:s loop:s",
            "storage of {func} cannot be folded over {variable}: loop {loop} does not go monotonically",
        ),
        _kind(
            "bad_extern_fold",
            -35,
            "func:s dimension:i min:i extent:i valid_min:i fold_factor:i",
            "an extern stage reads {extent} elements from {min} of {func} in dimension {dimension}, which "
            "does not fit the fold of {fold_factor} from {valid_min}",
        ),
        _kind(
            "fold_factor_too_small",
            -26,
            "func:s variable:s fold_factor:i loop:s required_extent:i",
            "the fold factor {fold_factor} of {func} over {variable} is too small: loop {loop} needs "
            "{required_extent}",
        ),
        _kind("requirement_failed", -27, "condition:s text:s", "requirement failed: {condition}: {text}"),
        _kind("specialize_fail", -31, "text:s", "no specialization applies: {text}"),
        _kind("no_device_interface", -19, "", "a buffer has device memory but no device interface"),
        _kind("device_interface_no_device", -36, "", "a buffer has a device interface but no device memory"),
        _kind("host_and_device_dirty", -37, "", "a buffer is dirty on host and device"),
        _kind("buffer_is_null", -38, "routine:s", "{routine} was given a null buffer"),
        _kind(
            "device_dirty_with_no_device_support",
            -44,
            "buffer:s",
            "{buffer} is dirty on a device, and the pipeline was compiled without devices",
        ),
        _kind(
            "storage_bound_too_small",
            -45,
            "func:s variable:s provided:i required:i",
            "the storage bound {provided} of {func} over {variable} is too small: {required} are required",
        ),
        _kind("device_crop_failed", -41, "", "a device buffer could not be cropped"),
        _kind(
            "split_factor_not_positive",
            -46,
            "func:s variable:s outer:s inner:s factor:s value:i",
            "{func}: {variable} is split into {outer} and {inner} by {factor} = {value}, which is not "
            "positive",
        ),
        _kind(
            "vscale_invalid",
            -47,
            "func:s runtime:i compiled:i",
            "{func} was compiled for vscale {compiled}, this machine has {runtime}",
        ),
    )
}
"""Error functions by symbol."""

_BY_REASON: Final = {kind.reason: kind for kind in FAILURES.values()}


def failure_named(reason: str, **details: Value) -> Failure:
    """A failure found by the host itself, in the same words."""
    return Failure(kind=_BY_REASON[reason], details=details)
