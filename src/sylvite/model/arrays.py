"""Values into and out of a program: numpy, DLPack, scalars and buffer views.

Inputs are never cast: a wrong dtype or shape is an error that says which cast would do. Python numbers and
lists have no dtype of their own and take the declared one. An array whose memory belongs to the device is
passed as it is; anything else is copied once. Outputs are views of device memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from ..hal import BufferView, Device, ElementType, NumericalType, element_type_from_numpy
from ..vm.refs import VmBuffer, VmList
from .signature import Argument, ValueKind, describe_shape

__all__ = ["check_array", "from_program", "to_array", "to_program"]

Array = npt.NDArray[Any]

_ACCEPTED = "accepted are arrays, (nested) lists of numbers and objects with __dlpack__"


def to_array(value: Any, argument: Argument, where: str) -> Array | BufferView:
    """``value`` as an array of the declared dtype, or the buffer view that it is. Nothing is cast.

    ``where`` says which input of which function it is.

    Raises:
        InvalidArgumentError: it cannot be made an array.
    """
    if isinstance(value, BufferView):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, bool | int | float | complex | list | tuple):
        return _from_python(value, argument, where)
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        array = np.asarray(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{where}: cannot take a {type(value).__name__}: {error}") from error
    if array.dtype == object or isinstance(value, str | bytes):
        raise InvalidArgumentError(
            f"{where}: expected {argument.describe()}, cannot take a {type(value).__name__}; {_ACCEPTED}"
        )
    return array


def _from_python(value: Any, argument: Argument, where: str) -> Array:
    """Numbers and (nested) lists of them, in the declared dtype if it holds them exactly enough."""
    try:
        natural = np.asarray(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"{where}: expected {argument.describe()}: {error}") from error
    dtype = argument.dtype
    if natural.dtype == object or natural.dtype.kind in "USV":
        return _from_large(value, argument, where)
    if dtype is None or natural.dtype == dtype or _holds_arrays(value):
        return natural
    if natural.size and not np.can_cast(natural.dtype, dtype, casting="same_kind"):
        return _checked_integers(natural, dtype, where, argument, value)
    return natural.astype(dtype)


def _from_large(value: Any, argument: Argument, where: str) -> Array:
    """What numpy finds no number for: integers of more than 64 bits, which floats may hold, or no numbers.

    Raises:
        InvalidArgumentError: the declared dtype does not hold them.
    """
    leaves = np.asarray(value, dtype=object).reshape(-1).tolist()
    for leaf in leaves:
        if not isinstance(leaf, int | float | complex):
            raise InvalidArgumentError(
                f"{where}: expected {argument.describe()}, got a {type(value).__name__} that holds a "
                f"{type(leaf).__name__}; numbers are accepted"
            )
    dtype = argument.dtype
    if dtype is not None and dtype.kind == "f":
        try:
            return np.asarray(value, dtype=np.float64).astype(dtype)
        except OverflowError:
            pass  # as below
    raise InvalidArgumentError(f"{where}: a value is outside of {argument.describe()}")


def _holds_arrays(value: Any) -> bool:
    """Whether a list holds arrays, which have a dtype of their own."""
    if isinstance(value, list | tuple):
        return any(_holds_arrays(item) for item in value)
    return isinstance(value, np.ndarray | np.generic)


def _checked_integers(
    natural: Array, dtype: np.dtype[Any], where: str, argument: Argument, value: Any
) -> Array:
    """Integers in a narrower or unsigned dtype that holds each of them."""
    if dtype.kind in "iu":
        # Numpy takes integers that neither of its 64-bit types holds all of for floats.
        leaves = np.asarray(value, dtype=object).reshape(-1).tolist()
        limits = np.iinfo(dtype)
        if all(isinstance(leaf, int) for leaf in leaves):
            if limits.min <= min(leaves) and max(leaves) <= limits.max:
                return np.asarray(value, dtype=dtype)
            raise InvalidArgumentError(f"{where}: a value is outside of {dtype}")
    raise InvalidArgumentError(f"{where}: expected {argument.describe()}, got values of kind {natural.dtype}")


def check_array(value: Array | BufferView, argument: Argument, where: str) -> None:
    """Hold an input against its declaration.

    Raises:
        InvalidArgumentError: dtype or shape differ; says what was expected, what came, and which cast does.
            Or a value needs more bits than the program computes with.
    """
    expected_type = argument.element_type
    if isinstance(value, BufferView):
        fits = expected_type is None or value.element_type.is_compatible_with(expected_type)
        advice = ""
    else:
        fits, advice = _dtype_fits(value, expected_type)
    if fits and (argument.shape is None or _shape_fits(value.shape, argument.shape)):
        if argument.narrowed:
            _check_narrow(value, argument, where)
        return
    got_name = value.element_type.name if isinstance(value, BufferView) else str(value.dtype)
    got = describe_shape(got_name, value.shape)
    raise InvalidArgumentError(f"{where}: expected {argument.describe()}, got {got}{'' if fits else advice}")


def _check_narrow(value: Array | BufferView, argument: Argument, where: str) -> None:
    """Refuse 64-bit integers that need more than the 32 bits that the program computes with."""
    array = value.numpy() if isinstance(value, BufferView) else value
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        outside = array[(array < limits.min) | (array > limits.max)].flat[0]
        raise InvalidArgumentError(
            f"{where}: {outside} does not fit in 32 bits, which is what this program computes with where its "
            f"signature says {argument.dtype} (it is compiled for WebGPU)"
        )


def _dtype_fits(value: Array, expected: ElementType | None) -> tuple[bool, str]:
    """Whether the dtype is the declared one (signedness aside when undeclared), and advice if not."""
    if expected is None:
        return True, ""
    if not expected.is_byte_aligned:
        return False, "; pass a BufferView of packed elements"
    dtype = expected.numpy_dtype
    if value.dtype == dtype:
        return True, ""
    if value.dtype.newbyteorder("=") == dtype:
        return False, f"; it is big endian, pass x.astype({dtype.name!r})"
    if value.dtype.kind in "OSUMm" or value.dtype.names is not None:
        return False, f"; {_ACCEPTED}"
    same_width = value.dtype.itemsize == dtype.itemsize and {value.dtype.kind, dtype.kind} <= {"i", "u"}
    if same_width and expected.numerical_type.name == "INTEGER":
        return True, ""  # a signless integer: the program does not say how it takes the sign bit
    return False, f"; nothing is cast silently, pass x.astype({dtype.name!r})"


def _shape_fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    if tuple(shape) == tuple(declared):
        return True
    if len(shape) != len(declared):
        return False
    bound: dict[str, int] = {}
    for extent, expected in zip(shape, declared, strict=True):
        if isinstance(expected, str):
            if bound.setdefault(expected, extent) != extent:
                return False
        elif expected is not None and expected != extent:
            return False
    return True


def to_program(value: Any, argument: Argument, device: Device, where: str) -> Any:
    """A value as the program takes it: a buffer view, a number, a VM buffer, a reference.

    Raises:
        InvalidArgumentError: dtype, shape or kind differ from what is declared.
        OutOfMemoryError, ClosedError
    """
    if argument.kind is ValueKind.TENSOR:
        array = to_array(value, argument, where)
        check_array(array, argument, where)
        return array if isinstance(array, BufferView) else _place(array, argument, device)
    if argument.kind in (ValueKind.INTEGER, ValueKind.FLOAT):
        return _scalar(value, argument, where)
    if argument.kind is ValueKind.BUFFER and not isinstance(value, VmBuffer):
        try:
            return VmBuffer(value.encode() if isinstance(value, str) else value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: expected bytes, got {type(value).__name__}") from error
    if argument.kind is ValueKind.REFERENCE and (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        array = to_array(value, argument, where)
        return array if isinstance(array, BufferView) else _place(array, argument, device)
    return value


def _place(array: Array, argument: Argument, device: Device) -> BufferView:
    """A buffer view of ``array``: over its own memory when that is the device's, else over a copy."""
    try:
        element_type = element_type_from_numpy(array.dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"input {argument.name!r}: {error}") from error
    if array.flags.c_contiguous and array.nbytes:
        buffer = device.allocator.import_host(array, copy=False, tag="input")
        if buffer is not None:
            return BufferView(buffer, array.shape, element_type)
    return BufferView.from_numpy(device.allocator, array, element_type=element_type)


def _scalar(value: Any, argument: Argument, where: str) -> int | float:
    number = value
    if not isinstance(value, int | float):
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"{where}: expected a number, got {type(value).__name__}")
        number = array.reshape(()).item()
    if argument.kind is ValueKind.FLOAT:
        return _float(number, argument, where)
    if isinstance(number, float):
        raise InvalidArgumentError(f"{where}: expected an integer, got {number}")
    return _integer(int(number), argument.element_type, where)


def _float(number: int | float, argument: Argument, where: str) -> float:
    """A number as a float of the declared width. Infinities are numbers; what becomes one is not."""
    try:
        result = float(number)
    except OverflowError:
        raise InvalidArgumentError(f"{where}: the number is outside of {argument.describe()}") from None
    dtype = argument.dtype
    if dtype is not None and math.isfinite(result):
        with np.errstate(over="ignore"):
            if not np.isfinite(dtype.type(result)):
                raise InvalidArgumentError(f"{where}: {number} is outside of {argument.describe()}")
    return result


def _integer(number: int, element_type: ElementType | None, where: str) -> int:
    """An integer in the range of its type; one without a sign of its own has that of a signed type."""
    bits = 32 if element_type is None else element_type.bit_count
    is_unsigned = element_type is not None and element_type.numerical_type is NumericalType.INTEGER_UNSIGNED
    if is_unsigned or bits == 1:
        least, most = 0, (1 << bits) - 1
    else:
        least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if not least <= number <= most:
        raise InvalidArgumentError(f"{where}: {number} does not fit in {bits} bits, {least} to {most}")
    # The machine's integers are signed; an unsigned one keeps its bit pattern.
    half = 1 << (max(bits, 32) - 1)
    return (number + half) % (2 * half) - half


def from_program(value: Any, argument: Argument | None, *, copy: bool) -> Any:
    """A result as Python takes it. Tensors become arrays over device memory, or copies of it."""
    if isinstance(value, BufferView):
        array = _result_array(value, argument)
        return array.copy() if copy else array
    if isinstance(value, VmBuffer):
        return bytes(value) if copy else value.data
    if isinstance(value, VmList):
        return [from_program(item, None, copy=copy) for item in value]
    return value


def _result_array(view: BufferView, argument: Argument | None) -> Array:
    if not view.element_type.is_byte_aligned:
        return view.unpack()
    array = view.numpy()
    declared = None if argument is None else argument.dtype
    # Programs say "8-bit integer"; the graph knows that it is unsigned, or a boolean.
    if declared is not None and declared != array.dtype and declared.itemsize == array.dtype.itemsize:
        return array.view(declared)
    return array
