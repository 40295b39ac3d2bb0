"""Which proposals a module really uses, found in its code and records.

Bodies are scanned with one regular expression built from the instruction table, because a module of
several megabytes must not cost seconds. Source: the instruction table; core specification, 5.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from .instructions import INSTRUCTIONS, InstructionInfo, decode_instruction
from .module import Expression, FunctionBody, Module, SegmentMode
from .scan import RUN, alternatives
from .types import ExternKind, Feature, GlobalType, ValueType

__all__ = ["Feature", "required"]


@functools.cache
def _scanner() -> tuple[re.Pattern[bytes], tuple[Feature, ...]]:
    """A pattern for a run of instructions, and the features its groups stand for."""
    groups: dict[Feature | None, list[InstructionInfo]] = {None: []}
    for info in INSTRUCTIONS.values():
        groups.setdefault(info.feature, []).append(info)
    plain = alternatives(groups.pop(None))
    marked = b"|".join(b"(" + alternatives(group) + b")" for group in groups.values())
    pattern = re.compile(b"(?:" + plain + b"|" + marked + b"){1,%d}" % RUN, re.DOTALL)
    return pattern, tuple(feature for feature in groups if feature is not None)


def _scan(code: bytes, base: int, where: str) -> set[Feature]:
    """Features of the instructions of one body.

    A group of the pattern is set when any instruction of the run matched it, so one look at the groups
    covers the whole run.
    """
    pattern, features = _scanner()
    found: set[Feature] = set()
    position = 0
    while position < len(code):
        match = pattern.match(code, position)
        if match is not None:
            found.update(feature for feature, text in zip(features, match.groups(), strict=True) if text)
            position = match.end()
            continue
        instruction, position = decode_instruction(code, position, base=base, where=where)
        found.update(_of_instruction(instruction.name, instruction.immediates))
    return found


def _of_instruction(name: str, immediates: tuple[object, ...]) -> Iterator[Feature]:
    """Features of an instruction, also those its immediates imply."""
    info = INSTRUCTIONS[name]
    if info.feature is not None:
        yield info.feature
    for operand, value in zip(info.operands, immediates, strict=True):
        if operand.kind == "blocktype" and isinstance(value, int) and not isinstance(value, ValueType):
            yield Feature.MULTI_VALUE
        elif (operand.kind == "memory" and value) or (operand.kind == "memarg" and value[2]):  # type: ignore[index]
            yield Feature.MULTI_MEMORY


_EXTENDED = frozenset(("i32.add", "i32.sub", "i32.mul", "i64.add", "i64.sub", "i64.mul"))


def _of_expressions(expressions: Iterable[Expression]) -> Iterator[Feature]:
    for expression in expressions:
        for instruction in expression.instructions():
            if instruction.name in _EXTENDED:
                yield Feature.EXTENDED_CONST
            yield from _of_instruction(instruction.name, instruction.immediates)


_OF_VALUE_TYPE = {
    ValueType.V128: Feature.SIMD,
    ValueType.EXTERNREF: Feature.REFERENCE_TYPES,
    ValueType.FUNCREF: Feature.REFERENCE_TYPES,
    ValueType.EXNREF: Feature.EXCEPTIONS,
}


def _of_types(module: Module) -> Iterator[Feature]:
    value_types: set[ValueType] = {item.value for item in module.all_globals}
    for function_type in module.types:
        if len(function_type.results) > 1:
            yield Feature.MULTI_VALUE
        value_types.update(function_type.parameters, function_type.results)
    yield from (_OF_VALUE_TYPE[value_type] for value_type in value_types & _OF_VALUE_TYPE.keys())
    if module.all_tags:
        yield Feature.EXCEPTIONS


def _of_storage(module: Module) -> Iterator[Feature]:
    memories, tables = module.all_memories, module.all_tables
    if len(memories) > 1:
        yield Feature.MULTI_MEMORY
    if len(tables) > 1 or any(table.element is not ValueType.FUNCREF for table in tables):
        yield Feature.REFERENCE_TYPES
    if any(memory.shared for memory in memories):
        yield Feature.THREADS
    if any(memory.is_64 for memory in memories) or any(table.is_64 for table in tables):
        yield Feature.MEMORY64
    exported = {export.index for export in module.exports if export.kind is ExternKind.GLOBAL}
    imported = module.imported_count(ExternKind.GLOBAL)
    globals_: list[GlobalType] = module.all_globals
    if any(item.mutable and (i < imported or i in exported) for i, item in enumerate(globals_)):
        yield Feature.MUTABLE_GLOBALS


def _of_segments(module: Module) -> Iterator[Feature]:
    passive = any(segment.mode is not SegmentMode.ACTIVE for segment in module.elements)
    if passive or module.data_count is not None or any(data.offset is None for data in module.data):
        yield Feature.BULK_MEMORY
    if any(segment.expressions is not None for segment in module.elements):
        yield Feature.REFERENCE_TYPES


def _expressions(module: Module) -> Iterator[Expression]:
    for item in module.globals:
        yield item.initializer
    for data in module.data:
        if data.offset is not None:
            yield data.offset
    for element in module.elements:
        if element.offset is not None:
            yield element.offset
        yield from element.expressions or ()


def _of_body(body: FunctionBody, where: str) -> set[Feature]:
    runs, code, offset = body.split(where=where)
    found = _scan(code, offset, where)
    found.update(_OF_VALUE_TYPE[run.type] for run in runs if run.type in _OF_VALUE_TYPE)
    return found


_SOURCES: tuple[Callable[[Module], Iterable[Feature]], ...] = (
    _of_types,
    _of_storage,
    _of_segments,
    lambda module: _of_expressions(_expressions(module)),
)


def required(module: Module, *, where: str = "module") -> frozenset[Feature]:
    """The proposals the module uses, in its types, memories, segments and every instruction. ``where``
    names the module in errors.

    Raises:
        FormatError: a function body is malformed.
        UnsupportedFeatureError: a body uses a proposal that is not supported.
    """
    found: set[Feature] = set()
    for source in _SOURCES:
        found.update(source(module))
    imported = module.imported_count(ExternKind.FUNCTION)
    for index, body in enumerate(module.code, imported):
        found |= _of_body(body, f"{where}, code section, function {index}")
    return frozenset(found)
