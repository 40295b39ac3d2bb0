"""Fusing multiplications with the additions behind them, in modules whose compiler allowed it.

``a * b + c`` on vectors becomes ``relaxed_madd(a, b, c)``, ``c - a * b`` becomes ``relaxed_nmadd(a, b, c)``:
half the instructions, one rounding less where the machine fuses. LLVM does the same for targets with relaxed
SIMD; done here it needs no second build of a module for engines without.

Nothing is removed and nothing is reordered. Both factors of a multiplication are kept in new locals, and the
addition that gets the product, be it from the stack or from a local, drops it and works on the factors. That
the addition gets *this* product is known by walking straight-line code with a model of the stack and the
locals, which forgets everything where control may arrive from elsewhere. A product nobody uses any more is
pure arithmetic, which optimizing engines leave out; one that has further uses stays.

A module says that it allows this by a custom section, see `ALLOWED_SECTION`; `sylvite.compile` has it
written by the linker.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from .instructions import INSTRUCTIONS, Instruction, encode_instruction
from .leb import encode_unsigned
from .module import MAXIMUM_LOCALS, FunctionBody, Module
from .types import ExternKind, ValueType

__all__ = ["ALLOWED_SECTION", "VERSION", "allows_contraction", "contract"]

ALLOWED_SECTION = "sylvite.contraction"
"""Custom section of modules whose vector multiplications and additions may be fused; its contents are empty
or whatever a linker makes of several."""

VERSION = 1
"""Raised when `contract` comes to other results: compiled code is cached under it."""

_SHAPES = ("f32x4", "f64x2")
_MULTIPLICATIONS = {f"{shape}.mul": shape for shape in _SHAPES}
_SUMS = {f"{shape}.{operation}": shape for shape in _SHAPES for operation in ("add", "sub")}
_OPCODES = tuple(INSTRUCTIONS[name].opcode_bytes for name in _MULTIPLICATIONS)

_KEEPING = frozenset(("nop", "drop", "select", "select_t", "local.get", "local.set", "local.tee"))
_FORGETTING = frozenset(
    ("block", "loop", "if", "else", "end", "br", "br_table", "return", "unreachable", "try_table")
)


def allows_contraction(module: Module) -> bool:
    """Whether the module has the section that allows it."""
    return module.custom(ALLOWED_SECTION) is not None


def contract(module: Module) -> Module:
    """The module with its additions fused; the same object when it does not allow that or has none."""
    if not allows_contraction(module):
        return module
    first = module.imported_count(ExternKind.FUNCTION)
    arities = _Arities(module)
    code = tuple(
        _contracted(body, len(module.function_type(index).parameters), arities, f"function {index}")
        for index, body in enumerate(module.code, first)
    )
    changed = any(new is not old for new, old in zip(code, module.code, strict=True))
    return dataclasses.replace(module, code=code) if changed else module


class _Arities:
    """How many operands instructions take and leave."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def of(self, instruction: Instruction) -> tuple[int, int] | None:
        """Operands taken and left; ``None`` where that is not known."""
        name, immediates = instruction.name, instruction.immediates
        if name == "call":
            function_type = self._module.function_type(immediates[0])
        elif name == "call_indirect":
            function_type = self._module.types[immediates[0]]
            return len(function_type.parameters) + 1, len(function_type.results)
        else:
            return _fixed_arity(name)
        return len(function_type.parameters), len(function_type.results)


@functools.cache
def _fixed_arity(name: str) -> tuple[int, int] | None:
    context_dependent = {"global.get": (0, 1), "global.set": (1, 0), "br_if": (1, 0)}
    if name in context_dependent:
        return context_dependent[name]
    signature = INSTRUCTIONS[name].signature
    return None if signature is None else (len(signature.pops), len(signature.pushes))


@dataclasses.dataclass(frozen=True, slots=True)
class _Product:
    """The product of the multiplication at ``position`` in the list of instructions."""

    position: int
    shape: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Fusion:
    """The sum at ``position`` uses ``product``, which is its upper operand or its lower one."""

    position: int
    product: _Product
    is_upper: bool
    negated: bool


class _Walk:
    """A walk over straight-line code that knows which values are products."""

    def __init__(self, arities: _Arities) -> None:
        self._arities = arities
        self._forget()

    def _forget(self) -> None:
        # Whatever lies below the known part of the stack is unknown, and no product.
        self._stack: list[_Product | None] = []
        self._locals: dict[int, _Product] = {}

    def fusions(self, instructions: list[Instruction]) -> Iterator[_Fusion]:
        """What can be fused, in order."""
        for position, instruction in enumerate(instructions):
            name = instruction.name
            if name in _MULTIPLICATIONS:
                self._pop(2)
                self._stack.append(_Product(position, _MULTIPLICATIONS[name]))
            elif name in _SUMS:
                fusion = self._sum(position, name)
                if fusion is not None:
                    yield fusion
            elif name in _KEEPING:
                self._move(name, instruction.immediates)
            else:
                self._other(instruction)

    def _pop(self, count: int = 1) -> _Product | None:
        value = None
        for _ in range(count):
            value = self._stack.pop() if self._stack else None
        return value

    def _sum(self, position: int, name: str) -> _Fusion | None:
        upper, lower = self._pop(), self._pop()
        self._stack.append(None)
        negated = name.endswith(".sub")
        if upper is not None and upper.shape == _SUMS[name]:
            return _Fusion(position, upper, is_upper=True, negated=negated)
        if lower is not None and lower.shape == _SUMS[name] and not negated:
            return _Fusion(position, lower, is_upper=False, negated=False)
        return None

    def _move(self, name: str, immediates: tuple[Any, ...]) -> None:
        if name == "local.get":
            self._stack.append(self._locals.get(immediates[0]))
        elif name in ("local.set", "local.tee"):
            value = self._pop()
            if name == "local.tee":
                self._stack.append(value)
            if value is None:
                self._locals.pop(immediates[0], None)
            else:
                self._locals[immediates[0]] = value
        elif name == "drop":
            self._pop()
        elif name != "nop":
            self._pop(3)
            self._stack.append(None)

    def _other(self, instruction: Instruction) -> None:
        arity = None if instruction.name in _FORGETTING else self._arities.of(instruction)
        if arity is None:
            self._forget()
            return
        self._pop(arity[0])
        self._stack.extend([None] * arity[1])


def _contracted(body: FunctionBody, parameters: int, arities: _Arities, where: str) -> FunctionBody:
    runs, code, _ = body.split(where=where)
    if not any(opcode in code for opcode in _OPCODES):
        return body
    instructions = body.instructions(where=where)
    fusions = list(_Walk(arities).fusions(instructions))
    first = parameters + sum(run.count for run in runs)
    room = (MAXIMUM_LOCALS - first - 1) // 2
    multiplied = list(dict.fromkeys(fusion.product.position for fusion in fusions))
    kept = {position: number for number, position in enumerate(multiplied[: max(room, 0)])}
    fusions = [fusion for fusion in fusions if fusion.product.position in kept]
    if not fusions:
        return body
    writer = _Writer(code, instructions, first)
    sums = {fusion.position: fusion for fusion in fusions}
    for position in sorted([*kept, *sums]):
        if position in kept:
            writer.keep_factors(position, kept[position])
        else:
            fusion = sums[position]
            writer.fuse(fusion, kept[fusion.product.position])
    added = encode_unsigned(1 + 2 * len(kept)) + bytes((ValueType.V128,))
    declared = b"".join(encode_unsigned(run.count) + bytes((run.type,)) for run in runs)
    return FunctionBody(data=encode_unsigned(len(runs) + 1) + declared + added + writer.finish())


class _Writer:
    """Copies code with insertions; ``first`` is the first of the new locals: a spare one, then pairs."""

    def __init__(self, code: bytes, instructions: list[Instruction], first: int) -> None:
        self._code, self._instructions, self._first = code, instructions, first
        self._pieces: list[bytes] = []
        self._copied = 0

    def _factors(self, number: int) -> tuple[int, int]:
        left = self._first + 1 + 2 * number
        return left, left + 1

    def _emit(self, *instructions: tuple[str, int] | tuple[str]) -> None:
        for name, *immediates in instructions:
            self._pieces.append(encode_instruction(name, tuple(immediates)))

    def _copy_up_to(self, position: int) -> None:
        offset = self._instructions[position].offset
        self._pieces.append(self._code[self._copied : offset])
        self._copied = offset

    def keep_factors(self, position: int, number: int) -> None:
        """Keep both factors of a multiplication in locals before it."""
        left, right = self._factors(number)
        self._copy_up_to(position)
        self._emit(("local.set", right), ("local.tee", left), ("local.get", right))

    def fuse(self, fusion: _Fusion, number: int) -> None:
        """Replace a sum by the operation on the factors."""
        self._copy_up_to(fusion.position)
        self._copied = self._instructions[fusion.position + 1].offset
        spare = self._first
        if fusion.is_upper:
            self._emit(("drop",), ("local.set", spare))
        else:
            self._emit(("local.set", spare), ("drop",))
        left, right = self._factors(number)
        operation = "relaxed_nmadd" if fusion.negated else "relaxed_madd"
        self._emit(
            ("local.get", left),
            ("local.get", right),
            ("local.get", spare),
            (f"{fusion.product.shape}.{operation}",),
        )

    def finish(self) -> bytes:
        """The rewritten code."""
        return b"".join((*self._pieces, self._code[self._copied :]))
