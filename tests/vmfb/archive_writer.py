"""Writes module archives for tests: flatbuffers from the schema table, bytecode, zip files.

Everything can be made to lie; `Layout` remembers where each structure went.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sylvite.vmfb import isa
from sylvite.vmfb.schema import MODULE_SCHEMA, Scalar, Schema, String, Struct, Table, Union, Vector

PREFIX = 4


class Layout:
    """A flatbuffer under construction. ``places`` maps paths to positions in the buffer.

    Tables are dicts of field values; a union value is a pair (member index from 1, dict).
    """

    def __init__(self, schema: Schema = MODULE_SCHEMA) -> None:
        self.schema = schema
        self.data = bytearray(4) + bytearray(schema.identifier)
        self.places: dict[str, int] = {}
        self._pending: list[Callable[[], None]] = []

    def build(self, values: Mapping[str, Any]) -> bytes:
        """The buffer, without size prefix."""
        root = self.schema.root
        self._later(0, lambda: self._table(root, values, root))
        while self._pending:
            self._pending.pop(0)()
        return bytes(self.data)

    def _align(self, alignment: int) -> int:
        while (len(self.data) + PREFIX) % alignment:
            self.data.append(0)
        return len(self.data)

    def _later(self, place: int, write: Callable[[], int]) -> None:
        """Write something after everything before it and point ``place`` to it."""

        def run() -> None:
            struct.pack_into("<I", self.data, place, write() - place)

        self._pending.append(run)

    def _inline(self, field: Any) -> tuple[int, int]:
        if isinstance(field, Scalar):
            return field.byte_length, field.byte_length
        return 4, 4

    def _table(self, name: str, values: Mapping[str, Any], path: str) -> int:
        slots: list[tuple[Any, Any, str, int, int]] = []
        for field_name, field in self.schema.tables[name]:
            value = values.get(field_name)
            field_path = f"{path}.{field_name}"
            if isinstance(field, Union):
                member = None if value is None else value[0]
                slots.append((Scalar("B"), member, f"{field_path}.type", 1, 1))
                target = None if value is None else Table(self.schema.unions[field.name][value[0] - 1])
                slots.append((target, None if value is None else value[1], field_path, 4, 4))
            elif isinstance(field, Vector) and isinstance(field.element, Union):
                members = None if value is None else [0 if entry is None else entry[0] for entry in value]
                slots.append((Vector(Scalar("B")), members, f"{field_path}.types", 4, 4))
                slots.append((field, value, field_path, 4, 4))
            else:
                slots.append((field, value, field_path, *self._inline(field)))
        offsets, size = [], 4
        for _, value, _, length, alignment in slots:
            if value is None:
                offsets.append(0)
                continue
            size += -size % alignment
            offsets.append(size)
            size += length
        vtable = self._align(4)
        self.places[f"{path}#vtable"] = vtable
        self.data += struct.pack(f"<HH{len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
        position = self._align(8)
        self.places[path] = position
        self.data += struct.pack("<i", position - vtable) + bytes(size - 4)
        for (field, value, field_path, _, _), offset in zip(slots, offsets, strict=True):
            if value is not None:
                self._field(field, value, position + offset, field_path)
        return position

    def _field(self, field: Any, value: Any, place: int, path: str) -> None:
        self.places[f"{path}#field"] = place
        if isinstance(field, Scalar):
            struct.pack_into("<" + field.code, self.data, place, value)
        elif isinstance(field, String):
            self._later(place, lambda: self._string(value, path))
        elif isinstance(field, Table):
            self._later(place, lambda: self._table(field.name, value, path))
        else:
            self._later(place, lambda: self._vector(field.element, value, path))

    def _string(self, value: str, path: str) -> int:
        position = self.places[path] = self._align(4)
        encoded = value.encode()
        self.data += struct.pack("<I", len(encoded)) + encoded + b"\0"
        return position

    def _vector(self, element: Any, value: Sequence[Any], path: str) -> int:
        if isinstance(element, Struct):
            members = self.schema.structs[element.name]
            layout = "<" + "".join(code for _, code in members)
            body = b"".join(struct.pack(layout, *entry) for entry in value)
        elif isinstance(element, Scalar):
            body = struct.pack(f"<{len(value)}{element.code}", *value)
        else:
            body = bytes(4 * len(value))
        alignment = element.byte_length if isinstance(element, Scalar) else 4
        while (len(self.data) + 4 + PREFIX) % alignment or (len(self.data) + PREFIX) % 4:
            self.data.append(0)
        position = self.places[path] = len(self.data)
        self.data += struct.pack("<I", len(value)) + body
        if not isinstance(element, (Struct, Scalar)):
            for i, entry in enumerate(value):
                self._element(element, entry, position + 4 + 4 * i, f"{path}[{i}]")
        return position

    def _element(self, element: Any, entry: Any, place: int, path: str) -> None:
        if not isinstance(element, Union):
            self._field(element, entry, place, path)
        elif entry is not None:
            member, values = entry
            name = self.schema.unions[element.name][member - 1]
            self._later(place, lambda: self._table(name, values, path))


def bare(flatbuffer: bytes, segments: Sequence[bytes] = ()) -> bytes:
    """A bare archive: size prefix, flatbuffer, padding, data segments at multiples of 64."""
    data = struct.pack("<I", len(flatbuffer)) + flatbuffer
    data += bytes(-len(data) % 64)
    for index, segment in enumerate(segments):
        data += segment
        if index < len(segments) - 1:
            data += bytes(-len(data) % 64)
    return data


class Zip:
    """A zip archive in the compiler's manner. Attributes of `add` override what is written."""

    def __init__(self, *, zip64: bool = True) -> None:
        self.zip64 = zip64
        self.data = bytearray()
        self.directory = bytearray()
        self.count = 0
        self.places: dict[str, int] = {}

    def add(
        self,
        name: str,
        content: bytes,
        *,
        local: Mapping[str, int] = {},
        central: Mapping[str, int] = {},
        alignment: int = 64,
    ) -> int:
        """Append a member and return where its content starts."""
        header = len(self.data)
        encoded = name.encode("cp437")
        sizes = 20 if self.zip64 else 0
        unpadded = header + 30 + len(encoded) + sizes + 4
        padding = -unpadded % alignment
        extra = struct.pack("<HH", 0xFECA, padding) + bytes(padding)
        fields = {
            "flags": 0, "method": 0, "crc32": zlib.crc32(content), "compressed": len(content),
            "uncompressed": len(content), "offset": header, "disk": 0,
        }  # fmt: skip
        self.data += self._local(encoded, extra, {**fields, **local})
        start = len(self.data)
        self.data += content
        self.directory += self._central(encoded, {**fields, **central})
        self.places[name] = header
        self.count += 1
        return start

    def _local(self, name: bytes, extra: bytes, f: Mapping[str, int]) -> bytes:
        if self.zip64:
            extra += struct.pack("<HHQQ", 1, 16, f["uncompressed"], f["compressed"])
        sizes = (0xFFFFFFFF, 0xFFFFFFFF) if self.zip64 else (f["compressed"], f["uncompressed"])
        return (
            struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, f["flags"], f["method"], 0, 0x21, f["crc32"], *sizes,
                        len(name), len(extra)) + name + extra
        )  # fmt: skip

    def _central(self, name: bytes, f: Mapping[str, int]) -> bytes:
        extra = struct.pack("<HHQQQ", 1, 24, f["uncompressed"], f["compressed"], f["offset"])
        sizes: tuple[int, ...] = (0xFFFFFFFF, 0xFFFFFFFF)
        offset = 0xFFFFFFFF
        if not self.zip64:
            extra, sizes, offset = b"", (f["compressed"], f["uncompressed"]), f["offset"]
        return (
            struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0x31E, 45, f["flags"], f["method"], 0, 0x21,
                        f["crc32"], *sizes, len(name), len(extra), 0, f["disk"], 0, 0, offset) + name + extra
        )  # fmt: skip

    def finish(self, comment: bytes = b"", **lies: int) -> bytes:
        """The archive with its directory and end records."""
        start = len(self.data)
        f = {"count": self.count, "size": len(self.directory), "start": start, "disk": 0, "record": 44}
        f.update(lies)
        self.places["directory"] = start
        data = bytes(self.data) + bytes(self.directory)
        self.places["end64"] = end64 = len(data)
        if self.zip64:
            data += struct.pack("<IQHHIIQQQQ", 0x06064B50, f["record"], 45, 45, f["disk"], f["disk"],
                                f["count"], f["count"], f["size"], f["start"])  # fmt: skip
            self.places["locator"] = len(data)
            data += struct.pack("<IIQI", 0x07064B50, 0, lies.get("end64", end64), 1)
        self.places["end"] = len(data)
        offset = 0xFFFFFFFF if self.zip64 else f["start"]
        data += struct.pack("<IHHHHIIH", 0x06054B50, f["disk"], f["disk"], f["count"] & 0xFFFF,
                            f["count"] & 0xFFFF, f["size"] & 0xFFFFFFFF, offset & 0xFFFFFFFF,
                            len(comment))  # fmt: skip
        return data + comment


def encode(*parts: Any) -> bytes:
    """Assemble a function's bytecode.

    A string is an operation's name (extension prefixes are added); ints are single bytes; tuples
    ``(format, values...)`` are packed; ``align`` pads to 2 bytes.
    """
    data = bytearray()
    for part in parts:
        if part == "align":
            data += bytes(len(data) & 1)
        elif isinstance(part, str):
            op = isa.BY_NAME[part]
            prefix = {isa.Feature.EXT_F32: [0xE0], isa.Feature.EXT_F64: [0xE1]}.get(op.feature, [])
            data += bytes([*prefix, op.opcode])
        elif isinstance(part, tuple):
            data += struct.pack("<" + part[0], *part[1:])
        else:
            data.append(part)
    return bytes(data)


def registers(*raw: int) -> list[Any]:
    """The parts of a register list."""
    return ["align", (f"{1 + len(raw)}H", len(raw), *raw)]


def module(
    *functions: bytes,
    convention: str = "0ii_i",
    conventions: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    function_requirements: int = 15,
    value_registers: int = 8,
    ref_registers: int = 8,
    **fields: Any,
) -> dict[str, Any]:
    """Field values of a module with ``functions``, each exported as ``f<ordinal>``."""
    bytecode, descriptors = bytearray(), []
    for index, body in enumerate(functions):
        block_count = blocks[index] if blocks else 1
        place = (len(bytecode), len(body))
        descriptors.append((*place, function_requirements, 0, block_count, value_registers, ref_registers))
        bytecode += body + bytes(-len(body) % 8)
    conventions = conventions or [convention] * len(functions)
    return {
        "name": "m",
        "version": 3,
        "requirements": 0,
        "types": [{"full_name": "i32"}, {"full_name": "!vm.buffer"}],
        "exported_functions": [
            {"local_name": f"f{index}", "internal_ordinal": index} for index in range(len(functions))
        ],
        "function_signatures": [{"calling_convention": text} for text in conventions],
        "function_descriptors": descriptors,
        "module_state": {"global_bytes_capacity": 16, "global_ref_count": 2},
        "bytecode_version": 17 << 16,
        "bytecode_data": bytes(bytecode),
        **fields,
    }


def archive(values: Mapping[str, Any]) -> bytes:
    """A bare archive of field values."""
    return bare(Layout().build(values))


RETURN_FIRST = encode("block", "return", *registers(0))
"""A function that returns its first value."""
