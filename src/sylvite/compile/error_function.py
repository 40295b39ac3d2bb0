"""The error function as a quotient of two polynomials.

The compiler's own expansion selects among four polynomials, coefficient by coefficient; it costs a GELU more
than the product before it. This one has no selections: ``x * P(x * x) / Q(x * x)`` where the result is not 1.
It is a fit of the relative error (2e-8), evaluated in f32 it is within 4e-7 of the error function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["write_out_erf"]

_ERF = re.compile(r"^( *)(%[\w$#]+) = math\.erf (%[\w$#]+) : f32\n", re.MULTILINE)

_LIMIT = 3.92
"""From here on the result is 1 in f32."""

_NUMERATOR = (
    1.1283791065216064,
    0.19040729105472565,
    0.05274883657693863,
    0.0037656535860151052,
    0.000284883746644482,
    2.050083594440366e-06,
)
_DENOMINATOR = (
    1.0,
    0.5020768046379089,
    0.11410945653915405,
    0.014969289302825928,
    0.0011625448241829872,
    3.809172994806431e-05,
)
"""Coefficients, lowest power first."""


def write_out_erf(block: str) -> str:
    """Write out ``math.erf`` of f32 in the text of an executable; see the module."""
    return _ERF.sub(_write_out, block)


def _write_out(operation: re.Match[str]) -> str:
    indent, result, argument = operation.groups()
    lines = _Lines(result.replace("%", "%erf_").replace("#", "_"))
    x = lines.clamp(argument, _LIMIT)
    square = lines.add(f"arith.mulf {x}, {x}")
    numerator = lines.add(f"arith.mulf {x}, {lines.polynomial(square, _NUMERATOR)}")
    denominator = lines.polynomial(square, _DENOMINATOR)
    quotient = lines.add(f"arith.divf {numerator}, {denominator}")
    lines.clamp(quotient, 1.0, name=result)
    return "".join(f"{indent}{line}\n" for line in lines.text)


class _Lines:
    """Collects operations on f32 whose results are named after one value."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.text: list[str] = []

    def add(self, operation: str, *, type_name: str = "f32", name: str | None = None) -> str:
        """Add an operation; returns the name of its result."""
        name = name or f"{self._prefix}_{len(self.text)}"
        self.text.append(f"{name} = {operation} : {type_name}")
        return name

    def constant(self, value: float) -> str:
        """A constant."""
        return self.add(f"arith.constant {value:.9e}")

    def clamp(self, value: str, limit: float, *, name: str | None = None) -> str:
        """``value`` within plus and minus ``limit``. Selections that keep a NaN, and are one instruction."""
        for sign, predicate, its_name in ((-1.0, "olt", None), (1.0, "ogt", name)):
            bound = self.constant(sign * limit)
            outside = self.add(f"arith.cmpf {predicate}, {value}, {bound}")
            value = self.add(f"arith.select {outside}, {bound}, {value}", name=its_name)
        return value

    def polynomial(self, value: str, coefficients: Sequence[float]) -> str:
        """A polynomial, by Horner's rule."""
        total = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            product = self.add(f"arith.mulf {total}, {value}")
            total = self.add(f"arith.addf {product}, {self.constant(coefficient)}")
        return total
