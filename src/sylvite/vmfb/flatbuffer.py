"""A verifying flatbuffer reader driven by a schema table.

Reading and verifying are one pass: nothing is used before it has been checked. For every structure
the reader checks alignment, that it lies within the buffer, and for tables also their vtable and
that each field lies within the table; for vectors the count; for strings the terminating zero and
UTF-8; for unions the member. Sizes are Python integers, so no offset arithmetic can wrap around.

The work is bounded whatever the file says: a structure that several places refer to is read once,
and structures that overlap without being the same exhaust a budget of elements proportional to the
size of the buffer. Depth and the number of tables are limited as well.

Source: the FlatBuffers internals page (binary layout).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..errors import FormatError
from .schema import FieldType, Scalar, Schema, String, Struct, Table, Union, Vector

__all__ = ["ByteSpan", "Limits", "Record", "StructVector", "read_root"]


SIZE_PREFIX = 4
"""Bytes before the buffer that count for alignment: size-prefixed buffers are laid out with them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a flatbuffer may ask for.

    ``elements_per_byte`` bounds tables, vector elements and string bytes together: a buffer whose
    structures do not overlap needs at most one element per byte.
    """

    max_depth: int = 64
    max_tables: int = 1 << 22
    elements_per_byte: int = 2


class ByteSpan(NamedTuple):
    """A byte vector left where it is: its file offset and length."""

    offset: int
    length: int


class StructVector(NamedTuple):
    """A vector of structs as tuples, the file offset of the first and the size of each."""

    items: tuple[tuple[int, ...], ...]
    offset: int
    stride: int


class Record:
    """A verified table: field values by name, with the place each was read from.

    Absent fields give the schema's default for numbers and None for anything else. ``offset`` is the
    table's place in the file, ``path`` how it was reached.
    """

    __slots__ = ("_offsets", "_values", "offset", "path", "type")

    def __init__(self, type_name: str, offset: int, path: str) -> None:
        self.type = type_name
        self.offset = offset
        self.path = path
        self._values: dict[str, Any] = {}
        self._offsets: dict[str, int] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def set(self, name: str, value: Any, offset: int | None) -> None:
        """Store a field; ``offset`` is None when it is absent."""
        self._values[name] = value
        if offset is not None:
            self._offsets[name] = offset

    def field_offset(self, name: str) -> int:
        """Where a field is stored in the file; the table's own offset when it is absent."""
        return self._offsets.get(name, self.offset)

    def has(self, name: str) -> bool:
        """Whether the file stores the field."""
        return name in self._offsets


def read_root(
    data: memoryview,
    schema: Schema,
    *,
    file_offset: int,
    where: str,
    limits: Limits | None = None,
    prefix: int = SIZE_PREFIX,
) -> Record:
    """Read and verify the flatbuffer ``data``.

    Args:
        data: the buffer, after its size prefix.
        schema: its types.
        file_offset: where ``data`` starts in the file; added to every offset that is reported.
        where: the name of the file for messages.
        limits: bounds; the defaults admit anything a compiler writes.
        prefix: bytes of the size prefix; 0 when there is none.

    Raises:
        FormatError: anything out of place, with the file offset and the field's path.
    """
    return _Reader(data, schema, file_offset, where, limits or Limits(), prefix).root()


_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")

_Plan: TypeAlias = "tuple[tuple[str, FieldType, bool, tuple[tuple[int, int], ...]], ...]"


class _Reader:
    def __init__(
        self, data: memoryview, schema: Schema, file_offset: int, where: str, limits: Limits, prefix: int
    ) -> None:
        self.prefix = prefix
        self.data = data
        self.schema = schema
        self.file_offset = file_offset
        self.where = where
        self.limits = limits
        self.budget = limits.elements_per_byte * len(data) + 64
        self.table_count = 0
        self.seen: dict[tuple[object, int], Any] = {}
        self.plans: dict[str, _Plan] = {}
        self.layouts = {
            name: struct.Struct("<" + "".join(code for _, code in members))
            for name, members in schema.structs.items()
        }

    def error(self, message: str, position: int, path: str) -> FormatError:
        return FormatError(f"{path}: {message}", offset=self.file_offset + position, where=self.where)

    def check(self, position: int, byte_length: int, alignment: int, path: str, what: str) -> None:
        """Refuse a structure that is misaligned or not within the buffer."""
        if (position + self.prefix) % alignment:
            raise self.error(f"{what} is not aligned to {alignment} bytes", position, path)
        if position < 0 or position + byte_length > len(self.data):
            raise self.error(
                f"{what} of {byte_length} bytes reaches beyond the flatbuffer of {len(self.data)} bytes",
                position,
                path,
            )

    def spend(self, count: int, position: int, path: str) -> None:
        """Account for ``count`` elements about to be read."""
        self.budget -= count
        if self.budget < 0:
            raise self.error("structures overlap beyond the reading budget", position, path)

    def u32(self, position: int, path: str, what: str) -> int:
        self.check(position, 4, 4, path, what)
        value: int = _U32.unpack_from(self.data, position)[0]
        return value

    def follow(self, position: int, path: str) -> int:
        """The position an offset field points to."""
        offset = self.u32(position, path, "offset")
        if offset == 0:
            raise self.error("offset is zero", position, path)
        target = position + offset
        if target >= len(self.data):
            raise self.error(f"offset {offset} points beyond the flatbuffer", position, path)
        return target

    def root(self) -> Record:
        path = self.schema.root
        position = self.follow(0, path)
        self.check(4, 4, 4, path, "file identifier")
        identifier = bytes(self.data[4:8])
        if identifier != self.schema.identifier:
            raise self.error(f"file identifier is {identifier!r}, not {self.schema.identifier!r}", 4, path)
        return self.table(path, position, path, 0)

    # Tables.

    def table_at(self, field: Table, position: int, path: str, depth: int) -> Record:
        return self.table(field.name, self.follow(position, path), path, depth)

    def table(self, name: str, position: int, path: str, depth: int) -> Record:
        key = (name, position)
        known: Record | None = self.seen.get(key)
        if known is not None:
            return known
        if depth > self.limits.max_depth:
            raise self.error(f"nested more than {self.limits.max_depth} deep", position, path)
        self.table_count += 1
        if self.table_count > self.limits.max_tables:
            raise self.error(f"more than {self.limits.max_tables} tables", position, path)
        self.spend(1, position, path)
        offsets, table_length = self.vtable(position, path)
        record = Record(name, self.file_offset + position, path)
        slot = 0
        for field_name, field, is_required, inlines in self.plan(name):
            field_path = f"{path}.{field_name}"
            places = []
            for inline in inlines:
                offset = offsets[slot] if slot < len(offsets) else 0
                slot += 1
                places.append(
                    self.field_place(offset, inline, table_length, position, field_path) if offset else None
                )
            if is_required and places[-1] is None:
                raise self.error("required field is missing", position, field_path)
            value = self.field(field, places, field_path, depth + 1)
            place = places[-1]
            record.set(field_name, value, None if place is None else self.file_offset + place)
        self.seen[key] = record
        return record

    def vtable(self, position: int, path: str) -> tuple[tuple[int, ...], int]:
        """The field offsets of the table at ``position`` and the table's size."""
        self.check(position, 4, 4, path, "table")
        distance: int = _I32.unpack_from(self.data, position)[0]
        vtable = position - distance
        if not 0 <= vtable < len(self.data):
            raise self.error(
                f"vtable {distance} bytes before the table is not in the flatbuffer", position, path
            )
        self.check(vtable, 4, 2, path, "vtable")
        vtable_length: int = _U16.unpack_from(self.data, vtable)[0]
        table_length: int = _U16.unpack_from(self.data, vtable + 2)[0]
        if vtable_length < 4 or vtable_length % 2:
            raise self.error(f"vtable size {vtable_length} is not an even number from 4", vtable, path)
        if table_length < 4:
            raise self.error(f"table size {table_length} is less than 4", vtable + 2, path)
        self.check(vtable, vtable_length, 2, path, "vtable")
        self.check(position, table_length, 4, path, "table")
        count = vtable_length // 2 - 2
        return struct.unpack_from(f"<{count}H", self.data, vtable + 4), table_length

    def plan(self, name: str) -> _Plan:
        """A table's fields with the (size, alignment) of each slot they take."""
        plan = self.plans.get(name)
        if plan is None:
            plan = self.plans[name] = tuple(
                (field_name, field, f"{name}.{field_name}" in self.schema.required, self.inlines(field))
                for field_name, field in self.schema.tables[name]
            )
        return plan

    def inlines(self, field: FieldType) -> tuple[tuple[int, int], ...]:
        if isinstance(field, Union):
            return (1, 1), (4, 4)
        if isinstance(field, Vector) and isinstance(field.element, Union):
            return (4, 4), (4, 4)
        return (self.inline(field),)

    def inline(self, field: FieldType) -> tuple[int, int]:
        """Size and alignment of what is stored in place for a field or vector element."""
        if isinstance(field, Scalar):
            return field.byte_length, field.byte_length
        if isinstance(field, Struct):
            members = self.schema.structs[field.name]
            return self.layouts[field.name].size, max(struct.calcsize("<" + code) for _, code in members)
        return 4, 4

    def field_place(
        self, offset: int, inline: tuple[int, int], table_length: int, table: int, path: str
    ) -> int:
        """Where the field at ``offset`` of a table is stored."""
        byte_length, alignment = inline
        if offset < 4 or offset + byte_length > table_length:
            raise self.error(
                f"field at {offset} of {byte_length} bytes is not within its table of {table_length}",
                table,
                path,
            )
        self.check(table + offset, byte_length, alignment, path, "field")
        return table + offset

    def field(self, field: FieldType, places: list[int | None], path: str, depth: int) -> Any:
        """The value of a field stored at ``places``: its value, after its type in case of unions."""
        place = places[-1]
        if len(places) == 2:
            return self.union_field(field, places[0], place, path, depth)
        if place is None:
            return field.default if isinstance(field, Scalar) else None
        return _READERS[type(field)](self, field, place, path, depth)

    def union_field(
        self, field: FieldType, types: int | None, place: int | None, path: str, depth: int
    ) -> Any:
        is_vector = isinstance(field, Vector)
        if place is None:
            if types is not None and (is_vector or self.data[types]):
                raise self.error("union type without a value", types, path)
            return None
        if types is None:
            raise self.error("union value without a type", place, path)
        if isinstance(field, Vector):
            return self.union_vector(field, types, place, path, depth)
        return self.union(field, self.data[types], place, path, depth)

    # Other types.

    def scalar(self, field: Scalar, position: int, path: str, depth: int) -> int:
        value: int = struct.unpack_from("<" + field.code, self.data, position)[0]
        return value

    def string(self, field: String, position: int, path: str, depth: int) -> str:
        start = self.follow(position, path)
        known: str | None = self.seen.get((field, start))
        if known is not None:
            return known
        length = self.u32(start, path, "string")
        self.check(start, 4 + length + 1, 4, path, "string")
        self.spend(length, start, path)
        if self.data[start + 4 + length]:
            raise self.error("string does not end in a zero byte", start + 4 + length, path)
        try:
            text = bytes(self.data[start + 4 : start + 4 + length]).decode()
        except UnicodeDecodeError as error:
            raise self.error("string is not UTF-8", start + 4 + error.start, path) from error
        self.seen[field, start] = text
        return text

    def struct(self, field: Struct, position: int, path: str, depth: int) -> tuple[int, ...]:
        return self.layouts[field.name].unpack_from(self.data, position)

    def vector(self, field: Vector, position: int, path: str, depth: int) -> Any:
        start = self.follow(position, path)
        key = (field, start)
        known = self.seen.get(key)
        if known is None:
            known = self.seen[key] = self.vector_body(field.element, start, path, depth)
        return known

    def vector_extent(self, start: int, element: int, alignment: int, path: str) -> int:
        """Check a vector's range and return its count."""
        count = self.u32(start, path, "vector")
        self.check(start + 4, count * element, alignment if count else 1, path, f"vector of {count}")
        return count

    def vector_body(self, element: Any, start: int, path: str, depth: int) -> Any:
        byte_length, alignment = self.inline(element)
        count = self.vector_extent(start, byte_length, alignment, path)
        body = start + 4
        if element == Scalar("B"):
            return ByteSpan(self.file_offset + body, count)
        self.spend(count, start, path)
        if isinstance(element, Scalar):
            return struct.unpack_from(f"<{count}{element.code}", self.data, body)
        if isinstance(element, Struct):
            layout = self.layouts[element.name]
            items = tuple(layout.iter_unpack(self.data[body : body + count * byte_length]))
            return StructVector(items, self.file_offset + body, byte_length)
        read = _READERS[type(element)]
        return tuple([read(self, element, body + 4 * i, f"{path}[{i}]", depth) for i in range(count)])

    def union(self, union: Any, member: int, position: int, path: str, depth: int) -> Record | None:
        if member == 0:
            return None
        members = self.schema.unions[union.name]
        if member > len(members):
            raise self.error(f"{union.name} has no member {member}", position, path)
        return self.table(members[member - 1], self.follow(position, path), path, depth)

    def union_vector(
        self, field: Vector, types: int, values: int, path: str, depth: int
    ) -> tuple[Record | None, ...]:
        types_start = self.follow(types, path)
        values_start = self.follow(values, path)
        type_count = self.vector_extent(types_start, 1, 1, path)
        count = self.vector_extent(values_start, 4, 4, path)
        if type_count != count:
            raise self.error(f"{type_count} union types for {count} values", types_start, path)
        self.spend(count, values_start, path)
        members = bytes(self.data[types_start + 4 : types_start + 4 + count])
        return tuple(
            [
                self.union(field.element, member, values_start + 4 + 4 * i, f"{path}[{i}]", depth)
                for i, member in enumerate(members)
            ]
        )


# Not an attribute of the reader: bound methods would keep it, and the mapped file, in a cycle.
_READERS: Mapping[type, Callable[[_Reader, Any, int, str, int], Any]] = {
    Scalar: _Reader.scalar,
    String: _Reader.string,
    Table: _Reader.table_at,
    Struct: _Reader.struct,
    Vector: _Reader.vector,
}
