"""The ``target_features`` custom section: what the compiler was allowed to use.

It is a claim; `features.required` looks at the code. Source: tool-conventions, "Linking.md".
"""

from __future__ import annotations

from collections.abc import Mapping

from .leb import Reader, encode_name, encode_unsigned
from .module import CustomSection, Module
from .types import SectionId

__all__ = ["SECTION_NAME", "read", "section"]

SECTION_NAME = "target_features"
_PREFIXES = "+-="


def read(module: Module) -> dict[str, str]:
    """Prefix by feature name: ``+`` used, ``-`` must not be linked with, ``=`` required. Empty when the
    section is missing.

    Raises:
        FormatError: malformed.
    """
    custom = module.custom(SECTION_NAME)
    if custom is None:
        return {}
    reader = Reader(custom.data, where=f"{SECTION_NAME} section", base=custom.offset)
    found: dict[str, str] = {}
    for _ in range(reader.count("features", limit=100_000, minimum_bytes=2)):
        start = reader.position
        prefix = chr(reader.u8())
        if prefix not in _PREFIXES:
            raise reader.error(f"feature prefix {prefix!r} is unknown", start)
        found[reader.name()] = prefix
    reader.finish()
    return found


def section(features: Mapping[str, str]) -> CustomSection:
    """The custom section that says ``features``."""
    items = [prefix.encode("ascii") + encode_name(name) for name, prefix in sorted(features.items())]
    data = encode_unsigned(len(items)) + b"".join(items)
    return CustomSection(name=SECTION_NAME, data=data, after=SectionId.DATA)
