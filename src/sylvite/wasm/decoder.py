"""Decoding modules.

`decode` checks the whole structure: section order and sizes, counts, names, indices between sections,
size ranges. Function bodies stay raw bytes until `FunctionBody.instructions` asks for them, and are
type-checked by `validate`; custom sections are opaque here.

Limits on counts are those that browsers agreed on, so nothing that runs elsewhere is refused for size.
Source: core specification, 5.5; WebAssembly JavaScript interface, 7.2 (implementation limits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedFeatureError, UnsupportedVersionError
from .checks import check_module
from .instructions import decode_expression
from .instructions.immediates import read_value_type
from .leb import Reader
from .module import (
    CustomSection,
    DataSegment,
    ElementSegment,
    Export,
    Expression,
    FunctionBody,
    Global,
    Import,
    Module,
    SectionSource,
    SegmentMode,
)
from .types import (
    ExternKind,
    FunctionType,
    GlobalType,
    MemoryType,
    SectionId,
    TableType,
    TagType,
    ValueType,
)

__all__ = ["MAGIC", "SECTION_ORDER", "decode"]

MAGIC = b"\0asm"
VERSION = b"\1\0\0\0"

SECTION_ORDER = (
    SectionId.TYPE,
    SectionId.IMPORT,
    SectionId.FUNCTION,
    SectionId.TABLE,
    SectionId.MEMORY,
    SectionId.TAG,
    SectionId.GLOBAL,
    SectionId.EXPORT,
    SectionId.START,
    SectionId.ELEMENT,
    SectionId.DATA_COUNT,
    SectionId.CODE,
    SectionId.DATA,
)
"""The order the sections must have."""

_RANK = {SectionId.CUSTOM: 0, **{section: rank for rank, section in enumerate(SECTION_ORDER, 1)}}

_MILLION = 1_000_000
_GC_TYPE_FORMS = frozenset((0x4C, 0x4D, 0x4E, 0x4F, 0x50, 0x5D, 0x5E, 0x5F))


def _value_type(reader: Reader) -> ValueType:
    return reader.read(read_value_type)


def _reference_type(reader: Reader) -> ValueType:
    start = reader.position
    value_type = _value_type(reader)
    if not value_type.is_reference:
        raise reader.error(f"{value_type.text} is not a reference type", start)
    return value_type


def _function_type(reader: Reader) -> FunctionType:
    start = reader.position
    form = reader.u8()
    if form != 0x60:
        if form in _GC_TYPE_FORMS:
            raise UnsupportedFeatureError(
                f"type form {form:#04x} is of the garbage-collection proposal, which is not supported",
                offset=reader.base + start,
                where=reader.where,
            )
        raise reader.error(f"type form {form:#04x} is unknown", start)
    sides = []
    for what in ("parameters", "results"):
        count = reader.count(what, limit=1000)
        sides.append(tuple(_value_type(reader) for _ in range(count)))
    return FunctionType(parameters=sides[0], results=sides[1])


def _size_range(reader: Reader, allowed: int) -> tuple[int, int | None, int]:
    """Minimum, maximum and flags; ``allowed`` are the flag bits the kind may use."""
    start = reader.position
    flags = reader.u8()
    if flags & ~0x0F:
        raise reader.error(f"limits flags {flags:#04x} are unknown", start)
    if flags & ~allowed:
        raise UnsupportedFeatureError(
            f"limits flags {flags:#04x} (custom page sizes or shared tables) are not supported",
            offset=reader.base + start,
            where=reader.where,
        )
    number = reader.u64 if flags & 4 else reader.u32
    minimum = number()
    maximum = number() if flags & 1 else None
    return minimum, maximum, flags


def _table_type(reader: Reader) -> TableType:
    element = _reference_type(reader)
    minimum, maximum, flags = _size_range(reader, 0b101)
    return TableType(element=element, minimum=minimum, maximum=maximum, is_64=bool(flags & 4))


def _defined_table(reader: Reader) -> TableType:
    if reader.remaining and reader.data[reader.position] == 0x40:
        raise UnsupportedFeatureError(
            "tables with an initializer are not supported", offset=reader.offset, where=reader.where
        )
    return _table_type(reader)


def _memory_type(reader: Reader) -> MemoryType:
    minimum, maximum, flags = _size_range(reader, 0b111)
    return MemoryType(minimum=minimum, maximum=maximum, shared=bool(flags & 2), is_64=bool(flags & 4))


def _global_type(reader: Reader) -> GlobalType:
    value_type = _value_type(reader)
    start = reader.position
    mutability = reader.u8()
    if mutability > 1:
        raise reader.error(f"mutability {mutability:#04x} is unknown", start)
    return GlobalType(value=value_type, mutable=bool(mutability))


def _tag_type(reader: Reader) -> TagType:
    start = reader.position
    attribute = reader.u8()
    if attribute:
        raise reader.error(f"tag attribute {attribute:#04x} is unknown", start)
    return TagType(type_index=reader.u32())


def _kind(reader: Reader) -> ExternKind:
    start = reader.position
    kind = reader.u8()
    if kind > ExternKind.TAG:
        raise reader.error(f"kind {kind:#04x} is unknown", start)
    return ExternKind(kind)


_DESCRIPTIONS: dict[ExternKind, Callable[[Reader], Any]] = {
    ExternKind.FUNCTION: Reader.u32,
    ExternKind.TABLE: _table_type,
    ExternKind.MEMORY: _memory_type,
    ExternKind.GLOBAL: _global_type,
    ExternKind.TAG: _tag_type,
}


def _import(reader: Reader) -> Import:
    module = reader.name()
    name = reader.name()
    kind = _kind(reader)
    return Import(module=module, name=name, kind=kind, description=_DESCRIPTIONS[kind](reader))


def _export(reader: Reader) -> Export:
    name = reader.name()
    return Export(name=name, kind=_kind(reader), index=reader.u32())


def _expression(reader: Reader) -> Expression:
    start = reader.position
    _, reader.position = decode_expression(reader.data, start, base=reader.base, where=reader.where)
    return Expression(code=reader.data[start : reader.position], offset=reader.base + start)


def _global(reader: Reader) -> Global:
    return Global(type=_global_type(reader), initializer=_expression(reader))


def _segment_mode(flags: int) -> SegmentMode:
    if not flags & 1:
        return SegmentMode.ACTIVE
    return SegmentMode.DECLARATIVE if flags & 2 else SegmentMode.PASSIVE


def _element_type(reader: Reader, flags: int) -> ValueType:
    if not flags & 3:
        return ValueType.FUNCREF
    if flags & 4:
        return _reference_type(reader)
    start = reader.position
    kind = reader.u8()
    if kind:
        raise reader.error(f"element kind {kind:#04x} is unknown", start)
    return ValueType.FUNCREF


def _element(reader: Reader) -> ElementSegment:
    start = reader.position
    flags = reader.u32()
    if flags > 7:
        raise reader.error(f"element segment flags {flags:#x} are unknown", start)
    mode = _segment_mode(flags)
    active = mode is SegmentMode.ACTIVE
    table = reader.u32() if active and flags & 2 else 0
    offset = _expression(reader) if active else None
    element = _element_type(reader, flags)
    count = reader.count("elements", limit=10_000_000)
    functions = expressions = None
    if flags & 4:
        expressions = tuple(_expression(reader) for _ in range(count))
    else:
        functions = tuple(reader.u32() for _ in range(count))
    return ElementSegment(
        mode=mode,
        table=table,
        offset=offset,
        element=element,
        functions=functions,
        expressions=expressions,
    )


def _body(reader: Reader) -> FunctionBody:
    size = reader.count("function body bytes", limit=7_654_321)
    start = reader.offset
    return FunctionBody(data=reader.bytes(size), offset=start)


def _data(reader: Reader) -> DataSegment:
    start = reader.position
    flags = reader.u32()
    if flags > 2:
        raise reader.error(f"data segment flags {flags:#x} are unknown", start)
    memory = reader.u32() if flags == 2 else 0
    offset = None if flags == 1 else _expression(reader)
    return DataSegment(offset=offset, data=reader.bytes(reader.u32()), memory=memory)


def _vector(
    what: str, read: Callable[[Reader], Any], *, limit: int, minimum_bytes: int
) -> Callable[[Reader], tuple[Any, ...]]:
    def decode_vector(reader: Reader) -> tuple[Any, ...]:
        count = reader.count(what, limit=limit, minimum_bytes=minimum_bytes)
        return tuple([read(reader) for _ in range(count)])

    return decode_vector


_SECTIONS: dict[SectionId, tuple[str, Callable[[Reader], Any]]] = {
    SectionId.TYPE: ("types", _vector("types", _function_type, limit=_MILLION, minimum_bytes=1)),
    SectionId.IMPORT: ("imports", _vector("imports", _import, limit=_MILLION, minimum_bytes=4)),
    SectionId.FUNCTION: ("functions", _vector("functions", Reader.u32, limit=_MILLION, minimum_bytes=1)),
    SectionId.TABLE: ("tables", _vector("tables", _defined_table, limit=100, minimum_bytes=3)),
    SectionId.MEMORY: ("memories", _vector("memories", _memory_type, limit=100, minimum_bytes=2)),
    SectionId.TAG: ("tags", _vector("tags", _tag_type, limit=_MILLION, minimum_bytes=2)),
    SectionId.GLOBAL: ("globals", _vector("globals", _global, limit=_MILLION, minimum_bytes=3)),
    SectionId.EXPORT: ("exports", _vector("exports", _export, limit=_MILLION, minimum_bytes=3)),
    SectionId.START: ("start", Reader.u32),
    SectionId.ELEMENT: ("elements", _vector("element segments", _element, limit=100_000, minimum_bytes=2)),
    SectionId.DATA_COUNT: ("data_count", Reader.u32),
    SectionId.CODE: ("code", _vector("function bodies", _body, limit=_MILLION, minimum_bytes=1)),
    SectionId.DATA: ("data", _vector("data segments", _data, limit=100_000, minimum_bytes=2)),
}
"""Field of `Module` and reader of each section."""


def _check_header(reader: Reader) -> None:
    if reader.remaining < 8 or reader.data[:4] != MAGIC:
        raise reader.error("not a WebAssembly module: it does not start with \\0asm and a version")
    version = reader.data[4:8]
    if version != VERSION:
        layer = "a component" if version[2:] == b"\1\0" else f"version {int.from_bytes(version, 'little')}"
        raise UnsupportedVersionError(
            f"{layer}, but only core modules of version 1 are read", offset=4, where=reader.where
        )
    reader.position = 8


class _Decoder:
    """State of one `decode`."""

    def __init__(self, data: bytes, where: str) -> None:
        self.reader = Reader(data, where=where)
        self.view = memoryview(data)
        self.fields: dict[str, Any] = {}
        self.customs: list[CustomSection] = []
        self.sources: list[SectionSource] = []
        self.last = SectionId.CUSTOM

    def run(self) -> Module:
        """Decode all sections and check what spans them."""
        reader = self.reader
        _check_header(reader)
        while reader.remaining:
            self._section()
        module = Module(**self.fields, customs=tuple(self.customs), sources=tuple(self.sources))
        check_module(module, where=reader.where)
        return module

    def _section(self) -> None:
        reader = self.reader
        start = reader.position
        number = reader.u8()
        if number > SectionId.TAG:
            raise reader.error(f"section id {number} is unknown", start)
        section = SectionId(number)
        size = reader.u32()
        if size > reader.remaining:
            raise reader.error(
                f"{section.text} section of {size} bytes, but only {reader.remaining} follow", start
            )
        base = reader.offset
        contents = Reader(reader.bytes(size), where=f"{reader.where}, {section.text} section", base=base)
        if section is SectionId.CUSTOM:
            records: object = self._custom(contents)
        else:
            records = self._known(section, contents, start)
        encoded = self.view[start : reader.position]
        self.sources.append(SectionSource(records=records, encoded=encoded, offset=start))

    def _custom(self, contents: Reader) -> CustomSection:
        name = contents.name()
        offset = contents.offset
        data = contents.bytes(contents.remaining)
        custom = CustomSection(name=name, data=data, after=self.last, offset=offset)
        self.customs.append(custom)
        return custom

    def _known(self, section: SectionId, contents: Reader, start: int) -> object:
        if _RANK[section] <= _RANK[self.last]:
            text = "appears twice" if section is self.last else f"comes after the {self.last.text} section"
            raise self.reader.error(f"{section.text} section {text}", start)
        self.last = section
        field, read = _SECTIONS[section]
        records = read(contents)
        contents.finish()
        self.fields[field] = records
        return records


def decode(data: bytes | bytearray | memoryview, *, where: str = "module") -> Module:
    """Decode a module.

    Args:
        data: the whole module.
        where: what the bytes are (a file name), for errors.

    Raises:
        FormatError: malformed; names the section and the offset from the start of ``data``.
        UnsupportedVersionError: another version of the format.
        UnsupportedFeatureError: it uses a proposal that is not supported.
    """
    return _Decoder(bytes(data), where).run()
