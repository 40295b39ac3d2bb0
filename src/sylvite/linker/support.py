"""The support module: routines in wasm, and mathematics as host functions.

`assemble` builds the wasm half from `sylvite.linker.routines`; `HOST_MATH` names what has no exact short
form in wasm and is computed by the host in double precision.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy

from ..engines.base import HostFunction, Memory
from ..wasm import FunctionBuilder, ModuleBuilder
from ..wasm.types import ValueType
from .routines import ROUTINES

__all__ = [
    "HOST_MATH",
    "WASM_ROUTINES",
    "HostFunctionSpec",
    "HostMath",
    "assemble",
    "sincos_specs",
]

WASM_ROUTINES = frozenset(name for name, routine in ROUTINES.items() if routine.public)
"""Names that `assemble`'s module exports."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostFunctionSpec:
    """A host function to link against.

    Args:
        parameter_types: numeric types of its parameters.
        result_types: numeric types of its results.
        function: called with ints and floats; see `sylvite.engines.base.HostFunction`.
    """

    parameter_types: Sequence[ValueType]
    result_types: Sequence[ValueType]
    function: HostFunction


@functools.cache
def assemble() -> bytes:
    """The support module as bytes; it imports ``env.memory`` and exports `WASM_ROUTINES`."""
    module = ModuleBuilder("sylvite_support")
    module.import_memory("env", "memory", 0)
    functions = {
        name: module.function(
            name, [t for _, t in routine.parameters], list(routine.results), export=routine.public
        )
        for name, routine in ROUTINES.items()
    }
    for name, routine in ROUTINES.items():
        function = functions[name]
        variables = {variable: index for index, (variable, _) in enumerate(routine.parameters)}
        for variable, value_type in routine.locals:
            variables[variable] = function.local(value_type, variable)
        for line in routine.body.splitlines():
            for word in line.partition(";;")[0].split():
                _emit_word(function, word, variables, functions)
    return module.build()


_VALUE_TYPES = {value_type.text: value_type for value_type in ValueType}
_LOCAL_WORDS = {"set": "local.set", "tee": "local.tee"}


def _emit_word(
    function: FunctionBuilder,
    word: str,
    variables: dict[str, int],
    functions: dict[str, FunctionBuilder],
) -> None:
    """Emit one word of a routine's body; see `sylvite.linker.routines`."""
    head, _, operand = word.partition(":")
    if head.startswith("$"):
        function.get(variables[head[1:]])
    elif head.startswith("@"):
        function.call(functions[head[1:]])
    elif head in _LOCAL_WORDS:
        function.emit(_LOCAL_WORDS[head], variables[operand])
    elif head in ("if", "block", "loop"):
        function.emit(head, _VALUE_TYPES[operand] if operand else None)
    elif head in ("f32", "f64"):
        function.emit(f"{head}.const", float(operand))
    elif head in ("i32", "i64"):
        function.emit(f"{head}.const", int(operand, 0))
    elif head.startswith("br"):
        function.emit(head, int(operand))
    else:
        function.emit(head, offset=int(operand) if operand else 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostMath:
    """A mathematical function of floats. ``bits`` is 32 or 64, the width of all its arguments."""

    function: Callable[..., float]
    arity: int
    bits: int

    def spec(self) -> HostFunctionSpec:
        """It as something to link against."""
        value_type = ValueType.F32 if self.bits == 32 else ValueType.F64
        return HostFunctionSpec(
            parameter_types=(value_type,) * self.arity, result_types=(value_type,), function=self.function
        )


def _quiet(function: Callable[..., object]) -> Callable[..., float]:
    """NumPy's functions have C's special values; its warnings about them are not wanted here."""

    def call(*args: float) -> float:
        with numpy.errstate(all="ignore"):
            return float(function(*map(numpy.float64, args)))  # type: ignore[arg-type]

    return call


def _exp10(x: numpy.float64) -> float:
    return float(numpy.power(numpy.float64(10), x))


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:
        # Poles: signed infinity at zero, NaN at negative integers and -inf.
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


def _fma(x: float, y: float, z: float) -> float:
    """Fused multiply-add, exact before the one rounding."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    from fractions import Fraction  # takes long to import, and few modules call this

    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        # The sign of an exact zero is that of the ordinary sum of the signed parts.
        product = math.copysign(0.0, x) * math.copysign(1.0, y)
        return product + z if z == 0 and (x == 0 or y == 0) else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_UNARY: dict[str, Callable[..., float]] = {
    "acos": _quiet(numpy.arccos),
    "acosh": _quiet(numpy.arccosh),
    "asin": _quiet(numpy.arcsin),
    "asinh": _quiet(numpy.arcsinh),
    "atan": _quiet(numpy.arctan),
    "atanh": _quiet(numpy.arctanh),
    "cbrt": _quiet(numpy.cbrt),
    "cos": _quiet(numpy.cos),
    "cosh": _quiet(numpy.cosh),
    "erf": math.erf,
    "erfc": math.erfc,
    "exp": _quiet(numpy.exp),
    "exp10": _quiet(_exp10),
    "exp2": _quiet(numpy.exp2),
    "expm1": _quiet(numpy.expm1),
    "lgamma": _lgamma,
    "log": _quiet(numpy.log),
    "log10": _quiet(numpy.log10),
    "log1p": _quiet(numpy.log1p),
    "log2": _quiet(numpy.log2),
    "sin": _quiet(numpy.sin),
    "sinh": _quiet(numpy.sinh),
    "tan": _quiet(numpy.tan),
    "tanh": _quiet(numpy.tanh),
    "tgamma": _gamma,
}

_BINARY: dict[str, Callable[..., float]] = {
    "atan2": _quiet(numpy.arctan2),
    "hypot": _quiet(numpy.hypot),
    "pow": _quiet(numpy.power),
}


def _host_math() -> dict[str, HostMath]:
    table = {}
    for functions, arity in ((_UNARY, 1), (_BINARY, 2)):
        for name, function in functions.items():
            table[name] = HostMath(function=function, arity=arity, bits=64)
            table[name + "f"] = HostMath(function=function, arity=arity, bits=32)
    table["fma"] = HostMath(function=_fma, arity=3, bits=64)
    return table


HOST_MATH: dict[str, HostMath] = _host_math()
"""Mathematics done by the host, by C name. A call costs 10 to 50 us."""


def sincos_specs(memory: Memory) -> dict[str, HostFunctionSpec]:
    """``sincos`` and ``sincosf``, which store both results in guest memory."""
    specs = {}
    for name, value_type, dtype in (
        ("sincos", ValueType.F64, numpy.dtype("<f8")),
        ("sincosf", ValueType.F32, numpy.dtype("<f4")),
    ):
        specs[name] = HostFunctionSpec(
            parameter_types=(value_type, ValueType.I32, ValueType.I32),
            result_types=(),
            function=_sincos(memory, dtype),
        )
    return specs


def _sincos(memory: Memory, dtype: numpy.dtype[numpy.generic]) -> HostFunction:
    def sincos(x: float, sine_address: int, cosine_address: int) -> None:
        for function, address in ((_UNARY["sin"], sine_address), (_UNARY["cos"], cosine_address)):
            with numpy.errstate(all="ignore"):
                data = numpy.array(function(x)).astype(dtype).tobytes()
            memory.view(address & 0xFFFFFFFF, dtype.itemsize)[:] = data

    return sincos
