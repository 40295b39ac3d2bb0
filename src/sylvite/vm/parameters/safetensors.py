"""Reader of ``.safetensors`` files: a JSON header, then the tensors back to back.

As strict as the reference library: no duplicate names, no gaps, no overlaps, no unknown types, and the
tensors fill the file exactly.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from ...errors import FormatError, UnsupportedFeatureError
from .cursor import Cursor
from .element_types import SAFETENSORS_TYPES, ParameterType
from .files import ParameterFile
from .index import FileRange, ParameterEntry, ParameterIndex

__all__ = ["MAXIMUM_HEADER_BYTES", "read_safetensors"]

MAXIMUM_HEADER_BYTES = 100_000_000
"""The reference library's limit."""

_METADATA_KEY = "__metadata__"
_MAXIMUM_DIMENSION = 1 << 63


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    name: str
    element_type: ParameterType
    shape: tuple[int, ...]
    begin: int
    end: int


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return members


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


class _Header:
    """The decoded header and where the data begins."""

    def __init__(self, file: ParameterFile) -> None:
        cursor = Cursor(file.data, where=file.name)
        byte_length = cursor.u64("the header length")
        if byte_length > MAXIMUM_HEADER_BYTES:
            raise cursor.fail(f"a header of {byte_length} bytes is over the limit", offset=0)
        text = cursor.text(byte_length, "the header")
        if not text.startswith("{"):
            raise cursor.fail("the header does not begin with '{'", offset=8)
        try:
            members = json.loads(text, object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            place = 8 + error.pos if isinstance(error, json.JSONDecodeError) else 8
            raise cursor.fail(f"the header is not JSON: {error}", offset=place) from error
        self.where = file.name
        self.members: dict[str, Any] = members
        self.data_offset = cursor.offset
        self.data_length = cursor.remaining

    def fail(self, name: str, message: str) -> FormatError:
        """An error of one tensor's record."""
        return FormatError(f"tensor {name!r}: {message}", offset=8, where=self.where)


def _integers(header: _Header, name: str, record: dict[str, Any], field: str) -> tuple[int, ...]:
    values = record.get(field)
    if not isinstance(values, list):
        raise header.fail(name, f"{field} is not a list")
    for value in values:
        # bool is an int in Python and is not a number in JSON.
        if type(value) is not int or not 0 <= value < _MAXIMUM_DIMENSION:
            raise header.fail(name, f"{field} holds {value!r}")
    return tuple(values)


def _read_tensor(header: _Header, name: str, record: Any) -> _Tensor:
    if not isinstance(record, dict):
        raise header.fail(name, "the record is not an object")
    dtype = record.get("dtype")
    if not isinstance(dtype, str):
        raise header.fail(name, "dtype is not a string")
    element_type = SAFETENSORS_TYPES.get(dtype)
    if element_type is None:
        raise UnsupportedFeatureError(
            f"tensor {name!r}: unknown dtype {dtype!r}", offset=8, where=header.where
        )
    shape = _integers(header, name, record, "shape")
    offsets = _integers(header, name, record, "data_offsets")
    if len(offsets) != 2:
        raise header.fail(name, f"data_offsets has {len(offsets)} numbers instead of 2")
    begin, end = offsets
    if begin > end or end > header.data_length:
        raise header.fail(name, f"data_offsets {begin} to {end} of {header.data_length} bytes")
    bits = element_type.bit_length(math.prod(shape))
    if bits % 8 or bits // 8 != end - begin:
        needed = f"{bits / 8:g}" if bits < 1 << 50 else f"{bits // 8}"
        raise header.fail(name, f"{dtype} of shape {list(shape)} needs {needed} bytes and has {end - begin}")
    return _Tensor(name=name, element_type=element_type, shape=shape, begin=begin, end=end)


def _check_metadata(header: _Header, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise header.fail(_METADATA_KEY, "metadata is not an object of strings")


def _check_layout(header: _Header, tensors: list[_Tensor]) -> None:
    position = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != position:
            kind = "overlaps the tensor before it" if tensor.begin < position else "leaves a gap before it"
            raise header.fail(tensor.name, f"begins at {tensor.begin} and {kind}, which ends at {position}")
        position = tensor.end
    if position != header.data_length:
        raise FormatError(
            f"the tensors end at {position} of {header.data_length} data bytes",
            offset=header.data_offset + position,
            where=header.where,
        )


def read_safetensors(file: ParameterFile) -> ParameterIndex:
    """Index a safetensors file. Nothing but the header is read.

    Raises:
        FormatError: The file is malformed; the message names the tensor.
        UnsupportedFeatureError: A tensor has an element type this release does not know.
    """
    header = _Header(file)
    metadata = header.members.pop(_METADATA_KEY, None)
    if metadata is not None:
        _check_metadata(header, metadata)
    tensors = [_read_tensor(header, name, record) for name, record in header.members.items()]
    _check_layout(header, tensors)
    index = ParameterIndex([file])
    for tensor in tensors:
        try:
            tensor.name.encode()
        except UnicodeEncodeError as error:
            raise header.fail(tensor.name, "the name is not Unicode text") from error
        index.add(
            ParameterEntry(
                key=tensor.name,
                byte_length=tensor.end - tensor.begin,
                storage=FileRange(file=file, offset=header.data_offset + tensor.begin),
                element_type=tensor.element_type,
                shape=tensor.shape,
            )
        )
    return index
