"""Where in a program an error came from.

Generated code keeps no record of where it is: Python's traceback has it. When an error leaves a
context, the frames of generated code in its traceback are mapped back to bytecode, and by the
module's debug database to source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Any, cast

from ..errors import InternalError, OutOfMemoryError, ProgramError, StatusCode
from ..vmfb import ModuleDef
from .module import INSTANCE_KEY, ModuleInstance

__all__ = ["VmFrame", "add_frames", "frame_of", "frames_of", "translate_error"]

_MAXIMUM_FRAMES = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VmFrame:
    """One function of a bytecode module that was running. ``pc`` counts bytes within it;
    ``location`` is its place in the source, where the module knows it."""

    module: str
    function: str
    pc: int
    location: str | None

    def __str__(self) -> str:
        place = f" at {self.location}" if self.location else ""
        return f"{self.module}.{self.function}+{self.pc:#x}{place}"


def frames_of(error: BaseException) -> tuple[VmFrame, ...]:
    """The bytecode functions that were running when ``error`` was raised, innermost first."""
    frames: tuple[VmFrame, ...] = getattr(error, "vm_frames", ())
    return frames


def translate_error(error: Exception) -> Exception:
    """What to raise for ``error`` when it leaves a context.

    Sylvite's own errors and those of native functions are passed on; both get ``vm_frames`` (see
    `frames_of`) and, where Python has them, a note. Errors of the generated code itself become
    Sylvite's. Local variables of generated code are cleared, so that a kept error does not keep
    buffers.
    """
    entries = _generated_entries(error.__traceback__)
    frames = tuple(frame_of(instance, line) for instance, line, _ in reversed(entries[-_MAXIMUM_FRAMES:]))
    is_own_fault = bool(entries) and entries[-1][2]
    result: Any = _replacement(error, is_own_fault)
    add_frames(result, frames)
    _clear(error.__traceback__)
    return cast(Exception, result)


def add_frames(error: Any, frames: tuple[VmFrame, ...]) -> None:
    """Have an error say which bytecode functions were running, innermost first; see `frames_of`."""
    is_first = not hasattr(error, "vm_frames")
    error.vm_frames = frames
    if isinstance(error, ProgramError) and error.location is None and frames and frames[0].location:
        error.location = frames[0].location
        error.args = (f"{error.message}\n  at {error.location}",)
    if is_first and frames and hasattr(error, "add_note"):
        error.add_note("in the program:\n" + "\n".join(f"  {frame}" for frame in frames))


def _generated_entries(traceback: TracebackType | None) -> list[tuple[ModuleInstance, int, bool]]:
    """Instance, line, and whether it raised itself, of each frame of generated code; outermost first."""
    entries: list[tuple[ModuleInstance, int, bool]] = []
    while traceback is not None:
        instance = traceback.tb_frame.f_globals.get(INSTANCE_KEY)
        if isinstance(instance, ModuleInstance):
            entries.append((instance, traceback.tb_lineno, traceback.tb_next is None))
        traceback = traceback.tb_next
    return entries


def frame_of(instance: ModuleInstance, line: int) -> VmFrame:
    """What a line of an instance's generated code is."""
    definition = instance.definition
    places = instance.module.translated.places
    ordinal, pc = places[line] if 0 < line < len(places) else (0, 0)
    exports = [export.name for export in definition.exports if export.ordinal == ordinal]
    debug = definition.debug
    index = _source_map_index(definition, ordinal, exports)
    if debug is None or index is None:
        return VmFrame(module=definition.name, function=(*exports, f"#{ordinal}")[0], pc=pc, location=None)
    name = exports[0] if exports else debug.functions[index].name or f"#{ordinal}"
    return VmFrame(module=definition.name, function=name, pc=pc, location=debug.source_location(index, pc))


def _source_map_index(definition: ModuleDef, ordinal: int, exports: Sequence[str]) -> int | None:
    """Which entry of the debug database describes a function, if any is known to.

    They should be in the functions' order, but compilers up to 3.13 at least put all of them in the
    first place, where the last function's stays.
    """
    if definition.debug is None:
        return None
    names = [function.name for function in definition.debug.functions]
    for name in exports:
        if name in names:
            return names.index(name)
    is_last = ordinal == len(definition.functions) - 1
    if exports or (len(names) == 1 and not is_last):
        return None
    if len(names) == 1:
        return 0
    return ordinal if ordinal < len(names) else None


def _replacement(error: Exception, is_own_fault: bool) -> Exception:
    """``error``, or the error of our own to raise instead."""
    if isinstance(error, RecursionError):
        replacement: Exception = ProgramError(
            "calls are nested too deeply", status=StatusCode.RESOURCE_EXHAUSTED
        )
    elif isinstance(error, MemoryError) and not isinstance(error, OutOfMemoryError):
        replacement = OutOfMemoryError(f"the program ran out of host memory: {error}")
    elif is_own_fault and isinstance(error, (TypeError, ValueError, AttributeError, NameError, LookupError)):
        if isinstance(error, ProgramError):
            return error
        replacement = InternalError(f"generated code failed: {type(error).__name__}: {error}")
    else:
        return error
    replacement.__cause__ = error
    return replacement


def _clear(traceback: TracebackType | None) -> None:
    while traceback is not None:
        if INSTANCE_KEY in traceback.tb_frame.f_globals:
            traceback.tb_frame.clear()
        traceback = traceback.tb_next
