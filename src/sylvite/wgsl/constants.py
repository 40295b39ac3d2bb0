"""Constants of a module: their bits, specialization, and how WGSL writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..errors import FormatError, UnsupportedFeatureError
from ..spirv import Instruction, Module
from ..spirv.grammar import instructions
from .types import Type, Types
from .values import Value, float_literal, integer_literal, zero

__all__ = ["Constants"]

NESTING_LIMIT: Final = 15


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_FOLDED: Final[Mapping[str, Callable[..., int]]] = {
    "OpIAdd": lambda a, b: a + b,
    "OpISub": lambda a, b: a - b,
    "OpIMul": lambda a, b: a * b,
    "OpUDiv": lambda a, b: a // b if b else 0,
    "OpUMod": lambda a, b: a % b if b else 0,
    "OpSDiv": lambda a, b: _divide(_signed(a), _signed(b)) if b else 0,
    "OpSRem": lambda a, b: _signed(a) - _signed(b) * _divide(_signed(a), _signed(b)) if b else 0,
    "OpSMod": lambda a, b: _signed(a) % _signed(b) if b else 0,
    "OpSNegate": lambda a: -a,
    "OpNot": lambda a: ~a,
    "OpShiftLeftLogical": lambda a, b: a << (b & 31),
    "OpShiftRightLogical": lambda a, b: a >> (b & 31),
    "OpShiftRightArithmetic": lambda a, b: _signed(a) >> (b & 31),
    "OpBitwiseAnd": lambda a, b: a & b,
    "OpBitwiseOr": lambda a, b: a | b,
    "OpBitwiseXor": lambda a, b: a ^ b,
    "OpUConvert": lambda a: a,
    "OpSConvert": lambda a: a,
    "OpBitcast": lambda a: a,
    "OpSelect": lambda c, a, b: a if c else b,
    "OpIEqual": lambda a, b: a == b,
    "OpINotEqual": lambda a, b: a != b,
    "OpULessThan": lambda a, b: a < b,
    "OpULessThanEqual": lambda a, b: a <= b,
    "OpUGreaterThan": lambda a, b: a > b,
    "OpUGreaterThanEqual": lambda a, b: a >= b,
    "OpSLessThan": lambda a, b: _signed(a) < _signed(b),
    "OpSLessThanEqual": lambda a, b: _signed(a) <= _signed(b),
    "OpSGreaterThan": lambda a, b: _signed(a) > _signed(b),
    "OpSGreaterThanEqual": lambda a, b: _signed(a) >= _signed(b),
    "OpLogicalNot": lambda a: not a,
    "OpLogicalAnd": lambda a, b: a and b,
    "OpLogicalOr": lambda a, b: a or b,
    "OpLogicalEqual": lambda a, b: bool(a) == bool(b),
    "OpLogicalNotEqual": lambda a, b: bool(a) != bool(b),
}
"""Operations of ``OpSpecConstantOp`` on 32-bit numbers, given as unsigned."""


class Constants:
    """Constants by id.

    Args:
        module: where they are declared.
        types: its types; the lengths of arrays are set here.
        specialization: bits of specialization constants by SpecId.
        literal: gives an expression for 32 bits that WGSL has no literal for.
    """

    def __init__(
        self, module: Module, types: Types, specialization: Mapping[int, int], literal: Callable[[int], str]
    ) -> None:
        self.module = module
        self.types = types
        self.specialization = specialization
        self.literal = literal
        self.bits: dict[int, int] = {}
        for instruction in module.instructions:
            if instruction.name == "OpFunction":
                break
            bits = self._bits(instruction)
            if bits is not None:
                self.bits[instruction.result_id] = bits
                types.lengths[instruction.result_id] = bits
        self._values: dict[int, Value] = {}

    def _bits(self, instruction: Instruction) -> int | None:
        name = instruction.name
        if name in ("OpConstantTrue", "OpConstantFalse"):
            return int(name == "OpConstantTrue")
        if name == "OpConstant":
            return instruction.number(0)
        if name in ("OpSpecConstant", "OpSpecConstantTrue", "OpSpecConstantFalse"):
            default = int(name == "OpSpecConstantTrue") if name[-1] == "e" else instruction.number(0)
            spec_id = self.module.decoration(instruction.result_id, "SpecId")
            number = spec_id[0] if spec_id else None
            return self.specialization.get(number, default) if isinstance(number, int) else default
        if name == "OpConstantNull":
            return 0
        if name == "OpSpecConstantOp":
            return self._fold(instruction)
        return None

    def _fold(self, instruction: Instruction) -> int | None:
        operation = instructions()[instruction.number(0)].name
        arguments = [self.bits.get(number) for number in instruction.numbers(1)]
        fold = _FOLDED.get(operation)
        if fold is None or None in arguments:
            message = f"OpSpecConstantOp %{instruction.result_id}: {operation} on these operands"
            raise UnsupportedFeatureError(message, offset=instruction.offset, where=self.module.where)
        try:
            return int(fold(*arguments)) & 0xFFFFFFFF
        except TypeError as error:
            message = f"OpSpecConstantOp: {len(arguments)} operands of {operation}"
            raise FormatError(message, offset=instruction.offset, where=self.module.where) from error

    def number(self, identifier: int) -> int | None:
        """Bits of a scalar constant, or None when the id is something else."""
        return self.bits.get(identifier)

    def get(self, identifier: int, depth: int = 0) -> Value | None:
        """The value of a constant, or None when the id is no constant.

        Raises:
            UnsupportedFeatureError: its type cannot be expressed.
        """
        known = self._values.get(identifier)
        if known is None:
            instruction = self.module.definitions.get(identifier)
            if instruction is None or not instruction.name.startswith(_PREFIXES):
                return None
            known = self._values[identifier] = self._make(instruction, depth)
        return known

    def _make(self, instruction: Instruction, depth: int) -> Value:
        type = self.types.get(instruction.type_id, instruction)
        name = instruction.name
        if name in ("OpConstantNull", "OpUndef"):
            return zero(type)
        if name.endswith("Composite"):
            return self._composite(instruction, type, depth)
        bits = self.bits.get(instruction.result_id)
        if bits is None:
            message = f"{name} %{instruction.result_id} is not supported"
            raise UnsupportedFeatureError(message, offset=instruction.offset, where=self.module.where)
        return self.scalar(type, bits)

    def scalar(self, type: Type, bits: int) -> Value:
        """A scalar constant of a type."""
        if type.kind == "bool":
            return Value("true" if bits else "false", type, True, True)
        if type.kind in ("u32", "i32"):
            return integer_literal(type.kind, bits)
        if type.kind not in ("f32", "f16"):
            raise FormatError(f"a constant of type {type.wgsl}", where=self.module.where)
        width = 32 if type.kind == "f32" else 16
        bits &= (1 << width) - 1
        text = float_literal(bits, width)
        if text is not None:
            return Value(text, type, not text.startswith("-"), True)
        word = self.literal(bits)
        if width == 32:
            return Value(f"bitcast<f32>({word})", type, True)
        return Value(f"bitcast<vec2<f16>>({word}).x", type, True)

    def _composite(self, instruction: Instruction, type: Type, depth: int) -> Value:
        if depth > NESTING_LIMIT:
            message = f"{instruction.name}: constants nest more than {NESTING_LIMIT} deep"
            raise UnsupportedFeatureError(message, offset=instruction.offset, where=self.module.where)
        parts = []
        for number in instruction.numbers():
            self.module.definition(number, instruction)
            part = self.get(number, depth + 1)
            if part is None:
                message = f"{instruction.name}: %{number} is not a constant"
                raise FormatError(message, offset=instruction.offset, where=self.module.where)
            parts.append(part)
        texts = [part.text for part in parts]
        inside = texts[0] if type.kind == "vector" and len(set(texts)) == 1 else ", ".join(texts)
        is_constant = all(part.is_constant for part in parts)
        components = tuple(part.operand for part in parts) if type.kind == "vector" else None
        return Value(f"{type.wgsl}({inside})", type, True, is_constant, False, components)

    def is_nan(self, identifier: int) -> bool:
        """Whether a constant is a floating-point number that is none."""
        bits = self.bits.get(identifier, 0)
        type = self.types.get(self.module.definitions[identifier].type_id)
        limit = {"f32": 0x7F800000, "f16": 0x7C00}.get(type.kind)
        mask = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}.get(type.kind, 0)
        return limit is not None and bits & mask > limit


_PREFIXES: Final = ("OpConstant", "OpSpecConstant", "OpUndef")
