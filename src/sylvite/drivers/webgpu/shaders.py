"""Kernels of IREE's executables for Vulkan, translated to WGSL when they are first dispatched."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ... import spirv, wgsl
from ...errors import FormatError, InvalidArgumentError, UnsupportedFeatureError
from ...hal import ExecutableExport
from .gpu import Gpu
from .kernels import Groups, Kernel, Shader, Slot

__all__ = ["read_spirv"]

WHERE = "a vulkan-spirv-fb executable"


def read_spirv(data: bytes, constants: Sequence[int], gpu: Gpu) -> tuple[Kernel, ...]:
    """Kernels of an executable.

    Raises:
        FormatError: it is malformed.
        UnsupportedFeatureError: it takes what WebGPU does not have.
    """
    if constants:
        raise UnsupportedFeatureError(f"{len(constants)} executable constants", where=WHERE)
    definition = spirv.read_executable(data, where=WHERE)
    modules = tuple(spirv.read(binary, where=WHERE) for binary in definition.shader_modules)
    return tuple(
        _kernel(ordinal, entry, modules[entry.shader_module], gpu)
        for ordinal, entry in enumerate(definition.entry_points)
    )


def _kernel(ordinal: int, entry: spirv.EntryPointDef, module: spirv.Module, gpu: Gpu) -> Kernel:
    order = tuple((binding.set, binding.binding) for binding in entry.bindings)

    @functools.cache
    def translated(groups: Groups) -> wgsl.Shader:
        merged = tuple(tuple(order[index] for index in group) for group in groups)
        try:
            return wgsl.translate(module, entry.name, merged=merged, features=gpu.features)
        except UnsupportedFeatureError as error:
            raise UnsupportedFeatureError(
                f"kernel {entry.name}: {error.message}", offset=error.offset, where=error.where
            ) from error
        except FormatError as error:
            raise FormatError(
                f"kernel {entry.name}: {error.message}", offset=error.offset, where=error.where
            ) from error

    def shader(groups: Groups) -> Shader:
        made = translated(groups)
        if made.push_constant_words > entry.push_constant_words:
            message = f"it reads {made.push_constant_words} constants of {entry.push_constant_words}"
            raise FormatError(f"kernel {entry.name}: {message}", where=WHERE)
        return _shader(made, order, entry.name, gpu)

    def writes() -> tuple[bool, ...]:
        accesses = {pair: binding.access for binding in translated(()).bindings for pair in binding.merged}
        return tuple(accesses.get(pair) == "read_write" for pair in order)

    export = ExecutableExport(
        name=entry.name,
        ordinal=ordinal,
        constant_count=entry.push_constant_words,
        binding_count=len(order),
    )
    return Kernel(export=export, writes=functools.cache(writes), has_variants=True, shader=shader)


def _shader(translated: wgsl.Shader, order: Sequence[Slot], name: str, gpu: Gpu) -> Shader:
    """What the driver needs of a translation, when it is within the limits of the device."""
    _check_limits(translated, name, gpu)
    declared = {
        pair: (binding.set, binding.binding) for binding in translated.bindings for pair in binding.merged
    }
    has_uniform = translated.uniform_byte_length > 0
    return Shader(
        source=translated.source,
        entry_point=translated.entry_point,
        slots=tuple(declared.get(pair) for pair in order),
        uniform_slot=(translated.uniform_group, translated.uniform_binding) if has_uniform else None,
        uniform_byte_length=translated.uniform_byte_length,
        constant_count=translated.push_constant_words,
        literals=translated.uniform_words,
        has_grid=translated.has_grid,
    )


def _check_limits(translated: wgsl.Shader, name: str, gpu: Gpu) -> None:
    x, y, z = translated.workgroup_size
    needs = {
        "max-compute-workgroup-size-x": x,
        "max-compute-workgroup-size-y": y,
        "max-compute-workgroup-size-z": z,
        "max-compute-invocations-per-workgroup": x * y * z,
        "max-compute-workgroup-storage-size": translated.workgroup_byte_length,
        "max-storage-buffers-per-shader-stage": len(translated.bindings),
        "max-uniform-buffer-binding-size": translated.uniform_byte_length,
    }
    for limit, needed in needs.items():
        if needed > gpu.limits[limit]:
            message = f"kernel {name} needs {needed} of {limit}; {gpu.adapter_name} has {gpu.limits[limit]}"
            raise InvalidArgumentError(message)
