"""Kernels that compiled modules import by symbol: matrix products, packing, unpacking, patches, depthwise
convolutions, softmax.

`assemble` writes them for an engine's capabilities, so that one archive runs at full speed everywhere.
"""

from __future__ import annotations

import functools

from ..wasm import ModuleBuilder, ValueType
from .depthwise import DEPTHWISE_NAME, MOST_FILTER_COLUMNS, emit_depthwise
from .gemm import Block, ElementKind, emit_block
from .mmt4d import PRODUCT_TYPES, emit_mmt4d
from .packing import emit_pack, emit_unpack
from .patches import PATCH_TILE, PATCHES_NAME, emit_patches
from .ragged_patches import RAGGED_PATCHES_NAME, emit_ragged_patches
from .softmax import NAN_TO_ZERO, SOFTMAX_NAME, emit_softmax
from .winograd import WINOGRAD_IMAGE_NAME, WINOGRAD_PRODUCT_NAME, emit_winograd

__all__ = [
    "DEPTHWISE_NAME",
    "KERNEL_NAMES",
    "MOST_FILTER_COLUMNS",
    "NAN_TO_ZERO",
    "PATCHES_NAME",
    "PATCH_TILE",
    "PRODUCT_TYPES",
    "RAGGED_PATCHES_NAME",
    "SOFTMAX_NAME",
    "WINOGRAD_IMAGE_NAME",
    "WINOGRAD_PRODUCT_NAME",
    "Block",
    "ElementKind",
    "assemble",
    "emit_block",
]

KERNEL_NAMES = frozenset(
    {
        "iree_uk_mmt4d",
        "iree_uk_pack",
        "iree_uk_unpack",
        DEPTHWISE_NAME,
        PATCHES_NAME,
        RAGGED_PATCHES_NAME,
        SOFTMAX_NAME,
        WINOGRAD_IMAGE_NAME,
        WINOGRAD_PRODUCT_NAME,
    }
)
"""Symbols that `assemble`'s module exports."""


@functools.lru_cache(maxsize=2)
def assemble(*, relaxed: bool) -> bytes:
    """The kernels as a module that imports ``env.memory`` and ``env.__stack_pointer``.

    Args:
        relaxed: use fused multiply-add of the relaxed SIMD proposal. Without it results are the same on
            every engine.
    """
    module = ModuleBuilder("sylvite_kernels")
    module.import_memory("env", "memory", 0)
    stack_pointer = module.import_global("env", "__stack_pointer", ValueType.I32, mutable=True)
    emit_mmt4d(module, stack_pointer, relaxed=relaxed)
    emit_pack(module)
    emit_unpack(module)
    emit_patches(module)
    emit_ragged_patches(module)
    emit_depthwise(module, relaxed=relaxed)
    emit_softmax(module, relaxed=relaxed)
    emit_winograd(module, stack_pointer, relaxed=relaxed)
    return module.build()
