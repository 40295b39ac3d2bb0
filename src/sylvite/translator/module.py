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
import marshal
import sys
import threading
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..own_sources import sources_digest
from ..vmfb.bytecode import DecodedFunction, FunctionRef, decode_function
from ..vmfb.calling_convention import CallingConvention
from ..vmfb.module import ModuleDef
from ..vmfb.verifier import verify
from .emit import FunctionEmitter, Line, ModuleFacts
from .flow import recursive_functions

if TYPE_CHECKING:
    from ..engines.code_cache import CodeCache

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

    def to_bytes(self) -> bytes:
        """All of it, for this release of Python to read again."""
        fields = (self.source, self.code, self.filename, self.constants, self.places)
        return marshal.dumps(fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> TranslatedModule | None:
        """What `to_bytes` gave. ``None`` for what cannot be that; the bytes must come from a place that is
        trusted with code nevertheless."""
        try:
            source, code, filename, constants, places = marshal.loads(data)
        except (EOFError, ValueError, TypeError):
            return None
        kinds = ((source, str), (code, CodeType), (filename, str), (constants, tuple), (places, tuple))
        if not all(isinstance(value, kind) for value, kind in kinds):
            return None
        return cls(source=source, code=code, filename=filename, constants=constants, places=places)


_cache: collections.OrderedDict[bytes, TranslatedModule] = collections.OrderedDict()
_cache_lock = threading.Lock()


def translate(
    module: ModuleDef, *, verified: bool = True, cache: CodeCache | None = None
) -> TranslatedModule:
    """Translate all functions of a module.

    Args:
        module: the module.
        verified: whether its bytecode is (`sylvite.vmfb.verify`); else that is done first, unless a module
            with the same bytecode and tables was translated before.
        cache: where translations are kept on disk.

    Raises:
        FormatError: the bytecode is malformed, or reads a register as something it does not hold.
        UnsupportedFeatureError: a function uses an extension that it does not require.
    """
    key = _digest(module)
    with _cache_lock:
        known = _cache.get(key)
        if known is not None:
            _cache.move_to_end(key)
            return known
    translated = _translate_through(cache, module, key, verified=verified)
    with _cache_lock:
        _cache[key] = translated
        while len(_cache) > _CACHE_ENTRIES:
            _cache.popitem(last=False)
    return translated


def _translate_through(
    cache: CodeCache | None, module: ModuleDef, key: bytes, *, verified: bool
) -> TranslatedModule:
    entry = None if cache is None else _entry_name(cache, key)
    if cache is not None and entry is not None:
        kept = cache.load(entry)
        known = None if kept is None else TranslatedModule.from_bytes(kept)
        if known is not None:
            return known
        if kept is not None:
            cache.discard(entry)
    if not verified:
        verify(module)
    translated = _translate(module, key.hex()[:16])
    if cache is not None and entry is not None:
        cache.store(entry, translated.to_bytes())
    return translated


def _entry_name(cache: CodeCache, key: bytes) -> str | None:
    """The cache's name for a translation: of a module by this Python and these sources."""
    sources = sources_digest("translator", "vmfb")
    if sources is None:
        return None
    return cache.key(b"translation", f"{sys.implementation.cache_tag} {sys.version}".encode(), sources, key)


def _digest(module: ModuleDef) -> bytes:
    """Of everything that verifying and translating depend on."""
    structure = (
        module.types,
        module.global_bytes,
        module.global_ref_count,
        len(module.rodata),
        [function.calling_convention for function in module.imports],
        [
            (
                function.calling_convention,
                function.bytecode_offset,
                function.bytecode_length,
                function.i32_register_count,
                function.ref_register_count,
                function.block_count,
                int(function.requirements),
            )
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
