"""Reader of ``.gguf`` files, versions 2 and 3, little-endian.

Tensors are indexed with their block type; quantised ones are bytes to whoever loads them. Shapes are
given outermost dimension first, as numpy and MLIR do (the file has them the other way round).

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import dataclasses
import math

from ...errors import FormatError, UnsupportedFeatureError, UnsupportedVersionError
from .cursor import Cursor
from .element_types import GGML_TYPES, ParameterType
from .files import ParameterFile
from .index import FileRange, ParameterEntry, ParameterIndex

__all__ = ["read_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT_KEY = "general.alignment"
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MINIMUM_PAIR_BYTES = 8 + 4 + 1
_MINIMUM_TENSOR_BYTES = 8 + 4 + 4 + 8
_MAXIMUM_RANK = 8
_MAXIMUM_ARRAY_DEPTH = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    name: str
    place: int
    element_type: ParameterType
    shape: tuple[int, ...]
    begin: int
    byte_length: int


def _read_count(cursor: Cursor, what: str, minimum_bytes: int) -> int:
    place = cursor.offset
    count = cursor.u64(f"the number of {what}")
    # A lie about a count must not cost time or memory.
    if count > cursor.remaining // minimum_bytes:
        raise cursor.fail(f"{count} {what} do not fit into {cursor.remaining} bytes", offset=place)
    return count


def _read_string(cursor: Cursor, what: str) -> str:
    return cursor.text(cursor.u64(f"the length of {what}"), what)


def _skip_array(cursor: Cursor, key: str, depth: int) -> None:
    kind = cursor.u32("an array's element type")
    if kind in _SCALAR_BYTES:
        count = _read_count(cursor, f"elements of {key!r}", _SCALAR_BYTES[kind])
        cursor.take(count * _SCALAR_BYTES[kind], f"the array {key!r}")
        return
    if kind not in (_STRING, _ARRAY):
        raise cursor.fail(f"metadata {key!r}: unknown value type {kind}", offset=cursor.offset - 4)
    if kind == _ARRAY and depth == _MAXIMUM_ARRAY_DEPTH:
        raise cursor.fail(f"metadata {key!r}: arrays nested deeper than {depth}", offset=cursor.offset - 4)
    for _ in range(_read_count(cursor, f"elements of {key!r}", 8)):
        if kind == _STRING:
            cursor.take(cursor.u64("a string's length"), "a string")
        else:
            _skip_array(cursor, key, depth + 1)


def _read_metadata(cursor: Cursor, count: int) -> int:
    """Walk over the metadata; the result is the alignment of tensor data."""
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(count):
        key = _read_string(cursor, "a metadata key")
        kind = cursor.u32(f"the type of metadata {key!r}")
        if key == _ALIGNMENT_KEY:
            alignment = _read_alignment(cursor, kind)
        elif kind in _SCALAR_BYTES:
            cursor.take(_SCALAR_BYTES[kind], f"metadata {key!r}")
        elif kind == _STRING:
            cursor.take(cursor.u64("a string's length"), f"metadata {key!r}")
        elif kind == _ARRAY:
            _skip_array(cursor, key, 1)
        else:
            raise cursor.fail(f"metadata {key!r}: unknown value type {kind}", offset=cursor.offset - 4)
    return alignment


def _read_alignment(cursor: Cursor, kind: int) -> int:
    place = cursor.offset
    if kind != _UINT32:
        raise cursor.fail(f"{_ALIGNMENT_KEY} is not a uint32", offset=place - 4)
    alignment = cursor.u32(_ALIGNMENT_KEY)
    if alignment == 0 or alignment & (alignment - 1):
        raise cursor.fail(f"{_ALIGNMENT_KEY} is {alignment}, not a power of two", offset=place)
    return alignment


def _read_tensor(cursor: Cursor, alignment: int) -> _Tensor:
    place = cursor.offset
    name = _read_string(cursor, "a tensor name")
    rank = cursor.u32(f"the rank of tensor {name!r}")
    if rank > _MAXIMUM_RANK:
        raise cursor.fail(f"tensor {name!r} has {rank} dimensions", offset=cursor.offset - 4)
    dimensions = [cursor.u64(f"a dimension of tensor {name!r}") for _ in range(rank)]
    number = cursor.u32(f"the type of tensor {name!r}")
    element_type = GGML_TYPES.get(number)
    if element_type is None:
        raise UnsupportedFeatureError(
            f"tensor {name!r}: unknown ggml type {number}", offset=cursor.offset - 4, where=cursor.where
        )
    row = dimensions[0] if dimensions else 1
    if row % element_type.block_length:
        raise cursor.fail(
            f"tensor {name!r}: rows of {row} elements are not whole blocks of {element_type.block_length}",
            offset=place,
        )
    begin = cursor.u64(f"the offset of tensor {name!r}")
    if begin % alignment:
        raise cursor.fail(f"tensor {name!r}: offset {begin} is not a multiple of {alignment}", offset=place)
    return _Tensor(
        name=name,
        place=place,
        element_type=element_type,
        shape=tuple(reversed(dimensions)),
        begin=begin,
        byte_length=element_type.bit_length(math.prod(dimensions)) // 8,
    )


def _check_layout(tensors: list[_Tensor], data_length: int, where: str) -> None:
    position = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.byte_length)):
        if tensor.begin + tensor.byte_length > data_length:
            raise FormatError(
                f"tensor {tensor.name!r} spans bytes {tensor.begin} to {tensor.begin + tensor.byte_length} "
                f"of {data_length} data bytes",
                offset=tensor.place,
                where=where,
            )
        if tensor.byte_length and tensor.begin < position:
            raise FormatError(
                f"tensor {tensor.name!r} begins at {tensor.begin} before another one ends, at {position}",
                offset=tensor.place,
                where=where,
            )
        position = max(position, tensor.begin + tensor.byte_length)


def _read_header(cursor: Cursor) -> None:
    if bytes(cursor.take(4, "the magic number")) != _MAGIC:
        raise cursor.fail("not a GGUF file", offset=0)
    version = cursor.u32("the version")
    if version in _VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise UnsupportedFeatureError("a big-endian GGUF file", offset=4, where=cursor.where)
    raise UnsupportedVersionError(
        f"GGUF version {version}; versions 2 and 3 are read", offset=4, where=cursor.where
    )


def read_gguf(file: ParameterFile) -> ParameterIndex:
    """Index a GGUF file. Metadata is checked and not kept.

    Raises:
        FormatError: The file is malformed; the message names the metadata key or the tensor.
        UnsupportedVersionError: Another version of the format.
        UnsupportedFeatureError: An unknown block type, or big-endian.
    """
    cursor = Cursor(file.data, where=file.name)
    _read_header(cursor)
    tensor_count = _read_count(cursor, "tensors", _MINIMUM_TENSOR_BYTES)
    pair_count = _read_count(cursor, "metadata pairs", _MINIMUM_PAIR_BYTES)
    alignment = _read_metadata(cursor, pair_count)
    tensors = [_read_tensor(cursor, alignment) for _ in range(tensor_count)]
    data_offset = -(-cursor.offset // alignment) * alignment
    _check_layout(tensors, max(0, len(file.data) - data_offset), file.name)
    index = ParameterIndex([file])
    for tensor in tensors:
        entry = ParameterEntry(
            key=tensor.name,
            byte_length=tensor.byte_length,
            storage=FileRange(file=file, offset=data_offset + tensor.begin),
            element_type=tensor.element_type,
            shape=tensor.shape,
        )
        index.add(entry, place=tensor.place, where=file.name)
    return index
