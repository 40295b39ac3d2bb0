"""Encoding modules.

Sections whose records are still the ones `decode` made are written with their original bytes, so
decoding and encoding gives the same file; all others are written in the shortest form.

Source: core specification, 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import InvalidArgumentError
from .decoder import MAGIC, SECTION_ORDER, VERSION
from .leb import encode_name, encode_unsigned
from .module import (
    CustomSection,
    DataSegment,
    ElementSegment,
    Export,
    FunctionBody,
    Global,
    Import,
    Module,
    SegmentMode,
)
from .types import FunctionType, GlobalType, MemoryType, SectionId, TableType, TagType, ValueType

__all__ = ["encode"]


def _sized(data: bytes) -> bytes:
    return encode_unsigned(len(data)) + data


def _vector(write: Callable[[Any], bytes]) -> Callable[[Iterable[Any]], bytes]:
    def encode_vector(items: Iterable[Any]) -> bytes:
        parts = [write(item) for item in items]
        return encode_unsigned(len(parts)) + b"".join(parts)

    return encode_vector


def _function_type(value: FunctionType) -> bytes:
    return b"\x60" + b"".join(_sized(bytes(side)) for side in (value.parameters, value.results))


def _size_range(minimum: int, maximum: int | None, flags: int) -> bytes:
    if maximum is None:
        return bytes((flags,)) + encode_unsigned(minimum)
    return bytes((flags | 1,)) + encode_unsigned(minimum) + encode_unsigned(maximum)


def _table_type(value: TableType) -> bytes:
    return bytes((value.element,)) + _size_range(value.minimum, value.maximum, value.is_64 * 4)


def _memory_type(value: MemoryType) -> bytes:
    return _size_range(value.minimum, value.maximum, value.shared * 2 + value.is_64 * 4)


def _global_type(value: GlobalType) -> bytes:
    return bytes((value.value, value.mutable))


def _tag_type(value: TagType) -> bytes:
    return b"\0" + encode_unsigned(value.type_index)


def _description(value: int | TableType | MemoryType | GlobalType | TagType) -> bytes:
    if isinstance(value, int):
        return encode_unsigned(value)
    if isinstance(value, TableType):
        return _table_type(value)
    if isinstance(value, MemoryType):
        return _memory_type(value)
    if isinstance(value, GlobalType):
        return _global_type(value)
    return _tag_type(value)


def _import(value: Import) -> bytes:
    return (
        encode_name(value.module)
        + encode_name(value.name)
        + bytes((value.kind,))
        + _description(value.description)
    )


def _export(value: Export) -> bytes:
    return encode_name(value.name) + bytes((value.kind,)) + encode_unsigned(value.index)


def _global(value: Global) -> bytes:
    return _global_type(value.type) + value.initializer.code


_MODE_FLAGS = {SegmentMode.ACTIVE: 0, SegmentMode.PASSIVE: 1, SegmentMode.DECLARATIVE: 3}


def _element(value: ElementSegment) -> bytes:
    by_expression = value.expressions is not None
    flags = _MODE_FLAGS[value.mode] | by_expression * 4
    out = b""
    if value.mode is SegmentMode.ACTIVE:
        if value.offset is None:
            raise InvalidArgumentError("an active element segment needs an offset")
        # Only the forms without a table index leave the element type out.
        if value.table or value.element is not ValueType.FUNCREF:
            flags |= 2
            out = encode_unsigned(value.table)
        out += value.offset.code
    if flags & 3:
        out += bytes((value.element,)) if by_expression else b"\0"
    if value.expressions is not None:
        items = [expression.code for expression in value.expressions]
    else:
        items = [encode_unsigned(index) for index in value.functions or ()]
    return encode_unsigned(flags) + out + encode_unsigned(len(items)) + b"".join(items)


def _body(value: FunctionBody) -> bytes:
    return _sized(value.data)


def _data(value: DataSegment) -> bytes:
    if value.offset is None:
        return b"\1" + _sized(value.data)
    head = b"\2" + encode_unsigned(value.memory) if value.memory else b"\0"
    return head + value.offset.code + _sized(value.data)


_SECTIONS: dict[SectionId, tuple[str, Callable[[Any], bytes]]] = {
    SectionId.TYPE: ("types", _vector(_function_type)),
    SectionId.IMPORT: ("imports", _vector(_import)),
    SectionId.FUNCTION: ("functions", _vector(encode_unsigned)),
    SectionId.TABLE: ("tables", _vector(_table_type)),
    SectionId.MEMORY: ("memories", _vector(_memory_type)),
    SectionId.TAG: ("tags", _vector(_tag_type)),
    SectionId.GLOBAL: ("globals", _vector(_global)),
    SectionId.EXPORT: ("exports", _vector(_export)),
    SectionId.START: ("start", encode_unsigned),
    SectionId.ELEMENT: ("elements", _vector(_element)),
    SectionId.DATA_COUNT: ("data_count", encode_unsigned),
    SectionId.CODE: ("code", _vector(_body)),
    SectionId.DATA: ("data", _vector(_data)),
}


def _section(section: SectionId, contents: bytes) -> bytes:
    return bytes((section,)) + _sized(contents)


def _custom(value: CustomSection) -> bytes:
    return _section(SectionId.CUSTOM, encode_name(value.name) + value.data)


def encode(module: Module, *, canonical: bool = False) -> bytes:
    """Encode a module.

    Args:
        module: a decoded, rewritten or built module.
        canonical: write every section in the shortest form, whatever it was decoded from.

    Raises:
        InvalidArgumentError: records contradict each other.
    """
    # By section and identity: the module keeps the records alive, so an equal key means they are the
    # ones the bytes were decoded from. (Small ints and () are shared objects, but equal ones mean the same.)
    sources: dict[tuple[int, int], memoryview] = {}
    if not canonical:
        sources = {(source.encoded[0], id(source.records)): source.encoded for source in module.sources}
    customs: dict[SectionId, list[CustomSection]] = {}
    for custom in module.customs:
        customs.setdefault(custom.after, []).append(custom)
    parts: list[bytes | memoryview] = [MAGIC, VERSION]

    def add_customs(after: SectionId) -> None:
        for custom in customs.get(after, ()):
            parts.append(sources.get((SectionId.CUSTOM, id(custom))) or _custom(custom))

    add_customs(SectionId.CUSTOM)
    for section in SECTION_ORDER:
        field, write = _SECTIONS[section]
        records = getattr(module, field)
        original = sources.get((section, id(records)))
        if original is not None:
            parts.append(original)
        elif records or isinstance(records, int):
            parts.append(_section(section, write(records)))
        add_customs(section)
    return b"".join(parts)
