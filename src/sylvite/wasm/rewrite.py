"""Rewriting modules: every function returns a new module and leaves the sections it does not touch
byte for byte as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..errors import InvalidArgumentError, NotFoundError
from . import dylink
from .module import CustomSection, DataSegment, ElementSegment, FunctionBody, Import, Module, SegmentMode
from .types import ExternKind, MemoryType

__all__ = [
    "make_data_passive",
    "remove_customs",
    "rename_imports",
    "replace_body",
    "share_memory_import",
    "strip_active_data",
    "strip_active_elements",
]

_Named = TypeVar("_Named", Import, dylink.DylinkImport)


def share_memory_import(module: Module, minimum: int, maximum: int) -> Module:
    """Make the module import a shared memory of ``minimum`` to ``maximum`` pages.

    Engines accept a memory for an import when its size range lies inside the import's, so pass the
    range of the memory that will be given.

    Raises:
        InvalidArgumentError: a size out of range.
        NotFoundError: the module imports no memory.
    """
    if not 0 <= minimum <= maximum <= 1 << 16:
        raise InvalidArgumentError(f"shared memory of {minimum} to {maximum} pages is impossible")
    if not module.imported_count(ExternKind.MEMORY):
        raise NotFoundError("the module imports no memory")

    def share(item: Import) -> Import:
        if not isinstance(item.description, MemoryType):
            return item
        shared = dataclasses.replace(item.description, minimum=minimum, maximum=maximum, shared=True)
        return dataclasses.replace(item, description=shared)

    return dataclasses.replace(module, imports=tuple(share(item) for item in module.imports))


def strip_active_data(module: Module) -> tuple[Module, tuple[DataSegment, ...]]:
    """Take the contents out of active data segments, for a loader that places them itself.

    Segments stay as empty passive ones when the module names segments by index (memory.init), otherwise
    they go away.

    Returns:
        The module and the segments taken, in order. ``DataSegment.offset`` says where each belongs.
    """
    taken = tuple(segment for segment in module.data if segment.offset is not None)
    if not taken:
        return module, ()
    if module.data_count is None:
        kept = tuple(segment for segment in module.data if segment.offset is None)
    else:
        # An active segment counts as dropped once it was applied: memory.init of zero bytes still works
        # and anything else traps, which an empty passive segment does as well.
        empty = DataSegment(data=b"")
        kept = tuple(empty if segment.offset is not None else segment for segment in module.data)
    return dataclasses.replace(module, data=kept), taken


def strip_active_elements(module: Module) -> tuple[Module, tuple[ElementSegment, ...]]:
    """Take the contents out of active element segments, for a loader that fills the table itself.

    They stay as declarative segments of the same functions, so indices and ref.func stay valid.

    Returns:
        The module and the segments taken, in order.
    """
    taken = tuple(segment for segment in module.elements if segment.mode is SegmentMode.ACTIVE)

    def strip(segment: ElementSegment) -> ElementSegment:
        if segment.mode is not SegmentMode.ACTIVE:
            return segment
        return dataclasses.replace(segment, mode=SegmentMode.DECLARATIVE, offset=None, table=0)

    if not taken:
        return module, ()
    return dataclasses.replace(module, elements=tuple(strip(item) for item in module.elements)), taken


def make_data_passive(module: Module) -> tuple[Module, tuple[DataSegment, ...]]:
    """Turn active data segments into passive ones with the same contents and indices.

    Returns:
        The module and the segments that were active, in order.
    """
    active = tuple(segment for segment in module.data if segment.offset is not None)
    if not active:
        return module, ()
    data = tuple(dataclasses.replace(segment, offset=None, memory=0) for segment in module.data)
    return dataclasses.replace(module, data=data, data_count=len(data)), active


def rename_imports(module: Module, mapping: Mapping[tuple[str, str], tuple[str, str]]) -> Module:
    """Rename imports: ``mapping`` takes (module, name) to (module, name). The flags of a ``dylink.0``
    section follow.

    Raises:
        NotFoundError: a key names no import.
    """
    known = {(item.module, item.name) for item in module.imports}
    missing = [f"{key[0]}.{key[1]}" for key in mapping if key not in known]
    if missing:
        raise NotFoundError(f"the module does not import {', '.join(missing)}")

    def renamed(item: _Named) -> _Named:
        module_name, name = mapping.get((item.module, item.name), (item.module, item.name))
        return dataclasses.replace(item, module=module_name, name=name)

    result = dataclasses.replace(module, imports=tuple(renamed(item) for item in module.imports))
    info = dylink.read(module)
    if info is None or not any((item.module, item.name) in mapping for item in info.imports):
        return result
    info = dataclasses.replace(info, imports=tuple(renamed(item) for item in info.imports))
    return _replace_custom(result, dylink.section(info))


def _replace_custom(module: Module, section: CustomSection) -> Module:
    customs = tuple(section if item.name == section.name else item for item in module.customs)
    return dataclasses.replace(module, customs=customs)


def remove_customs(module: Module, keep: Callable[[CustomSection], bool] | Iterable[str] = ()) -> Module:
    """Remove custom sections (debug information) except those to ``keep``, a predicate or names."""
    if not callable(keep):
        names = frozenset(keep)
        return remove_customs(module, lambda section: section.name in names)
    return dataclasses.replace(module, customs=tuple(item for item in module.customs if keep(item)))


def replace_body(module: Module, index: int, body: FunctionBody) -> Module:
    """Replace the body at a place of ``module.code``.

    Raises:
        InvalidArgumentError: there is no such place.
    """
    if not 0 <= index < len(module.code):
        raise InvalidArgumentError(f"body {index} does not exist (there are {len(module.code)})")
    code = (*module.code[:index], body, *module.code[index + 1 :])
    return dataclasses.replace(module, code=code)
