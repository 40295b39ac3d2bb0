"""The disassembler: a module as text, in the notation of ``iree-dump-module --output=disassembly``.

Registers print as ``%i0`` (value), ``%i0:1`` (64-bit value), ``%r0`` (reference) and ``%R0``
(reference that is moved out of its register). Lists of registers do not show 64-bit pairs, because
the encoding does not say which they are. The text of an operation follows from its encoding through
one template; encodings without a template print as ``result = vm.name operand, operand``.

Differences from the tool are listed in ``docs/vmfb.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidArgumentError
from .bytecode import Branch, FunctionRef, Instruction, Reg, decode_function
from .calling_convention import Span
from .isa import Field, FieldKind, ValueType
from .module import FunctionDef, ModuleDef

__all__ = ["disassemble", "disassemble_function"]

_TEMPLATES: Mapping[str, str] = {
    "zero": "{result} = {op}",
    "const_ref_zero": "{result} = {op}",
    "global_load": "{result} = {op} .rwdata[{global}]",
    "global_store": "{op} {value}, .rwdata[{global}]",
    "global_load_indirect": "{result} = {op} .rwdata[{global}]",
    "global_store_indirect": "{op} {value}, .rwdata[{global}]",
    "global_load_ref": "{result} = {op} .refs[{global}] : {type}",
    "global_store_ref": "{op} {value}, .refs[{global}] : {type}",
    "global_load_indirect_ref": "{result} = {op} .refs[{global}] : {type}",
    "global_store_indirect_ref": "{op} {value}, .refs[{global}] : {type}",
    "list_alloc": "{result} = {op} {capacity} : !vm.list<{type}>",
    "list_get_ref": "{result} = {op} {list}, {index} : {type}",
    "select": "{result} = {op} {condition} ? {true_value} : {false_value}",
    "select_ref": "{result} = {op} {condition} ? {true_value} : {false_value} -> {type}",
    "switch": "{result} = {op} {index}[{values}] else {default}",
    "switch_ref": "{result} = {op} {index}[{values}] else {default} : {type}",
    "cast_any_ref": "{result} = {op} {operand} : !vm.ref<?> -> {type}",
    "buffer_store": "{op} {value}, {buffer}, {offset}",
    "branch_table": "{op} {index} {{ default: {default}{cases} }}",
    "call": "{results}{op} @{callee}({operands})",
    "call_variadic": "{results}{op} @{callee} segments[{segments}]({operands})",
    "call_yieldable": "{op} @{callee}({operands}) -> {target}({results})",
    "call_variadic_yieldable": "{op} @{callee} segments[{segments}]({operands}) -> {target}({results})",
    "fail": '{op} {status}, "{message}"',
    "import_resolved": "{result} = {op} @{callee}",
    "trace": '{op} "{message}"({operands})',
}
_YIELDABLE = frozenset({"call_yieldable", "call_variadic_yieldable"})


def disassemble(module: ModuleDef, *, rodata: Callable[[int], memoryview] | None = None) -> str:
    """The whole module as text.

    Args:
        module: the module.
        rodata: gives a data segment, to print its bytes (`Archive.rodata`); segments are left out
            without it.

    Raises:
        FormatError: the bytecode is malformed.
    """
    lines = [f"vm.module @{module.name} version {module.version}", *_directives(module, rodata)]
    for function in module.functions:
        lines.append("")
        lines.extend(_function_lines(module, function, show_offsets=False))
    return "\n".join(lines) + "\n"


def disassemble_function(module: ModuleDef, ordinal: int, *, show_offsets: bool = False) -> str:
    """One function as text, with the pc before each line if ``show_offsets``.

    Raises:
        InvalidArgumentError: there is no such function.
        FormatError: the bytecode is malformed.
    """
    if not 0 <= ordinal < len(module.functions):
        raise InvalidArgumentError(f"no function {ordinal}: the module has {len(module.functions)}")
    lines = _function_lines(module, module.functions[ordinal], show_offsets=show_offsets)
    return "\n".join(lines) + "\n"


def _directives(module: ModuleDef, rodata: Callable[[int], memoryview] | None) -> Iterator[str]:
    for name in module.types:
        yield f"vm.type {name}"
    for function in module.imports:
        optional = "optional " if function.is_optional else ""
        convention = f"0{function.calling_convention}" if function.calling_convention else ""
        yield f'vm.import {optional}@{function.full_name} cconv "{convention}"'
    if rodata is not None:
        for segment in module.rodata:
            yield f"vm.rodata[{segment.ordinal}] = {rodata(segment.ordinal).hex().upper()}"


def _function_lines(module: ModuleDef, function: FunctionDef, *, show_offsets: bool) -> Iterator[str]:
    # The tool takes the debug database's word, even where the compiler filled it in wrongly.
    debugged = module.debug.function_name(function.ordinal) if module.debug else None
    name = debugged or function.name or f"fn{function.ordinal}"
    for export in module.exports:
        if export.ordinal == function.ordinal:
            yield f"vm.export @{export.name}" + ("" if export.name == name else f" = @{name}")
    yield f"vm.func @{name}({_arguments(function)}) -> ({_results(function)}) {{"
    writer = _Writer(module)
    for index, block in enumerate(decode_function(module, function.ordinal).blocks):
        yield (f"[{block.pc:08X}]" if show_offsets else "") + f"^bb{index}:"
        for instruction in block.instructions:
            yield (f"[{instruction.pc:08X}]" if show_offsets else "") + "  " + writer.text(instruction)
    yield "}"


def _type_name(value_type: ValueType) -> str:
    return "!vm.ref<?>" if value_type is ValueType.REF else value_type.value


def _arguments(function: FunctionDef) -> str:
    """Arguments with registers numbered as the tool does, which skips no register for alignment."""
    texts: list[str] = []
    values = references = 0
    for argument in function.signature.arguments:
        if isinstance(argument, Span):
            texts.append("...")
        elif argument is ValueType.REF:
            texts.append(f"%r{references}: {_type_name(argument)}")
            references += 1
        elif argument.is_wide:
            texts.append(f"%i{values}:{values + 1}: {_type_name(argument)}")
            values += 2
        else:
            texts.append(f"%i{values}: {_type_name(argument)}")
            values += 1
    return ", ".join(texts)


def _results(function: FunctionDef) -> str:
    return ", ".join(_type_name(result) for result in function.signature.results)


class _Writer:
    """Formats instructions of one module."""

    def __init__(self, module: ModuleDef) -> None:
        self.module = module

    def text(self, instruction: Instruction) -> str:
        op = instruction.op
        if op.encoding == "constant":
            return self.constant(instruction)
        parts = {
            field.name: self.value(field, value)
            for field, value in zip(op.fields, instruction.values, strict=True)
        }
        name = f"vm.{op.name}"
        if op.encoding == "const_ref_rodata":
            size = self.module.rodata[instruction["rodata"]].byte_length
            return f"{parts['result']} = {name} {parts['rodata']}  // {size}b"
        if "results" in parts and op.encoding not in _YIELDABLE:
            parts["results"] += " = " if parts["results"] else ""
        template = _TEMPLATES.get(op.encoding)
        if template is not None:
            return template.format_map({"op": name, **parts})
        result = parts.pop("result", None)
        operands = " ".join([name, ", ".join(parts.values())]).rstrip()
        return operands if result is None else f"{result} = {operands}"

    def constant(self, instruction: Instruction) -> str:
        value, result = instruction.values
        value_type = instruction.op.types[0]
        if value_type is ValueType.F32:
            literal = _float(value, 9)
        elif value_type is ValueType.F64:
            literal = _float(value, 17)
        else:
            bits = 64 if value_type.is_wide else 32
            literal = f"{value}  // 0x{value & ((1 << bits) - 1):0{bits // 4}X}"
        return f"{_register(result)} = vm.{instruction.op.name} {literal}"

    def value(self, field: Field, value: Any) -> str:
        format_value = _FORMATS.get(field.kind)
        return str(value) if format_value is None else format_value(self, value)

    def registers(self, registers: Sequence[Reg]) -> str:
        return ", ".join([_short_register(register) for register in registers])

    def type(self, ordinal: int) -> str:
        return self.module.types[ordinal]

    def function(self, callee: FunctionRef) -> str:
        """A callee by the name it has itself: exported names of internal functions do not count."""
        if callee.is_import:
            return self.module.imports[callee.ordinal].full_name
        debug = self.module.debug
        name = debug.function_name(callee.ordinal) if debug else None
        return f"{self.module.name}.{name}" if name else f"{self.module.name}:{callee.ordinal}"

    def segments(self, counts: Sequence[int]) -> str:
        return ", ".join(str(count & 0xFFFF) for count in counts)

    def branch(self, branch: Branch) -> str:
        pairs = ", ".join(
            f"{_short_register(source)}->{_short_register(target)}" for source, target in branch.remaps
        )
        return f"^bb{branch.block}({pairs})"

    def target(self, branch: Branch) -> str:
        return f"^bb{branch.block}"

    def cases(self, branches: Sequence[Branch]) -> str:
        return "".join(f", {index}: {self.branch(branch)}" for index, branch in enumerate(branches))

    def register(self, register: Reg) -> str:
        return _register(register)


def _short_register(register: Reg) -> str:
    if register.bank is ValueType.REF:
        return f"%{'R' if register.is_move else 'r'}{register.index}"
    return f"%i{register.index}"


def _register(register: Reg) -> str:
    if register.bank.is_wide:
        return f"%i{register.index}:{register.index + 1}"
    return _short_register(register)


def _float(value: float, digits: int) -> str:
    """A float as C's ``%.<digits>g`` prints it."""
    if math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.{digits}g}"


_FORMATS: Mapping[FieldKind, Callable[[_Writer, Any], str]] = {
    FieldKind.REGISTER: _Writer.register,
    FieldKind.TYPE: _Writer.type,
    FieldKind.FUNCTION: _Writer.function,
    FieldKind.OPERANDS: _Writer.registers,
    FieldKind.RESULTS: _Writer.registers,
    FieldKind.SEGMENTS: _Writer.segments,
    FieldKind.BRANCH: _Writer.branch,
    FieldKind.TARGET: _Writer.target,
    FieldKind.CASES: _Writer.cases,
}
