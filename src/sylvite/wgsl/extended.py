"""Instructions of ``GLSL.std.450`` as WGSL.

A template's ``{T}`` is the result's type. Domains are those of `sylvite.wgsl.operations`.

Source: "SPIR-V Extended Instructions for GLSL".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .operations import Function

__all__ = ["EXTENDED", "EXTENDED_HELPERS"]

EXTENDED: Final[Mapping[str, Function]] = {
    "Round": Function("round({0})", "r"),
    "RoundEven": Function("round({0})", "r"),
    "Trunc": Function("trunc({0})", "r"),
    "FAbs": Function("abs({0})", "r"),
    "SAbs": Function("abs({0})", "i"),
    "FSign": Function("sign({0})", "r"),
    "SSign": Function("sign({0})", "i"),
    "Floor": Function("floor({0})", "r"),
    "Ceil": Function("ceil({0})", "r"),
    "Fract": Function("fract({0})", "r"),
    "Radians": Function("radians({0})", "r"),
    "Degrees": Function("degrees({0})", "r"),
    "Sin": Function("sin({0})", "r"),
    "Cos": Function("cos({0})", "r"),
    "Tan": Function("tan({0})", "r"),
    "Asin": Function("asin({0})", "r"),
    "Acos": Function("acos({0})", "r"),
    "Atan": Function("atan({0})", "r"),
    "Sinh": Function("sinh({0})", "r"),
    "Cosh": Function("cosh({0})", "r"),
    "Tanh": Function("tanh({0})", "r"),
    "Asinh": Function("asinh({0})", "r"),
    "Acosh": Function("acosh({0})", "r"),
    "Atanh": Function("atanh({0})", "r"),
    "Atan2": Function("atan2({0}, {1})", "rr"),
    "Pow": Function("pow({0}, {1})", "rr"),
    "Exp": Function("exp({0})", "r"),
    "Log": Function("log({0})", "r"),
    "Exp2": Function("exp2({0})", "r"),
    "Log2": Function("log2({0})", "r"),
    "Sqrt": Function("sqrt({0})", "r"),
    "InverseSqrt": Function("inverseSqrt({0})", "r"),
    "Determinant": Function("determinant({0})", "-"),
    "FMin": Function("min({0}, {1})", "rr"),
    "UMin": Function("min({0}, {1})", "uu"),
    "SMin": Function("min({0}, {1})", "ii"),
    "FMax": Function("max({0}, {1})", "rr"),
    "UMax": Function("max({0}, {1})", "uu"),
    "SMax": Function("max({0}, {1})", "ii"),
    "FClamp": Function("min(max({0}, {1}), {2})", "rrr"),
    "UClamp": Function("min(max({0}, {1}), {2})", "uuu"),
    "SClamp": Function("min(max({0}, {1}), {2})", "iii"),
    "FMix": Function("mix({0}, {1}, {2})", "rrr"),
    "Step": Function("step({0}, {1})", "rr"),
    "SmoothStep": Function("smoothstep({0}, {1}, {2})", "rrr"),
    "Fma": Function("fma({0}, {1}, {2})", "rrr"),
    "Ldexp": Function("ldexp({0}, {1})", "ri"),
    "PackSnorm4x8": Function("pack4x8snorm({0})", "-"),
    "PackUnorm4x8": Function("pack4x8unorm({0})", "-"),
    "PackSnorm2x16": Function("pack2x16snorm({0})", "-"),
    "PackUnorm2x16": Function("pack2x16unorm({0})", "-"),
    "PackHalf2x16": Function("pack2x16float({0})", "-"),
    "UnpackSnorm2x16": Function("unpack2x16snorm({0})", "u"),
    "UnpackUnorm2x16": Function("unpack2x16unorm({0})", "u"),
    "UnpackHalf2x16": Function("unpack2x16float({0})", "u"),
    "UnpackSnorm4x8": Function("unpack4x8snorm({0})", "u"),
    "UnpackUnorm4x8": Function("unpack4x8unorm({0})", "u"),
    "Length": Function("length({0})", "-"),
    "Distance": Function("distance({0}, {1})", "--"),
    "Cross": Function("cross({0}, {1})", "rr"),
    "Normalize": Function("normalize({0})", "r"),
    "FaceForward": Function("faceForward({0}, {1}, {2})", "rrr"),
    "Reflect": Function("reflect({0}, {1})", "rr"),
    "Refract": Function("refract({0}, {1}, {2})", "rr-"),
    "FindILsb": Function("firstTrailingBit({0})", "r"),
    "FindSMsb": Function("firstLeadingBit({0})", "i"),
    "FindUMsb": Function("firstLeadingBit({0})", "u"),
}

EXTENDED_HELPERS: Final[Mapping[str, str]] = {"NMin": "number_min", "NMax": "number_max"}
"""Instructions of two operands that are helpers."""
