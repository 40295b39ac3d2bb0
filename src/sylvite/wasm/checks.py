"""Checks of a decoded module that span its sections: index ranges, size ranges, counts, names.

Source: core specification, 3.2 (types) and 3.4 (modules); function bodies are `validator`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import FormatError
from .module import Module, SegmentMode
from .types import ExternKind, MemoryType, TableType

__all__ = ["check_module"]

MAXIMUM_PAGES_32 = 1 << 16
MAXIMUM_PAGES_64 = 1 << 48
MAXIMUM_TABLE_ELEMENTS_32 = (1 << 32) - 1


def _range(minimum: int, maximum: int | None, most: int, what: str, where: str) -> None:
    if minimum > most or (maximum is not None and maximum > most):
        raise FormatError(f"{what} size is above {most}", where=where)
    if maximum is not None and minimum > maximum:
        raise FormatError(f"{what} minimum {minimum} is above its maximum {maximum}", where=where)


def _check_memory(memory: MemoryType, where: str) -> None:
    most = MAXIMUM_PAGES_64 if memory.is_64 else MAXIMUM_PAGES_32
    _range(memory.minimum, memory.maximum, most, "memory", where)
    if memory.shared and memory.maximum is None:
        raise FormatError("shared memory has no maximum size", where=where)


def _check_table(table: TableType, where: str) -> None:
    _range(table.minimum, table.maximum, (1 << 64) - 1 if table.is_64 else (1 << 32) - 1, "table", where)


def _indices(indices: Iterable[int], count: int, what: str, where: str) -> None:
    for index in indices:
        if index >= count:
            raise FormatError(f"{what} index {index} out of range (there are {count})", where=where)


def _counts(module: Module, where: str) -> None:
    if len(module.functions) != len(module.code):
        raise FormatError(
            f"{len(module.functions)} functions are declared but {len(module.code)} bodies follow",
            where=f"{where}, code section",
        )
    if module.data_count is not None and module.data_count != len(module.data):
        raise FormatError(
            f"{module.data_count} data segments are declared but {len(module.data)} follow",
            where=f"{where}, data count section",
        )


def _exports(module: Module, spaces: dict[ExternKind, Sequence[object]], where: str) -> None:
    where = f"{where}, export section"
    seen: set[str] = set()
    for export in module.exports:
        if export.name in seen:
            raise FormatError(f"export name {export.name!r} appears twice", where=where)
        seen.add(export.name)
        _indices((export.index,), len(spaces[export.kind]), export.kind.name.lower(), where)


def _start(module: Module, functions: Sequence[int], where: str) -> None:
    if module.start is None:
        return
    where = f"{where}, start section"
    _indices((module.start,), len(functions), "function", where)
    start_type = module.types[functions[module.start]]
    if start_type.parameters or start_type.results:
        raise FormatError(f"start function has type {start_type}, not [] -> []", where=where)


def _segments(module: Module, tables: int, memories: int, functions: int, where: str) -> None:
    for segment in module.elements:
        if segment.mode is SegmentMode.ACTIVE:
            _indices((segment.table,), tables, "table", f"{where}, element section")
        _indices(segment.functions or (), functions, "function", f"{where}, element section")
    for data in module.data:
        if data.offset is not None:
            _indices((data.memory,), memories, "memory", f"{where}, data section")


def check_module(module: Module, *, where: str = "module") -> None:
    """Check index and size ranges, counts, export names and the start function.

    Raises:
        FormatError
    """
    _counts(module, where)
    spaces: dict[ExternKind, Sequence[object]] = {
        ExternKind.FUNCTION: (functions := module.all_functions),
        ExternKind.TABLE: (tables := module.all_tables),
        ExternKind.MEMORY: (memories := module.all_memories),
        ExternKind.GLOBAL: module.all_globals,
        ExternKind.TAG: (tags := module.all_tags),
    }
    type_count = len(module.types)
    _indices(functions, type_count, "type", f"{where}, import or function section")
    _indices((tag.type_index for tag in tags), type_count, "type", f"{where}, import or tag section")
    for table in tables:
        _check_table(table, f"{where}, import or table section")
    for memory in memories:
        _check_memory(memory, f"{where}, import or memory section")
    _exports(module, spaces, where)
    _start(module, functions, where)
    _segments(module, len(tables), len(memories), len(functions), where)
