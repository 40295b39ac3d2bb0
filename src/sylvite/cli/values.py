"""Values on the command line, in iree-run-module's syntax.

``2x2xf32=1 2 3 4`` (brackets and commas are separators), ``4xf32=2`` (one element fills all), ``4xf32``
(zeros), ``f32=1`` (rank 0), ``@values.npy`` (one or more arrays), ``2xf32=@raw.bin``, ``3`` and ``1.5``
(numbers), ``(null)``.

Source: the help of iree-run-module; checked against that program.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, InvalidArgumentError, NotFoundError, UnavailableError
from ..hal import ElementType, element_type_from_name, element_type_from_numpy
from ..vm.modules.formatting import format_array

__all__ = ["Tolerance", "compare", "format_result", "parse_inputs", "parse_value", "write_outputs"]

_TYPED = re.compile(r"(?P<dims>(?:\d+x)*)(?P<type>[a-z*][\w*]*(?:<\w+>)?)(?:=(?P<data>.*))?", re.DOTALL)
_SEPARATORS = re.compile(r"[\s,\[\]]+")
_INTEGER = re.compile(r"[+-]?(?:0x[0-9a-f]+|\d+)", re.IGNORECASE)
_IGNORED = "(ignored)"
_WORDS = {"true": 1, "false": 0}
_MAXIMUM_BYTES = 1 << 32


def parse_inputs(texts: Sequence[str]) -> list[Any]:
    """Values of ``--input`` options in order; a .npy file may give several.

    Raises:
        InvalidArgumentError, NotFoundError, FormatError
    """
    values: list[Any] = []
    for text in texts:
        if text.startswith("@"):
            values.extend(read_npy(Path(text[1:])))
        else:
            values.append(parse_value(text))
    return values


def parse_value(text: str) -> Any:
    """One value; an array keeps the dtype that was written, a bare number is a Python number.

    Raises:
        InvalidArgumentError: the text does not parse, or holds another number of elements.
        NotFoundError: a file that does not exist.
    """
    text = text.strip()
    if text == "(null)":
        return None
    number = _number(text)
    if number is not None:
        return number
    match = _TYPED.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"cannot read {text!r}; write e.g. 2x2xf32=1 2 3 4, 3.5 or @file.npy")
    element_type = element_type_from_name(match["type"])
    shape = tuple(int(extent) for extent in match["dims"].split("x")[:-1])
    if element_type.byte_length(shape) > _MAXIMUM_BYTES:
        raise InvalidArgumentError(f"{text[:60]!r} is larger than guest memory can be")
    data = match["data"]
    dtype = _dtype(element_type)
    if data is None:
        return np.zeros(shape, dtype)
    if data.startswith("@"):
        return _read_raw(Path(data[1:]), shape, dtype)
    return _elements(data, shape, element_type, dtype)


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text, 0) if "x" in text.lower() else int(text)
    try:
        return float(text)
    except ValueError:
        return None


def _dtype(element_type: ElementType) -> np.dtype[Any]:
    dtype = element_type.numpy_dtype
    if element_type.is_float and dtype.kind == "u":
        raise UnavailableError(f"elements of type {element_type.name} need ml_dtypes: pip install ml_dtypes")
    return dtype


def _elements(
    text: str, shape: tuple[int, ...], element_type: ElementType, dtype: np.dtype[Any]
) -> np.ndarray[Any, np.dtype[Any]]:
    words = [word for word in _SEPARATORS.split(text) if word]
    try:
        if element_type.is_integer:
            numbers: list[Any] = [_WORDS[word] if word in _WORDS else int(word, 0) for word in words]
        elif dtype.kind == "c":
            numbers = [complex(word) for word in words]
        else:
            numbers = [float(word) for word in words]
        array = np.array(numbers, dtype)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{text[:80]!r} does not hold elements of {element_type.name}: {error}"
        ) from error
    count = math.prod(shape)
    if array.size == 1:
        return np.full(shape, array[0], dtype)
    if array.size != count:
        raise InvalidArgumentError(
            f"{'x'.join(map(str, shape))}x{element_type.name} has {count} elements, {array.size} are given"
        )
    return array.reshape(shape)


def _read_raw(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    data = _read(path)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidArgumentError(f"{path} has {len(data)} bytes; the shape takes {expected}")
    return np.frombuffer(data, dtype).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from error


def read_npy(path: Path) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """All arrays of a .npy file, one after the other.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is malformed, or holds Python objects.
    """
    size = len(_read(path))
    arrays = []
    with path.open("rb") as file:
        while file.tell() < size:
            offset = file.tell()
            try:
                arrays.append(np.load(file, allow_pickle=False))
            except (ValueError, EOFError, OSError) as error:
                raise FormatError(f"not a numpy array: {error}", offset=offset, where=path.name) from error
    if not arrays:
        raise FormatError("the file is empty", offset=0, where=path.name)
    return arrays


def format_result(value: Any, *, limit: int = 1024) -> list[str]:
    """Lines that print a result, after its ``result[i]: ``."""
    if isinstance(value, np.ndarray):
        element_type = element_type_from_numpy(value.dtype)
        return ["hal.buffer_view", format_array(value, element_type, value.shape, limit=limit)]
    if isinstance(value, bool | int):
        return [f"{'i32' if -(2**31) <= value < 2**31 else 'i64'}={value}"]
    if isinstance(value, float):
        return [f"f32={value:G}"]
    return ["(null)" if value is None else repr(value)]


def write_outputs(values: Sequence[Any], destinations: Sequence[str]) -> None:
    """Write results as ``--output`` options say: ``@file.npy`` (appending to what this call wrote there),
    ``@file.bin`` (raw bytes), ``-`` (standard output), or nothing for an empty text.

    Raises:
        InvalidArgumentError: more destinations than results, or a file that cannot be written.
    """
    import click

    if len(destinations) > len(values):
        raise InvalidArgumentError(
            f"{len(destinations)} outputs to write, but the function has {len(values)}"
        )
    opened: set[Path] = set()
    for index, (value, destination) in enumerate(zip(values, destinations, strict=False)):
        if destination in ("", "-"):
            if destination:
                click.echo(
                    "\n".join([f"result[{index}]: {format_result(value)[0]}", *format_result(value)[1:]])
                )
            continue
        path = Path(destination.removeprefix("@"))
        array = np.ascontiguousarray(value)
        try:
            with path.open("ab" if path in opened else "wb") as file:
                opened.add(path)
                if path.suffix == ".npy":
                    np.save(file, array)
                else:
                    file.write(array.tobytes())
        except OSError as error:
            raise InvalidArgumentError(f"cannot write {path}: {error.strerror}") from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far floats may be apart: ``abs(actual - expected) <= atol + rtol * abs(expected)``.

    ``None`` means iree-run-module's default: for ``atol`` by type, for ``rtol`` 1e-5.
    """

    atol: float | None = None
    rtol: float | None = None

    @property
    def relative(self) -> float:
        """The relative tolerance."""
        return 1e-5 if self.rtol is None else self.rtol

    def absolute(self, dtype: np.dtype[Any]) -> float:
        """The absolute tolerance for elements of ``dtype``."""
        if self.atol is not None:
            return self.atol
        return {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype.name, 1e-4)


def compare(values: Sequence[Any], expected: Sequence[str], tolerance: Tolerance) -> list[str]:
    """Hold results against ``--expected-output`` texts; return a line per difference.

    Raises:
        InvalidArgumentError: an expectation does not parse.
    """
    wanted: list[Any] = []
    for text in expected:
        wanted.extend([_IGNORED] if text.strip() == _IGNORED else parse_inputs([text]))
    if len(wanted) != len(values):
        return [f"{len(wanted)} outputs are expected, but there are {len(values)}"]
    pairs = zip(values, wanted, strict=True)
    problems = [
        _difference(f"result[{index}]", value, want, tolerance) for index, (value, want) in enumerate(pairs)
    ]
    return [problem for problem in problems if problem]


def _difference(name: str, value: Any, want: Any, tolerance: Tolerance) -> str:
    if isinstance(want, str):
        return ""
    if isinstance(want, np.ndarray) and isinstance(value, np.ndarray):
        if value.shape != want.shape or value.dtype != want.dtype:
            return f"{name}: is {value.dtype}{list(value.shape)}, expected {want.dtype}{list(want.shape)}"
        return _array_difference(name, value, want, tolerance)
    if value is None or want is None:
        return "" if value is want else f"{name}: is {value}, expected {want}"
    actual = np.asarray(value)
    return _array_difference(name, actual, np.asarray(want, actual.dtype).reshape(actual.shape), tolerance)


def _array_difference(name: str, value: Any, want: Any, tolerance: Tolerance) -> str:
    if value.dtype.kind in "biu":
        close = value == want
    else:
        kind = np.complex128 if value.dtype.kind == "c" else np.float64
        close = np.isclose(
            value.astype(kind),
            want.astype(kind),
            rtol=tolerance.relative,
            atol=tolerance.absolute(value.dtype),
            equal_nan=True,
        )
    if bool(np.all(close)):
        return ""
    index = int(np.argmin(np.asarray(close).reshape(-1)))
    actual, expected = value.reshape(-1)[index], want.reshape(-1)[index]
    count = int(np.size(close) - np.count_nonzero(close))
    total = np.size(close)
    return f"{name}: element {index} is {actual}, expected {expected} ({count} of {total} elements differ)"
