"""Kernels before they are made for a device, and our own format for them.

``webgpu-wgsl-json`` is JSON with WGSL written by hand: for tests, checks and other tools. What IREE emits is
read by `sylvite.drivers.webgpu.shaders`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Final

from ...errors import FormatError
from ...hal import ExecutableExport

__all__ = ["JSON_FORMAT", "Groups", "Kernel", "Shader", "Slot", "read_json"]

JSON_FORMAT: Final = "webgpu-wgsl-json"

GRID_WORDS: Final = 6

Groups = tuple[tuple[int, ...], ...]
"""Bindings that are one in a variant, by their numbers; bindings that are by themselves are left out."""

Slot = tuple[int, int]
"""``@group`` and ``@binding``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shader:
    """WGSL of one variant of a kernel.

    Args:
        source: the text.
        entry_point: its compute entry point.
        slots: for each binding of the kernel, where it is declared; ``None`` when it is not used.
        uniform_slot: where the uniform is declared; ``None`` when it takes none.
        uniform_byte_length: size of the uniform.
        constant_count: words of the uniform for constants of the dispatch.
        literals: words of the uniform after those.
        has_grid: whether six words follow: first workgroup and number of workgroups, by axis. A kernel
            without them cannot run over more workgroups than WebGPU dispatches at once.
    """

    source: str
    entry_point: str
    slots: tuple[Slot | None, ...]
    uniform_slot: Slot | None
    uniform_byte_length: int
    constant_count: int
    literals: tuple[int, ...] = ()
    has_grid: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An entry point before it is made for a device.

    Args:
        export: name and counts.
        writes: tells for each binding whether the kernel writes it.
        has_variants: whether bindings can be merged.
        shader: makes the shader of a variant.
    """

    export: ExecutableExport
    writes: Callable[[], tuple[bool, ...]]
    has_variants: bool
    shader: Callable[[Groups], Shader]


def _member(record: Any, key: str, kind: type, where: str) -> Any:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise FormatError(f"member {key!r} is not a {kind.__name__}", where=where)
    return value


def _read_json_export(record: Any, ordinal: int) -> Kernel:
    where = f"export {ordinal} of a {JSON_FORMAT} executable"
    bindings = _member(record, "bindings", list, where)
    constants = _member(record, "constants", int, where)
    size = _member(record, "workgroup_size", list, where)
    if len(size) != 3 or not all(type(extent) is int and extent > 0 for extent in size):
        raise FormatError("member 'workgroup_size' is not three positive numbers", where=where)
    if not all(access in ("read", "write") for access in bindings) or constants < 0:
        raise FormatError("bindings are 'read' or 'write', and constants are not negative", where=where)
    has_grid = _member(record, "grid", bool, where)
    name = _member(record, "name", str, where)
    source = _member(record, "source", str, where)
    entry_point = _member(record, "entry_point", str, where)
    count = len(bindings)

    def shader(groups: Groups) -> Shader:
        return Shader(
            source=source,
            entry_point=entry_point,
            slots=tuple((0, index) for index in range(count)),
            uniform_slot=(0, count) if constants or has_grid else None,
            uniform_byte_length=4 * (constants + (GRID_WORDS if has_grid else 0)),
            constant_count=constants,
            has_grid=has_grid,
        )

    export = ExecutableExport(
        name=name, ordinal=ordinal, constant_count=constants, binding_count=count, workgroup_size=tuple(size)
    )
    writes = tuple(access == "write" for access in bindings)
    return Kernel(export=export, writes=lambda: writes, has_variants=False, shader=shader)


def read_json(data: bytes) -> tuple[Kernel, ...]:
    """Kernels of our own format.

    ``{"exports": [{"name", "source", "entry_point", "workgroup_size": [x, y, z], "bindings": ["read" or
    "write", ...], "constants": n, "grid": bool}]}``. All bindings are declared ``read_write`` in group 0,
    numbered from zero; the uniform, if there are constants or a grid, comes after them.

    Raises:
        FormatError: it is malformed.
    """
    try:
        content = json.loads(data)
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", where=f"a {JSON_FORMAT} executable") from error
    except RecursionError as error:
        raise FormatError("its JSON nests too deep", where=f"a {JSON_FORMAT} executable") from error
    exports = _member(content, "exports", list, f"a {JSON_FORMAT} executable")
    return tuple(_read_json_export(record, ordinal) for ordinal, record in enumerate(exports))
