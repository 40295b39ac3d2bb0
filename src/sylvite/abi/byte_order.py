"""Byte order in generic IR: what a compiler for one order has folded into code and data.

Straight from the front end, IR moves values through memory in their own types, and only bit-fields state
places that depend on the byte order. An optimizer goes further: it takes records in registers apart with
shifts, joins neighbouring loads, and merges stores of constants, all in the order of the base's data
layout. Such code is wrong on a target of the other order although every instruction is portable, and
the text no longer tells which shift was the programmer's. So a function that an optimizer has been over
is named when it contains any of them.

Source: the LLVM Language Reference, "Data Layout", "bitcast .. to".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .ir_text import IrFunction, IrModule

__all__ = ["bit_field_records", "folded_functions"]

_STORED = re.compile(r"^\s+store (?:volatile )?.* (%[\w.$-]+|%\"[^\"]*\"), ptr ")
_DEBUG = re.compile(r"^\s+(?:#dbg_|(?:tail )?call void @llvm\.(?:dbg|lifetime)\.)")
_LOCAL = re.compile(r'%(?:[\w.$-]+|"(?:[^"\\]|\\.)*")')
_PASSED_THROUGH = re.compile(r"\b(?:byval|sret|byref|inalloca|preallocated|dead_on_return)\b")
# What only an optimizer concludes about a definition.
_INFERRED = re.compile(r"\b(?:norecurse|nofree|nosync)\b|memory\(")
_BYTE_MULTIPLE = frozenset(range(8, 128, 8))
_SHIFT = re.compile(r"^\s+%\S+ = (?:lshr|ashr|shl)\b.* i(?:16|32|64|128) [^,]+, (\d+)")
_NARROWED = re.compile(r"^\s+%\S+ = trunc (?:nuw |nsw )*i(16|32|64|128) .* to i(8|16|32|64)\b")
_WIDE = re.compile(r"^\s+(?:%\S+ = load|store) (?:volatile )?(i(?:16|32|64|128)|<\d+ x i\d+>)\b")
_VECTOR_CAST = re.compile(r"^\s+%\S+ = bitcast .*<\d+ x \w+>")


def folded_functions(module: IrModule) -> Iterator[tuple[IrFunction, int, str]]:
    """Optimized functions with an operation whose meaning may depend on the byte order: the function, the
    index of the operation's line, and words for it."""
    for function in module.functions.values():
        if not function.defined:
            continue
        body = list(_body(module, function))
        if not _optimized(module, function, body):
            continue
        for index, line in body:
            words = _dependent(line)
            if words is not None:
                yield function, index, words
                break


def _body(module: IrModule, function: IrFunction) -> Iterator[tuple[int, str]]:
    for index in range(function.line + 1, len(module.lines)):
        line = module.lines[index]
        if line.startswith("}"):
            return
        yield index, line


def _optimized(module: IrModule, function: IrFunction, body: list[tuple[int, str]]) -> bool:
    """Whether an optimizer has been over a definition: it says what only one concludes, or uses a parameter
    otherwise than to store it in its variable, as front ends do first."""
    attributes = module.attributes(function.rest)
    if "optnone" in attributes:
        return False
    if _INFERRED.search(attributes):
        return True
    names = _parameter_names(module.lines[function.line])
    for _, line in body:
        if _DEBUG.match(line):
            continue
        stored = _STORED.match(line)
        used = set(_LOCAL.findall(line)) & names
        if used and not (stored and used == {stored[1]}):
            return True
    return False


def _parameter_names(line: str) -> set[str]:
    """Names of the parameters that are values; a record's address is used directly by front ends too."""
    start = line.index("(", line.index("@"))
    depth, part, parts = 0, start + 1, []
    for place in range(start, len(line)):
        character = line[place]
        depth += (character in "([{<") - (character in ")]}>")
        if depth == 0 or (depth == 1 and character == ","):
            parts.append(line[part:place])
            part = place + 1
        if depth == 0:
            break
    # A type may be named like a local; the parameter's own name comes last.
    last = (_LOCAL.findall(text)[-1:] for text in parts if not _PASSED_THROUGH.search(text))
    return {names[0] for names in last if names}


def _dependent(line: str) -> str | None:
    shift = _SHIFT.match(line)
    if shift and int(shift[1]) in _BYTE_MULTIPLE:
        return f"shifts an integer by {int(shift[1]) // 8} bytes"
    if _NARROWED.match(line):
        return "keeps the low part of an integer"
    if _VECTOR_CAST.match(line):
        return "reads a vector as another type"
    wide = _WIDE.match(line)
    return f"accesses memory as {wide[1]}, which may be several members at once" if wide else None


_BIT_FIELD = re.compile(r"= !DIDerivedType\(tag: DW_TAG_member, .*flags: [^,)]*DIFlagBitField")
_NAME = re.compile(r'\bname: "([^"]*)"')
_SCOPE = re.compile(r"\bscope: (!\d+)")


def bit_field_records(module: IrModule) -> dict[str, int]:
    """Names of records with bit-fields, from debug information, with the index of a line that shows it.
    Compilers count bit-fields from the low end on little-endian targets and from the high end on others."""
    nodes = {line.split(" = ", 1)[0]: line for line in module.lines if line.startswith("!")}
    found: dict[str, int] = {}
    for index, line in enumerate(module.lines):
        if _BIT_FIELD.search(line):
            scope = _SCOPE.search(line)
            record = nodes.get(scope[1], "") if scope else ""
            name = _NAME.search(record)
            found.setdefault(name[1] if name else "(unnamed record)", index)
    return found
