"""Writing what invocations do together: atomics, barriers, subgroup operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ..spirv import Instruction
from . import places
from .phrases import argument, mismatch, named_result, operands, seen
from .subgroups import ARITHMETIC, EXCHANGES, SCANS
from .types import Type
from .values import integer_literal

if TYPE_CHECKING:
    from .function import FunctionWriter

__all__ = ["SYNCHRONIZATION"]

UNIFORM_MEMORY: Final = 0x40
SCOPE_WORKGROUP: Final = 2

ATOMICS: Final = {
    "OpAtomicExchange": "atomicExchange",
    "OpAtomicIAdd": "atomicAdd",
    "OpAtomicISub": "atomicSub",
    "OpAtomicSMin": "atomicMin",
    "OpAtomicUMin": "atomicMin",
    "OpAtomicSMax": "atomicMax",
    "OpAtomicUMax": "atomicMax",
    "OpAtomicAnd": "atomicAnd",
    "OpAtomicOr": "atomicOr",
    "OpAtomicXor": "atomicXor",
}


def _atomic_place(writer: FunctionWriter, instruction: Instruction) -> tuple[str, Type]:
    place = places.resolve(writer, instruction.number(0), instruction)
    if not place.is_atomic or place.atomic_type is None or place.type.lanes != 1:
        raise writer.scope.refuse(instruction, f"an atomic operation in {place.storage} memory")
    if place.type.kind not in ("u32", "i32"):
        raise writer.scope.refuse(instruction, f"an atomic operation on {place.type.wgsl}")
    text = f"{place.buffer.name}[{place.text}]" if place.buffer is not None else place.text
    return text, place.atomic_type


def _atomic(writer: FunctionWriter, instruction: Instruction) -> None:
    text, type = _atomic_place(writer, instruction)
    name = instruction.name
    if name in ("OpAtomicIIncrement", "OpAtomicIDecrement"):
        called = "atomicAdd" if name == "OpAtomicIIncrement" else "atomicSub"
        word = integer_literal(type.kind, 1)
    else:
        called = ATOMICS[name]
        word = writer.cast(writer.value(instruction.number(3), instruction), type.kind)
    writer.flush()
    call = f"{called}(&{text}, {word.text})"
    if writer.uses.count.get(instruction.result_id):
        named_result(writer, instruction, call, type)
    else:
        writer.statement(f"{call};")


def _atomic_load(writer: FunctionWriter, instruction: Instruction) -> None:
    text, type = _atomic_place(writer, instruction)
    named_result(writer, instruction, f"atomicLoad(&{text})", type)


def _atomic_store(writer: FunctionWriter, instruction: Instruction) -> None:
    text, type = _atomic_place(writer, instruction)
    word = writer.cast(writer.value(instruction.number(3), instruction), type.kind)
    writer.flush()
    writer.statement(f"atomicStore(&{text}, {word.text});")


def _compare_exchange(writer: FunctionWriter, instruction: Instruction) -> None:
    text, type = _atomic_place(writer, instruction)
    new = writer.named(writer.cast(writer.value(instruction.number(4), instruction), type.kind))
    old = writer.named(writer.cast(writer.value(instruction.number(5), instruction), type.kind))
    writer.flush()
    writer.counter += 1
    name = f"s{writer.counter}"
    # WGSL's may fail without reason: then what was there is what was expected.
    writer.statement(f"var {name}: {type.wgsl};")
    writer.statement("loop {")
    writer.statement(f"  let attempt = atomicCompareExchangeWeak(&{text}, {old.text}, {new.text});")
    writer.statement(f"  {name} = attempt.old_value;")
    writer.statement(f"  if (attempt.exchanged || {name} != {old.text}) {{ break; }}")
    writer.statement("}")
    named_result(writer, instruction, name, type)


def _barrier(writer: FunctionWriter, instruction: Instruction) -> None:
    scopes = [writer.scope.constants.number(number) for number in instruction.numbers()]
    execution, memory, semantics = scopes
    if execution is None or memory is None or semantics is None:
        raise writer.scope.refuse(instruction, "its scopes are not constants")
    if execution != SCOPE_WORKGROUP:
        raise writer.scope.refuse(instruction, f"scope {execution}")
    writer.flush()
    writer.statement("workgroupBarrier();")
    if semantics & UNIFORM_MEMORY:
        writer.statement("storageBarrier();")


def _exchange(writer: FunctionWriter, instruction: Instruction) -> None:
    writer.scope.need_subgroups(instruction)
    name, count = EXCHANGES[instruction.name]
    parts = operands(writer, instruction, 1)
    if len(parts) != count:
        raise mismatch(writer, instruction, f"{len(parts)} operands, not {count}")
    parts = [*parts[:1], *(writer.cast(part, "u32") for part in parts[1:])]
    text = f"{name}({', '.join(argument(part) for part in parts)})"
    type = writer.type_of(instruction)
    if count and name not in ("subgroupBallot",) and parts[0].type.wgsl != type.wgsl:
        raise mismatch(writer, instruction, f"gives {parts[0].type.wgsl}, not {type.wgsl}")
    named_result(writer, instruction, text, type)


def _group_arithmetic(writer: FunctionWriter, instruction: Instruction) -> None:
    writer.scope.need_subgroups(instruction)
    name, domain = ARITHMETIC[instruction.name]
    scan = SCANS.get(instruction.number(1))
    if scan is None or (scan and name not in ("Add", "Mul")):
        raise writer.scope.refuse(instruction, f"group operation {instruction.number(1)}")
    result = writer.type_of(instruction)
    part = seen(writer, writer.value(instruction.number(2), instruction), domain, result)
    if part.type.lanes != result.lanes:
        raise mismatch(writer, instruction, f"gives {part.type.wgsl}, not {result.wgsl}")
    named_result(writer, instruction, f"subgroup{scan}{name}({part.text})", part.type)


SYNCHRONIZATION: Final[Mapping[str, Callable[[FunctionWriter, Instruction], None]]] = {
    **dict.fromkeys(ATOMICS, _atomic),
    **dict.fromkeys(EXCHANGES, _exchange),
    **dict.fromkeys(ARITHMETIC, _group_arithmetic),
    "OpAtomicIIncrement": _atomic,
    "OpAtomicIDecrement": _atomic,
    "OpAtomicLoad": _atomic_load,
    "OpAtomicStore": _atomic_store,
    "OpAtomicCompareExchange": _compare_exchange,
    "OpControlBarrier": _barrier,
}
"""How each opcode is written."""
