"""Depthwise convolutions over planes, left to a kernel of the runtime.

The compiler's loops over ``y[c, h, w] += x[c, h * s + i, w * s + j] * f[c, i, j]`` are scalar, because an
index that is a sum stops its vectorizer (see `depthwise`). Where an executable is such a convolution, what is
fused behind it, and a store, this becomes a loop over blocks of channels: one call of
`sylvite.kernels.depthwise` into planes on the stack, and the fused operation from there to the result, as
vectors along the whole plane.

A result that is packed for a matrix product is memory with (column tile, channel, column), where columns are
those of the product, a plane end to end; the compiler stores element by element there.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import re

from ..kernels import DEPTHWISE_NAME, MOST_FILTER_COLUMNS
from .depthwise import CONVOLUTION

__all__ = ["call_depthwise"]

_V = r"%[\w$#]+"
_ANY = r"[^\n]*"
_LANES = 4

_TAIL = re.compile(
    rf" *(?P<result>{_V}) = linalg\.generic \{{indexing_maps = \[(?P<maps>[^\]]*)\], "
    rf'iterator_types = \["parallel", "parallel", "parallel", "parallel"\]\}} '
    rf"ins\((?P<names>[^:)]*) : (?P<types>[^)]*)\) outs\({_V} : (?P<type>tensor<[0-9x]+xf32>)\) {_ANY}\n"
    rf"(?P<body> *\^bb0\((?P<arguments>{_ANY}), (?P<out>{_V}): f32\):\n(?:(?! *\}} -> ){_ANY}\n)*?)"
    rf" *\}} -> (?P=type)\n"
)
_MAP = re.compile(r"affine_map<\(d0, d1, d2, d3\) -> \((?P<target>[^)]*)\)>")
_SCATTER = re.compile(
    rf" *(?P<result>{_V}) = iree_linalg_ext\.map_store (?:\{{{_ANY}\}} )?(?P<source>{_V}) into {_V} \{{\n"
    rf"(?P<body>(?:(?! *\}} : ){_ANY}\n)*) *\}} : (?P<type>tensor<[0-9x]+xf32>) into {_ANY}\n"
)
_STORE = re.compile(
    rf"(?P<indent> *)iree_codegen\.store_to_buffer (?P<stored>{_V}), (?P<buffer>{_V}) : {_ANY}\n"
    rf"(?P<padding> *scf\.forall \({_V}, {_V}\) = \(0, (?P<pad_begin>\d+)\) to \((?P<pad_channels>\d+), "
    rf"(?P<pad_end>\d+)\) step \(1, 64\) \{{\n(?:(?! *\}} \{{mapping){_ANY}\n)* *\}} \{{mapping = {_ANY}\n)?"
    rf" *return\n"
)
_LAYOUT = re.compile(
    r"memref<(?P<shape>[0-9x]+)xf32(?:, strided<\[(?P<strides>[0-9, ]+)\], offset: \?>)?, #hal"
)

# What a store into tiles of columns does with the indices of a plane; names of values are numbered.
_FLAT_TILES = (
    "^bb0(%0: index, %1: index, %2: index, %3: index):\n"
    "%4 = affine.linearize_index disjoint [%0, %1] by (1, {channels}) : index\n"
    "%5 = affine.linearize_index disjoint [%2, %3] by ({rows}, {columns}) : index\n"
    "%6:2 = affine.delinearize_index %4 into ({channels}, 1) : index, index\n"
    "%7:2 = affine.delinearize_index %5 into ({tiles}, {tile}) : index, index\n"
    "iree_linalg_ext.yield %7#0, %6#0, %7#1, %6#1, %8 : index, index, index, index, i1\n"
)
_ROW_TILES = (
    "^bb0(%0: index, %1: index, %2: index, %3: index):\n"
    "%4 = affine.linearize_index disjoint [%0, %1] by (1, {channels}) : index\n"
    "%5:2 = affine.delinearize_index %4 into ({channels}, 1) : index, index\n"
    "%6:2 = affine.delinearize_index %3 into ({row_tiles}, {tile}) : index, index\n"
    "iree_linalg_ext.yield %2, %6#0, %5#0, %6#1, %5#1, %7 : index, index, index, index, index, i1\n"
)

_BLOCK_BYTES = 1 << 14
"""Most bytes of planes on the stack at once: half of a first-level cache."""

_BLOCKS = 8
"""Blocks that there should be at least, so that workers can share them."""

_MOST_PLANE_BYTES = 100 << 10
"""A larger plane does not fit the stack."""


def call_depthwise(block: str) -> str:
    """Let the executable in ``block`` call the kernel, where it is such a convolution; see the module."""
    found = _find(block)
    if found is None:
        return block
    target = _target(block, found)
    if target is None:
        return block
    text = "".join(f"{found.store['indent']}{line}\n" for line in _loop(found, target))
    for old, new in (
        (found.convolution[0], ""),
        (found.start, ""),
        *(() if found.tail is None else ((found.tail[0], ""),)),
        *(() if found.scatter is None else ((found.scatter[0], ""),)),
        (found.store[0], f"{text}{found.store['indent']}return\n"),
        (target.binding, target.new_binding),
    ):
        block = block.replace(old, new)
    return block


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The parts of an executable that are replaced."""

    convolution: re.Match[str]
    start: str
    tail: re.Match[str] | None
    scatter: re.Match[str] | None
    store: re.Match[str]
    channels: int
    rows: int
    columns: int


def _find(block: str) -> _Found | None:
    """The parts, if there is nothing else."""
    convolutions = list(CONVOLUTION.finditer(block))
    if len(convolutions) != 1:
        return None
    convolution = convolutions[0]
    batch, channels, rows, columns = map(int, convolution["shape"].split("x"))
    tail = _TAIL.search(block, convolution.end())
    scatter, store = _SCATTER.search(block), _STORE.search(block)
    start = _zeros(block, convolution["start"])
    if (
        batch != 1
        or store is None
        or start is None
        or int(convolution["filter1"]) > MOST_FILTER_COLUMNS
        or convolution["stride1"] not in (None, "2")
        or 4 * rows * columns > _MOST_PLANE_BYTES
        or block.count(" = linalg.generic") != 1 + (tail is not None)
        or block.count(" = linalg.") != 2 + (tail is not None)
        or block.count("iree_linalg_ext.map_store") != (scatter is not None)
        or (tail is not None and not _is_pointwise(tail, convolution))
    ):
        return None
    last = convolution["result"] if tail is None else tail["result"]
    if scatter is not None:
        if scatter["source"] != last:
            return None
        last = scatter["result"]
    if store["stored"] != last:
        return None
    return _Found(
        convolution=convolution,
        start=start,
        tail=tail,
        scatter=scatter,
        store=store,
        channels=channels,
        rows=rows,
        columns=columns,
    )


def _zeros(block: str, name: str) -> str | None:
    """The line that makes the sums start as 0, if it does."""
    fill = re.search(rf"^ *{re.escape(name)} = linalg\.fill {_ANY}ins\(({_V}) : f32\){_ANY}\n", block, re.M)
    if fill is None or f"{fill[1]} = arith.constant 0.000000e+00 : f32\n" not in block:
        return None
    return fill[0]


def _is_pointwise(tail: re.Match[str], convolution: re.Match[str]) -> bool:
    """Whether the operation behind works element by element on the sums, with numbers of channels."""
    names = tail["names"].split(", ")
    targets = _MAP.findall(tail["maps"])
    body = tail["body"].partition("\n")[2]
    return (
        tail["type"] == convolution["type"]
        and names[0] == convolution["result"]
        and convolution["result"] not in names[1:]
        and len(targets) == len(names) + 1
        and targets[0] == targets[-1] == "d0, d1, d2, d3"
        and all(target in ("d0, d1", "d1") for target in targets[1:-1])
        and not re.search(rf"{re.escape(tail['out'])}\b", body)
        and "linalg.index" not in body
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where the result goes: tiles of ``tile`` elements of a plane, by (tile, channel) if ``is_packed``."""

    tiles: int
    tile: int
    is_packed: bool
    binding: str
    new_binding: str
    memref: str


def _target(block: str, found: _Found) -> _Target | None:
    """The memory of the result, seen as tiles; ``None`` when it is something else."""
    buffer = found.store["buffer"]
    binding = re.search(rf"^ *{re.escape(buffer)} = hal\.interface\.binding\.subspan {_ANY}\n", block, re.M)
    layout = None if binding is None else _LAYOUT.search(binding[0])
    if binding is None or layout is None:
        return None
    shape = [int(extent) for extent in layout["shape"].split("x")]
    strides = _dense(shape)
    if layout["strides"] is not None and [int(size) for size in layout["strides"].split(", ")] != strides:
        return None
    plane = found.rows * found.columns
    if found.scatter is None:
        if shape != [1, found.channels, found.rows, found.columns] or found.store["padding"] is not None:
            return None
        tile = _LANES if plane % _LANES == 0 else 1
        tiles, extents = plane // tile, [found.channels, plane // tile, tile]
    else:
        tile = shape[-2]
        tiles = -(-plane // tile)
        if not _is_scatter(found, shape, tiles, tile):
            return None
        extents = [tiles, found.channels, tile]
    memref = f"memref<{'x'.join(map(str, extents))}xf32"
    if layout["strides"] is not None:
        memref += f", strided<[{', '.join(map(str, _dense(extents)))}], offset: ?>"
    uses = len(re.findall(rf"{re.escape(buffer)}\b", block))
    pads = len(re.findall(rf"{re.escape(buffer)}\b", found.store["padding"] or ""))
    if uses != 2 + pads:
        return None
    return _Target(
        tiles=tiles,
        tile=tile,
        is_packed=found.scatter is not None,
        binding=binding[0],
        new_binding=binding[0].replace(layout[0], f"{memref}, #hal"),
        memref=f"{memref}, #hal.descriptor_type<storage_buffer>>",
    )


def _dense(shape: list[int]) -> list[int]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


def _is_scatter(found: _Found, shape: list[int], tiles: int, tile: int) -> bool:
    """Whether the store into tiles is one of the two known ones."""
    if found.scatter is None:
        return False
    numbers: dict[str, str] = {}
    body = re.sub(r"^ *", "", found.scatter["body"], flags=re.M)
    body = re.sub(r"%\w+", lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), body)
    sizes = {"channels": found.channels, "rows": found.rows, "columns": found.columns, "tile": tile}
    if shape == [tiles, found.channels, tile, 1]:
        padding = tiles * tile - found.rows * found.columns
        pad = found.store["padding"]
        if (pad is not None) != (padding > 0):
            return False
        if pad is not None:
            begin, end = int(found.store["pad_begin"]), int(found.store["pad_end"])
            if end != tiles * tile or begin != end - padding:
                return False
        return body == _FLAT_TILES.format(**sizes, tiles=tiles)
    if found.columns % tile or found.store["padding"] is not None:
        return False
    row_tiles = found.columns // tile
    return shape == [found.rows, row_tiles, found.channels, tile, 1] and body == _ROW_TILES.format(
        **sizes, row_tiles=row_tiles
    )


def _step(found: _Found, target: _Target) -> int:
    """Channels in a block."""
    most = max(1, _BLOCK_BYTES // (4 * target.tiles * target.tile))
    most = min(most, max(1, found.channels // _BLOCKS))
    return max(step for step in range(1, most + 1) if found.channels % step == 0)


def _loop(found: _Found, target: _Target) -> list[str]:
    """The loop over blocks of channels, and the store."""
    convolution = found.convolution
    step = _step(found, target)
    height, width = int(convolution["filter0"]), int(convolution["filter1"])
    _, _, image_rows, image_columns = (int(n) for n in convolution["image_type"][7:-5].split("x"))
    numbers = {
        "row_stride": found.columns,
        "channels": step,
        "rows": found.rows,
        "columns": found.columns,
        "height": height,
        "width": width,
        "stride0": int(convolution["stride0"] or 1),
        "stride1": int(convolution["stride1"] or 1),
        "padding": target.tiles * target.tile - found.rows * found.columns,
    }
    image = f"tensor<{step}x{image_rows}x{image_columns}xf32>"
    taps = f"tensor<{step}x{height}x{width}xf32>"
    planes = f"tensor<{step}x{target.tiles}x{target.tile}xf32>"
    if target.is_packed:
        whole = f"tensor<{target.tiles}x{found.channels}x{target.tile}xf32>"
        part = f"tensor<{target.tiles}x{step}x{target.tile}xf32>"
        where = f"[0, %plane_c, 0] [{target.tiles}, {step}, {target.tile}] [1, 1, 1]"
    else:
        whole = f"tensor<{found.channels}x{target.tiles}x{target.tile}xf32>"
        part = planes
        where = f"[%plane_c, 0, 0] [{step}, {target.tiles}, {target.tile}] [1, 1, 1]"
    names = ", ".join(f"%plane_{name}" for name in numbers)
    types = ", ".join(["index"] * len(numbers))
    return [
        f"%plane_all = tensor.empty() : {whole}",
        *(f"%plane_{name} = arith.constant {value} : index" for name, value in numbers.items()),
        f"%plane_result = scf.forall (%plane_c) = (0) to ({found.channels}) step ({step}) "
        f"shared_outs(%plane_out = %plane_all) -> ({whole}) {{",
        f"  %plane_in = tensor.extract_slice {convolution['image']}[0, %plane_c, 0, 0] "
        f"[1, {step}, {image_rows}, {image_columns}] [1, 1, 1, 1] : {convolution['image_type']} to {image}",
        f"  %plane_taps = tensor.extract_slice {convolution['filter']}[%plane_c, 0, 0] "
        f"[{step}, {height}, {width}] [1, 1, 1] : {convolution['filter_type']} to {taps}",
        f"  %plane_new = tensor.empty() : {planes}",
        f'  %plane_sums = iree_codegen.ukernel.generic "{DEPTHWISE_NAME}" '
        f"ins(%plane_in, %plane_taps : {image}, {taps}) outs(%plane_new : {planes}) "
        f"({names} : {types}) fn_def_attrs {{hal.import.bitcode = true}} "
        f"strided_dims([[0, 1], [0], [0]]) -> {planes}",
        f"  %plane_part = tensor.extract_slice %plane_out{where} : {whole} to {part}",
        *(f"  {line}" for line in _pointwise(found, target, step, planes, part)),
        "  scf.forall.in_parallel {",
        f"    tensor.parallel_insert_slice %plane_done into %plane_out{where} : {part} into {whole}",
        "  }",
        "} {mapping = [#iree_codegen.workgroup_mapping<x>]}",
        f"iree_codegen.store_to_buffer %plane_result, {found.store['buffer']} : {whole} into {target.memref}",
    ]


def _pointwise(found: _Found, target: _Target, step: int, planes: str, part: str) -> list[str]:
    """What is fused behind the convolution, from the planes to the result."""
    # The result in the order of its memory: its rows may be apart by what maps to one set of a cache.
    channel, order = ("d1", "(d1, d0, d2)") if target.is_packed else ("d0", "(d0, d1, d2)")
    slices, names, types, maps = [], ["%plane_sums"], [planes], [order]
    if found.tail is None:
        body = ["^bb0(%plane_x: f32, %plane_y: f32):", "  linalg.yield %plane_x : f32"]
    else:
        body = [line.strip() for line in found.tail["body"].splitlines()]
        operands = zip(
            found.tail["names"].split(", ")[1:],
            re.findall(r"tensor<[0-9x]+xf32>", found.tail["types"])[1:],
            _MAP.findall(found.tail["maps"])[1:-1],
            strict=True,
        )
        for number, (name, type_, map_) in enumerate(operands):
            where = f"[0, %plane_c] [1, {step}] [1, 1]" if map_ == "d0, d1" else f"[%plane_c] [{step}] [1]"
            slices.append(
                f"%plane_a{number} = tensor.extract_slice {name}{where} : {type_} to tensor<{step}xf32>"
            )
            names.append(f"%plane_a{number}")
            types.append(f"tensor<{step}xf32>")
            maps.append(f"({channel})")
    maps.append("(d0, d1, d2)")
    texts = ", ".join(f"affine_map<(d0, d1, d2) -> {map_}>" for map_ in maps)
    config = f"distribution = [0, 0, 0], vector_common_parallel = [1, 1, {min(target.tile, _LANES)}]"
    return [
        *slices,
        f"%plane_done = linalg.generic {{indexing_maps = [{texts}], "
        'iterator_types = ["parallel", "parallel", "parallel"]} '
        f"ins({', '.join(names)} : {', '.join(types)}) outs(%plane_part : {part}) "
        f"attrs =  {{lowering_config = #iree_cpu.lowering_config<{config}>}} {{",
        *body,
        f"}} -> {part}",
    ]
