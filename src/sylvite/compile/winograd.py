"""3x3 convolutions by Winograd's algorithm, where the compiler multiplies filters with patches.

Such a convolution is two executables: one packs the patches of an image (see `patches`), another multiplies
them with the packed filters. Both are rewritten to call `sylvite.kernels.winograd`: the first writes the
image's side into the buffer of patches, which is more than twice as large as that, and the second multiplies
from there. What is fused behind the product stays behind it.

Each executable may be dispatched from many places, so that one can only be rewritten where all of its
partners are: every reader of what the first writes has to be the second, and every writer of what the second
reads the first. `plan` follows the buffers through the program to make sure.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from ..kernels import WINOGRAD_IMAGE_NAME, WINOGRAD_PRODUCT_NAME
from .dataflow import Dispatch, Executable, Flow, Place, Region, executable_name
from .patches import find_patches
from .unpacking import write_in_place

__all__ = ["Convolution", "call_winograd", "plan"]

_V = r"%[\w$#]+"
_ANY = r"[^\n]*"
_POINTS = 16
_TILE = 4
"""Columns of a tile of the result."""

_PRODUCT = re.compile(
    rf"(?P<indent> *)(?P<result>{_V}) = linalg\.mmt4d \{{{_ANY}?\}} "
    rf"ins\((?P<filters>{_V}), (?P<patches>{_V}) : "
    r"tensor<(?P<panels>\d+)x(?P<steps>\d+)x8x1xf32>, tensor<(?P<tiles>\d+)x(?P=steps)x4x1xf32>\) "
    rf"outs\((?P<start>{_V}) : (?P<type>tensor<(?P=panels)x(?P=tiles)x8x4xf32>)\) -> (?P=type)\n"
)
_GENERIC = re.compile(
    rf" *(?P<result>{_V}) = linalg\.generic \{{indexing_maps = \[(?P<maps>[^\]]*)\], "
    rf'iterator_types = \["parallel", "parallel", "parallel", "parallel"\]\}} '
    rf"ins\((?P<names>[^:)]*) : (?P<types>[^)]*)\) outs\({_V} : (?P<type>tensor<[0-9x]+xf32>)\) {_ANY}\n"
    rf"(?P<body> *\^bb0\({_ANY}, (?P<out>{_V}): f32\):\n(?:(?! *\}} -> ){_ANY}\n)*?)"
    rf" *\}} -> (?P=type)\n"
)
_MAP = re.compile(r"affine_map<\(d0, d1, d2, d3\) -> \((?P<target>[^)]*)\)>")
_IDENTITY = "affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>"
_STORE = re.compile(
    rf"(?P<indent> *)iree_codegen\.store_to_buffer (?P<stored>{_V}), (?P<buffer>{_V}) : {_ANY} into "
    rf"(?P<memref>memref<{_ANY}>)\n *return\n"
)
_PLACE = re.compile(r"memref<[0-9x]+xf32(?P<strides>, strided<\[[0-9, ]+\], offset: \?>)?, #hal")
_PIPELINES = ("#iree_cpu.pipeline<Mmt4dTilingExpert>", "#iree_cpu.pipeline<DoubleTilingExpert>")
_PLAIN_PIPELINE = "#iree_cpu.pipeline<Default>"

_CHANNELS = range(8, 257)
"""With fewer channels there is more to add than multiplications are saved; with more, the filters' side of
eight filters, 512 bytes a channel, takes too much of the stack."""

_BLOCK_BYTES = 1 << 16
"""Most bytes of results on the stack."""

_BLOCK_COLUMNS = 320
"""Results of a filter in a block, at least: with fewer, the filters' side, which each block computes, costs
more than a thirtieth of the products."""

_BLOCKS = 8
"""Blocks that there should be at least, so that workers can share them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Extents: channels of the image, rows and columns of the result."""

    channels: int
    rows: int
    columns: int

    @property
    def blocks(self) -> int:
        """Blocks of four tiles in a row of tiles; the last may be half of one."""
        return -(-self.columns // 8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the image's side: row of tiles, block, point, channel, tile."""
        return (self.rows // 2, self.blocks, _POINTS, self.channels, _TILE)


def plan(blocks: Iterable[str]) -> dict[str, Convolution]:
    """The executables to rewrite by `call_winograd`, by name, from the text in blocks of `tuning`."""
    flow = Flow()
    images: dict[str, Convolution] = {}
    products: dict[str, tuple[int, int]] = {}
    sources: dict[str, Region] = {}
    for block in blocks:
        name = executable_name(block)
        if name is None:
            flow.read(block)
            continue
        executable = flow.add(name, block)
        convolution = _image(block)
        if convolution is not None:
            images[name] = convolution
        product = _product(block, executable)
        if product is not None:
            products[name] = (product[0], product[1])
            sources[name] = product[2]
    if not images or not products:
        return {}
    return _paired(flow.programs(), images, products, sources)


def _image(block: str) -> Convolution | None:
    """What the executable packs the patches of, if it is a convolution that can be rewritten."""
    patches = find_patches(block)
    if patches is None or patches["stride0"] is not None or patches["stride1"] is not None:
        return None
    convolution = Convolution(
        channels=int(patches["channels"]), rows=int(patches["height"]), columns=int(patches["width"])
    )
    size = 1
    for extent in convolution.shape:
        size *= extent
    if (
        (patches["rows"], patches["columns"]) != ("3", "3")
        or convolution.rows % 2
        or convolution.columns % _TILE
        or convolution.channels not in _CHANNELS
        or size > 9 * convolution.channels * convolution.rows * convolution.columns
        or _schedule(convolution, 1) is None
    ):
        return None
    return convolution


def _product(block: str, executable: Executable) -> tuple[int, int, Region] | None:
    """Steps and tiles of the product that the executable is, and where its patches are."""
    product = _PRODUCT.search(block)
    if product is None or _parts(block) is None:
        return None
    loaded = re.search(rf"{re.escape(product['patches'])} = iree_codegen\.load_from_buffer ({_V}) ", block)
    region = None if loaded is None else executable.regions.get(loaded[1])
    if region is None:
        return None
    return int(product["steps"]), int(product["tiles"]), region


def _paired(
    programs: Iterable[list[Dispatch]],
    images: dict[str, Convolution],
    products: dict[str, tuple[int, int]],
    sources: dict[str, Region],
) -> dict[str, Convolution]:
    """The executables whose partners are all known."""
    links: set[tuple[str, str]] = set()
    refused: set[str] = set()
    for program in programs:
        writers: dict[Place, str] = {}
        for dispatch in program:
            source = dispatch.place(sources[dispatch.name]) if dispatch.name in sources else None
            if dispatch.name in products and (source is None or source not in writers):
                refused.add(dispatch.name)
            for place in dispatch.reads:
                for written, writer in writers.items():
                    if written != place and not (place[1] is None and written[0] == place[0]):
                        continue
                    if written == source and dispatch.name in products:
                        links.add((writer, dispatch.name))
                    else:
                        refused.add(writer)
            for resource, offset in dispatch.writes:
                if offset is not None:
                    writers.pop((resource, offset), None)
                    if dispatch.name in images:
                        writers[resource, offset] = dispatch.name
            if dispatch.name in images and (len(dispatch.writes) != 1 or dispatch.writes[0][1] is None):
                refused.add(dispatch.name)
    for image, product in links:
        convolution = images[image]
        if products[product] != (9 * convolution.channels, convolution.rows * convolution.columns // _TILE):
            refused |= {image, product}
    found: dict[str, Convolution] = {}
    for image, product in sorted(links):
        if found.setdefault(product, images[image]) != images[image]:
            refused |= {image, product}
        found[image] = images[image]
    while more := {name for link in links if refused & set(link) for name in link} - refused:
        refused |= more
    return {name: convolution for name, convolution in found.items() if name not in refused}


def call_winograd(block: str, convolution: Convolution) -> str:
    """Let an executable that `plan` found call the kernel."""
    if _PRODUCT.search(block) is None:
        return _call_image(block, convolution)
    return _call_product(block, convolution)


def _tensor(shape: Iterable[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def _list(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _ones(count: int) -> str:
    return _list([1] * count)


def _retyped(block: str, buffer: str, convolution: Convolution) -> tuple[str, str]:
    """The text with the buffer's type changed to the image's side, and the type."""
    binding = re.search(rf"^ *{re.escape(buffer)} = hal\.interface\.binding\.subspan {_ANY}\n", block, re.M)
    place = None if binding is None else _PLACE.search(binding[0])
    if binding is None or place is None:  # `plan` saw both.
        return block, ""
    memref = f"memref<{'x'.join(map(str, convolution.shape))}xf32"
    if place["strides"] is not None:
        strides = [1]
        for extent in reversed(convolution.shape[1:]):
            strides.insert(0, strides[0] * extent)
        memref += f", strided<{_list(strides)}, offset: ?>"
    changed = binding[0].replace(place[0], f"{memref}, #hal")
    return block.replace(binding[0], changed), f"{memref}, #hal.descriptor_type<storage_buffer>>"


def _call_image(block: str, convolution: Convolution) -> str:
    """One call for each row of tiles."""
    patches, store = find_patches(block), _STORE.search(block)
    if patches is None or store is None:  # `plan` saw both.
        return block
    channels, (tile_rows, blocks, _, _, _) = convolution.channels, convolution.shape
    columns = int(patches["image_width"])
    part_in = _tensor((channels, 4, columns))
    whole, part = _tensor(convolution.shape), _tensor((1, *convolution.shape[1:]))
    where = f"[%points_y, 0, 0, 0, 0] {_list((1, blocks, _POINTS, channels, _TILE))} {_ones(5)}"
    lines = [
        f"%points_all = tensor.empty() : {whole}",
        "%points_two = arith.constant 2 : index",
        f"%points_channels = arith.constant {channels} : index",
        f"%points_columns = arith.constant {convolution.columns} : index",
        f"%points = scf.forall (%points_y) = (0) to ({tile_rows}) step (1) "
        f"shared_outs(%points_out = %points_all) -> ({whole}) {{",
        "  %points_row = arith.muli %points_y, %points_two : index",
        f"  %points_in = tensor.extract_slice {patches['image']}[0, %points_row, 0] "
        f"[{channels}, 4, {columns}] [1, 1, 1] : {patches['image_type']} to {part_in}",
        f"  %points_part = tensor.extract_slice %points_out{where} : {whole} to {part}",
        f'  %points_done = iree_codegen.ukernel.generic "{WINOGRAD_IMAGE_NAME}" ins(%points_in : {part_in}) '
        f"outs(%points_part : {part}) (%points_channels, %points_columns : index, index) "
        f"fn_def_attrs {{hal.import.bitcode = true}} strided_dims([[0, 1], [0]]) -> {part}",
        "  scf.forall.in_parallel {",
        f"    tensor.parallel_insert_slice %points_done into %points_out{where} : {part} into {whole}",
        "  }",
        "} {mapping = [#iree_codegen.workgroup_mapping<x>]}",
    ]
    text = "".join(f"{patches['indent']}{line}\n" for line in lines)
    changed = block.replace(patches[0], text)
    changed, memref = _retyped(changed, store["buffer"], convolution)
    stored = (
        f"{store['indent']}iree_codegen.store_to_buffer %points, {store['buffer']} : {whole} into {memref}\n"
    )
    changed = changed.replace(store[0], f"{stored}{store['indent']}return\n")
    return changed.replace(_PIPELINES[1], _PLAIN_PIPELINE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A product, what is behind it in order, and the store; of ``block``, which has its result in place."""

    block: str
    product: re.Match[str]
    start: str
    behind: tuple[re.Match[str], ...]
    store: re.Match[str]


def _parts(block: str) -> _Parts | None:
    """The parts of an executable, if there is nothing else than these."""
    block = write_in_place(_with_tail(block))
    product, store = _PRODUCT.search(block), _STORE.search(block)
    behind = tuple(_GENERIC.finditer(block))
    if (
        product is None
        or store is None
        or not behind
        or block.count("linalg.mmt4d") != 1
        or block.count(_PIPELINES[0]) != 1
        or block.count(" = linalg.") != 2 + len(behind)
        or "iree_linalg_ext" in block
        or "scf." in block
    ):
        return None
    start = re.search(
        rf"^ *{re.escape(product['start'])} = linalg\.fill {_ANY}ins\(({_V}) : f32\){_ANY}\n", block, re.M
    )
    if start is None or f"{start[1]} = arith.constant 0.000000e+00 : f32\n" not in block:
        return None
    results = [product["result"], *(operation["result"] for operation in behind)]
    if store["stored"] != results[-1] or not all(
        _is_pointwise(operation, product["type"]) for operation in behind
    ):
        return None
    # A tensor of the chain is used by its next operation only.
    for result in results:
        if len(re.findall(rf"{re.escape(result)}(?![\w#])", block)) != 2:
            return None
    chain = [product["result"], *results[1:-1]]
    if any(name not in operation["names"].split(", ") for name, operation in zip(chain, behind, strict=True)):
        return None
    return _Parts(block=block, product=product, start=start[0], behind=behind, store=store)


def _with_tail(block: str) -> str:
    """A product that is unpacked at once gets a copy behind it, which can write in place."""
    product = _PRODUCT.search(block)
    if product is None or f"linalg.unpack {product['result']} " not in block:
        return block
    type_ = product["type"]
    copy = (
        f"{product['indent']}%wino_new = tensor.empty() : {type_}\n"
        f"{product['indent']}%wino_copy = linalg.generic {{indexing_maps = [{_IDENTITY}, {_IDENTITY}], "
        'iterator_types = ["parallel", "parallel", "parallel", "parallel"]} '
        f"ins({product['result']} : {type_}) outs(%wino_new : {type_}) attrs =  {{}} {{\n"
        f"{product['indent']}^bb0(%in: f32, %out: f32):\n"
        f"{product['indent']}  linalg.yield %in : f32\n"
        f"{product['indent']}}} -> {type_}\n"
    )
    block = block.replace(f"linalg.unpack {product['result']} ", "linalg.unpack %wino_copy ")
    return block.replace(product[0], product[0] + copy)


def _is_pointwise(operation: re.Match[str], type_: str) -> bool:
    """Whether an operation works on elements, its operands are indexed by loops, and its result is new."""
    targets = _MAP.findall(operation["maps"])
    body = operation["body"].partition("\n")[2]
    return (
        len(targets) == len(operation["names"].split(", ")) + 1
        and all(re.fullmatch(r"d\d(?:, d\d)*", target) for target in targets)
        and sorted(targets[-1].split(", ")) == ["d0", "d1", "d2", "d3"]
        and not re.search(rf"{re.escape(operation['out'])}(?!\w)", body)
        and "linalg.index" not in body
        and _tensor(_numbers(type_)) == type_
    )


def _numbers(tensor: str) -> list[int]:
    return [int(extent) for extent in tensor[len("tensor<") : -len("xf32>")].split("x")]


def _schedule(convolution: Convolution, panels: int) -> tuple[int, int] | None:
    """Rows of tiles and panels of a block; ``None`` when a block would not fit the stack."""
    tile_rows = convolution.rows // 2
    divisors = [step for step in range(1, tile_rows + 1) if tile_rows % step == 0]

    def size(step: int) -> int:
        return 2 * step * convolution.columns

    fitting = [step for step in divisors if 32 * size(step) <= _BLOCK_BYTES]
    if not fitting:
        return None
    step = next((step for step in fitting if size(step) >= _BLOCK_COLUMNS), fitting[-1])
    groups = [
        group
        for group in range(1, panels + 1)
        if panels % group == 0 and 32 * size(step) * group <= _BLOCK_BYTES
    ]
    enough = [group for group in groups if tile_rows // step * (panels // group) >= _BLOCKS]
    return step, (enough or groups[:1])[-1]


def _call_product(block: str, convolution: Convolution) -> str:
    """One call for each block of rows and panels, and what is behind the product on its result."""
    parts = _parts(block)
    schedule = None if parts is None else _schedule(convolution, int(parts.product["panels"]))
    loaded = None
    if parts is not None:
        patches = parts.product["patches"]
        loaded = re.search(
            rf" *{re.escape(patches)} = iree_codegen\.load_from_buffer ({_V}) {_ANY}\n", parts.block
        )
    if parts is None or schedule is None or loaded is None:  # `plan` saw all of them.
        return block
    text = "".join(
        f"{parts.store['indent']}{line}\n" for line in _product_loop(parts, convolution, *schedule)
    )
    changed = parts.block
    for old in (parts.product[0], parts.start, *(operation[0] for operation in parts.behind)):
        changed = changed.replace(old, "")
    stored = parts.store[0].replace(
        f"store_to_buffer {parts.store['stored']},", "store_to_buffer %points_result,"
    )
    changed = changed.replace(parts.store[0], text + stored)
    changed, memref = _retyped(changed, loaded[1], convolution)
    load = (
        f"{parts.product['indent']}{parts.product['patches']} = iree_codegen.load_from_buffer {loaded[1]} : "
        f"{memref} -> {_tensor(convolution.shape)}\n"
    )
    return changed.replace(loaded[0], load).replace(*_PIPELINES)


def _product_loop(parts: _Parts, convolution: Convolution, tile_rows: int, group: int) -> Iterator[str]:
    product = parts.product
    panels, steps = int(product["panels"]), int(product["steps"])
    row_tiles = 2 * convolution.columns // _TILE
    sizes = {"d0": group, "d1": tile_rows * row_tiles, "d2": 8, "d3": _TILE}
    starts = {"d0": "%points_p", "d1": "%points_t", "d2": "0", "d3": "0"}
    numbers = {
        "panels": group,
        "channels": convolution.channels,
        "rows": tile_rows,
        "columns": convolution.columns,
    }
    last = parts.behind[-1]
    filters = _tensor((group, steps, 8, 1))
    image = _tensor((tile_rows, *convolution.shape[1:]))
    sums = _tensor(sizes.values())
    for name, value in {**numbers, "row_tiles": row_tiles}.items():
        yield f"%points_{name} = arith.constant {value} : index"
    yield f"%points_all = tensor.empty() : {last['type']}"
    yield (
        f"%points_result = scf.forall (%points_p, %points_y) = (0, 0) to ({panels}, {convolution.rows // 2}) "
        f"step ({group}, {tile_rows}) shared_outs(%points_out = %points_all) -> ({last['type']}) {{"
    )
    yield "  %points_t = arith.muli %points_y, %points_row_tiles : index"
    yield (
        f"  %points_filters = tensor.extract_slice {product['filters']}[%points_p, 0, 0, 0] "
        f"[{group}, {steps}, 8, 1] [1, 1, 1, 1] : tensor<{panels}x{steps}x8x1xf32> to {filters}"
    )
    yield (
        f"  %points_image = tensor.extract_slice {product['patches']}[%points_y, 0, 0, 0, 0] "
        f"{_list((tile_rows, *convolution.shape[1:]))} {_ones(5)} : {_tensor(convolution.shape)} to {image}"
    )
    yield f"  %points_new = tensor.empty() : {sums}"
    names = ", ".join(f"%points_{name}" for name in numbers)
    yield (
        f'  {product["result"]} = iree_codegen.ukernel.generic "{WINOGRAD_PRODUCT_NAME}" '
        f"ins(%points_filters, %points_image : {filters}, {image}) outs(%points_new : {sums}) "
        f"({names} : {', '.join(['index'] * len(numbers))}) fn_def_attrs {{hal.import.bitcode = true}} "
        f"strided_dims([[0], [0], [0, 1]]) -> {sums}"
    )
    inside = {product["result"]: sums}
    for number, operation in enumerate(parts.behind):
        for line in _operation(operation, number, inside, starts, sizes, is_last=operation is last):
            yield f"  {line}"
    where, part = _slice(_MAP.findall(last["maps"])[-1], starts, sizes)
    yield "  scf.forall.in_parallel {"
    inserted = f"%points_out{where} : {part} into {last['type']}"
    yield f"    tensor.parallel_insert_slice {last['result']} into {inserted}"
    yield "  }"
    yield "} {mapping = [#iree_codegen.workgroup_mapping<y>, #iree_codegen.workgroup_mapping<x>]}"


def _slice(target: str, starts: dict[str, str], sizes: dict[str, int]) -> tuple[str, str]:
    """The part of a tensor, indexed by loops, that a block works on: where, and its type."""
    loops = target.split(", ")
    extents = [sizes[loop] for loop in loops]
    return f"{_list(starts[loop] for loop in loops)} {_list(extents)} {_ones(len(loops))}", _tensor(extents)


def _operation(
    operation: re.Match[str],
    number: int,
    inside: dict[str, str],
    starts: dict[str, str],
    sizes: dict[str, int],
    *,
    is_last: bool,
) -> Iterator[str]:
    """An operation behind the product, on a block."""
    targets = _MAP.findall(operation["maps"])
    types = re.findall(r"tensor<[0-9x]+xf32>", operation["types"])
    names, parts = [], []
    for index, (name, type_, target) in enumerate(
        zip(operation["names"].split(", "), types, targets[:-1], strict=True)
    ):
        if name in inside:
            names.append(name)
            parts.append(inside[name])
            continue
        where, part = _slice(target, starts, sizes)
        yield f"%points_a{number}_{index} = tensor.extract_slice {name}{where} : {type_} to {part}"
        names.append(f"%points_a{number}_{index}")
        parts.append(part)
    where, part = _slice(targets[-1], starts, sizes)
    if is_last:
        yield f"%points_r{number} = tensor.extract_slice %points_out{where} : {operation['type']} to {part}"
    else:
        yield f"%points_r{number} = tensor.empty() : {part}"
    inside[operation["result"]] = part
    tiles = "vector_common_parallel = [1, 1, 1, 4]"
    config = f"distribution = [0, 0, 0, 0], {tiles}" if is_last else tiles
    yield (
        f"{operation['result']} = linalg.generic {{indexing_maps = [{operation['maps']}], "
        'iterator_types = ["parallel", "parallel", "parallel", "parallel"]} '
        f"ins({', '.join(names)} : {', '.join(parts)}) outs(%points_r{number} : {part}) "
        f"attrs =  {{lowering_config = #iree_cpu.lowering_config<{config}>}} {{"
    )
    for line in operation["body"].splitlines():
        yield line.strip()
    yield f"}} -> {part}"
