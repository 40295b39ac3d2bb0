"""Tables of the SPIR-V operations that are expressions in WGSL.

``domain`` says how integers are seen, whatever SPIR-V calls their type: ``u`` and ``i`` as u32 and i32,
``r`` as the result's type, ``a`` as the first operand's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

__all__ = ["BINARY", "COMPARISONS", "CONVERSIONS", "FUNCTIONS", "UNARY", "Binary", "Comparison", "Function"]


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """``a operator b``; ``guards`` is ``"divide"`` or ``"shift"`` where constants ``b`` may be refused."""

    operator: str
    domain: str
    guards: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison: the template of its operands ``a`` and ``b``, and their domain."""

    template: str
    domain: str


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A call: the template of its operands ``{0}``, ``{1}``, ...; which of them are in which domain."""

    template: str
    domains: str


BINARY: Final[Mapping[str, Binary]] = {
    "OpIAdd": Binary("+", "r"),
    "OpISub": Binary("-", "r"),
    "OpIMul": Binary("*", "r"),
    "OpFAdd": Binary("+", "r"),
    "OpFSub": Binary("-", "r"),
    "OpFMul": Binary("*", "r"),
    "OpFDiv": Binary("/", "r"),
    "OpFRem": Binary("%", "r"),
    "OpUDiv": Binary("/", "u", "divide"),
    "OpSDiv": Binary("/", "i", "divide"),
    "OpUMod": Binary("%", "u", "divide"),
    "OpSRem": Binary("%", "i", "divide"),
    "OpBitwiseAnd": Binary("&", "r"),
    "OpBitwiseOr": Binary("|", "r"),
    "OpBitwiseXor": Binary("^", "r"),
    "OpShiftLeftLogical": Binary("<<", "r", "shift"),
    "OpShiftRightLogical": Binary(">>", "u", "shift"),
    "OpShiftRightArithmetic": Binary(">>", "i", "shift"),
    "OpVectorTimesScalar": Binary("*", "-"),
    "OpMatrixTimesScalar": Binary("*", "-"),
    "OpVectorTimesMatrix": Binary("*", "-"),
    "OpMatrixTimesVector": Binary("*", "-"),
    "OpMatrixTimesMatrix": Binary("*", "-"),
}

COMPARISONS: Final[Mapping[str, Comparison]] = {
    "OpIEqual": Comparison("{a} == {b}", "a"),
    "OpINotEqual": Comparison("{a} != {b}", "a"),
    "OpUGreaterThan": Comparison("{a} > {b}", "u"),
    "OpUGreaterThanEqual": Comparison("{a} >= {b}", "u"),
    "OpULessThan": Comparison("{a} < {b}", "u"),
    "OpULessThanEqual": Comparison("{a} <= {b}", "u"),
    "OpSGreaterThan": Comparison("{a} > {b}", "i"),
    "OpSGreaterThanEqual": Comparison("{a} >= {b}", "i"),
    "OpSLessThan": Comparison("{a} < {b}", "i"),
    "OpSLessThanEqual": Comparison("{a} <= {b}", "i"),
    "OpFOrdEqual": Comparison("{a} == {b}", "a"),
    # Some implementations take != of numbers as ordered, others as unordered.
    "OpFUnordNotEqual": Comparison("!({a} == {b})", "a"),
    "OpFOrdLessThan": Comparison("{a} < {b}", "a"),
    "OpFOrdLessThanEqual": Comparison("{a} <= {b}", "a"),
    "OpFOrdGreaterThan": Comparison("{a} > {b}", "a"),
    "OpFOrdGreaterThanEqual": Comparison("{a} >= {b}", "a"),
    "OpFUnordLessThan": Comparison("!({a} >= {b})", "a"),
    "OpFUnordLessThanEqual": Comparison("!({a} > {b})", "a"),
    "OpFUnordGreaterThan": Comparison("!({a} <= {b})", "a"),
    "OpFUnordGreaterThanEqual": Comparison("!({a} < {b})", "a"),
    "OpFOrdNotEqual": Comparison("select(({a} < {b}), ({a} > {b}), ({a} >= {b}))", "a"),
    "OpLessOrGreater": Comparison("select(({a} < {b}), ({a} > {b}), ({a} >= {b}))", "a"),
    "OpFUnordEqual": Comparison("!select(({a} < {b}), ({a} > {b}), ({a} >= {b}))", "a"),
    "OpLogicalEqual": Comparison("{a} == {b}", "a"),
    "OpLogicalNotEqual": Comparison("{a} != {b}", "a"),
    "OpLogicalAnd": Comparison("{a} && {b}", "a"),
    "OpLogicalOr": Comparison("{a} || {b}", "a"),
    "OpOrdered": Comparison("select(false, ({b} == {b}), ({a} == {a}))", "a"),
    "OpUnordered": Comparison("!select(false, ({b} == {b}), ({a} == {a}))", "a"),
}

FUNCTIONS: Final[Mapping[str, Function]] = {
    "OpDot": Function("dot({0}, {1})", "--"),
    "OpBitReverse": Function("reverseBits({0})", "r"),
    "OpBitCount": Function("countOneBits({0})", "r"),
    "OpBitFieldInsert": Function("insertBits({0}, {1}, {2}, {3})", "rrss"),
    "OpBitFieldSExtract": Function("extractBits({0}, {1}, {2})", "iss"),
    "OpBitFieldUExtract": Function("extractBits({0}, {1}, {2})", "uss"),
    "OpTranspose": Function("transpose({0})", "-"),
    "OpAny": Function("any({0})", "-"),
    "OpAll": Function("all({0})", "-"),
}

UNARY: Final[Mapping[str, tuple[str, str]]] = {
    "OpFNegate": ("-", "r"),
    "OpNot": ("~", "r"),
    "OpLogicalNot": ("!", "-"),
}

CONVERSIONS: Final[Mapping[str, tuple[str, str]]] = {
    "OpConvertFToU": ("-", "u32"),
    "OpConvertFToS": ("-", "i32"),
    "OpConvertSToF": ("i32", ""),
    "OpConvertUToF": ("u32", ""),
    "OpFConvert": ("-", ""),
    "OpUConvert": ("-", "-"),
    "OpSConvert": ("-", "-"),
}
"""The type the operand is seen as, and the type that is converted to first: the result's when empty."""
