"""Patches of an image, packed for a matrix product, where rows of the result are not whole tiles.

There the compiler scatters single elements, each to a place that it computes with divisions, and fills up the
last tile in loops behind. Where an executable is nothing but that, it becomes calls of a kernel (see
`sylvite.kernels.ragged_patches`), each for some tiles. `sylvite.compile.patches` has the other case.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import itertools
import re

from ..kernels import RAGGED_PATCHES_NAME

__all__ = ["call_ragged_patches"]

_V = r"%[\w$#]+"
_ANY = r"[^\n]*"
_CONFIG = r"#iree_cpu\.lowering_config<[^>]*>"
_ROW = r"(?:d1 \+ d3|d3 \* (?P<{0}>\d+) \+ d1)"
_COLUMN = r"(?:d2 \+ d4|d4 \* (?P<{0}>\d+) \+ d2)"
_SOURCE = (
    rf"(?:d0, {_ROW.format('first_row')}, {_COLUMN.format('first_column')}"
    rf"|(?P<is_last>{_ROW.format('last_row')}, {_COLUMN.format('last_column')}, d0))"
)
_FILL = (
    rf" *scf\.forall \((?P<fill_y>{_V}), (?P<fill_x>{_V})\) = \(0, (?P<fill_from>\d+)\) to "
    rf"\((?P<fill_rows>\d+), (?P<fill_to>\d+)\) step \(1, \d+\) \{{\n"
    rf"(?:(?! *memref\.store){_ANY}\n)*?"
    rf" *memref\.store (?P<fill_value>{_V}), (?P<fill_target>{_V})\[{_ANY}\n"
    rf"(?: *\}}\n)+"
    rf" *\}} \{{mapping = \[#iree_codegen\.workgroup_mapping<y>, #iree_codegen\.workgroup_mapping<x>\]\}}\n"
)
_PATCHES = re.compile(
    rf"(?P<indent> *){_V} = tensor\.empty\(\) : (?P<loose>tensor<"
    r"(?P<channels>\d+)x(?P<height>\d+)x(?P<width>\d+)x(?P<rows>\d+)x(?P<columns>\d+)xf32>)\n"
    rf" *(?P<copy>{_V}) = linalg\.generic \{{indexing_maps = \["
    rf"affine_map<\(d0, d1, d2, d3, d4\) -> \({_SOURCE}\)>, "
    r"affine_map<\(d0, d1, d2, d3, d4\) -> \(d0, d1, d2, d3, d4\)>\], "
    rf'iterator_types = \["parallel"(?:, "parallel"){{4}}\]\}} '
    rf"ins\((?P<image>{_V}) : tensor<(?P<image_shape>\d+x\d+x\d+)xf32>\) "
    rf"outs\({_V} : (?P=loose)\) {_ANY}\n"
    rf" *\^bb0\((?P<in>{_V}): f32, {_V}: f32\):\n *linalg\.yield (?P=in) : f32\n *\}} -> (?P=loose)\n"
    rf" *(?P<empty>{_V}) = tensor\.empty\(\) : "
    r"(?P<type>tensor<(?P<tiles>\d+)x(?P<steps>\d+)x(?P<tile>[48])x1xf32>)\n"
    rf" *(?P<pack>{_V}) = iree_linalg_ext\.map_store \{{lowering_config = {_CONFIG}\}} "
    r"(?P=copy) into (?P=empty) \{\n"
    rf" *\^bb0\((?P<i0>{_V}): index, (?P<i1>{_V}): index, (?P<i2>{_V}): index, (?P<i3>{_V}): index, "
    rf"(?P<i4>{_V}): index\):\n"
    rf" *(?P<step>{_V}) = affine\.linearize_index disjoint \[(?P=i0), (?P=i1), (?P=i2)\] by "
    r"\((?P=channels), (?P=height), (?P=width)\) : index\n"
    rf" *(?P<number>{_V}) = affine\.linearize_index disjoint \[(?P=i3), (?P=i4)\] by "
    r"\((?P=rows), (?P=columns)\) : index\n"
    rf" *(?P<parts>{_V}):2 = affine\.delinearize_index (?P=step) into \((?P=steps), 1\) : index, index\n"
    rf" *(?P<place>{_V}):2 = affine\.delinearize_index (?P=number) into \((?P=tiles), (?P=tile)\) : "
    r"index, index\n"
    r" *iree_linalg_ext\.yield (?P=place)#0, (?P=parts)#0, (?P=place)#1, (?P=parts)#1, %true : "
    r"index, index, index, index, i1\n"
    r" *\} : (?P=loose) into (?P=type) -> (?P=type)\n"
    rf"(?P<store> *iree_codegen\.store_to_buffer (?P=pack), (?P<target>{_V}) : {_ANY}\n)"
    rf"(?P<fill>{_FILL})?"
    r" *return\n"
)
_PIPELINE = "#iree_cpu.pipeline<DoubleTilingExpert>"
_PLAIN_PIPELINE = "#iree_cpu.pipeline<Default>"

_PARTS = 8
"""Calls there should be at least, so that workers can share them."""

_TILES = 64
"""Most tiles in a call."""


def call_ragged_patches(block: str) -> str:
    """Let the executable in ``block`` call the kernel, if it packs patches and does nothing else."""
    patches = _PATCHES.search(block)
    if patches is None or not (_is_alone(block, patches) and _is_filled(block, patches)):
        return block
    text = "".join(f"{patches['indent']}{line}\n" for line in _call(patches))
    text += f"{patches['store']}{patches['indent']}return\n"
    changed = block[: patches.start()] + text + block[patches.end() :]
    return changed.replace(_PIPELINE, _PLAIN_PIPELINE)


def _is_alone(block: str, patches: re.Match[str]) -> bool:
    """Whether the image is in memory, row after row."""
    load = re.search(
        rf"{re.escape(patches['image'])} = iree_codegen\.load_from_buffer {_V} : "
        rf"memref<{patches['image_shape']}xf32(?:, strided<\[(?P<strides>[0-9, ]+)\], offset: \?>)?, ",
        block,
    )
    if load is None or block.count(_PIPELINE) != 1 or block.count(" = linalg.") != 1:
        return False
    strides = ", ".join(map(str, _dense(patches["image_shape"])))
    return "%true = arith.constant true\n" in block and load["strides"] in (None, strides)


def _is_filled(block: str, patches: re.Match[str]) -> bool:
    """Whether what is left of the last tile is set to zero, and nothing else."""
    count, room = _count(patches), int(patches["tiles"]) * int(patches["tile"])
    if int(patches["steps"]) != int(patches["channels"]) * int(patches["height"]) * int(patches["width"]):
        return False
    if patches["fill"] is None:
        return count == room
    ends = tuple(int(patches[name]) for name in ("fill_from", "fill_to", "fill_rows"))
    return (
        0 <= room - count < int(patches["tile"])
        and ends == (count, room, int(patches["steps"]))
        and patches["fill_target"] == patches["target"]
        and f"{patches['fill_value']} = arith.constant 0.000000e+00 : f32\n" in block
    )


def _count(patches: re.Match[str]) -> int:
    return int(patches["rows"]) * int(patches["columns"])


def _dense(shape: str) -> tuple[int, ...]:
    """Strides of a tensor without gaps."""
    extents = [int(extent) for extent in shape.split("x")]
    return tuple(reversed(list(itertools.accumulate([1, *reversed(extents[1:])], lambda a, b: a * b))))


def _call(patches: re.Match[str]) -> list[str]:
    """Calls for as many tiles each, handed out to workgroups."""
    tiles, tile, steps = (int(patches[name]) for name in ("tiles", "tile", "steps"))
    limit = min(_TILES, max(1, tiles // _PARTS))
    part = max(size for size in range(1, limit + 1) if tiles % size == 0)
    strides = _dense(patches["image_shape"])
    row, column, channel = strides if patches["is_last"] else (strides[1], strides[2], strides[0])
    numbers = {
        "tiles": part,
        "tile": tile,
        "channels": int(patches["channels"]),
        "height": int(patches["height"]),
        "width": int(patches["width"]),
        "columns": int(patches["columns"]),
        "count": _count(patches),
        "row_step": row * int(patches["first_row"] or patches["last_row"] or 1),
        "column_step": column * int(patches["first_column"] or patches["last_column"] or 1),
        "channel": channel,
        "row": row,
        "column": column,
    }
    names = ", ".join(["%patch_first", *(f"%patch_{name}" for name in numbers)])
    types = ", ".join(["index"] * (len(numbers) + 1))
    whole, image = patches["type"], f"tensor<{patches['image_shape']}xf32>"
    part_out = f"tensor<{part}x{steps}x{tile}x1xf32>"
    where = f"[%patch_first, 0, 0, 0] [{part}, {steps}, {tile}, 1] [1, 1, 1, 1]"
    return [
        f"{patches['empty']} = tensor.empty() : {whole}",
        *(f"%patch_{name} = arith.constant {value} : index" for name, value in numbers.items()),
        f"{patches['pack']} = scf.forall (%patch_part) = (0) to ({tiles // part}) step (1) "
        f"shared_outs(%patch_all = {patches['empty']}) -> ({whole}) {{",
        "  %patch_first = arith.muli %patch_part, %patch_tiles : index",
        f"  %patch_out = tensor.extract_slice %patch_all{where} : {whole} to {part_out}",
        f'  %patch_done = iree_codegen.ukernel.generic "{RAGGED_PATCHES_NAME}" '
        f"ins({patches['image']} : {image}) outs(%patch_out : {part_out}) ({names} : {types}) "
        f"fn_def_attrs {{hal.import.bitcode = true}} strided_dims([[], []]) -> {part_out}",
        "  scf.forall.in_parallel {",
        f"    tensor.parallel_insert_slice %patch_done into %patch_all{where} : {part_out} into {whole}",
        "  }",
        "} {mapping = [#iree_codegen.workgroup_mapping<x>]}",
    ]
