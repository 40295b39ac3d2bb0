"""Patches of an image, packed for a matrix product, left to a kernel of the runtime.

The compiler copies an element at a time into a buffer of patches and from there into tiles (see
`sylvite.kernels.patches`). Where an executable is nothing but these two copies, both become one call of
the kernel for each row of the result.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import re

from ..kernels import PATCH_TILE, PATCHES_NAME

__all__ = ["call_patches", "find_patches"]

_V = r"%[\w$#]+"
_ANY = r"[^\n]*"
_PATCHES = re.compile(
    rf"(?P<indent> *){_V} = tensor\.empty\(\) : (?P<loose>tensor<"
    r"(?P<channels>\d+)x(?P<rows>\d+)x(?P<columns>\d+)x(?P<height>\d+)x(?P<width>\d+)xf32>)\n"
    rf" *(?P<copy>{_V}) = linalg\.generic \{{indexing_maps = \["
    r"affine_map<\(d0, d1, d2, d3, d4\) -> "
    r"\(d0, (?:d1 \+ d3|d3 \* (?P<stride0>\d+) \+ d1), (?:d2 \+ d4|d4 \* (?P<stride1>\d+) \+ d2)\)>, "
    r"affine_map<\(d0, d1, d2, d3, d4\) -> \(d0, d1, d2, d3, d4\)>\], "
    rf'iterator_types = \["parallel"(?:, "parallel"){{4}}\]\}} '
    rf"ins\((?P<image>{_V}) : (?P<image_type>tensor<\d+x\d+x(?P<image_width>\d+)xf32>)\) "
    rf"outs\({_V} : (?P=loose)\) {_ANY}\n"
    rf" *\^bb0\((?P<in>{_V}): f32, {_V}: f32\):\n *linalg\.yield (?P=in) : f32\n *\}} -> (?P=loose)\n"
    rf" *(?P<empty>{_V}) = tensor\.empty\(\) : (?P<type>tensor<{_ANY}>)\n"
    rf" *(?P<pack>{_V}) = linalg\.pack (?P=copy) outer_dims_perm = \[3, 4, 0, 1, 2\] "
    rf"inner_dims_pos = \[4, 2\] inner_tiles = \[{PATCH_TILE}, 1\] into (?P=empty) "
    rf"\{{{_ANY}\}} : (?P=loose) -> (?P=type)\n"
)
_PIPELINE = "#iree_cpu.pipeline<DoubleTilingExpert>"
_PLAIN_PIPELINE = "#iree_cpu.pipeline<Default>"


def call_patches(block: str) -> str:
    """Let the executable in ``block`` call the kernel, if it packs patches and does nothing else."""
    patches = find_patches(block)
    if patches is None:
        return block
    text = "".join(f"{patches['indent']}{line}\n" for line in _call(patches))
    changed = block[: patches.start()] + text + block[patches.end() :]
    return changed.replace(_PIPELINE, _PLAIN_PIPELINE)


def find_patches(block: str) -> re.Match[str] | None:
    """The part of an executable that packs patches, if it does nothing else."""
    patches = _PATCHES.search(block)
    return patches if patches is not None and _is_alone(block, patches) else None


def _is_alone(block: str, patches: re.Match[str]) -> bool:
    """Whether the image is in memory, and the result goes there."""
    return (
        block.count(_PIPELINE) == 1
        and block.count(" = linalg.") == 2
        and f"{patches['image']} = iree_codegen.load_from_buffer " in block
        and f"iree_codegen.store_to_buffer {patches['pack']}, " in block
    )


def _call(patches: re.Match[str]) -> list[str]:
    """One call for each row of the result, handed out to workgroups."""
    channels, rows, columns, height, width = (
        int(patches[name]) for name in ("channels", "rows", "columns", "height", "width")
    )
    blocks = width // PATCH_TILE
    numbers = {
        "row_stride": int(patches["stride0"] or 1),
        "blocks": blocks,
        "channels": channels,
        "rows": rows,
        "columns": columns,
        "stride": int(patches["stride1"] or 1),
    }
    names = ", ".join(f"%patch_{name}" for name in list(numbers)[1:])
    types = ", ".join(["index"] * (len(numbers) - 1))
    part_in = f"tensor<{channels}x{rows}x{patches['image_width']}xf32>"
    shape = (1, blocks, channels, rows, columns, PATCH_TILE, 1)
    part_out = f"tensor<{'x'.join(map(str, shape))}xf32>"
    where = f"[%patch_y, 0, 0, 0, 0, 0, 0] [{', '.join(map(str, shape))}] [1, 1, 1, 1, 1, 1, 1]"
    whole = patches["type"]
    return [
        f"{patches['empty']} = tensor.empty() : {whole}",
        *(f"%patch_{name} = arith.constant {value} : index" for name, value in numbers.items()),
        f"{patches['pack']} = scf.forall (%patch_y) = (0) to ({height}) step (1) "
        f"shared_outs(%patch_all = {patches['empty']}) -> ({whole}) {{",
        "  %patch_row = arith.muli %patch_y, %patch_row_stride : index",
        f"  %patch_in = tensor.extract_slice {patches['image']}[0, %patch_row, 0] "
        f"[{channels}, {rows}, {patches['image_width']}] [1, 1, 1] : {patches['image_type']} to {part_in}",
        f"  %patch_out = tensor.extract_slice %patch_all{where} : {whole} to {part_out}",
        f'  %patch_done = iree_codegen.ukernel.generic "{PATCHES_NAME}" ins(%patch_in : {part_in}) '
        f"outs(%patch_out : {part_out}) ({names} : {types}) "
        f"fn_def_attrs {{hal.import.bitcode = true}} strided_dims([[0, 1], [0]]) -> {part_out}",
        "  scf.forall.in_parallel {",
        f"    tensor.parallel_insert_slice %patch_done into %patch_all{where} : {part_out} into {whole}",
        "  }",
        "} {mapping = [#iree_codegen.workgroup_mapping<x>]}",
    ]
