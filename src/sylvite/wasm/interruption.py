"""Making modules stoppable from outside, at next to no cost.

Every loop and every function that calls looks at a word of a memory that belongs to the host, and traps
when it is not zero. Nothing is live across a trap, so compiled code keeps its values in registers; engines'
own interruption calls into the host there, and saves all of them on every turn.

The memory is an import under a reserved name, beside the module's own. Code that was validated for one
memory has no way to name a second one, so no guest reads or writes the words. For that the module may have
one memory at most, and one that it defines becomes an import as well (imports come first in the index space),
which whoever instantiates the module has to make.

Each place looks at a word of its own: of two loads of one address with no store between them, an optimizing
engine keeps the first only. To stop a guest, set all of the memory's words.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from ..errors import LinkError, UnsupportedFeatureError
from .instructions import INSTRUCTIONS, decode_instruction, encode_instruction
from .instructions.immediates import MemoryArgument
from .module import FunctionBody, Import, Module
from .passes import Pass
from .scan import RUN, alternatives
from .types import PAGE_BYTES, ExternKind, MemoryType

__all__ = [
    "INTERRUPTIBLE",
    "OWN_MEMORY",
    "RESERVED_MODULE",
    "STOP_MEMORY",
    "UNINTERRUPTIBLE",
    "import_shared_memory",
    "make_interruptible",
]

RESERVED_MODULE = "sylvite:host"
STOP_MEMORY = (RESERVED_MODULE, "stop")
"""Import of the words, a memory of one page."""

OWN_MEMORY = (RESERVED_MODULE, "memory")
"""Import of the memory that the module defined."""

_WORDS = PAGE_BYTES // 4
_CALLS = frozenset(("call", "call_indirect", "return_call", "return_call_indirect"))


def make_interruptible(module: Module) -> Module:
    """The module with its checks; see the module's description.

    Raises:
        LinkError: it imports from the reserved name.
        UnsupportedFeatureError: it has more than one memory.
    """
    _refuse_reserved(module)
    memories = module.all_memories
    if len(memories) > 1:
        raise UnsupportedFeatureError(
            f"the module has {len(memories)} memories; with interruption it may have one", where="module"
        )
    added = []
    if module.memories:
        added.append(_memory_import(OWN_MEMORY, module.memories[0]))
    added.append(_memory_import(STOP_MEMORY, MemoryType(minimum=1, maximum=1)))
    first = module.imported_count(ExternKind.FUNCTION)
    return dataclasses.replace(
        module,
        imports=(*module.imports, *added),
        memories=(),
        code=tuple(
            _with_checks(body, len(memories), f"function {index}")
            for index, body in enumerate(module.code, first)
        ),
    )


INTERRUPTIBLE = Pass(name="interruptible", version=1, function=make_interruptible)


def import_shared_memory(module: Module) -> Module:
    """The module with the shared memory that it defines, if it does, as an import, which the host makes and
    caps as it does with its own.

    Raises:
        LinkError: it imports from the reserved name.
        UnsupportedFeatureError: it has another memory beside.
    """
    _refuse_reserved(module)
    if not any(memory.shared for memory in module.memories):
        return module
    if len(module.all_memories) > 1:
        raise UnsupportedFeatureError(
            "the module defines a shared memory among several; it may import them", where="module"
        )
    added = _memory_import(OWN_MEMORY, module.memories[0])
    return dataclasses.replace(module, imports=(*module.imports, added), memories=())


UNINTERRUPTIBLE = Pass(name="uninterruptible", version=1, function=import_shared_memory)
"""For engines without interruption."""


def _refuse_reserved(module: Module) -> None:
    reserved = [item.name for item in module.imports if item.module == RESERVED_MODULE]
    if reserved:
        raise LinkError(
            f"the module imports {', '.join(reserved)} from {RESERVED_MODULE}, which is the host's alone",
            symbols=reserved,
        )


def _memory_import(key: tuple[str, str], memory: MemoryType) -> Import:
    return Import(module=key[0], name=key[1], kind=ExternKind.MEMORY, description=memory)


@functools.cache
def _scanner() -> re.Pattern[bytes]:
    """A run of instructions other than loops; the group is set when there was a call."""
    calls = [INSTRUCTIONS[name] for name in _CALLS]
    others = [info for name, info in INSTRUCTIONS.items() if name not in _CALLS and name != "loop"]
    pattern = b"(?:%s|(%s)){1,%d}" % (alternatives(others), alternatives(calls), RUN)
    return re.compile(pattern, re.DOTALL)


class _Checks:
    """The checks of one function, each with a word of its own."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._count = 0

    def next(self) -> bytes:
        """Code of the next check."""
        count = self._count
        self._count += 1
        # Engines keep atomic loads whatever came before, at the price of other loads: where words run out.
        load = "i32.load" if count < _WORDS else "i32.atomic.load"
        return (
            b"\x41\x00"
            + encode_instruction(load, (MemoryArgument(2, count % _WORDS * 4, self._memory),))
            + b"\x04\x40\x00\x0b"  # if unreachable end
        )


def _with_checks(body: FunctionBody, memory: int, where: str) -> FunctionBody:
    _, code, base = body.split(where=where)
    head = body.data[: len(body.data) - len(code)]
    checks = _Checks(memory)
    scanner = _scanner()
    entry = checks.next()
    pieces: list[bytes] = []
    has_calls = False
    position = kept = 0
    while position < len(code):
        match = scanner.match(code, position)
        if match is not None:
            has_calls = has_calls or match.group(1) is not None
            position = match.end()
            continue
        instruction, position = decode_instruction(code, position, base=base, where=where)
        if instruction.name == "loop":
            pieces += (code[kept:position], checks.next())
            kept = position
        elif instruction.name in _CALLS:
            has_calls = True
    if not pieces and not has_calls:
        return body
    # Without calls a function's time is that of its loops; with calls it may be recursive.
    return FunctionBody(data=head + (entry if has_calls else b"") + b"".join(pieces) + code[kept:])
