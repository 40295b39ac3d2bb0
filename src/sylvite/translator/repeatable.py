"""Which functions do the same every time: a look at bytecode, without running it.

A function is *repeatable* when what it asks of its imports depends on its arguments only in ways that the
imports themselves show (shapes, element types, lengths). It and what it calls read no list and no host
buffer, change no global, and read only globals that nothing but initializers changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ..vmfb.bytecode import DecodedFunction, Instruction, decode_function
from ..vmfb.module import ModuleDef

__all__ = ["is_repeatable"]

_PURE: Final = frozenset(
    {
        "unary",
        "binary",
        "ternary",
        "shift",
        "select",
        "select_ref",
        "switch",
        "switch_ref",
        "test",
        "compare",
        "convert",
        "cast_any_ref",
        "assign_ref",
        "discard_refs",
        "constant",
        "zero",
        "const_ref_zero",
        "const_ref_rodata",
        "buffer_length",
        "block",
        "branch",
        "cond_branch",
        "branch_table",
        "return",
        "fail",
        "import_resolved",
    }
)
"""Encodings whose results are functions of registers and of what never changes."""

_LOADS: Final = frozenset({"global_load", "global_load_ref"})
_STORES: Final = frozenset({"global_store", "global_store_ref"})
_INDIRECT_STORES: Final = frozenset({"global_store_indirect", "global_store_indirect_ref"})
_WIDE: Final = frozenset({"i64", "f64"})
_BREAKS: Final = frozenset({"break", "cond_break"})

Global = tuple[bool, int]
"""Whether it is a reference, and its ordinal, or else the offset of one of its bytes."""


def is_repeatable(module: ModuleDef, ordinal: int, is_allowed: Callable[[str], bool]) -> bool:
    """Whether function ``ordinal`` of a verified module is repeatable.

    Args:
        module: the module.
        ordinal: of the function.
        is_allowed: whether a function may call the import of this full name.
    """
    code = {index: decode_function(module, index) for index in range(len(module.functions))}
    names = [function.full_name for function in module.imports]
    reached = _reached(code, [ordinal])
    instructions = [item for index in reached for item in _instructions(code[index])]
    if not all(_is_harmless(item, names, is_allowed) for item in instructions):
        return False
    entries = [export.ordinal for export in module.exports if not export.name.startswith("__")]
    others = [item for index in _reached(code, entries) for item in _instructions(code[index])]
    if any(item.op.encoding in _INDIRECT_STORES for item in others):
        return not any(item.op.encoding in _LOADS for item in instructions)
    changed = {place for item in others if _changes(item) for place in _places(item)}
    read = {place for item in instructions if item.op.encoding in _LOADS for place in _places(item)}
    return not read & changed


def _reached(code: dict[int, DecodedFunction], roots: Iterable[int]) -> set[int]:
    """The functions that can run when one of ``roots`` is called."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        ordinal = pending.pop()
        if ordinal in found:
            continue
        found.add(ordinal)
        for item in _instructions(code[ordinal]):
            if item.op.encoding.startswith("call") and not item["callee"].is_import:
                pending.append(item["callee"].ordinal)
    return found


def _instructions(function: DecodedFunction) -> Iterable[Instruction]:
    for block in function.blocks:
        yield from block.instructions


def _is_harmless(item: Instruction, names: list[str], is_allowed: Callable[[str], bool]) -> bool:
    encoding = item.op.encoding
    if encoding.startswith("call"):
        callee = item["callee"]
        return not callee.is_import or is_allowed(names[callee.ordinal])
    if encoding in _LOADS:
        return not _changes(item)
    return encoding in _PURE and item.op.name not in _BREAKS


def _changes(item: Instruction) -> bool:
    """Whether it changes a global: stores to it, or moves a reference out of it."""
    encoding = item.op.encoding
    return encoding in _STORES or (encoding == "global_load_ref" and item["result"].is_move)


def _places(item: Instruction) -> Iterable[Global]:
    """The parts of globals that an instruction touches."""
    place: int = item["global"]
    if item.op.encoding.endswith("_ref"):
        return [(True, place)]
    register = item["result" if item.op.encoding in _LOADS else "value"]
    length = 8 if register.bank.value in _WIDE else 4
    return [(False, place + index) for index in range(length)]
