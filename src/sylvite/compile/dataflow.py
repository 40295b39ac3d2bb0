"""Which dispatches of a program read and write which memory, from the text of the program.

Offsets of bindings are constants of an executable or numbers that the program passes to it; the program binds
whole resources, or parts of them. What cannot be followed has no offset here, and may be anything in its
resource.

A function with branches or loops has no order of commands: its dispatches are told with places unknown.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

__all__ = ["Dispatch", "Executable", "Flow", "Place", "Region", "executable_name"]

_V = r"%[\w$#]+"
_EXECUTABLE = re.compile(r'  hal\.executable private @(?P<name>"[^"]*"|[\w$.-]+) ')
_NUMBER = re.compile(r"%c(?P<value>\d+)(?:_i32|_i64)?(?:_\d+)?")
"""The compiler names constants by their values."""

_LOAD = re.compile(rf"({_V}) = hal\.interface\.constant\.load [^\n]*ordinal\((\d+)\) : i32\n")
_CAST = re.compile(rf"({_V}) = arith\.index_castui ({_V})[^\n]* : i32 to index\n")
_ASSUME = re.compile(rf"({_V})(?::\d+)? = util\.assume\.int(?P<values>[^:]*?)\n? *: index")
_SPAN = re.compile(
    rf"({_V}) = hal\.interface\.binding\.subspan [^\n]*binding\((\d+)\)(?: alignment\(\d+\))?"
    rf"(?: offset\(({_V})\))?"
)
_DISPATCH = re.compile(
    r' *stream\.cmd\.dispatch @(?P<name>"[^"]*"|[\w$.-]+)::[^(\[{]*(?:\[[^\]]*\])?'
    r"(?:\((?P<operands>[^:]*) : [^)]*\))? \{\n"
)
_BINDING = re.compile(r" *(?P<access>ro|wo|rw) (?P<resource>%[\w$]+)\[(?P<offset>%[\w$]+) for ")
_CAPTURE = re.compile(r"(?P<outer>%[\w$#]+) as (?P<inner>%[\w$]+):")
_OTHER = re.compile(r"(?P<resource>%[\w$]+)\[(?P<offset>%[\w$]+)(?: for %[\w$]+)?\]")

Place = tuple[str, int | None]
"""A resource, and where in it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Memory that an executable sees: a binding and an offset into it, either a constant or the number that
    the program passes as an ``operand``."""

    binding: int
    offset: int | None
    operand: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """The memory an executable sees, by the name of the value."""

    regions: dict[str, Region]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A dispatch, or a command without name: the places it reads and writes."""

    name: str
    operands: Sequence[int | None]
    bindings: Sequence[tuple[str, str, int | None]]
    reads: Sequence[Place] = ()
    writes: Sequence[Place] = ()

    def place(self, region: Region) -> Place | None:
        """Where an executable's memory is; ``None`` when that is not known."""
        if region.binding >= len(self.bindings):
            return None
        _, resource, base = self.bindings[region.binding]
        offset = region.offset
        if region.operand is not None and region.operand < len(self.operands):
            offset = self.operands[region.operand]
        if base is None or offset is None:
            return None
        return resource, base + offset


def executable_name(block: str) -> str | None:
    """Name of the executable that the block is, quotes and all; ``None`` if it is none."""
    found = _EXECUTABLE.match(block)
    return None if found is None else found["name"]


def _number(name: str) -> int | None:
    found = _NUMBER.fullmatch(name)
    return None if found is None else int(found["value"])


class Flow:
    """Collects executables, then tells what programs do with them."""

    def __init__(self) -> None:
        self._executables: dict[str, Executable] = {}
        self._programs: list[list[Dispatch]] = []
        self._open: list[str] | None = None
        self._names: dict[str, str] = {}
        self._branching: set[int] = set()

    def add(self, name: str, block: str) -> Executable:
        """Take an executable's text."""
        loads = {name: int(ordinal) for name, ordinal in _LOAD.findall(block)}
        operands = {name: loads[source] for name, source in _CAST.findall(block) if source in loads}
        for assumed in _ASSUME.finditer(block):
            values = re.findall(rf"({_V})(?=[\[<])", assumed["values"])
            for index, value in enumerate(values):
                if value in operands:
                    operands[f"{assumed[1]}#{index}"] = operands[value]
                    if len(values) == 1:
                        operands[assumed[1]] = operands[value]
        regions = {}
        for value, binding, offset in _SPAN.findall(block):
            regions[value] = Region(
                binding=int(binding),
                offset=_number(offset) if offset else 0,
                operand=operands.get(offset),
            )
        self._executables[name] = Executable(regions=regions)
        return self._executables[name]

    def read(self, line: str) -> None:
        """Take a line from outside of executables."""
        stripped = line.lstrip()
        if stripped.startswith(("util.func ", "util.initializer")):
            self._programs.append([])
        if not self._programs:
            return
        if stripped.startswith(("cf.", "scf.")):
            self._branching.add(len(self._programs) - 1)
        if "stream.cmd.execute " in line:
            self._names = {found["inner"]: found["outer"] for found in _CAPTURE.finditer(line)}
        if self._open is not None:
            self._open.append(line)
            if stripped.startswith("}"):
                self._programs[-1].append(self._dispatch(self._open))
                self._open = None
        elif _DISPATCH.match(line):
            self._open = [line]
        elif stripped.startswith("stream.cmd."):
            self._programs[-1].append(self._other(stripped))

    def programs(self) -> Iterator[list[Dispatch]]:
        """Commands of each function in order, with the memory they touch."""
        for number, program in enumerate(self._programs):
            if number in self._branching:
                program = [dataclasses.replace(command, operands=(), bindings=()) for command in program]
            yield [self._placed(dispatch) for dispatch in program]

    def _dispatch(self, lines: list[str]) -> Dispatch:
        found = _DISPATCH.match(lines[0])
        bindings = [binding for line in lines[1:] if (binding := _BINDING.match(line))]
        return Dispatch(
            name="" if found is None else found["name"],
            operands=[_number(name) for name in re.findall(_V, (found and found["operands"]) or "")],
            bindings=[(b["access"], self._outer(b["resource"]), _number(b["offset"])) for b in bindings],
        )

    def _outer(self, name: str) -> str:
        """A resource outside of the commands that use it."""
        return self._names.get(name, name)

    def _other(self, line: str) -> Dispatch:
        """A fill, which writes, or another command, which may do both."""
        places = [
            (self._outer(found["resource"]), _number(found["offset"])) for found in _OTHER.finditer(line)
        ]
        reads = () if line.startswith("stream.cmd.fill ") else places
        return Dispatch(name="", operands=(), bindings=(), reads=reads, writes=places)

    def _placed(self, dispatch: Dispatch) -> Dispatch:
        if not dispatch.name:
            return dispatch
        executable = self._executables.get(dispatch.name, Executable(regions={}))
        reads: list[Place] = []
        writes: list[Place] = []
        for number, (access, resource, _) in enumerate(dispatch.bindings):
            regions = [region for region in executable.regions.values() if region.binding == number]
            places: list[Place] = [dispatch.place(region) or (resource, None) for region in regions]
            # A binding that no value names is still bound.
            places = places or [(resource, None)]
            if access != "wo":
                reads += places
            if access != "ro":
                writes += places
        return dataclasses.replace(dispatch, reads=reads, writes=writes)
