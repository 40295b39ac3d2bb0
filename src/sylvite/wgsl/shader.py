"""What a translation gives."""

from __future__ import annotations

import dataclasses

__all__ = ["GRID_WORDS", "Binding", "Shader"]

GRID_WORDS = 6
"""Words of the grid at the end of the uniform: first workgroup (x, y, z), number of workgroups (x, y, z)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A storage buffer that the shader declares; always ``var<storage, read_write>``.

    Args:
        set: its ``@group``.
        binding: its ``@binding``; of merged bindings that of the first.
        merged: the ``(set, binding)`` pairs of the module it stands for, sorted.
        access: ``"read"`` when the shader never writes it, else ``"read_write"``.
        element_type: WGSL type of an element: ``f32``, ``vec4<f32>``, ``u32``, ``atomic<u32>``, or the name
            of a struct.
        minimum_byte_length: the least size WebGPU accepts for it.
    """

    set: int
    binding: int
    merged: tuple[tuple[int, int], ...]
    access: str
    element_type: str
    minimum_byte_length: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shader:
    """A compute shader in WGSL.

    The uniform is one ``var<uniform>`` of u32 words at ``@group(uniform_group) @binding(uniform_binding)``:
    first the push constants (``push_constant_words``), then ``uniform_words``, then the grid when
    ``has_grid``. Its size in bytes is ``uniform_byte_length``; 0 when the shader declares none.

    Args:
        source: the text.
        entry_point: name of the entry point in it.
        workgroup_size: invocations along x, y, z.
        bindings: storage buffers by ``(set, binding)``.
        push_constant_words: 32-bit words of push constants.
        uniform_words: constants that WGSL cannot write: NaN, infinities.
        has_grid: whether it reads where a workgroup is in the grid: `GRID_WORDS` words follow.
        uniform_group: the uniform's ``@group``.
        uniform_binding: the uniform's ``@binding``.
        features: WebGPU features it enables.
        workgroup_byte_length: workgroup memory it declares.
        names: WGSL names of variables and functions by id.
    """

    source: str
    entry_point: str
    workgroup_size: tuple[int, int, int]
    bindings: tuple[Binding, ...]
    push_constant_words: int
    uniform_words: tuple[int, ...]
    has_grid: bool
    uniform_group: int
    uniform_binding: int
    uniform_byte_length: int
    features: frozenset[str]
    workgroup_byte_length: int
    names: dict[int, str]
