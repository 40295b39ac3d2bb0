"""Printing modules as text that `sylvite.spirv.assemble` reads again.

One instruction a line, as ``spirv-as`` and ``spirv-dis`` write it, ids as numbers: ``%3 = OpTypeInt 32 0``.
"""

from __future__ import annotations

import struct

from .grammar import ID_KINDS, enum_kinds, extended_instructions, instructions
from .module import Instruction, Module

__all__ = ["disassemble"]


def disassemble(module: Module) -> str:
    """The module's text: header comments, then one instruction a line."""
    lines = [
        "; SPIR-V",
        f"; Version: {module.version[0]}.{module.version[1]}",
        f"; Generator: {module.generator:#x}",
        f"; Bound: {module.bound}",
    ]
    lines += [_line(instruction, module) for instruction in module.instructions]
    return "\n".join(lines) + "\n"


def _line(instruction: Instruction, module: Module) -> str:
    words = [instruction.name]
    if instruction.type_id:
        words.append(f"%{instruction.type_id}")
    imported = None
    for operand, kind in zip(instruction.operands, instruction.kinds, strict=True):
        if kind == "LiteralExtInstInteger" and module.imports.get(imported or 0) == "GLSL.std.450":
            info = extended_instructions().get(int(operand))
            words.append(info.name if info else str(operand))
            continue
        if kind == "LiteralContextDependentNumber":
            words.append(_number(int(operand), instruction, module))
        else:
            words.append(_operand(operand, kind))
        if kind == "IdRef" and isinstance(operand, int) and imported is None:
            imported = operand
    text = " ".join(words)
    return f"%{instruction.result_id} = {text}" if instruction.result_id else text


def _number(bits: int, instruction: Instruction, module: Module) -> str:
    type_ = module.definitions.get(instruction.type_id)
    if type_ is None or type_.name != "OpTypeFloat":
        return str(bits)
    code = {16: "<e", 32: "<f", 64: "<d"}.get(type_.number(0))
    if code is not None:
        size = struct.calcsize(code)
        (number,) = struct.unpack(code, (bits & (1 << 8 * size) - 1).to_bytes(size, "little"))
        text = f"{number:.17g}"
        if struct.pack(code, float(text)) == bits.to_bytes(8, "little")[:size] and "n" not in text:
            return text
    return f"!{bits:#x}"


def _operand(operand: int | str, kind: str) -> str:
    if isinstance(operand, str):
        escaped = operand.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if kind in ID_KINDS:
        return f"%{operand}"
    if kind == "LiteralSpecConstantOpInteger":
        return instructions()[operand].name[2:]
    table = enum_kinds().get(kind)
    if table is None:
        return str(operand)
    if not table.is_bits:
        return table.names.get(operand, str(operand))
    if operand == 0:
        return table.names.get(0, "0")
    bits = [1 << bit for bit in range(32) if operand >> bit & 1]
    return "|".join(table.names.get(bit, str(bit)) for bit in bits)
