"""The bytecode verifier: that what instructions refer to exists and fits.

Decoding has already established that the bytes are instructions in blocks and that branches lead to
blocks. Here, for every function: the block count; registers within the function's files, 64-bit
values in even registers; types, globals, data segments, imports and functions within their tables;
calls and returns in agreement with calling conventions; extensions only where they are required.

Register files have the size the native runtime gives them, the declared count rounded up to a power
of two: what it accepts here is accepted too.

Source: IREE ``runtime/src/iree/vm/bytecode/verifier.c`` (which rules hold).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import FormatError, UnsupportedFeatureError
from .bytecode import Branch, FunctionRef, Instruction, Reg, decode_function
from .calling_convention import CallingConvention, Span
from .isa import Field, FieldKind, ValueType
from .module import FunctionDef, ModuleDef

__all__ = ["verify"]

_PRIMITIVE_TYPES = frozenset({"i8", "i16", "i32", "i64", "f32", "f64"})
_VARIADIC_CALLS = frozenset({"call_variadic", "call_variadic_yieldable"})
_CALLS = _VARIADIC_CALLS | {"call", "call_yieldable"}


def verify(module: ModuleDef) -> None:
    """Verify every function of ``module``.

    Raises:
        FormatError: an instruction breaks a rule; the offset counts from the start of the file.
        UnsupportedFeatureError: a function uses an extension that it does not require.
    """
    for function in module.functions:
        _FunctionVerifier(module, function).verify()


def file_size(count: int) -> int:
    """Registers in a file of which a function declares ``count``."""
    return 1 << (max(count, 1) - 1).bit_length()


class _FunctionVerifier:
    def __init__(self, module: ModuleDef, function: FunctionDef) -> None:
        self.module = module
        self.function = function
        self.value_count = file_size(function.i32_register_count)
        self.ref_count = file_size(function.ref_register_count)
        self.instruction: Instruction | None = None
        self.where = f"function {function.name or function.ordinal} of {module.where}"

    def error(self, message: str) -> FormatError:
        instruction = self.instruction
        pc = instruction.pc if instruction else 0
        prefix = f"{instruction.op.name}: " if instruction else ""
        return FormatError(prefix + message, offset=self.file_offset(pc), where=self.where)

    def file_offset(self, pc: int) -> int:
        return self.module.bytecode_file_offset + self.function.bytecode_offset + pc

    def verify(self) -> None:
        self.check_arguments()
        decoded = decode_function(self.module, self.function.ordinal)
        if len(decoded.blocks) != self.function.block_count:
            raise self.error(f"{len(decoded.blocks)} blocks, {self.function.block_count} are declared")
        for block in decoded.blocks:
            for instruction in block.instructions:
                self.check_instruction(instruction)

    def check_arguments(self) -> None:
        """Arguments must have registers to arrive in."""
        values = references = 0
        for argument in self.function.signature.arguments:
            if isinstance(argument, Span):
                raise self.error("internal functions cannot take variadic arguments")
            if argument is ValueType.REF:
                references += 1
            elif argument.is_wide:
                values += (values & 1) + 2
            else:
                values += 1
        if values > self.value_count or references > self.ref_count:
            raise self.error(
                f"arguments need {values} value and {references} reference registers, there are "
                f"{self.value_count} and {self.ref_count}"
            )

    def check_instruction(self, instruction: Instruction) -> None:
        self.instruction = instruction
        op = instruction.op
        if op.feature & ~self.function.requirements:
            raise UnsupportedFeatureError(
                f"{op.name}: the function does not require {op.feature.name}",
                offset=self.file_offset(instruction.pc),
                where=self.where,
            )
        for field, value in zip(op.fields, instruction.values, strict=True):
            check = _CHECKS.get(field.kind)
            if check is not None:
                check(self, field, value)
        if op.encoding in _CALLS:
            self.check_call(instruction)
        elif op.encoding == "return":
            self.check_registers("results", self.function.signature.results, instruction["operands"])

    # One check per field kind that refers to something.

    def check_register(self, field: Field, register: Reg) -> None:
        self.check_typed(field.name, register, register.bank)

    def check_typed(self, what: str, register: Reg, value_type: ValueType) -> None:
        """Check that ``register`` can hold a ``value_type``."""
        index = register.index
        if (register.bank is ValueType.REF) != (value_type is ValueType.REF):
            raise self.error(f"{what} is {value_type.value} but its register is of the other file")
        if value_type is ValueType.REF:
            if index >= self.ref_count:
                raise self.error(f"{what} names reference register {index} of {self.ref_count}")
            return
        if value_type.is_wide and index & 1:
            raise self.error(f"{what} is {value_type.value} in odd register {index}")
        if index + value_type.is_wide >= self.value_count:
            raise self.error(f"{what} names value register {index} of {self.value_count}")

    def check_list(self, field: Field, registers: Sequence[Reg]) -> None:
        expects_references = self.instruction is not None and self.instruction.op.encoding == "discard_refs"
        for register in registers:
            self.check_typed(field.name, register, ValueType.REF if expects_references else register.bank)

    def check_branch(self, field: Field, branch: Branch) -> None:
        for source, target in branch.remaps:
            self.check_typed(field.name, source, source.bank)
            self.check_typed(field.name, target, target.bank)

    def check_cases(self, field: Field, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self.check_branch(field, branch)

    def check_global(self, field: Field, place: int) -> None:
        if self.instruction is None or not self.instruction.op.types:
            if place >= self.module.global_ref_count:
                raise self.error(f"global reference {place} of {self.module.global_ref_count}")
            return
        byte_length = 8 if self.instruction.op.types[0].is_wide else 4
        if place + byte_length > self.module.global_bytes:
            raise self.error(f"{byte_length} bytes at {place} of {self.module.global_bytes} global bytes")

    def check_rodata(self, field: Field, ordinal: int) -> None:
        if ordinal >= len(self.module.rodata):
            raise self.error(f"data segment {ordinal} of {len(self.module.rodata)}")

    def check_type(self, field: Field, ordinal: int) -> None:
        types = self.module.types
        if ordinal >= len(types):
            raise self.error(f"type {ordinal} of {len(types)}")
        is_list_element = self.instruction is not None and self.instruction.op.encoding == "list_alloc"
        if types[ordinal] in _PRIMITIVE_TYPES and not is_list_element:
            raise self.error(f"type {types[ordinal]} is not a reference type")

    def check_callee(self, field: Field, callee: FunctionRef) -> None:
        kind, table = "import", len(self.module.imports)
        if not callee.is_import:
            kind, table = "function", len(self.module.functions)
            if self.instruction is not None and self.instruction.op.encoding == "import_resolved":
                raise self.error("callee is not an import")
        if callee.ordinal >= table:
            raise self.error(f"{kind} {callee.ordinal} of {table}")

    # Calls.

    def check_call(self, instruction: Instruction) -> None:
        callee: FunctionRef = instruction["callee"]
        is_variadic = instruction.op.encoding in _VARIADIC_CALLS
        if is_variadic and not callee.is_import:
            raise self.error("only imports can take variadic arguments")
        table: Sequence[Any] = self.module.imports if callee.is_import else self.module.functions
        signature: CallingConvention = table[callee.ordinal].signature
        segments = instruction["segments"] if is_variadic else None
        operands: Sequence[Reg] = instruction["operands"]
        types = self.expand_arguments(signature, segments, len(operands))
        self.check_registers("arguments", types, operands)
        self.check_registers("results", signature.results, instruction["results"])

    def expand_arguments(
        self, signature: CallingConvention, segments: Sequence[int] | None, operand_count: int
    ) -> Sequence[ValueType]:
        """The types of the ``operand_count`` operands of a call, spans repeated as ``segments`` says."""
        arguments = signature.arguments
        if segments is None:
            if len(arguments) <= operand_count and signature.is_variadic:
                raise self.error("callee takes variadic arguments")
            return [argument for argument in arguments if not isinstance(argument, Span)]
        if len(segments) != len(arguments):
            raise self.error(f"{len(segments)} segments for {len(arguments)} arguments")
        total = 0
        for argument, count in zip(arguments, segments, strict=True):
            if isinstance(argument, Span) != (count >= 0):
                raise self.error(f"segment count {count} for {_describe(argument)}")
            total += len(argument.elements) * count if isinstance(argument, Span) else 1
        # Before anything is repeated: the counts could ask for any amount of memory.
        if total != operand_count:
            raise self.error(f"{operand_count} arguments, the segments have {total}")
        types: list[ValueType] = []
        for argument, count in zip(arguments, segments, strict=True):
            types.extend(argument.elements * count if isinstance(argument, Span) else [argument])
        return types

    def check_registers(self, what: str, types: Sequence[ValueType], registers: Sequence[Reg]) -> None:
        if len(types) != len(registers):
            raise self.error(f"{len(registers)} {what}, the signature has {len(types)}")
        for position, (value_type, register) in enumerate(zip(types, registers, strict=True)):
            self.check_typed(f"{what}[{position}]", register, value_type)


def _describe(argument: ValueType | Span) -> str:
    return "a span" if isinstance(argument, Span) else f"a plain {argument.value}"


_CHECKS: Mapping[FieldKind, Callable[[_FunctionVerifier, Field, Any], None]] = {
    FieldKind.REGISTER: _FunctionVerifier.check_register,
    FieldKind.GLOBAL: _FunctionVerifier.check_global,
    FieldKind.RODATA: _FunctionVerifier.check_rodata,
    FieldKind.TYPE: _FunctionVerifier.check_type,
    FieldKind.FUNCTION: _FunctionVerifier.check_callee,
    FieldKind.OPERANDS: _FunctionVerifier.check_list,
    FieldKind.RESULTS: _FunctionVerifier.check_list,
    FieldKind.BRANCH: _FunctionVerifier.check_branch,
    FieldKind.CASES: _FunctionVerifier.check_cases,
}
