"""What writing one instruction shares: operands as they are read, results as they are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import FormatError
from ..spirv import Instruction
from .types import Type
from .values import Value

if TYPE_CHECKING:
    from .function import FunctionWriter

__all__ = ["argument", "finish", "mismatch", "named_result", "operands", "seen"]


def mismatch(writer: FunctionWriter, instruction: Instruction, what: str) -> FormatError:
    """An instruction whose operands do not fit it."""
    return FormatError(f"{instruction.name}: {what}", offset=instruction.offset, where=writer.module.where)


def operands(writer: FunctionWriter, instruction: Instruction, start: int = 0) -> list[Value]:
    """The values of an instruction's operands, from one of them on."""
    return [writer.value(number, instruction) for number in instruction.numbers(start)]


def seen(writer: FunctionWriter, value: Value, domain: str, result: Type) -> Value:
    """An operand in an operation's domain: "u" unsigned, "i" signed, "r" as the result."""
    if domain in ("u", "i"):
        return writer.cast(value, "u32" if domain == "u" else "i32")
    if domain == "r" and result.scalar in ("u32", "i32"):
        return writer.cast(value, result.scalar)
    return value


def finish(writer: FunctionWriter, instruction: Instruction, text: str, parts: list[Value], type: Type,
            is_atom: bool = True) -> None:  # fmt: skip
    """Define a result computed as ``type``, seen as the instruction's type."""
    reads = any(part.reads_memory for part in parts)
    wanted = writer.type_of(instruction)
    value = Value(text, type, is_atom, False, reads)
    if type.scalar in ("u32", "i32") and wanted.scalar in ("u32", "i32"):
        value = writer.cast(value, wanted.scalar)
    if value.type.wgsl != wanted.wgsl:
        raise mismatch(writer, instruction, f"gives {value.type.wgsl}, not {wanted.wgsl}")
    writer.define(instruction, value)


def argument(value: Value) -> str:
    """A value in a list of arguments: ``<`` and ``>`` of two of them could be taken for a template's."""
    return value.operand if value.type.scalar == "bool" else value.text


def named_result(writer: FunctionWriter, instruction: Instruction, text: str, type: Type) -> None:
    """Define the result of something with an effect: it is written now."""
    wanted = writer.type_of(instruction)
    value = writer.named(Value(text, type, True, False, True))
    if type.scalar in ("u32", "i32"):
        value = writer.cast(value, wanted.scalar)
    writer.define(instruction, value)
