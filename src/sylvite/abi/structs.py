"""Layouts of the structs that IREE's executables and their host share, as tables.

A `Struct` computes offsets and size from its fields by the rules of the wasm32 C ABI: every field at the
next multiple of its alignment, the size a multiple of the largest alignment. Pointers and ``size_t``
have 4 bytes, 64-bit integers align to 8. The tables are data: nothing here knows a memory or an engine.

Source: ``iree/hal/local/executable_library.h`` (version 0.6); WebAssembly tool conventions, BasicCABI.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from ..errors import FormatError, InvalidArgumentError

__all__ = [
    "CONSTANT_TABLE",
    "DISPATCH_ATTRIBUTES",
    "DISPATCH_STATE",
    "ENVIRONMENT",
    "EXPORT_TABLE",
    "IMPORT_TABLE",
    "LIBRARY",
    "LIBRARY_HEADER",
    "LIBRARY_QUERY_SYMBOL",
    "LIBRARY_VERSION",
    "LOCAL_MEMORY_PAGE_BYTES",
    "MAX_BINDING_COUNT",
    "MAX_CONSTANT_COUNT",
    "PROCESSOR",
    "SOURCE_FILE_TABLE",
    "STRUCTS",
    "WORKGROUP_STATE",
    "Array",
    "DispatchAttributeFlags",
    "Field",
    "Scalar",
    "Struct",
]

LIBRARY_VERSION: Final = 6
"""Version of the library structures described here: 0.6."""

LIBRARY_QUERY_SYMBOL: Final = "iree_hal_executable_library_query"
"""Export that returns ``header**`` for a version and an environment."""

LOCAL_MEMORY_PAGE_BYTES: Final = 4096
"""Unit of ``local_memory_pages``, in bytes."""

MAX_CONSTANT_COUNT: Final = 64
MAX_BINDING_COUNT: Final = 64


class DispatchAttributeFlags(enum.IntFlag):
    """``flags`` of `DISPATCH_ATTRIBUTES`."""

    NONE = 0
    SEQUENTIAL = 1 << 0
    WORKGROUP_SIZE_DYNAMIC = 1 << 1


class Scalar(enum.Enum):
    """Types of single values, by their code in the struct module. Size and alignment are equal."""

    U8 = "B"
    U16 = "H"
    U32 = "I"
    I32 = "i"
    U64 = "Q"
    POINTER = "L"

    @property
    def byte_length(self) -> int:
        """Size, which is the alignment too, in bytes."""
        return struct.calcsize("<" + self.value)

    @property
    def alignment(self) -> int:
        """Alignment in bytes."""
        return self.byte_length


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """``count`` scalars one after the other."""

    scalar: Scalar
    count: int

    @property
    def byte_length(self) -> int:
        """Size in bytes."""
        return self.scalar.byte_length * self.count

    @property
    def alignment(self) -> int:
        """Alignment in bytes."""
        return self.scalar.alignment


FieldType: TypeAlias = "Scalar | Array | Struct"


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A named member of a struct."""

    name: str
    type: FieldType


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class Struct:
    """A C struct on wasm32. Members of nested structs are named ``outer.inner``.

    Args:
        name: the C type's name without prefix and suffix.
        fields: members in order.
    """

    def __init__(self, name: str, fields: tuple[Field, ...]) -> None:
        self.name = name
        self.fields = fields
        self.alignment: int = max(field.type.alignment for field in fields)
        offset = 0
        placed: list[tuple[Field, int]] = []
        for field in fields:
            offset = _align(offset, field.type.alignment)
            placed.append((field, offset))
            offset += field.type.byte_length
        self.byte_length: int = _align(offset, self.alignment)
        self._placed = tuple(placed)

    def __repr__(self) -> str:
        return f"<Struct {self.name}: {self.byte_length} bytes>"

    def members(self, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int, Scalar | Array]]:
        """All members with nested ones in place: name, offset in bytes, type."""
        for field, offset in self._placed:
            if isinstance(field.type, Struct):
                yield from field.type.members(f"{prefix}{field.name}.", base + offset)
            else:
                yield prefix + field.name, base + offset, field.type

    @functools.cached_property
    def offsets(self) -> Mapping[str, int]:
        """Offset of every member, nested ones included, in bytes."""
        direct = {field.name: offset for field, offset in self._placed}
        return {**direct, **{name: offset for name, offset, _ in self.members()}}

    @functools.cached_property
    def format(self) -> str:
        """The layout in the struct module's language, padding written out."""
        parts, at = ["<"], 0
        for _, offset, member_type in self.members():
            parts.append("x" * (offset - at))
            if isinstance(member_type, Array):
                parts.append(f"{member_type.count}{member_type.scalar.value}")
            else:
                parts.append(member_type.value)
            at = offset + member_type.byte_length
        parts.append("x" * (self.byte_length - at))
        return "".join(parts)

    @functools.cached_property
    def _codec(self) -> struct.Struct:
        return struct.Struct(self.format)

    @functools.cached_property
    def _members(self) -> tuple[tuple[str, Scalar | Array], ...]:
        return tuple((name, member_type) for name, _, member_type in self.members())

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """The struct's bytes; members that are not given are zero.

        Args:
            values: members by name; arrays as sequences of their length.

        Raises:
            InvalidArgumentError: a name is not a member, or a value does not fit.
        """
        flat: list[int] = []
        unknown = values.keys() - {name for name, _ in self._members}
        if unknown:
            raise InvalidArgumentError(f"struct {self.name} has no {', '.join(sorted(unknown))}")
        for name, member_type in self._members:
            if isinstance(member_type, Array):
                elements = values.get(name, (0,) * member_type.count)
                if len(elements) != member_type.count:
                    message = f"{self.name}.{name} has {member_type.count} elements, not {len(elements)}"
                    raise InvalidArgumentError(message)
                flat.extend(elements)
            else:
                flat.append(values.get(name, 0))
        try:
            return self._codec.pack(*flat)
        except struct.error as error:
            raise InvalidArgumentError(f"struct {self.name}: a value does not fit: {error}") from error

    def pack_into(self, target: Any, offset: int, values: Mapping[str, Any]) -> None:
        """Write the struct's bytes into a writable bytes-like object.

        Raises:
            InvalidArgumentError: see `pack`; or there is no room.
        """
        data = self.pack(values)
        view = memoryview(target).cast("B")
        if not 0 <= offset <= len(view) - len(data):
            message = f"struct {self.name} does not fit into {len(view)} bytes at offset {offset}"
            raise InvalidArgumentError(message)
        view[offset : offset + len(data)] = data

    def unpack_from(self, source: Any, offset: int = 0) -> dict[str, Any]:
        """Members by name; arrays as tuples.

        Raises:
            FormatError: the bytes end before the struct does.
        """
        try:
            flat = iter(self._codec.unpack_from(source, offset))
        except struct.error as error:
            message = f"{self.byte_length} bytes of {self.name} are not all there"
            raise FormatError(message, offset=offset, where=self.name) from error
        found: dict[str, Any] = {}
        for name, member_type in self._members:
            if isinstance(member_type, Array):
                found[name] = tuple(next(flat) for _ in range(member_type.count))
            else:
                found[name] = next(flat)
        return found


def _struct(name: str, /, **fields: FieldType) -> Struct:
    return Struct(name, tuple(Field(field_name, field_type) for field_name, field_type in fields.items()))


_U8, _U16, _U32, _U64, _POINTER = Scalar.U8, Scalar.U16, Scalar.U32, Scalar.U64, Scalar.POINTER

LIBRARY_HEADER: Final = _struct(
    "executable_library_header",
    version=_U32,
    name=_POINTER,
    features=_U32,
    sanitizer=_U32,
)
IMPORT_TABLE: Final = _struct("executable_import_table", count=_U32, symbols=_POINTER)
EXPORT_TABLE: Final = _struct(
    "executable_export_table",
    count=_U32,
    ptrs=_POINTER,
    attrs=_POINTER,
    params=_POINTER,
    occupancy=_POINTER,
    names=_POINTER,
    tags=_POINTER,
    parameter_names=_POINTER,
    source_locations=_POINTER,
    stage_locations=_POINTER,
)
CONSTANT_TABLE: Final = _struct("executable_constant_table", count=_U32)
SOURCE_FILE_TABLE: Final = _struct("executable_source_file_table", count=_U32, files=_POINTER)
LIBRARY: Final = _struct(
    "executable_library",
    header=_POINTER,
    imports=IMPORT_TABLE,
    exports=EXPORT_TABLE,
    constants=CONSTANT_TABLE,
    sources=SOURCE_FILE_TABLE,
)
DISPATCH_ATTRIBUTES: Final = _struct(
    "executable_dispatch_attrs",
    flags=_U64,
    local_memory_pages=_U16,
    constant_count=_U8,
    binding_count=_U8,
    workgroup_size_x=_U32,
    workgroup_size_y=_U32,
    workgroup_size_z=_U16,
    parameter_count=_U16,
    reserved_1=Array(_U64, 5),
)
PROCESSOR: Final = _struct("processor", data=Array(_U64, 8))
ENVIRONMENT: Final = _struct(
    "executable_environment",
    constants=_POINTER,
    import_thunk=_POINTER,
    import_funcs=_POINTER,
    import_contexts=_POINTER,
    processor=PROCESSOR,
)
DISPATCH_STATE: Final = _struct(
    "executable_dispatch_state",
    workgroup_size_x=_U32,
    workgroup_size_y=_U32,
    workgroup_size_z=_U16,
    constant_count=_U16,
    workgroup_count_x=_U32,
    workgroup_count_y=_U32,
    workgroup_count_z=_U16,
    max_concurrency=_U8,
    binding_count=_U8,
    constants=_POINTER,
    binding_ptrs=_POINTER,
    binding_lengths=_POINTER,
)
WORKGROUP_STATE: Final = _struct(
    "executable_workgroup_state",
    workgroup_id_x=_U32,
    workgroup_id_y=_U32,
    workgroup_id_z=_U16,
    reserved=_U16,
    processor_id=_U32,
    local_memory=_POINTER,
    local_memory_size=_U32,
)

STRUCTS: Final = (
    LIBRARY_HEADER,
    IMPORT_TABLE,
    EXPORT_TABLE,
    CONSTANT_TABLE,
    SOURCE_FILE_TABLE,
    LIBRARY,
    DISPATCH_ATTRIBUTES,
    PROCESSOR,
    ENVIRONMENT,
    DISPATCH_STATE,
    WORKGROUP_STATE,
)
"""All tables, for tests and documentation."""
