"""From a call's arguments to values for the signature's arguments."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from ..hal import BufferView
from .arrays import Region, Window
from .layouts import ArgumentKind
from .metadata import Argument, Number, Signature
from .plan import Given
from .types import TypeCode

__all__ = ["Bound", "bind"]

_INT32 = range(-(1 << 31), 1 << 31)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Arguments of one call. ``key`` is equal for calls that can share a plan; ``source`` are the values as
    the caller gave them, by argument index."""

    given: Mapping[int, Given]
    scalars: Sequence[Number]
    regions: Mapping[int, Region]
    key: Any
    source: Mapping[int, Any]


def bind(
    signature: Signature,
    axes: Mapping[int, Sequence[int]],
    args: Sequence[Any],
    named: Mapping[str, Any],
    *,
    out: Any = None,
    shape: Any = None,
    partial: bool = False,
) -> Bound:
    """Match a call to a signature.

    Raises:
        InvalidArgumentError: an argument is missing, unknown, given twice, or of another type or rank.
    """
    values = _match(signature, args, named)
    _add_outputs(signature, values, out)
    given: dict[int, Given] = {}
    scalars: list[Number] = []
    key: list[Any] = []
    for index, argument in enumerate(signature.arguments):
        if not argument.is_buffer:
            scalars.append(_scalar(argument, values.get(index)))
        elif index in values:
            item = given[index] = _given(argument, values[index], axes[index])
            key.append((item.array.shape, item.array.strides, item.mins))
        else:
            key.append(None)
    regions = _regions(signature, shape) if shape is not None else {}
    if None in key and not partial:
        # Sizes of new outputs may depend on the scalars.
        key += [tuple(scalars), tuple(sorted((i, r.shape, r.min) for i, r in regions.items()))]
    return Bound(given=given, scalars=scalars, regions=regions, key=tuple(key), source=values)


def _match(signature: Signature, args: Sequence[Any], named: Mapping[str, Any]) -> dict[int, Any]:
    values: dict[int, Any] = {}
    arguments = signature.arguments
    if named:
        by_name = {argument.name: index for index, argument in enumerate(arguments)}
        for name, value in named.items():
            if name not in by_name:
                raise InvalidArgumentError(f"{signature.name} has no argument {name!r}: it is {signature}")
            if value is not None:
                values[by_name[name]] = value
    if args:
        buffers = [i for i, a in enumerate(arguments) if a.kind is ArgumentKind.INPUT and i not in values]
        buffers += [i for i, a in enumerate(arguments) if a.kind is ArgumentKind.OUTPUT and i not in values]
        numbers_left = [i for i, a in enumerate(arguments) if not a.is_buffer and i not in values]
        for value in args:
            places = numbers_left if _is_number(value) else buffers
            if not places:
                raise InvalidArgumentError(f"{signature.name} got too many arguments: it is {signature}")
            index = places.pop(0)
            if value is not None:
                values[index] = value
    return values


def _add_outputs(signature: Signature, values: dict[int, Any], out: Any) -> None:
    if out is None:
        return
    outputs = [i for i, a in enumerate(signature.arguments) if a.kind is ArgumentKind.OUTPUT]
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(given) != len(outputs):
        raise InvalidArgumentError(f"{signature.name} has {len(outputs)} outputs, out= holds {len(given)}")
    for index, value in zip(outputs, given, strict=True):
        if index in values:
            raise InvalidArgumentError(f"output {signature.arguments[index].name} was given twice")
        if value is not None:
            values[index] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Number, np.generic, bool)) and not isinstance(value, np.ndarray)


def _scalar(argument: Argument, value: Any) -> Number:
    if value is None:
        if argument.default is not None:
            return argument.default
        if argument.type.code is TypeCode.HANDLE:
            # Handles, the user context among them, mean nothing to the sandbox.
            return 0
        raise InvalidArgumentError(f"the scalar {argument} needs a value")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and argument.type.code in (TypeCode.INT, TypeCode.UINT):
        if not value.is_integer():
            raise InvalidArgumentError(f"{argument.name} is of type {argument.type}, got {value!r}")
        value = int(value)
    if not isinstance(value, (int, float)):
        raise InvalidArgumentError(f"{argument.name} is a scalar of type {argument.type}, got {value!r}")
    if argument.type.code is TypeCode.UINT and argument.type.bits == 1:
        return bool(value)
    return value


def _given(argument: Argument, value: Any, axes: Sequence[int]) -> Given:
    mins: Sequence[int] | None = None
    if isinstance(value, Window):
        value, mins = value.array, value.min
    if isinstance(value, BufferView):
        value = value.numpy()
    is_output = argument.kind is ArgumentKind.OUTPUT
    if not isinstance(value, np.ndarray):
        is_array_like = isinstance(value, (list, tuple, np.generic)) or hasattr(value, "__array__")
        if is_output or not is_array_like:
            raise InvalidArgumentError(f"{argument} needs an array, got {type(value).__name__}")
        value = np.asarray(value, argument.type.dtype)
    if value.dtype != argument.type.dtype:
        raise InvalidArgumentError(
            f"{argument.name} has elements of type {argument.type} (numpy {argument.type.dtype}), the array "
            f"given has {value.dtype}"
        )
    if value.ndim != argument.dimensions:
        raise InvalidArgumentError(
            f"{argument.name} has {argument.dimensions} dimensions, the array given has {value.ndim} "
            f"(shape {value.shape})"
        )
    if is_output and not value.flags.writeable:
        raise InvalidArgumentError(f"the array given for the output {argument.name} is read-only")
    if mins is None:
        return Given(value, (0,) * value.ndim)
    return Given(value, tuple(_int32(argument, mins[axis]) for axis in axes))


def _int32(argument: Argument, value: Any) -> int:
    if int(value) not in _INT32:
        raise InvalidArgumentError(f"{argument.name}: the minimum {value} does not fit 32 bits")
    return int(value)


def _regions(signature: Signature, shape: Any) -> dict[int, Region]:
    outputs = {a.name: i for i, a in enumerate(signature.arguments) if a.kind is ArgumentKind.OUTPUT}
    if isinstance(shape, Mapping):
        unknown = shape.keys() - outputs.keys()
        if unknown:
            raise InvalidArgumentError(f"{signature.name} has no output {', '.join(map(str, unknown))}")
        return {outputs[name]: _region(signature, item) for name, item in shape.items()}
    region = _region(signature, shape)
    return dict.fromkeys(outputs.values(), region)


def _region(signature: Signature, shape: Any) -> Region:
    if isinstance(shape, Region):
        if len(shape.min) != len(shape.shape):
            raise InvalidArgumentError(f"a region needs as many minima as extents: {shape}")
        return shape
    try:
        extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(e) for e in shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{signature.name}: {shape!r} is no shape") from error
    return Region(shape=extents, min=(0,) * len(extents))
