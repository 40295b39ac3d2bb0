"""Checks of a decoded module that span its sections: index ranges, size ranges, counts, names.

Source: core specification, 3.2 (types) and 3.4 (modules); function bodies are `validator`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import FormatError
from .module import Module, SegmentMode
from .types import ExternKind, MemoryType, SectionId, TableType

__all__ = ["check_module", "section_error"]

MAXIMUM_PAGES_32 = 1 << 16
MAXIMUM_PAGES_64 = 1 << 48

_DEFINING = {
    ExternKind.FUNCTION: SectionId.FUNCTION,
    ExternKind.TABLE: SectionId.TABLE,
    ExternKind.MEMORY: SectionId.MEMORY,
    ExternKind.GLOBAL: SectionId.GLOBAL,
    ExternKind.TAG: SectionId.TAG,
}


def section_error(module: Module, section: SectionId, message: str, where: str) -> FormatError:
    """A `FormatError` that points at the start of a section of the file the module was decoded from."""
    offset = next((source.offset for source in module.sources if source.encoded[0] == section), None)
    return FormatError(message, offset=offset, where=f"{where}, {section.text} section")


class _Checker:
    """One `check_module`: the module and its index spaces."""

    def __init__(self, module: Module, where: str) -> None:
        self.module = module
        self.where = where
        self.functions = module.all_functions
        self.tables = module.all_tables
        self.memories = module.all_memories
        self.tags = module.all_tags
        self.imported = {kind: module.imported_count(kind) for kind in ExternKind}
        self.spaces: dict[ExternKind, Sequence[object]] = {
            ExternKind.FUNCTION: self.functions,
            ExternKind.TABLE: self.tables,
            ExternKind.MEMORY: self.memories,
            ExternKind.GLOBAL: module.all_globals,
            ExternKind.TAG: self.tags,
        }

    def error(self, section: SectionId, message: str) -> FormatError:
        """An error in a section, for the caller to raise."""
        return section_error(self.module, section, message, self.where)

    def origin(self, kind: ExternKind, index: int) -> SectionId:
        """The section that brought in an item of an index space."""
        return SectionId.IMPORT if index < self.imported[kind] else _DEFINING[kind]

    def indices(self, indices: Iterable[int], space: Sequence[object], what: str, section: SectionId) -> None:
        """Check that indices name items."""
        for index in indices:
            if index >= len(space):
                raise self.error(section, f"{what} index {index} out of range (there are {len(space)})")

    def counts(self) -> None:
        """Check counts that two sections must agree on."""
        module = self.module
        if len(module.functions) != len(module.code):
            raise self.error(
                SectionId.CODE if module.code else SectionId.FUNCTION,
                f"{len(module.functions)} functions are declared but {len(module.code)} bodies follow",
            )
        if module.data_count is not None and module.data_count != len(module.data):
            raise self.error(
                SectionId.DATA_COUNT,
                f"{module.data_count} data segments are declared but {len(module.data)} follow",
            )

    def types(self) -> None:
        """Check type indices of functions and tags."""
        for index, type_index in enumerate(self.functions):
            if type_index >= len(self.module.types):
                section = self.origin(ExternKind.FUNCTION, index)
                self.indices((type_index,), self.module.types, "type", section)
        for index, tag in enumerate(self.tags):
            section = self.origin(ExternKind.TAG, index)
            self.indices((tag.type_index,), self.module.types, "type", section)

    def size_range(self, item: MemoryType | TableType, most: int, what: str, section: SectionId) -> None:
        """Check minimum and maximum."""
        maximum = item.minimum if item.maximum is None else item.maximum
        if max(item.minimum, maximum) > most:
            raise self.error(section, f"{what} size is above {most}")
        if item.minimum > maximum:
            raise self.error(section, f"{what} minimum {item.minimum} is above its maximum {maximum}")

    def sizes(self) -> None:
        """Check size ranges of tables and memories."""
        for index, table in enumerate(self.tables):
            most = (1 << (64 if table.is_64 else 32)) - 1
            self.size_range(table, most, "table", self.origin(ExternKind.TABLE, index))
        for index, memory in enumerate(self.memories):
            section = self.origin(ExternKind.MEMORY, index)
            most = MAXIMUM_PAGES_64 if memory.is_64 else MAXIMUM_PAGES_32
            self.size_range(memory, most, "memory", section)
            if memory.shared and memory.maximum is None:
                raise self.error(section, "shared memory has no maximum size")

    def exports(self) -> None:
        """Check names and indices of exports."""
        seen: set[str] = set()
        for export in self.module.exports:
            if export.name in seen:
                raise self.error(SectionId.EXPORT, f"export name {export.name!r} appears twice")
            seen.add(export.name)
            space = self.spaces[export.kind]
            self.indices((export.index,), space, export.kind.name.lower(), SectionId.EXPORT)

    def start(self) -> None:
        """Check the start function."""
        if self.module.start is None:
            return
        self.indices((self.module.start,), self.functions, "function", SectionId.START)
        start_type = self.module.types[self.functions[self.module.start]]
        if start_type.parameters or start_type.results:
            raise self.error(SectionId.START, f"start function has type {start_type}, not [] -> []")

    def segments(self) -> None:
        """Check what element and data segments name."""
        for segment in self.module.elements:
            if segment.mode is SegmentMode.ACTIVE:
                self.indices((segment.table,), self.tables, "table", SectionId.ELEMENT)
            self.indices(segment.functions or (), self.functions, "function", SectionId.ELEMENT)
        for data in self.module.data:
            if data.offset is not None:
                self.indices((data.memory,), self.memories, "memory", SectionId.DATA)


def check_module(module: Module, *, where: str = "module") -> None:
    """Check index and size ranges, counts, export names and the start function.

    Raises:
        FormatError: at the offset of the section at fault, when the module was decoded.
    """
    checker = _Checker(module, where)
    checker.counts()
    checker.types()
    checker.sizes()
    checker.exports()
    checker.start()
    checker.segments()
