"""From a decoded module to Python code that runs it.

`translate` gives source and code object of all functions of a module, and what the virtual machine
needs to bind them: constants, and a map from source lines back to bytecode. Translating is a pure
function of the module's structure; the code of the last few modules is kept, so that loading one
again costs nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import threading
from collections.abc import Sequence
from types import CodeType
from typing import Any

from ..errors import FormatError
from ..vmfb.bytecode import DecodedFunction, FunctionRef, decode_function
from ..vmfb.calling_convention import CallingConvention
from ..vmfb.module import ModuleDef
from .emit import FunctionEmitter, Line, ModuleFacts
from .flow import recursive_functions

__all__ = ["TranslatedModule", "translate"]

_CACHE_ENTRIES = 32

_ANY_TYPES = frozenset({"!vm.opaque", "!vm.ref<?>"})
"""Type names that every reference satisfies."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedModule:
    """A module as Python.

    ``code`` defines ``F<ordinal>`` for each function when executed in a namespace that has the
    names listed in `sylvite.translator.emit`. ``constants`` is what ``C`` must be. ``places`` has,
    per source line (from 1; entry 0 is unused), the function ordinal and the pc it came from.
    ``filename`` identifies the code in tracebacks; it names the content, not a file.
    """

    source: str
    code: CodeType
    filename: str
    constants: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]


_cache: collections.OrderedDict[bytes, TranslatedModule] = collections.OrderedDict()
_cache_lock = threading.Lock()


def translate(module: ModuleDef) -> TranslatedModule:
    """Translate all functions of a verified module.

    Raises:
        FormatError: the bytecode is malformed, or reads a register as something it does not hold.
    """
    key = _digest(module)
    with _cache_lock:
        known = _cache.get(key)
        if known is not None:
            _cache.move_to_end(key)
            return known
    translated = _translate(module, key.hex()[:16])
    with _cache_lock:
        _cache[key] = translated
        while len(_cache) > _CACHE_ENTRIES:
            _cache.popitem(last=False)
    return translated


def _digest(module: ModuleDef) -> bytes:
    """Of everything that the translation depends on."""
    structure = (
        module.types,
        module.global_bytes,
        module.global_ref_count,
        len(module.rodata),
        [function.calling_convention for function in module.imports],
        [
            (function.calling_convention, function.bytecode_offset, function.bytecode_length)
            for function in module.functions
        ],
    )
    digest = hashlib.blake2b(repr(structure).encode(), digest_size=32)
    digest.update(module.bytecode)
    return digest.digest()


def _translate(module: ModuleDef, name: str) -> TranslatedModule:
    functions = [decode_function(module, ordinal) for ordinal in range(len(module.functions))]
    calls = {function.ordinal: _callees(function) for function in functions}
    leaves = {function.ordinal for function in functions if not _has_calls(function)}

    def convention(callee: FunctionRef) -> CallingConvention:
        table: Sequence[Any] = module.imports if callee.is_import else module.functions
        signature: CallingConvention = table[callee.ordinal].signature
        return signature

    facts = ModuleFacts(
        conventions=convention,
        global_byte_length=module.global_bytes,
        any_types=frozenset(index for index, text in enumerate(module.types) if text in _ANY_TYPES),
        recursive=recursive_functions(calls),
        branching=frozenset(
            caller
            for caller, callees in calls.items()
            if sum(1 for callee in callees if callee not in leaves) > 1
        ),
    )
    lines: list[str] = []
    places: list[tuple[int, int]] = [(0, 0)]
    for function in functions:
        for depth, text, pc in _emit(module, function, facts):
            lines.append(" " * depth + text)
            places.append((function.ordinal, pc))
    source = "\n".join(lines) + "\n"
    filename = f"<vm {name}>"
    return TranslatedModule(
        source=source,
        code=compile(source, filename, "exec", dont_inherit=True, optimize=1),
        filename=filename,
        constants=tuple(facts.constants),
        places=tuple(places),
    )


def _callees(function: DecodedFunction) -> list[int]:
    """Ordinals of the module's own functions that ``function`` calls, one per call."""
    return [
        item["callee"].ordinal
        for block in function.blocks
        for item in block.instructions
        if item.op.encoding.startswith("call") and not item["callee"].is_import
    ]


def _has_calls(function: DecodedFunction) -> bool:
    return any(
        item.op.encoding.startswith("call") for block in function.blocks for item in block.instructions
    )


def _emit(module: ModuleDef, function: DecodedFunction, facts: ModuleFacts) -> list[Line]:
    definition = module.functions[function.ordinal]
    start = module.bytecode_file_offset + definition.bytecode_offset
    where = f"function {definition.name or definition.ordinal} of {module.where}"

    def error(message: str, pc: int) -> FormatError:
        return FormatError(message, offset=start + pc, where=where)

    return FunctionEmitter(facts, function, definition.signature, error).emit()
