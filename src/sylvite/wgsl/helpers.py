"""Functions that a shader brings along for operations WGSL does not have.

``{T}`` stands for the type a function is made for, ``{U}`` for as many u32, ``{S}`` and ``{N}`` for how
their names say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .types import Type

__all__ = ["HELPERS", "helper_name", "helper_source"]

HELPERS: Final[Mapping[str, str]] = {
    "floor_mod": """
        let rest = a % b;
        return select(rest, rest + b, (rest != {T}()) & ((rest ^ b) < {T}()));
    """,
    "float_mod": """
        return a - b * floor(a / b);
    """,
    "number_min": """
        let lesser = select(a, b, b < a);
        return select(lesser, select(a, b, is_nan_{S}(a)), is_nan_{S}(a) | is_nan_{S}(b));
    """,
    "number_max": """
        let greater = select(a, b, a < b);
        return select(greater, select(a, b, is_nan_{S}(a)), is_nan_{S}(a) | is_nan_{S}(b));
    """,
    "multiply_high": """
        let mask = {T}(0xffffu);
        let low = (a & mask) * (b & mask);
        let middle = (a >> {T}(16u)) * (b & mask) + (low >> {T}(16u));
        let cross = (a & mask) * (b >> {T}(16u)) + (middle & mask);
        return (a >> {T}(16u)) * (b >> {T}(16u)) + (middle >> {T}(16u)) + (cross >> {T}(16u));
    """,
    "multiply_high_signed": """
        let high = multiply_high_{N}({U}(a), {U}(b));
        let of_a = select({U}(), {U}(b), a < {T}());
        let of_b = select({U}(), {U}(a), b < {T}());
        return {T}(high - of_a - of_b);
    """,
}
"""Bodies of functions of two arguments by name; those of one argument are in `UNARY`."""

UNARY: Final[Mapping[str, str]] = {
    "is_nan": """
        return (bitcast<{U}>(a) & {U}(0x7fffffffu)) > {U}(0x7f800000u);
    """,
    "is_inf": """
        return (bitcast<{U}>(a) & {U}(0x7fffffffu)) == {U}(0x7f800000u);
    """,
}

NEEDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "number_min": (("is_nan", ""),),
    "number_max": (("is_nan", ""),),
    "multiply_high_signed": (("multiply_high", "u32"),),
}
"""Helpers that a helper calls: name and the scalar they are made for (its own when empty)."""


def suffix(type: Type) -> str:
    """The part of a helper's name that says its type: ``f32``, ``vec4_f32``."""
    return type.scalar if type.lanes == 1 else f"vec{type.lanes}_{type.scalar}"


def helper_name(name: str, type: Type) -> str:
    """What a helper is called when it is made for a type."""
    return f"{name}_{suffix(type)}"


def helper_source(name: str, type: Type) -> str:
    """WGSL of a helper."""
    is_unary = name in UNARY
    body = (UNARY if is_unary else HELPERS)[name]
    if name == "is_nan" and type.scalar == "f16":
        body = "return !(a == a);"
    result = type.of("bool") if is_unary else type
    parameters = "a: {T}" if is_unary else "a: {T}, b: {T}"
    head = f"fn {helper_name(name, type)}({parameters}) -> {result.wgsl} {{"
    lines = [head, *("  " + line.strip() for line in body.strip().split("\n")), "}"]
    text = "\n".join(lines)
    for key, replacement in {
        "{T}": type.wgsl,
        "{U}": type.of("u32").wgsl,
        "{S}": suffix(type),
        "{N}": suffix(type.of("u32")),
    }.items():
        text = text.replace(key, replacement)
    return text
