"""Executables of WebGPU devices: kernels in WGSL, their pipelines, and variants of them.

Two formats are loaded. ``webgpu-wgsl-json`` is our own: JSON with WGSL written by hand, for tests, checks and
other tools. ``vulkan-spirv-fb`` is what IREE emits for Vulkan: its SPIR-V is translated to WGSL when
a kernel is first dispatched.

A kernel whose bindings overlap needs a *variant*, in which those bindings are one: WebGPU refuses to write
through two bindings of the same bytes. Pipelines are kept per variant.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...errors import FormatError, SylviteError
from ...hal import Executable, ExecutableExport
from .gpu import Gpu

__all__ = [
    "FORMATS",
    "JSON_FORMAT",
    "SPIRV_FORMAT",
    "Groups",
    "Kernel",
    "Pipeline",
    "Shader",
    "WebGpuExecutable",
]

JSON_FORMAT: Final = "webgpu-wgsl-json"
SPIRV_FORMAT: Final = "vulkan-spirv-fb"
FORMATS: Final = (JSON_FORMAT, SPIRV_FORMAT)

SHADER_STAGE_COMPUTE: Final = 0x4

Groups = tuple[tuple[int, ...], ...]
"""Bindings that are one in a variant, by their numbers; bindings that are by themselves are left out."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shader:
    """WGSL of one variant of a kernel.

    Args:
        source: the text.
        entry_point: its compute entry point.
        slots: for each binding of the kernel, the number it is declared with in group 0.
        uniform_slot: the number of the uniform; ``None`` when it takes none.
        literals: words of the uniform after the constants.
        has_grid: whether six words follow: first workgroup and number of workgroups, by axis. A kernel
            without them cannot run over more workgroups than WebGPU dispatches at once.
    """

    source: str
    entry_point: str
    slots: tuple[int, ...]
    uniform_slot: int | None
    literals: tuple[int, ...] = ()
    has_grid: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An entry point before it is made for a device.

    Args:
        export: name and counts.
        writes: for each binding, whether the kernel writes it.
        has_variants: whether bindings can be merged.
        shader: makes the shader of a variant.
    """

    export: ExecutableExport
    writes: tuple[bool, ...]
    has_variants: bool
    shader: Callable[[Groups], Shader]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A variant of a kernel, made for a device."""

    shader: Shader
    pipeline: Any
    layout: Any


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
            slots=tuple(range(count)),
            uniform_slot=count if constants or has_grid else None,
            has_grid=has_grid,
        )

    export = ExecutableExport(
        name=name, ordinal=ordinal, constant_count=constants, binding_count=count, workgroup_size=tuple(size)
    )
    writes = tuple(access == "write" for access in bindings)
    return Kernel(export=export, writes=writes, has_variants=False, shader=shader)


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
    exports = _member(content, "exports", list, f"a {JSON_FORMAT} executable")
    return tuple(_read_json_export(record, ordinal) for ordinal, record in enumerate(exports))


def load_kernels(format: str, data: bytes, constants: tuple[int, ...], gpu: Gpu) -> tuple[Kernel, ...]:
    """Kernels of an executable of one of `FORMATS`.

    Raises:
        FormatError: it is malformed.
        UnsupportedFeatureError: it needs what the device does not have.
    """
    return read_json(data)


class WebGpuExecutable(Executable):
    """Kernels, and the pipelines made of them so far.

    Args:
        gpu: for which device.
        kernels: entry points.
        format: executable format they come from.
    """

    def __init__(self, gpu: Gpu, kernels: Sequence[Kernel], *, format: str) -> None:
        super().__init__([kernel.export for kernel in kernels], format=format)
        self.gpu = gpu
        self.kernels = tuple(kernels)
        self._pipelines: dict[tuple[int, Groups], Pipeline] = {}

    def pipeline(self, ordinal: int, groups: Groups) -> Pipeline:
        """The pipeline of an export, with these bindings merged. The caller holds the GPU's lock.

        Raises:
            KernelError: the implementation of WebGPU refuses the shader.
                OutOfMemoryError, DeviceLostError
        """
        made = self._pipelines.get((ordinal, groups))
        if made is None:
            made = self._pipelines[ordinal, groups] = self._make(self.kernels[ordinal], groups)
        return made

    def _make(self, kernel: Kernel, groups: Groups) -> Pipeline:
        name = kernel.export.name
        shader = kernel.shader(groups)
        device = self.gpu.device
        entries: list[dict[str, Any]] = [
            {"binding": slot, "visibility": SHADER_STAGE_COMPUTE, "buffer": {"type": "storage"}}
            for slot in sorted(set(shader.slots))
        ]
        if shader.uniform_slot is not None:
            uniform = {"type": "uniform"}
            entries.append(
                {"binding": shader.uniform_slot, "visibility": SHADER_STAGE_COMPUTE, "buffer": uniform}
            )
        try:
            module = device.create_shader_module(label=name, code=shader.source)
            layout = device.create_bind_group_layout(label=name, entries=entries)
            pipeline = device.create_compute_pipeline(
                label=name,
                layout=device.create_pipeline_layout(label=name, bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": shader.entry_point},
            )
        except SylviteError:
            raise
        except Exception as error:
            raise self.gpu.translate(error, f"the shader of kernel {name}", kernel=name) from error
        return Pipeline(shader=shader, pipeline=pipeline, layout=layout)

    def _close(self) -> None:
        self.gpu.discard(self._pipelines)
        self._pipelines = {}

    def __del__(self) -> None:
        pipelines = getattr(self, "_pipelines", None)
        if pipelines:
            self.gpu.discard(pipelines)
