"""Softmax of rows, left to a kernel of the runtime.

The compiler's own code takes every exponential twice and calls out for every maximum (see
`sylvite.kernels.softmax`). Where an executable is nothing but the softmax of an input along its last axis,
the three loops become one call of the kernel for each block of rows.

Source: the IR that iree-compile 3.13.0 prints at ``executable-configurations``.
"""

from __future__ import annotations

import re

from ..kernels import NAN_TO_ZERO, SOFTMAX_NAME

__all__ = ["call_softmax"]

_V = r"%[\w$#]+"
_ANY = r"[^\n]*"
_GENERIC = r"linalg\.generic \{indexing_maps = \[" + _ANY
_SOFTMAX = re.compile(
    rf" *(?P<maximum>{_V}) = {_GENERIC}ins\((?P<input>{_V}) : (?P<type>tensor<(?P<shape>[0-9x]+)xf32>)\) "
    rf"outs\({_V} : {_ANY}\n"
    rf" *\^bb0\({_ANY}\n *(?P<m>{_V}) = arith\.maxnumf {_ANY}\n *linalg\.yield (?P=m) : f32\n *\}}{_ANY}\n"
    rf" *(?P<zeros>{_V}) = linalg\.fill {_ANY}\n"
    rf" *(?P<sum>{_V}) = {_GENERIC}ins\((?P=input), (?P=maximum) : {_ANY}outs\((?P=zeros) : {_ANY}\n"
    rf" *\^bb0\((?P<x>{_V}): f32, (?P<top>{_V}): f32, (?P<out>{_V}): f32\):\n"
    rf" *(?P<d>{_V}) = arith\.subf (?P=x), (?P=top) : f32\n"
    rf" *(?P<e>{_V}) = math\.exp (?P=d) : f32\n"
    rf" *(?P<s>{_V}) = arith\.addf (?P=e), (?P=out) : f32\n"
    rf" *linalg\.yield (?P=s) : f32\n *\}}{_ANY}\n"
    rf"(?P<indent> *)(?P<result>{_V}) = {_GENERIC}"
    rf"ins\((?P=input), (?P=maximum), (?P=sum) : {_ANY}outs\((?P<empty>{_V}) : (?P=type)\) {_ANY}\n"
    rf" *\^bb0\((?P<x2>{_V}): f32, (?P<top2>{_V}): f32, (?P<sum2>{_V}): f32, {_V}: f32\):\n"
    rf" *(?P<d2>{_V}) = arith\.subf (?P=x2), (?P=top2) : f32\n"
    rf" *(?P<e2>{_V}) = math\.exp (?P=d2) : f32\n"
    rf" *(?P<q>{_V}) = arith\.divf (?P=e2), (?P=sum2) : f32\n"
    rf"(?: *(?P<nan>{_V}) = arith\.cmpf une, (?P=q), (?P=q) : f32\n"
    rf" *(?P<r>{_V}) = arith\.select (?P=nan), (?P<zero>{_V}), (?P=q) : f32\n"
    rf" *linalg\.yield (?P=r) : f32\n| *linalg\.yield (?P=q) : f32\n)"
    rf" *\}} -> (?P=type)\n"
)
_MAPS = re.compile(r"affine_map<\(([d0-9, ]*)\) -> \(([d0-9, ]*)\)>")
_PIPELINE = "#iree_cpu.pipeline<DoubleTilingExpert>"
_PLAIN_PIPELINE = "#iree_cpu.pipeline<Default>"

_BLOCK_ELEMENTS = 1 << 13
"""About how many elements one call takes: enough to be worth a dispatch, few enough to share."""


def call_softmax(block: str) -> str:
    """Let the executable in ``block`` call the kernel, if it is a softmax and nothing else."""
    softmax = _SOFTMAX.search(block)
    if softmax is None or not _is_alone(block, softmax):
        return block
    text = "".join(f"{softmax['indent']}{line}\n" for line in _call(softmax))
    changed = block[: softmax.start()] + text + block[softmax.end() :]
    return changed.replace(_PIPELINE, _PLAIN_PIPELINE)


def _is_alone(block: str, softmax: re.Match[str]) -> bool:
    """Whether rows are the last axis, the input is in memory, and the result goes there."""
    rank = softmax["shape"].count("x") + 1
    loops = ", ".join(f"d{axis}" for axis in range(rank))
    outer = loops.rpartition(", ")[0]
    maps = [f"({target})" for _, target in _MAPS.findall(softmax[0])]
    whole, row = f"({loops})", f"({outer})"
    zero = softmax["zero"]
    return (
        rank > 1
        and maps == [whole, row, whole, row, row, whole, row, row, whole]
        and block.count(_PIPELINE) == 1
        and block.count("linalg.generic") == 3
        and f"{softmax['input']} = iree_codegen.load_from_buffer " in block
        and f"iree_codegen.store_to_buffer {softmax['result']}, " in block
        and (zero is None or f"{zero} = arith.constant 0.000000e+00 : f32\n" in block)
    )


def _call(softmax: re.Match[str]) -> list[str]:
    """One call for each block of rows, handed out to workgroups."""
    extents = [int(extent) for extent in softmax["shape"].split("x")]
    *outer, rows, columns = extents
    most = max(1, _BLOCK_ELEMENTS // columns)
    step = max(size for size in range(1, min(rows, most) + 1) if rows % size == 0)
    block_shape = f"{step}x{columns}"
    # More than three loops do not fit the workgroups' three dimensions: the outermost stay inside one.
    loops = [*outer, rows]
    steps = [*(1 for _ in outer), step]
    names = [f"%softmax_i{axis}" for axis in range(len(loops))]
    ones = ", ".join("1" for _ in extents)
    sizes = ", ".join(["1"] * len(outer) + [str(step), str(columns)])
    where = f"[{', '.join(names)}, 0] [{sizes}] [{ones}]"
    whole, part = softmax["type"], f"tensor<{block_shape}xf32>"
    zeros = ", ".join("0" for _ in loops)
    flags = NAN_TO_ZERO if softmax["nan"] else 0
    return [
        f"%softmax_rows = arith.constant {step} : index",
        f"%softmax_columns = arith.constant {columns} : index",
        f"%softmax_flags = arith.constant {flags} : i32",
        f"{softmax['result']} = scf.forall ({', '.join(names)}) = ({zeros}) "
        f"to ({', '.join(map(str, loops))}) "
        f"step ({', '.join(map(str, steps))}) shared_outs(%softmax_all = {softmax['empty']}) -> ({whole}) {{",
        f"  %softmax_in = tensor.extract_slice {softmax['input']}{where} : {whole} to {part}",
        f"  %softmax_out = tensor.extract_slice %softmax_all{where} : {whole} to {part}",
        f'  %softmax_done = iree_codegen.ukernel.generic "{SOFTMAX_NAME}" ins(%softmax_in : {part}) '
        f"outs(%softmax_out : {part}) (%softmax_rows, %softmax_columns, %softmax_flags : index, index, i32) "
        f"fn_def_attrs {{hal.import.bitcode = true}} strided_dims([[0], [0]]) -> {part}",
        "  scf.forall.in_parallel {",
        f"    tensor.parallel_insert_slice %softmax_done into %softmax_all{where} : {part} into {whole}",
        "  }",
        f"}} {{mapping = [{', '.join(_mapping(len(loops)))}]}}",
    ]


def _mapping(count: int) -> list[str]:
    """Workgroup dimensions of loops, the innermost is x; those beyond three are named by the compiler."""
    names = ["x", "y", "z", *(f"z:{number}" for number in range(1, count))]
    return [f"#iree_codegen.workgroup_mapping<{name}>" for name in names[:count]][::-1]
