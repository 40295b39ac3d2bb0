"""Better matrix products for wasm32: pack the operands, and leave the products to Sylvite's kernels.

The compiler packs operands into tiles ("data tiling") for targets whose tile sizes it knows, and wasm32 is
not one of them. So the first half of the compile borrows one with the same vectors (x86-64 with SSE, 128
bits); the result, still text and still free of machine code, gets the wasm32 target back (`retarget`);
the second half makes code of it. Products, packing and unpacking stay calls of ``iree_uk_*``, which the
linker resolves to `sylvite.kernels` in the form the engine is fastest with.

Also set here: how much of a product one call computes (the borrowed default is one tile of 8x4), and how
patches of convolutions are copied. Depthwise convolutions are written out, see `depthwise`; softmax becomes
a call of a kernel, see `softmax`; the error function gets a cheaper form, see `error_function`; what is fused
behind a product writes its result where it belongs, see `unpacking`.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import CompileError
from ..kernels import PRODUCT_TYPES
from .dataflow import executable_name
from .depthwise import write_out_depthwise
from .depthwise_call import call_depthwise
from .error_function import write_out_erf
from .patches import call_patches
from .ragged_patches import call_ragged_patches
from .softmax import call_softmax
from .unpacking import write_in_place
from .winograd import call_winograd, plan

__all__ = ["Retargeted", "first_half_flags", "retarget", "second_half_flags"]

_STAGE = "executable-configurations"
_BORROWED_FLAGS = (
    "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-opt-data-tiling",
    "--iree-llvmcpu-enable-ukernels=mmt4d",
    f"--compile-to={_STAGE}",
)
_BORROWED_TARGET = re.compile(r'"llvm-cpu", "embedded-elf-x86_64", \{[^}]*\}')
_BORROWED_NAME = "embedded_elf_x86_64"
_NAME = "system_wasm_wasm_32"
_TARGET = (
    '"llvm-cpu", "system-wasm-wasm_32", {cpu = "", cpu_features = "%s", '
    'data_layout = "e-m:e-p:32:32-p10:8:8-p20:8:8-i64:64-i128:128-f128:64-n32:64-S128-ni:1:10:20", '
    "iree.encoding.resolver = #iree_cpu.cpu_encoding_resolver<>, link_embedded = false, "
    "max_stack_allocation_size = 131072 : i64, native_vector_size = 16 : i64, "
    'target_triple = "wasm32-unknown-emscripten", ukernels = "%s"}'
)
_ALL_KERNELS = "mmt4d,pack,unpack"
_BATCH_KERNELS = "mmt4d,pack"
"""Of products with a batch: the compiler's way to call ``unpack`` there copies the result twice, element by
element."""

_NO_KERNELS = "none"
_BODY = "      builtin.module {\n"
_KERNEL_TYPES = {(product.operands, product.operands, product.result) for product in PRODUCT_TYPES}
"""Element types of left, right and result that `sylvite.kernels` multiplies."""

_LONG_LINE = 1 << 16
"""Lines longer than this hold constants."""

_CONFIG = re.compile(r"#iree_cpu\.lowering_config<[^>]*>")
_VECTOR_TILES = re.compile(r"vector_common_parallel = \[([^]]*)\]")
_PRODUCT = re.compile(
    r"linalg\.(?:batch_)?mmt4d \{lowering_config = (?P<config>#iree_cpu\.lowering_config<[^>]*>)\} "
    r"ins\(.*? : tensor<[0-9?x]+x(?P<left>\w+)>, tensor<[0-9?x]+x(?P<right>\w+)>\) "
    r"outs\(.*? : tensor<(?P<shape>[0-9?x]+)x(?P<result>\w+)>\)"
)
_PATCHES = re.compile(
    r"linalg\.generic \{indexing_maps = \[affine_map<\([d0-9, ]*\) -> \((?P<source>[^>]*)\)>, "
    r"affine_map<\((?P<loops>[d0-9, ]*)\) -> \((?P=loops)\)>\], "
    r'iterator_types = \[(?:"parallel"(?:, )?)+\]\} ins\([^)]*\) '
    r"outs\([^)]*: tensor<(?P<shape>[0-9x]+)x\w+>\)"
)
_FEATURES = re.compile(r"--iree-llvmcpu-target-cpu-features=(.*)")

_PANELS = 8
"""Most left panels (8 rows each) in one call."""

_BLOCK_TILES = 192
"""Most result tiles (8x4) in one call: the block and its packed forms lie on the guest's stack."""

_RIGHT_TILES = 48

_PLANE = 1 << 17
"""Most elements that one call copies for patches."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retargeted:
    """What `retarget` did: ``products`` matrix products were left to kernels."""

    products: int


def first_half_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """Flags of the first half, from those of the whole compile."""
    return (*(flag for flag in flags if not flag.startswith("--iree-llvmcpu-target-")), *_BORROWED_FLAGS)


def second_half_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """Flags of the second half, from those of the whole compile."""
    return (*flags, f"--compile-from={_STAGE}", f"--iree-llvmcpu-enable-ukernels={_ALL_KERNELS}")


def retarget(source: Path, destination: Path, *, flags: Sequence[str]) -> Retargeted:
    """Rewrite what the first half printed for wasm32.

    Args:
        source: the text.
        destination: where the second half reads it.
        flags: of the whole compile; the CPU features are among them.

    Raises:
        CompileError: the text is not what the compiler is known to print.
    """
    matches = [match[1] for flag in flags if (match := _FEATURES.fullmatch(flag))]
    features = matches[-1] if matches else ""
    target = _TARGET % (features, _ALL_KERNELS)
    products = targets = 0
    with source.open(encoding="utf-8") as lines:
        convolutions = plan(_blocks(lines))
    with source.open(encoding="utf-8") as lines, destination.open("w", encoding="utf-8") as output:
        for block in _blocks(lines):
            found = list(_PRODUCT.finditer(block))
            convolution = convolutions.get(executable_name(block) or "")
            if convolution is not None:
                products += len(found)
                block = call_winograd(block, convolution)
            elif found and not all(map(_is_call, found)):
                block = _choose_kernels(block, features, _NO_KERNELS)
            elif found:
                products += len(found)
                if len(found) == 1:
                    block = write_in_place(_retile(block, found[0]))
                if "linalg.batch_mmt4d" in block:
                    block = _choose_kernels(block, features, _BATCH_KERNELS)
            elif not found:
                block = call_ragged_patches(call_patches(block))
                block = call_softmax(write_out_depthwise(_recopy(call_depthwise(block))))
            block = write_out_erf(block)
            for line in block.splitlines(keepends=True):
                if len(line) < _LONG_LINE:
                    line, count = _BORROWED_TARGET.subn(target, line)
                    targets += count
                    line = line.replace(_BORROWED_NAME, _NAME)
                output.write(line)
    if not targets:
        raise CompileError("the compiler's output names no target that could be replaced")
    return Retargeted(products=products)


def _is_call(product: re.Match[str]) -> bool:
    """Whether a kernel multiplies these types."""
    return (product["left"], product["right"], product["result"]) in _KERNEL_TYPES


def _choose_kernels(block: str, features: str, kernels: str) -> str:
    """Let one executable leave other operations to kernels than the rest of the module.

    The choice is part of the target, and executables of one module must share one target: the linker puts
    those of another target into a variant of their own, of the same format, which the program then never
    looks into. But a target on the body is found first, and not looked at by the linker.
    """
    target = f"#hal.executable.target<{_TARGET % (features, kernels)}>"
    body = _BODY.replace("{", f"attributes {{hal.executable.target = {target}}} {{")
    return block.replace(_BODY, body)


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Executables as one string each, other lines one by one."""
    executable: list[str] = []
    for line in lines:
        begins = line.startswith("  hal.executable private ")
        if begins or executable:
            executable.append(line)
            if line == "  }\n":
                yield "".join(executable)
                executable = []
        else:
            yield line
    if executable:
        yield "".join(executable)


def _retile(block: str, product: re.Match[str]) -> str:
    """Let one call compute several tiles, and what is fused behind it take the same blocks."""
    extents = product["shape"].split("x")
    batch = len(extents) - 4
    m1, n1, m0, n0 = extents[batch:]
    if "?" in (m0, n0):
        return block
    panels = _divisor(m1, _PANELS)
    tiles = _divisor(n1, min(_RIGHT_TILES, _BLOCK_TILES // panels))
    ones = (1,) * batch
    inner = (int(m0), int(n0))
    root = _config(
        distribution=(*ones, panels, tiles, 0, 0, 0, 0),
        vector_common_parallel=(*ones, panels, tiles, 0, *inner, 0),
        vector_reduction=(*(0 for _ in ones), 0, 0, 1, 0, 0, 1),
    )

    def consumer(match: re.Match[str]) -> str:
        vector = _VECTOR_TILES.search(match[0])
        if match[0] == root or vector is None:
            return match[0]
        sizes = tuple(int(size) for size in vector[1].split(","))
        if sizes == (*ones, 1, 1, *inner):
            blocks: tuple[int, ...] = (*ones, panels, tiles, *inner)
        elif sizes == (*ones, *inner):
            blocks = (*ones, inner[0] * panels, inner[1] * tiles)
        else:
            return match[0]
        return _config(vector_common_parallel=blocks, vector_inner_parallel=sizes)

    return _CONFIG.sub(consumer, block.replace(product["config"], root))


def _recopy(block: str) -> str:
    """Let a copy of patches walk whole planes of one offset into the patch.

    Such a copy reads ``(y + dy, x + dx)``, which the compiler does not vectorize; its default of small tiles
    of all offsets leaves short loops with much address arithmetic.
    """
    configs = _CONFIG.findall(block)
    patches = _PATCHES.search(block)
    if patches is None or len(configs) != 1 or "+" not in patches["source"]:
        return block
    extents = [int(extent) for extent in patches["shape"].split("x")]
    ones = (1,) * len(extents)
    plane = [*ones[:-2], *extents[-2:]] if len(extents) > 2 and extents[-2] * extents[-1] <= _PLANE else None
    whole = tuple(plane or [*ones[:-1], extents[-1]])
    return block.replace(configs[0], _config(distribution=whole, vector_common_parallel=ones))


def _config(**tiles: tuple[int, ...]) -> str:
    levels = ", ".join(f"{level} = [{', '.join(map(str, sizes))}]" for level, sizes in tiles.items())
    return f"#iree_cpu.lowering_config<{levels}>"


def _divisor(extent: str, limit: int) -> int:
    """Largest divisor up to ``limit``; 1 when the extent is not known. Others would leave odd blocks."""
    if extent == "?":
        return 1
    return max(size for size in range(1, limit + 1) if int(extent) % size == 0)
