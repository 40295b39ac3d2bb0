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
from .types import ExternKind, Feature, GlobalType, ValueType

__all__ = ["Feature", "required"]

_LEB = rb"[\x80-\xff]*[\x00-\x7f]"
_ANY = rb"[\x00-\xff]"
_INTEGERS = ("label", "function", "type", "table", "local", "global", "data", "element", "tag", "i32", "i64")
_PATTERNS = {
    **dict.fromkeys(_INTEGERS, _LEB),
    "f32": _ANY + b"{4}",
    "f64": _ANY + b"{8}",
    "v128": _ANY + b"{16}",
    "shuffle": _ANY + b"{16}",
    "lane": _ANY,
    "zero": _ANY,
    "heaptype": _ANY,
    "valtypes": rb"\x01" + _ANY,
    # Memory 0 only (bit 6 of the flags announces an index), and no type index (multi-value): the rest
    # takes the slow path.
    "memory": rb"\x00",
    "memarg": rb"[\x00-\x3f]" + _LEB,
    "blocktype": rb"[\x40-\x7f]",
}
"""Immediates as regular expressions; an instruction with any other is read by the decoder."""

_RUN = 200
"""Most instructions in one match: bounds what the matcher remembers."""


def _classes(group: Iterable[InstructionInfo]) -> bytes:
    """Alternatives for a group of instructions, those with equal immediates merged."""
    by_rest: dict[tuple[bytes, bytes], bytes] = {}
    for info in group:
        if all(operand.kind in _PATTERNS for operand in info.operands):
            *head, last = info.opcode_bytes
            key = (bytes(head), b"".join(_PATTERNS[operand.kind] for operand in info.operands))
            by_rest[key] = by_rest.get(key, b"") + b"\\x%02x" % last
    return b"|".join(
        b"".join(b"\\x%02x" % byte for byte in head) + b"[" + codes + b"]" + rest
        for (head, rest), codes in by_rest.items()
    )


@functools.cache
def _scanner() -> tuple[re.Pattern[bytes], tuple[Feature, ...]]:
    """A pattern for a run of instructions, and the features its groups stand for."""
    groups: dict[Feature | None, list[InstructionInfo]] = {None: []}
    for info in INSTRUCTIONS.values():
        groups.setdefault(info.feature, []).append(info)
    plain = _classes(groups.pop(None))
    marked = b"|".join(b"(" + _classes(group) + b")" for group in groups.values())
    pattern = re.compile(b"(?:" + plain + b"|" + marked + b"){1,%d}" % _RUN, re.DOTALL)
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
