"""The ``name`` custom section: names of functions and other items for traps and debuggers.

Source: core specification, appendix 7.4 (custom sections), and the extended-name-section proposal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .leb import Reader, encode_name, encode_unsigned
from .module import CustomSection, Module
from .types import SectionId

__all__ = ["SECTION_NAME", "NameMap", "read", "section"]

SECTION_NAME = "name"

_FLAT = {
    1: "functions",
    4: "types",
    5: "tables",
    6: "memories",
    7: "globals",
    8: "elements",
    9: "data",
    11: "tags",
}
"""Subsections that map an index to a name."""

_NESTED = {2: "locals", 3: "labels"}
"""Subsections that map a function index to such a map."""

_Names = Mapping[int, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NameMap:
    """Names by index; ``locals`` and ``labels`` by function index first."""

    module: str | None = None
    functions: _Names = dataclasses.field(default_factory=dict)
    locals: Mapping[int, _Names] = dataclasses.field(default_factory=dict)
    labels: Mapping[int, _Names] = dataclasses.field(default_factory=dict)
    types: _Names = dataclasses.field(default_factory=dict)
    tables: _Names = dataclasses.field(default_factory=dict)
    memories: _Names = dataclasses.field(default_factory=dict)
    globals: _Names = dataclasses.field(default_factory=dict)
    elements: _Names = dataclasses.field(default_factory=dict)
    data: _Names = dataclasses.field(default_factory=dict)
    tags: _Names = dataclasses.field(default_factory=dict)


def _name_map(reader: Reader) -> dict[int, str]:
    count = reader.count("names", limit=10_000_000, minimum_bytes=2)
    return {reader.u32(): reader.name() for _ in range(count)}


def _nested_map(reader: Reader) -> dict[int, _Names]:
    count = reader.count("functions", limit=1_000_000, minimum_bytes=2)
    return {reader.u32(): _name_map(reader) for _ in range(count)}


def read(module: Module) -> NameMap:
    """The module's names; an empty map when it has no ``name`` section. Unknown subsections are skipped.

    Raises:
        FormatError: the section is malformed. (Names carry no meaning: a caller that only wants them for
            messages may go on without.)
    """
    custom = module.custom(SECTION_NAME)
    if custom is None:
        return NameMap()
    reader = Reader(custom.data, where=f"{SECTION_NAME} section", base=custom.offset)
    fields: dict[str, object] = {}
    while reader.remaining:
        number = reader.u8()
        contents = reader.nested(reader.u32())
        if number == 0:
            fields["module"] = contents.name()
        elif number in _FLAT:
            fields[_FLAT[number]] = _name_map(contents)
        elif number in _NESTED:
            fields[_NESTED[number]] = _nested_map(contents)
        else:
            continue
        contents.finish()
    return NameMap(**fields)  # type: ignore[arg-type]


def _encode_names(names: _Names) -> bytes:
    items = [encode_unsigned(index) + encode_name(name) for index, name in sorted(names.items())]
    return encode_unsigned(len(items)) + b"".join(items)


def _encode_nested(maps: Mapping[int, _Names]) -> bytes:
    items = [encode_unsigned(index) + _encode_names(names) for index, names in sorted(maps.items())]
    return encode_unsigned(len(items)) + b"".join(items)


def section(names: NameMap) -> CustomSection:
    """The custom section that says ``names``."""
    subsections: dict[int, bytes] = {}
    if names.module is not None:
        subsections[0] = encode_name(names.module)
    for number, field in _FLAT.items():
        if getattr(names, field):
            subsections[number] = _encode_names(getattr(names, field))
    for number, field in _NESTED.items():
        if getattr(names, field):
            subsections[number] = _encode_nested(getattr(names, field))
    data = b"".join(
        bytes((number,)) + encode_unsigned(len(contents)) + contents
        for number, contents in sorted(subsections.items())
    )
    return CustomSection(name=SECTION_NAME, data=data, after=SectionId.DATA)
