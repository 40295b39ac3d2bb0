"""Programs for WebGPU: SPIR-V that stays within what WebGPU guarantees.

The compiler has no WebGPU target. Its SPIR-V back end gets a target of our own that says what WebGPU
guarantees: 32-bit types, 256 invocations and 16 KiB per workgroup, no subgroups. Some things it does are put
right in the text between its stages:

* **64-bit integers** do not exist in WGSL. The compiler can turn them into 32-bit ones, but then reads the
  bytes of 64-bit inputs as if they were twice as many numbers (`narrow_signature` makes pairs of them and
  takes the low words, and extends the signs of outputs), and cuts constants off (`check_constants` refuses
  those that do not fit, and saturates the ends of slices). Functions are marked, so that values of inputs
  are checked at each call.
* **Kernels on 8- and 16-bit elements** that it vectorizes are wrong for targets without such types in
  memory: it takes an element for a whole word. They are left scalar (`repair_kernels`), and so
  are kernels on parts of rows, such as the inside of padding, that do not begin at a multiple of four.
* **Convolutions** that it does not vectorize race: filling the result and adding to it are given to
  invocations in different orders, without a barrier. So do other kernels whose loops index what passes
  between them by different axes, such as reductions of the first axis with what follows them. They are
  made with one invocation per workgroup.
* **Floating point of other widths than 32 bits** it reads and writes as if it were of 32: refused.
* **Parameters** of 64-bit integers are put into the module, where they become narrow too.

Source: the IR that iree-compile 3.13.0 prints at ``input`` and at ``executable-configurations``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ..errors import CompileError
from ..vm.parameters import ParameterFile
from ..vm.parameters.irpa import read_archive
from .artifact import NARROWED_ATTRIBUTE

__all__ = [
    "LAYOUT_FLAGS",
    "NARROWED_ATTRIBUTE",
    "STAGE",
    "VERSION",
    "Stages",
    "check_constants",
    "device_attribute",
    "inline_wide_parameters",
    "mark_narrowed",
    "narrow_signature",
    "repair_kernels",
    "uses_wide_integers",
]

VERSION: Final = 11
"""Raised when a build comes out differently; cached modules depend on it."""

STAGE: Final = "executable-configurations"


_SPIRV_TARGET: Final = (
    '#hal.executable.target<"vulkan-spirv", "vulkan-spirv-fb", {iree_codegen.target_info = '
    '#iree_gpu.target<arch = "", features = "spirv:v1.3,cap:Shader", wgp = <compute = fp32|int32, '
    "storage = b32, subgroup = none, subgroup_size_choices = [32], "
    "max_workgroup_sizes = [256, 256, 64], max_thread_count_per_workgroup = 256, "
    "max_workgroup_memory_bytes = 16384, max_workgroup_counts = [65535, 65535, 65535]>>}>"
)
_WASM_TARGET: Final = (
    '#hal.executable.target<"llvm-cpu", "system-wasm-wasm_32", {cpu = "", cpu_features = "%s", '
    'data_layout = "e-m:e-p:32:32-p10:8:8-p20:8:8-i64:64-i128:128-f128:64-n32:64-S128-ni:1:10:20", '
    "iree.encoding.resolver = #iree_cpu.cpu_encoding_resolver<>, link_embedded = false, "
    "max_stack_allocation_size = 131072 : i64, native_vector_size = 16 : i64, "
    'target_triple = "wasm32-unknown-emscripten"}>'
)

LAYOUT_FLAGS: Final = (
    "--iree-stream-resource-alias-mutable-bindings=true",
    "--iree-stream-resource-min-offset-alignment=256",
)
"""Bind a buffer that a kernel reads and writes once: WebGPU refuses to bind it twice. Lay buffers out so that
WebGPU can bind them where they are: its offsets are multiples of up to 256."""

_LONG_LINE: Final = 1 << 16
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_OPEN_END: Final = 1 << 62
"""Integers at least so large mean "to the end" of a slice."""

_WIDE = re.compile(r"\bi64\b|xi64>")
_SCALAR = re.compile(r"arith\.constant (-?\d+) : i64")
_DENSE = re.compile(r"dense<(?P<values>[^<>]*)> : tensor<[\dx]*i64>")
_RESOURCE = re.compile(r"dense_resource<(?P<name>[^>]*)> : tensor<[\dx]*i64>")
_BLOB = re.compile(r'^\s*(?P<name>[^\s:]+): "0x(?P<data>[0-9A-Fa-f]*)"')
_PARAMETER = re.compile(r'#flow\.parameter\.named<"(?P<scope>[^"]*)"::"(?P<key>[^"]*)"> : tensor<[\dx]*i64>')
_IMPORT = re.compile(
    r"^(?P<indent>\s*)(?P<name>%[\w.$#-]+) = (?P<head>hal\.tensor\.import .* : !hal\.buffer_view -> "
    r"tensor<(?P<dims>(?:[\d?]+x)*)i64>) as tensor<(?P=dims)i32>(?:\{(?P<extents>[^}]*)\})?(?P<tail>.*)$"
)
_EXPORT = re.compile(
    r"^(?P<head>\s*%[\w.$-]+ = hal\.tensor\.export (?P<barrier>%[\w.$-]+?)(?:#(?P<index>\d+))? .*?: )"
    r"tensor<(?P<dims>(?:[\d?]+x)*)i64> as tensor<(?P=dims)i32>(?P<tail>.*)$"
)
_BARRIER = re.compile(
    r"^(?P<indent>\s*)(?P<name>%[\w.$-]+?)(?P<count>:\d+)? = hal\.tensor\.barrier "
    r"join\((?P<values>.*?) : (?P<types>.*)\) => (?P<tail>.*)$"
)
_DIM = re.compile(r"^\s*%[\w.$-]+ = tensor\.dim (?P<value>%[\w.$-]+?)(?:#(?P<index>\d+))?, ")
_KERNEL = re.compile(r'^\s*func\.func @(?P<name>"[^"]*"|[\w.$-]+)\(.*spirv_pipeline<(?P<pipeline>\w+)>')
_WORKGROUP_SIZE = re.compile(r"workgroup_size = \[[\d, ]*\]")
_WINDOWS = re.compile(r"linalg\.\w*(?:conv|pooling)|affine_map<\([^)]*\) -> \([^)]*d\d+(?: \* \d+)? \+ d\d+")
_SLICE = re.compile(
    r"dispatch\.tensor\.(?:load|store) .*offsets = \[(?:.*, )?(?P<offset>[^],]+)\], sizes = \[(?:.*, )?"
    r"(?P<size>[^],]+)\], .*dispatch\.tensor<\w+:tensor<(?:[\d?]+x)*(?P<extent>[\d?]+)x\w+>>"
)
_NARROW = re.compile(r"dispatch\.tensor<\w+:tensor<[\dx?]*(?:i1|i2|i4|i8|i16)>")
_OTHER_FLOAT = re.compile(r"dispatch\.tensor<\w+:tensor<[\dx?]*(?P<element>b?f16|f64|f\d+E\w+)>")
_LOOP = re.compile(
    r"^\s*(?P<name>%[\w.$-]+)(?::\d+)? = (?:linalg|iree_linalg_ext)\.(?P<kind>\w+) .*?"
    r"(?:ins\((?P<ins>[^:)]*) : [^)]*\) )?outs\((?P<outs>[^:)]*) : tensor<(?P<dims>(?:[\d?]+x)*)"
)
_SCALAR_PIPELINES: Final = ("BaseDistribute", "BaseLowering")
_ROWWISE: Final = ("arg_compare", "scan", "softmax")
_MAP = re.compile(r"affine_map<\((?P<loops>[^)]*)\) -> \((?P<axes>[^)]*)\)>")
_TILES = re.compile(r"tile_sizes = \[\[(?P<first>[\d, ]*)\]")


def device_attribute(*, wasm_features: str | None) -> str:
    """The device to compile for, for ``--iree-hal-target-device``.

    Args:
        wasm_features: also make WebAssembly of every kernel, with these features in LLVM's spelling.
    """
    targets = [_SPIRV_TARGET]
    if wasm_features is not None:
        targets.append(_WASM_TARGET % wasm_features)
    return f'#hal.device.target<"local", [{", ".join(targets)}]> : !hal.device'


def uses_wide_integers(text: str) -> bool:
    """Whether a module computes with 64-bit integers."""
    return any(_WIDE.search(line) for line in text.splitlines() if len(line) < _LONG_LINE) or "xi64>" in text


def check_constants(text: str) -> str:
    """Hold 64-bit constants of a module to 32 bits. Open ends of slices become the largest 32-bit number.

    Raises:
        CompileError: a constant does not fit; names it.
    """
    wide_blobs: set[str] = set()
    lines = []
    for line in text.splitlines():
        if len(line) < _LONG_LINE:
            line = _SCALAR.sub(lambda match: f"arith.constant {_fitting(int(match[1]))} : i64", line)
            wide_blobs.update(match["name"] for match in _RESOURCE.finditer(line))
        if "i64>" in line:
            line = _DENSE.sub(_fitting_dense, line)
        lines.append(line)
    for line in lines:
        blob = _BLOB.match(line)
        if blob is not None and blob["name"].strip('"') in wide_blobs:
            # The first four bytes say how the rest is aligned.
            _check_bytes(bytes.fromhex(blob["data"][8:]))
    return "\n".join(lines) + "\n"


def _fitting(value: int) -> int:
    if abs(value) >= _OPEN_END:
        return _MOST if value > 0 else _LEAST
    if not _LEAST <= value <= _MOST:
        raise CompileError(f"the 64-bit constant {value} does not fit in 32 bits, and WebGPU has no others")
    return value


def _fitting_dense(match: re.Match[str]) -> str:
    values = match["values"]
    if values.startswith('"0x'):
        _check_bytes(bytes.fromhex(values[3:-1]))
        return match[0]
    fitting = re.sub(r"-?\d+", lambda number: str(_fitting(int(number[0]))), values)
    return match[0].replace(values, fitting, 1)


def _check_bytes(data: bytes) -> None:
    numbers = np.frombuffer(data, "<i8")
    for value in (int(numbers.min(initial=0)), int(numbers.max(initial=0))):
        if not _LEAST <= value <= _MOST:
            raise CompileError(
                f"the 64-bit constant {value} does not fit in 32 bits, and WebGPU has no others"
            )


def inline_wide_parameters(text: str, read: Callable[[str, str], bytes]) -> str:
    """Put parameters of 64-bit integers into the module.

    Args:
        text: the module.
        read: gives the bytes of a parameter, by scope and key.
    """

    def inline(match: re.Match[str]) -> str:
        data = read(match["scope"], match["key"])
        kind = match[0].rpartition(" : ")[2]
        return f'dense<"0x{data.hex().upper()}"> : {kind}'

    return _PARAMETER.sub(inline, text)


def mark_narrowed(text: str) -> str:
    """Mark functions with reflection attributes as computing with 32 bits."""
    return text.replace("iree.reflection = {", f'iree.reflection = {{{NARROWED_ATTRIBUTE} = "i64", ')


def narrow_signature(text: str) -> str:
    """Have a module whose integers were made narrow take and give wide ones as pairs of words."""
    counter = itertools.count()
    result: list[str] = []
    for function in _functions(text.splitlines()):
        result += _narrow_function(function, counter)
    return "\n".join(result) + "\n"


def _functions(lines: list[str]) -> Iterator[list[str]]:
    """The lines from each function's first on, and those before: names of values are of one function."""
    begins = [at for at, line in enumerate(lines) if line.lstrip().startswith(("util.func ", "func.func "))]
    for begin, end in itertools.pairwise([0, *begins, len(lines)]):
        yield lines[begin:end]


def _narrow_function(lines: list[str], counter: Iterator[int]) -> Iterator[str]:
    joined = {found["name"] for line in lines if len(line) < _LONG_LINE and (found := _BARRIER.match(line))}
    exports = {name: wide for name, wide in _wide_exports(lines).items() if name in joined}
    for line in lines:
        if len(line) >= _LONG_LINE or "tensor" not in line:
            yield line
        elif found := _IMPORT.match(line):
            yield from _import_pairs(found, next(counter))
        elif (found := _BARRIER.match(line)) and found["name"] in exports:
            yield from _join_pairs(found, exports[found["name"]], counter)
        elif (found := _DIM.match(line)) and int(found["index"] or 0) in exports.get(found["value"], {}):
            yield re.sub(r"tensor<([\d?x]*)i32>$", r"tensor<\g<1>2xi32>", line)
        elif found := _EXPORT.match(line):
            yield from _export_pairs(found, is_joined=found["barrier"] in joined, counter=counter)
        else:
            yield line


def _wide_exports(lines: list[str]) -> dict[str, dict[int, str]]:
    """Values that are exported as wide integers: extents by name and number."""
    exports: dict[str, dict[int, str]] = {}
    for line in lines:
        if len(line) < _LONG_LINE and (found := _EXPORT.match(line)):
            exports.setdefault(found["barrier"], {})[int(found["index"] or 0)] = found["dims"]
    return exports


def _import_pairs(found: re.Match[str], number: int) -> Iterator[str]:
    dims, indent = found["dims"], found["indent"]
    extents = found["extents"]
    braces = "" if extents is None else f"{{{extents}}}"
    open_extents = iter(part.strip() for part in (extents or "").split(","))
    sizes = [next(open_extents) if dim == "?" else dim for dim in dims.split("x")[:-1]]
    rank = len(sizes) + 1
    yield f"{indent}%pairs_{number} = {found['head']} as tensor<{dims}2xi32>{braces}{found['tail']}"
    yield (
        f"{indent}{found['name']} = tensor.extract_slice %pairs_{number}[{', '.join(['0'] * rank)}] "
        f"[{', '.join([*sizes, '1'])}] [{', '.join(['1'] * rank)}] : "
        f"tensor<{dims}2xi32> to tensor<{dims}i32>"
    )


def _export_pairs(found: re.Match[str], *, is_joined: bool, counter: Iterator[int]) -> Iterator[str]:
    """An export of pairs of words. What a barrier joins are pairs already."""
    head, dims = found["head"], found["dims"]
    if not is_joined:
        number = next(counter)
        name = found["barrier"] if found["index"] is None else f"{found['barrier']}#{found['index']}"
        yield from _pair_lines(head[: len(head) - len(head.lstrip())], name, dims, number)
        head = head.replace(f"export {name} ", f"export %wide_{number} ", 1)
    yield f"{head}tensor<{dims}i64> as tensor<{dims}2xi32>{found['tail']}"


def _join_pairs(found: re.Match[str], wide: Mapping[int, str], counter: Iterator[int]) -> Iterator[str]:
    """A barrier that joins pairs of words instead of narrow integers, and what makes the pairs."""
    values = [value.strip() for value in found["values"].split(",")]
    types = [kind.strip() for kind in re.split(r",\s*(?=tensor<)", found["types"])]
    for index, dims in wide.items():
        number = next(counter)
        yield from _pair_lines(found["indent"], values[index], dims, number)
        values[index], types[index] = f"%wide_{number}", f"tensor<{dims}2xi32>"
    yield (
        f"{found['indent']}{found['name']}{found['count'] or ''} = hal.tensor.barrier "
        f"join({', '.join(values)} : {', '.join(types)}) => {found['tail']}"
    )


def _pair_lines(indent: str, value: str, dims: str, number: int) -> Iterator[str]:
    extents = dims.split("x")[:-1]
    narrow, wide = f"tensor<{dims}i32>", f"tensor<{dims}2xi32>"
    rank = len(extents)
    opened = []
    for axis, extent in enumerate(extents):
        if extent == "?":
            yield f"{indent}%axis_{number}_{axis} = arith.constant {axis} : index"
            yield f"{indent}%extent_{number}_{axis} = tensor.dim {value}, %axis_{number}_{axis} : {narrow}"
            opened.append(f"%extent_{number}_{axis}")
    loops = ", ".join(f"d{axis}" for axis in range(rank + 1))
    outer = ", ".join(f"d{axis}" for axis in range(rank))
    kinds = ", ".join(['"parallel"'] * (rank + 1))
    yield f"{indent}%pairs_empty_{number} = tensor.empty({', '.join(opened)}) : {wide}"
    yield (
        f"{indent}%wide_{number} = linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({outer})>, "
        f"affine_map<({loops}) -> ({loops})>], iterator_types = [{kinds}]}} "
        f"ins({value} : {narrow}) outs(%pairs_empty_{number} : {wide}) {{"
    )
    yield f"{indent}^bb0(%low: i32, %unused: i32):"
    yield f"{indent}  %word = linalg.index {rank} : index"
    yield f"{indent}  %first = arith.constant 0 : index"
    yield f"{indent}  %is_low = arith.cmpi eq, %word, %first : index"
    yield f"{indent}  %sign_bit = arith.constant 31 : i32"
    yield f"{indent}  %high = arith.shrsi %low, %sign_bit : i32"
    yield f"{indent}  %chosen = arith.select %is_low, %low, %high : i32"
    yield f"{indent}  linalg.yield %chosen : i32"
    yield f"{indent}}} -> {wide}"


def repair_kernels(text: str) -> str:
    """Have kernels made in a form that is right: scalar when elements are narrow, and by one invocation per
    workgroup when several would race.

    Raises:
        CompileError: a kernel is of a kind that cannot be made right; names it.
    """
    lines = text.splitlines()
    for index, line in enumerate(lines):
        found = _KERNEL.match(line) if len(line) < _LONG_LINE else None
        if found is None:
            continue
        body = list(_kernel_lines(lines, index))
        _refuse_floats(found["name"].strip('"'), body)
        pipeline = found["pipeline"]
        if pipeline not in _SCALAR_PIPELINES and any(_is_never_vectors(part) for part in body):
            if pipeline != "BaseVectorize":
                raise CompileError(
                    f"kernel {found['name'].strip(chr(34))} handles narrow elements, or rows that begin "
                    f"inside of vectors, in a form ({pipeline}) that the compiler gets wrong for WebGPU"
                )
            line = line.replace("spirv_pipeline<BaseVectorize>", "spirv_pipeline<BaseDistribute>")
            pipeline = "BaseDistribute"
        if pipeline == "BaseDistribute" and _races(body):
            line = _WORKGROUP_SIZE.sub("workgroup_size = [1, 1, 1]", line)
        lines[index] = line
    return "\n".join(lines) + "\n"


def _kernel_lines(lines: list[str], begin: int) -> Iterator[str]:
    """The lines of the kernel that begins at a line, without long constants."""
    for line in lines[begin + 1 :]:
        if len(line) < _LONG_LINE:
            if "func.func @" in line or line.startswith("  hal.executable"):
                return
            yield line


def _is_never_vectors(line: str) -> bool:
    """Whether a line handles what cannot be loaded and stored as vectors of four words: narrow elements, or a
    part of rows that does not begin at one. The compiler does so all the same."""
    if _NARROW.search(line):
        return True
    found = _SLICE.search(line)
    if found is None or found["size"] == found["extent"]:
        return False
    return any(not text.isdigit() or int(text) % 4 != 0 for text in (found["offset"], found["extent"]))


def _refuse_floats(name: str, body: Sequence[str]) -> None:
    for line in body:
        if found := _OTHER_FLOAT.search(line):
            raise CompileError(
                f"kernel {name} handles elements of type {found['element']}, which the compiler has no right "
                "form of for WebGPU: use a model that computes with f32"
            )


def _races(body: Sequence[str]) -> bool:
    """Whether a kernel has loops that the compiler gives to invocations in different orders, and no barrier.

    It does where a result is filled and windows are added to it. Axes of all loops are given out by their
    place, as many as the tiles have: what one loop makes and another takes has to have these axes first, and
    in the same order.
    """
    if any("iree_linalg_ext.fft" in line for line in body):
        # Its butterflies are in place, and every invocation does all of a workgroup's.
        return True
    if any("linalg.fill" in line for line in body) and any(_WINDOWS.search(line) for line in body):
        return True
    loops = [(found, line) for line in body if (found := _LOOP.match(line))]
    made = {found["name"] for found, _ in loops}
    taken = {name for found, _ in loops for name in _operands(found)} & made
    tiled = max((_tiled_axes(found["first"]) for line in body if (found := _TILES.search(line))), default=0)
    return any(
        not _is_in_order(axes, tiled)
        for found, line in loops
        for name, axes, is_result in _uses(found, line)
        if name in made or (is_result and found["name"] in taken)
    )


def _operands(loop: re.Match[str]) -> list[str]:
    """Values that a loop reads, then those that it begins its results with."""
    listed = f"{loop['ins'] or ''},{loop['outs']}".split(",")
    return [name.strip().partition("#")[0] for name in listed if name.strip()]


def _uses(loop: re.Match[str], line: str) -> Iterator[tuple[str, str, bool]]:
    """Operands of a loop: name, axes of the loop that index it, and whether it is a result."""
    names = _operands(loop)
    results = loop["outs"].count(",") + 1
    rank = loop["dims"].count("x")
    maps = [found["axes"] for found in _MAP.finditer(line)] if loop["kind"] == "generic" else []
    plain = ", ".join(f"d{axis}" for axis in range(rank))
    for index, name in enumerate(names):
        is_result = index >= len(names) - results
        if maps:
            yield name, maps[index], is_result
        elif is_result or loop["kind"] not in _ROWWISE:
            yield name, plain if is_result else "", is_result


def _tiled_axes(sizes: str) -> int:
    """How many axes are given to workgroups: up to the last whose tile is not zero."""
    tiles = [int(size) for size in sizes.split(",") if size.strip()]
    return max((axis + 1 for axis, size in enumerate(tiles) if size), default=0)


def _is_in_order(axes: str, tiled: int) -> bool:
    names = [axis.strip() for axis in axes.split(",") if axis.strip()]
    return len(names) >= tiled and all(name == f"d{axis}" for axis, name in enumerate(names))


@dataclasses.dataclass(kw_only=True)
class Stages:
    """The stages of a compile for WebGPU, and the repairs between them.

    Args:
        workspace: where files of the stages go.
        run: runs iree-compile: input, name of the output, flags.
        parameters: the file with external parameters, if there is one.
    """

    workspace: Path
    run: Callable[[Path, str, Sequence[str]], None]
    parameters: Path | None

    def compile(self, source: Path, output: str, *, flags: Sequence[str], device: str) -> None:
        """Compile ``source`` to ``output`` in the workspace.

        Raises:
            CompileError: the compiler refuses it, or it cannot be right on WebGPU.
        """
        text = self._text(source, "imported.mlir", ("--compile-to=abi", *flags))
        if uses_wide_integers(text):
            text = check_constants(inline_wide_parameters(text, self._read_parameter))
            self._write("wide.mlir", text)
            narrowing = ("--compile-to=input", "--iree-input-demote-i64-to-i32", *flags)
            text = self._text(Path("wide.mlir"), "demoted.mlir", narrowing)
            self._write("narrow.mlir", narrow_signature(mark_narrowed(text)))
            source = Path("narrow.mlir")
        target = (f"--iree-hal-target-device={device}", *LAYOUT_FLAGS, *flags)
        text = self._text(source, "configured.mlir", (f"--compile-to={STAGE}", *target))
        self._write("scalar.mlir", repair_kernels(text))
        self.run(Path("scalar.mlir"), output, (f"--compile-from={STAGE}", *target))

    def _text(self, source: Path, name: str, flags: Sequence[str]) -> str:
        self.run(source, name, flags)
        return (self.workspace / name).read_text(encoding="utf-8")

    def _write(self, name: str, text: str) -> None:
        (self.workspace / name).write_text(text, encoding="utf-8")

    def _read_parameter(self, scope: str, key: str) -> bytes:
        if self.parameters is None:
            raise CompileError(
                f"parameter {scope}::{key} is a 64-bit integer, which WebGPU does not have, and its file is "
                "not known when compiling: use external_parameters=True or False"
            )
        with ParameterFile.open(self.parameters) as file, read_archive(file) as index:
            return index.lookup(key).read()
