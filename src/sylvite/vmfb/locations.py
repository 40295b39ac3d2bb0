"""Source locations: from a function and a pc to the place in the program it was compiled from.

Source: IREE ``DebugDatabaseDef`` in the module schema; MLIR's builtin location attributes.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TypeAlias

from ..errors import FormatError
from .flatbuffer import Record

__all__ = [
    "CallSite",
    "DebugDatabase",
    "FileLineColumn",
    "FunctionSourceMap",
    "Fused",
    "Location",
    "Named",
    "build_debug_database",
]

MAX_FORMATTED_PLACES = 16
"""How many places `DebugDatabase.format` names before it stops. It names each place once: locations
share children, so the full text of one can be exponentially long."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileLineColumn:
    """A position in a file; lines and columns count from 1."""

    filename: str
    line: int
    column: int


@dataclasses.dataclass(frozen=True, slots=True)
class CallSite:
    """``callee`` inlined at ``caller``; both are indices into the location table."""

    callee: int
    caller: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """Several locations in one; ``locations`` are indices into the location table."""

    metadata: str | None
    locations: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A name, for another location if ``child`` is an index into the location table."""

    name: str
    child: int | None


Location: TypeAlias = "FileLineColumn | CallSite | Fused | Named | None"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSourceMap:
    """A function's own name, and (pc, location index) pairs sorted by pc."""

    name: str
    locations: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DebugDatabase:
    """The module's locations. Every location refers only to earlier ones, so none is cyclic."""

    locations: tuple[Location, ...]
    functions: tuple[FunctionSourceMap, ...]

    def function_names(self, count: int) -> dict[int, str]:
        """Names of ``count`` functions by ordinal; none when the database does not describe all of them.

        Compilers up to 3.13 leave one entry, the last function's, in the first place.
        """
        if len(self.functions) != count:
            return {}
        return {i: source.name for i, source in enumerate(self.functions) if source.name}

    def function_name(self, ordinal: int) -> str | None:
        """The name function ``ordinal`` had in the program, or None."""
        return self.functions[ordinal].name or None if ordinal < len(self.functions) else None

    def lookup(self, ordinal: int, pc: int) -> int | None:
        """The location index of the instruction at (or the last one before) ``pc``, or None."""
        if not 0 <= ordinal < len(self.functions):
            return None
        places = self.functions[ordinal].locations
        position = bisect.bisect_right(places, (pc, len(self.locations)))
        return places[position - 1][1] if position else None

    def format(self, index: int) -> str:
        """A location as text, innermost place first: ``model.mlir:3:10 < model.mlir:8:2``."""
        places: list[str] = []
        self._collect(index, places)
        text = " < ".join(places[:MAX_FORMATTED_PLACES]) or "unknown"
        return text + (" < ..." if len(places) > MAX_FORMATTED_PLACES else "")

    def source_location(self, ordinal: int, pc: int) -> str | None:
        """The text of an instruction's location, or None when the module does not know it."""
        index = self.lookup(ordinal, pc)
        if index is None or self.locations[index] is None:
            return None
        return self.format(index)

    def _collect(self, index: int, places: list[str]) -> None:
        """Append the places of a location, a few more than `format` shows at most."""
        pending = [index]
        seen: set[int] = set()
        while pending and len(places) <= MAX_FORMATTED_PLACES:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            location = self.locations[index]
            if isinstance(location, FileLineColumn):
                places.append(f"{location.filename}:{location.line}:{location.column}")
            else:
                pending.extend(reversed(_children(location)))


def _children(location: Location) -> tuple[int, ...]:
    if isinstance(location, CallSite):
        return (location.callee, location.caller)
    if isinstance(location, Fused):
        return location.locations
    if isinstance(location, Named) and location.child is not None:
        return (location.child,)
    return ()


def build_debug_database(record: Record | None, *, where: str) -> DebugDatabase | None:
    """Build the database from its verified table; None stays None.

    Raises:
        FormatError: an index is out of range or a location refers to itself or a later one.
    """
    if record is None:
        return None
    locations: list[Location] = []
    for index, entry in enumerate(record["location_table"] or ()):
        location = _location(entry, index)
        for child in _children(location):
            if not 0 <= child < index:
                raise FormatError(
                    f"{record.path}.location_table[{index}]: refers to location {child}; only earlier "
                    f"locations may be referred to",
                    offset=entry.offset,
                    where=where,
                )
        locations.append(location)
    functions = tuple(_source_map(entry, len(locations), where=where) for entry in record["functions"] or ())
    return DebugDatabase(locations=tuple(locations), functions=functions)


def _location(entry: Record | None, index: int) -> Location:
    if entry is None:
        return None
    if entry.type == "CallSiteLocDef":
        return CallSite(entry["callee"], entry["caller"])
    if entry.type == "FileLineColLocDef":
        return FileLineColumn(entry["filename"] or "", entry["line"], entry["column"])
    if entry.type == "FusedLocDef":
        return Fused(entry["metadata"], entry["locations"] or ())
    # An absent index means 0; the first location has none before it to refer to.
    has_child = index > 0 or entry.has("child_location")
    return Named(entry["name"] or "", entry["child_location"] if has_child else None)


def _source_map(record: Record, location_count: int, *, where: str) -> FunctionSourceMap:
    vector = record["locations"]
    pairs: tuple[tuple[int, int], ...] = vector.items if vector is not None else ()
    for position, (_, location) in enumerate(pairs):
        if not 0 <= location < location_count:
            raise FormatError(
                f"{record.path}.locations[{position}].location: {location} is not one of "
                f"{location_count} locations",
                offset=vector.offset + position * vector.stride + 4,
                where=where,
            )
    return FunctionSourceMap(name=record["local_name"] or "", locations=tuple(sorted(pairs)))
