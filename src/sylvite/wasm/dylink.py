"""The ``dylink.0`` custom section: what a dynamic linker must know of a position-independent module.

Source: WebAssembly tool-conventions, "DynamicLinking.md".
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from .leb import Reader, encode_name, encode_unsigned
from .module import CustomSection, Module
from .types import SectionId

__all__ = ["SECTION_NAME", "DylinkImport", "DylinkInfo", "SymbolFlags", "read", "section"]

SECTION_NAME = "dylink.0"


class SymbolFlags(enum.IntFlag):
    """Flags of a symbol. Source: tool-conventions, "Linking.md"."""

    WEAK = 0x1
    LOCAL = 0x2
    HIDDEN = 0x4
    UNDEFINED = 0x10
    EXPORTED = 0x20
    EXPLICIT_NAME = 0x40
    NO_STRIP = 0x80
    TLS = 0x100
    ABSOLUTE = 0x200


class _Subsection(enum.IntEnum):
    MEMORY_INFO = 1
    NEEDED = 2
    EXPORT_INFO = 3
    IMPORT_INFO = 4
    RUNTIME_PATH = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DylinkImport:
    """Flags of one import."""

    module: str
    name: str
    flags: SymbolFlags


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DylinkInfo:
    """What a module wants of its linker.

    Args:
        memory_size: bytes of memory for its data.
        memory_alignment: log2 of the data's alignment in bytes.
        table_size: slots of the table for its functions.
        table_alignment: log2 of the alignment of the first slot.
        needed: names of modules that must be loaded before it.
        export_info: flags of exports by name.
        imports: flags of imports.
        runtime_path: folders to look for needed modules in.
        unknown: other subsections by number, kept as they are.
    """

    memory_size: int = 0
    memory_alignment: int = 0
    table_size: int = 0
    table_alignment: int = 0
    needed: tuple[str, ...] = ()
    export_info: Mapping[str, SymbolFlags] = dataclasses.field(default_factory=dict)
    imports: tuple[DylinkImport, ...] = ()
    runtime_path: tuple[str, ...] = ()
    unknown: tuple[tuple[int, bytes], ...] = ()

    @property
    def import_info(self) -> dict[str, SymbolFlags]:
        """Flags of imports by name, over all modules."""
        return {item.name: item.flags for item in self.imports}


def _alignment(reader: Reader) -> int:
    start = reader.position
    alignment = reader.u32()
    if alignment > 31:
        raise reader.error(f"alignment 2**{alignment} is impossible", start)
    return alignment


def _memory_info(reader: Reader) -> dict[str, object]:
    return {
        "memory_size": reader.u32(),
        "memory_alignment": _alignment(reader),
        "table_size": reader.u32(),
        "table_alignment": _alignment(reader),
    }


def _names(reader: Reader) -> tuple[str, ...]:
    return tuple([reader.name() for _ in range(reader.count("names", limit=1_000_000))])


def _export_info(reader: Reader) -> dict[str, SymbolFlags]:
    count = reader.count("exports", limit=1_000_000, minimum_bytes=2)
    return {reader.name(): SymbolFlags(reader.u32()) for _ in range(count)}


def _imports(reader: Reader) -> tuple[DylinkImport, ...]:
    count = reader.count("imports", limit=1_000_000, minimum_bytes=3)
    return tuple(
        [
            DylinkImport(module=reader.name(), name=reader.name(), flags=SymbolFlags(reader.u32()))
            for _ in range(count)
        ]
    )


_SUBSECTIONS: dict[_Subsection, Callable[[Reader], dict[str, object]]] = {
    _Subsection.MEMORY_INFO: _memory_info,
    _Subsection.NEEDED: lambda reader: {"needed": _names(reader)},
    _Subsection.EXPORT_INFO: lambda reader: {"export_info": _export_info(reader)},
    _Subsection.IMPORT_INFO: lambda reader: {"imports": _imports(reader)},
    _Subsection.RUNTIME_PATH: lambda reader: {"runtime_path": _names(reader)},
}


def read(module: Module) -> DylinkInfo | None:
    """The module's ``dylink.0`` section; None when it has none. Unknown subsections are accepted, as the
    convention asks.

    Raises:
        FormatError: malformed, or not the first section.
    """
    custom = module.custom(SECTION_NAME)
    if custom is None:
        return None
    reader = Reader(custom.data, where=f"{SECTION_NAME} section", base=custom.offset)
    if custom.after is not SectionId.CUSTOM:
        raise reader.error("section does not stand before all others")
    fields: dict[str, object] = {}
    unknown: list[tuple[int, bytes]] = []
    known = {int(member): member for member in _Subsection}
    while reader.remaining:
        number = reader.u8()
        contents = reader.nested(reader.u32())
        subsection = known.get(number)
        if subsection is None:
            unknown.append((number, contents.data))
        else:
            fields.update(_SUBSECTIONS[subsection](contents))
            contents.finish()
    return DylinkInfo(**fields, unknown=tuple(unknown))  # type: ignore[arg-type]


def _subsection(number: int, contents: bytes) -> bytes:
    return bytes((number,)) + encode_unsigned(len(contents)) + contents


def _vector(items: list[bytes]) -> bytes:
    return encode_unsigned(len(items)) + b"".join(items)


def section(info: DylinkInfo) -> CustomSection:
    """The custom section that says ``info``."""
    sizes = (info.memory_size, info.memory_alignment, info.table_size, info.table_alignment)
    data = _subsection(_Subsection.MEMORY_INFO, b"".join(map(encode_unsigned, sizes)))
    vectors = {
        _Subsection.NEEDED: [encode_name(name) for name in info.needed],
        _Subsection.EXPORT_INFO: [
            encode_name(name) + encode_unsigned(flags) for name, flags in info.export_info.items()
        ],
        _Subsection.IMPORT_INFO: [
            encode_name(i.module) + encode_name(i.name) + encode_unsigned(i.flags) for i in info.imports
        ],
        _Subsection.RUNTIME_PATH: [encode_name(name) for name in info.runtime_path],
    }
    for number, items in vectors.items():
        if items:
            data += _subsection(number, _vector(items))
    data += b"".join(_subsection(number, contents) for number, contents in info.unknown)
    return CustomSection(name=SECTION_NAME, data=data, after=SectionId.CUSTOM)
