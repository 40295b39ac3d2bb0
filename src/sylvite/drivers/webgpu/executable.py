"""Executables of WebGPU devices: kernels in WGSL, and the pipelines made of them.

Two formats are loaded: our own (`sylvite.drivers.webgpu.kernels`), and what IREE emits for Vulkan
(`sylvite.drivers.webgpu.shaders`).

A kernel whose bindings overlap needs a *variant*, in which those bindings are one: WebGPU refuses to write
through two bindings of the same bytes. Pipelines are kept per variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from ...errors import SylviteError
from ...hal import Executable
from .gpu import Gpu
from .kernels import JSON_FORMAT, Groups, Kernel, Shader, read_json

__all__ = ["FORMATS", "JSON_FORMAT", "SPIRV_FORMAT", "Pipeline", "WebGpuExecutable", "load_kernels"]

SPIRV_FORMAT: Final = "vulkan-spirv-fb"
FORMATS: Final = (JSON_FORMAT, SPIRV_FORMAT)

SHADER_STAGE_COMPUTE: Final = 0x4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A variant of a kernel, made for a device."""

    shader: Shader
    pipeline: Any
    layouts: tuple[Any, ...]


def load_kernels(format: str, data: bytes, constants: tuple[int, ...], gpu: Gpu) -> tuple[Kernel, ...]:
    """Kernels of an executable of one of `FORMATS`.

    Raises:
        FormatError: it is malformed.
        UnsupportedFeatureError: it needs what the device does not have.
    """
    if format == JSON_FORMAT:
        return read_json(data)
    # The translator is large, and not everybody who opens a device runs models.
    from .shaders import read_spirv

    return read_spirv(data, constants, gpu)


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
        declared = {slot: "storage" for slot in shader.slots if slot is not None}
        if shader.uniform_slot is not None:
            declared[shader.uniform_slot] = "uniform"
        try:
            module = device.create_shader_module(label=name, code=shader.source)
            layouts = tuple(
                self._layout(declared, group, name)
                for group in range(max((group for group, _ in declared), default=-1) + 1)
            )
            pipeline = device.create_compute_pipeline(
                label=name,
                layout=device.create_pipeline_layout(label=name, bind_group_layouts=layouts),
                compute={"module": module, "entry_point": shader.entry_point},
            )
        except SylviteError:
            raise
        except Exception as error:
            raise self.gpu.translate(error, f"the shader of kernel {name}", kernel=name) from error
        return Pipeline(shader=shader, pipeline=pipeline, layouts=layouts)

    def _layout(self, declared: dict[tuple[int, int], str], group: int, name: str) -> Any:
        entries = [
            {"binding": binding, "visibility": SHADER_STAGE_COMPUTE, "buffer": {"type": kind}}
            for (owner, binding), kind in sorted(declared.items())
            if owner == group
        ]
        return self.gpu.device.create_bind_group_layout(label=name, entries=entries)

    def _close(self) -> None:
        self.gpu.discard(self._pipelines)
        self._pipelines = {}

    def __del__(self) -> None:
        pipelines = getattr(self, "_pipelines", None)
        if pipelines:
            self.gpu.discard(pipelines)
