"""WebAssembly modules against a header: does every import and export have the signature that the
header's functions lower to on wasm32?

Source: WebAssembly tool conventions, BasicCABI; the lowering itself is asked of clang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .. import wasm
from ..errors import InvalidArgumentError, NotFoundError
from .debug_info import TypeGraph
from .declarations import Function
from .lowered import LoweredSignature
from .oracle import Examination, Query, examine
from .rules import Entity, Finding, Report, Verdict
from .targets import TARGETS, Target
from .toolchain import Toolchain

__all__ = ["check_wasm", "check_wasm_file", "wasm_signature"]

_SCALARS = {"ptr": "i32", "float": "f32", "double": "f64"}
_INTEGER = re.compile(r"i(\d+)$")


def check_wasm_file(
    path: str | os.PathLike[str], query: Query | None, *, toolchain: Toolchain | None = None
) -> Report:
    """Read a ``.wasm`` file and check it.

    Raises:
        NotFoundError: no such file.
        FormatError: the module or the header is malformed.
        InvalidArgumentError: no header was given.
    """
    if query is None:
        raise InvalidArgumentError("a WebAssembly module is checked against headers: give --header")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error}") from error
    return check_wasm(data, query, where=str(path), toolchain=toolchain)


def check_wasm(
    data: bytes, query: Query, *, where: str = "module", toolchain: Toolchain | None = None
) -> Report:
    """Check the function imports and exports of a module against the headers of ``query``.

    Exports and imports that the headers do not declare are left out of the report, except imports from
    ``env``: those are reported as unknown.
    """
    module = wasm.decode(data, where=where)
    target = TARGETS["wasm64" if _is_64(module) else "wasm32"]
    examination = examine(query, [target], toolchain=toolchain)
    checker = _Checker(examination, target, where)
    entities = []
    for way, field, name, type_ in _functions(module):
        entity = checker.judge(way, field, name, type_)
        if entity is not None:
            entities.append(entity)
    return Report(targets=(target.name,), base=target.name, entities=tuple(entities))


def _is_64(module: wasm.Module) -> bool:
    memories = [i.description for i in module.imports if i.kind is wasm.ExternKind.MEMORY]
    return any(getattr(memory, "memory64", False) for memory in (*memories, *module.memories))


def _functions(module: wasm.Module) -> Iterator[tuple[str, str, str, wasm.FunctionType]]:
    """Imports and exports that are functions: (import or export, module, name, type)."""
    types: list[wasm.FunctionType] = []
    for item in module.imports:
        if item.kind is wasm.ExternKind.FUNCTION and isinstance(item.description, int):
            types.append(module.types[item.description])
            yield "import", item.module, item.name, types[-1]
    types += [module.types[index] for index in module.functions]
    for export in module.exports:
        if export.kind is wasm.ExternKind.FUNCTION:
            yield "export", "", export.name, types[export.index]


def wasm_signature(signature: LoweredSignature) -> tuple[list[str], list[str]]:
    """Parameters and results of a lowered signature as WebAssembly value types."""
    parameters = [part for value in signature.parameters for part in _value_types(value.type)]
    if signature.variadic:
        parameters.append("i32")
    results = [] if signature.result.type == "void" else _value_types(signature.result.type)
    return parameters, results


def _value_types(type_: str) -> list[str]:
    if type_ in _SCALARS:
        return [_SCALARS[type_]]
    match = _INTEGER.match(type_)
    if match is None:
        return ["i64", "i64"] if type_ in ("fp128", "i128") else ["v128" if type_.startswith("<") else type_]
    bits = int(match[1])
    return ["i32"] if bits <= 32 else ["i64"] * (-(-bits // 64))


class _Checker:
    def __init__(self, examination: Examination, target: Target, where: str) -> None:
        self.view = examination.view(target.name)
        self.graph: TypeGraph = self.view.graph
        self.functions: Mapping[str, Function] = {f.name: f for f in examination.declarations.functions}
        self.target = target
        self.where = where

    def _finding(self, verdict: Verdict, rule: str, reason: str) -> Finding:
        names = (self.target.name,)
        return Finding(verdict=verdict, rule=rule, reason=reason, groups=(names,), differs=names)

    def judge(self, way: str, field: str, name: str, type_: wasm.FunctionType) -> Entity | None:
        """The entity of one import or export; None where the headers say nothing and need not."""
        function = self.functions.get(name)
        if function is None:
            if way == "export" or field != "env":
                return None
            finding = self._finding(
                Verdict.RULE, "wasm-unknown", f"the module imports {field}.{name}, which no header declares"
            )
            return Entity(name=name, kind="function", file=self.where, line=0, findings=(finding,))
        signature = self.view.signatures[f"f:{name}"]
        findings = list(self._compare(way, function, signature, type_))
        return Entity(
            name=name, kind="function", file=function.file, line=function.line, findings=tuple(findings),
            signatures={self.target.name: str(signature)},
        )  # fmt: skip

    def _compare(
        self, way: str, function: Function, signature: LoweredSignature, type_: wasm.FunctionType
    ) -> Iterator[Finding]:
        expected, results = wasm_signature(signature)
        if self.target.pointer_bits == 64:
            expected = ["i64" if v == "i32" and p.type == "ptr" else v
                        for v, p in zip(expected, signature.parameters, strict=False)]  # fmt: skip
        given = [value.name.lower() for value in type_.parameters]
        returned = [value.name.lower() for value in type_.results]
        aggregates = self._aggregates(function)
        if (given, returned) != (expected, results):
            words = _mismatch_words(function, given, returned, expected, results)
            because = f" ({'; '.join(aggregates)})" if aggregates else ""
            yield self._finding(Verdict.SHIM, "wasm-signature", f"the {way} {words}{because}")
        elif aggregates:
            yield self._finding(
                Verdict.RULE, "by-value-layout",
                f"{'; '.join(aggregates)}: the host is handed an address in the module's memory",
            )  # fmt: skip

    def _aggregates(self, function: Function) -> list[str]:
        """The records a function passes by value, in words."""
        index = self.graph.function(self.graph.roots.get(f"f:{function.name}", 0))
        if index is None:
            return []
        node = self.graph.nodes[index]
        names = ("the result", *function.parameters)
        return [
            f"{names[number] or f'parameter {number}'} is {self.graph.name(place)} by value"
            for number, place in enumerate((node.target, *node.parameters))
            if self.graph.nodes[self.graph.plain(place)].kind in ("struct", "union")
        ]


def _mismatch_words(
    function: Function, given: Sequence[str], returned: Sequence[str], expected: Sequence[str],
    results: Sequence[str],
) -> str:  # fmt: skip
    if len(given) != len(expected):
        return f"takes {len(given)} values, the header's {function.name} takes {len(expected)}"
    wrong = [index for index, (a, b) in enumerate(zip(given, expected, strict=True)) if a != b]
    if not wrong:
        return (
            f"returns {', '.join(returned) or 'nothing'}, the header says {', '.join(results) or 'nothing'}"
        )
    if len(wrong) == 2 and [given[i] for i in wrong] == [expected[i] for i in reversed(wrong)]:
        names = [_parameter_words(function, index) for index in wrong]
        return f"has {names[0]} and {names[1]} swapped ({given[wrong[0]]} and {given[wrong[1]]})"
    first = wrong[0]
    return f"has {given[first]} for {_parameter_words(function, first)}, the header says {expected[first]}"


def _parameter_words(function: Function, index: int) -> str:
    name = function.parameters[index] if index < len(function.parameters) else ""
    return f"parameter {index + 1}" + (f" ({name})" if name else "")
