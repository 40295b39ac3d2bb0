"""Repair of half-precision conversions that the compiler embeds with the wrong signature.

IREE links its own ``__truncsfhf2`` and relatives into every executable that converts halves. They take
and return halves as *floats*, the convention of x86-64. LLVM's wasm32 code calls them with halves as
*integers*, so the module does not validate, and no engine takes it. Here such a definition gets the type
its callers use, and a body that forwards to a correct routine appended to the module.

Source: ``iree/builtins/device/device_generic.c``; LLVM's ``WebAssemblyRuntimeLibcallSignatures``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from .. import wasm
from ..errors import FormatError
from ..wasm import ExternKind, FunctionBody, FunctionType, ValueType
from ..wasm.instructions import Instruction, encode_body
from ..wasm.leb import encode_unsigned
from .routines import ROUTINES
from .support import assemble

__all__ = ["repair_half_calls"]

_F32, _F64 = ValueType.F32, ValueType.F64
_WRONG = {
    "__extendhfsf2": FunctionType(parameters=(_F32,), results=(_F32,)),
    "__extendhfdf2": FunctionType(parameters=(_F32,), results=(_F64,)),
    "__truncsfhf2": FunctionType(parameters=(_F32,), results=(_F32,)),
    "__truncdfhf2": FunctionType(parameters=(_F64,), results=(_F32,)),
}
"""The types that give the embedded definitions away."""


def repair_half_calls(module: wasm.Module) -> wasm.Module:
    """The module with repaired definitions; the same object when there is nothing to repair."""
    imported = module.imported_count(ExternKind.FUNCTION)
    wrong = {index - imported: name for index, name in _wrong_definitions(module, imported)}
    if not wrong:
        return module
    return _Graft(module, imported + len(module.functions)).apply(wrong)


def _wrong_definitions(module: wasm.Module, imported: int) -> Iterable[tuple[int, str]]:
    try:
        names = wasm.names.read(module).functions
    except FormatError:
        return
    last = imported + len(module.functions)
    for index, name in names.items():
        wrong = _WRONG.get(name)
        if wrong is not None and imported <= index < last and module.function_type(index) == wrong:
            yield index, name


@functools.cache
def _support() -> wasm.Module:
    return wasm.decode(assemble(), where="support module")


_SUPPORT_INDICES = {name: index for index, name in enumerate(ROUTINES)}


class _Graft:
    """Appends routines of the support module, with what they call, to another module."""

    def __init__(self, module: wasm.Module, first: int) -> None:
        self._module = module
        self._first = first
        self._types = list(module.types)
        self._functions: list[int] = []
        self._bodies: list[FunctionBody] = []
        self._indices: dict[int, int] = {}

    def apply(self, wrong: dict[int, str]) -> wasm.Module:
        """Forward definitions (by position in the function section) to routines of the same name."""
        functions, code = list(self._module.functions), list(self._module.code)
        for position, name in wrong.items():
            source = _SUPPORT_INDICES[name]
            target = self._append(source)
            functions[position] = self._type_index(_support().function_type(source))
            code[position] = _body(
                (), [Instruction("local.get", (0,)), Instruction("call", (target,)), Instruction("end")]
            )
        return dataclasses.replace(
            self._module,
            types=tuple(self._types),
            functions=(*functions, *self._functions),
            code=(*code, *self._bodies),
        )

    def _append(self, source: int) -> int:
        """Append a function of the support module once; its index in the module."""
        known = self._indices.get(source)
        if known is not None:
            return known
        body = _support().code[source]
        instructions = [
            Instruction("call", (self._append(item.immediates[0]),)) if item.name == "call" else item
            for item in body.instructions()
        ]
        self._functions.append(self._type_index(_support().function_type(source)))
        self._bodies.append(_body(body.locals, instructions))
        index = self._first + len(self._functions) - 1
        self._indices[source] = index
        return index

    def _type_index(self, wanted: FunctionType) -> int:
        if wanted not in self._types:
            self._types.append(wanted)
        return self._types.index(wanted)


def _body(local_runs: tuple[wasm.Locals, ...], instructions: list[Instruction]) -> FunctionBody:
    runs = b"".join(encode_unsigned(run.count) + bytes([run.type]) for run in local_runs)
    return FunctionBody(data=encode_unsigned(len(local_runs)) + runs + encode_body(instructions))
