"""The ``producers`` custom section: which tools made a module.

Source: tool-conventions, "ProducersSection.md".
"""

from __future__ import annotations

from collections.abc import Mapping

from .leb import Reader, encode_name, encode_unsigned
from .module import CustomSection, Module
from .types import SectionId

__all__ = ["SECTION_NAME", "read", "section"]

SECTION_NAME = "producers"


def read(module: Module) -> dict[str, dict[str, str]]:
    """Versions by tool by field (``language``, ``processed-by``, ``sdk``); empty when there is none.

    Raises:
        FormatError: malformed.
    """
    custom = module.custom(SECTION_NAME)
    if custom is None:
        return {}
    reader = Reader(custom.data, where=f"{SECTION_NAME} section", base=custom.offset)
    fields: dict[str, dict[str, str]] = {}
    for _ in range(reader.count("fields", limit=100_000, minimum_bytes=2)):
        name = reader.name()
        count = reader.count("values", limit=100_000, minimum_bytes=2)
        fields[name] = {reader.name(): reader.name() for _ in range(count)}
    reader.finish()
    return fields


def section(fields: Mapping[str, Mapping[str, str]]) -> CustomSection:
    """The custom section that says ``fields``."""
    data = encode_unsigned(len(fields))
    for name, values in fields.items():
        data += encode_name(name) + encode_unsigned(len(values))
        data += b"".join(encode_name(tool) + encode_name(version) for tool, version in values.items())
    return CustomSection(name=SECTION_NAME, data=data, after=SectionId.DATA)
