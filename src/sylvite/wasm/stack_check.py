"""Making functions that take more of the shadow stack than there is trap, wherever the stack lies.

Compilers for WebAssembly keep what needs an address on a *shadow stack* in linear memory, which grows down to
address 0, where the next access traps. The stack of a further thread lies elsewhere, and would grow into what
is below it. So whatever lowers the stack pointer is followed by a look at the stack's lower end.

Source: tool-conventions, BasicCABI, "The linear stack".
"""

from __future__ import annotations

import dataclasses
import functools
import re

from .instructions import INSTRUCTIONS, decode_instruction, encode_instruction
from .module import FunctionBody, Import, Module
from .passes import Pass
from .scan import RUN, alternatives
from .types import ExternKind, GlobalType, ValueType

__all__ = ["CHECK_STACK", "STACK_LOW", "STACK_POINTER", "check_stack"]

STACK_POINTER = ("env", "__stack_pointer")
"""Import of the stack pointer, a mutable global."""

STACK_LOW = ("env", "__stack_low")
"""Import of the lowest address of the stack, an immutable global."""


def check_stack(module: Module) -> Module:
    """The module with its checks; the same object when it does not move the stack pointer, or when it defines
    globals (no compiler's object does), whose indices an import more would change."""
    keys = [(item.module, item.name) for item in module.imports if item.kind is ExternKind.GLOBAL]
    if STACK_POINTER not in keys or module.globals:
        return module
    pointer = keys.index(STACK_POINTER)
    low = keys.index(STACK_LOW) if STACK_LOW in keys else len(keys)
    first = module.imported_count(ExternKind.FUNCTION)
    code = tuple(
        _checked(body, pointer, low, f"function {index}") for index, body in enumerate(module.code, first)
    )
    if all(new is old for new, old in zip(code, module.code, strict=True)):
        return module
    imports = module.imports
    if STACK_LOW not in keys:
        description = GlobalType(value=ValueType.I32)
        added = Import(
            module=STACK_LOW[0], name=STACK_LOW[1], kind=ExternKind.GLOBAL, description=description
        )
        imports = (*imports, added)
    return dataclasses.replace(module, imports=imports, code=code)


CHECK_STACK = Pass(name="check stack", version=1, function=check_stack)


@functools.cache
def _scanner() -> re.Pattern[bytes]:
    """A run of instructions that set no global."""
    others = [info for name, info in INSTRUCTIONS.items() if name != "global.set"]
    return re.compile(b"(?:%s){1,%d}" % (alternatives(others), RUN), re.DOTALL)


def _checked(body: FunctionBody, pointer: int, low: int, where: str) -> FunctionBody:
    _, code, base = body.split(where=where)
    setting = encode_instruction("global.set", (pointer,))
    if setting not in code:
        return body
    head = body.data[: len(body.data) - len(code)]
    check = (
        encode_instruction("global.get", (pointer,))
        + encode_instruction("global.get", (low,))
        + encode_instruction("i32.lt_u", ())
        + b"\x04\x40\x00\x0b"  # if unreachable end
    )
    scanner = _scanner()
    pieces: list[bytes] = []
    position = kept = 0
    while position < len(code):
        match = scanner.match(code, position)
        if match is not None:
            position = match.end()
            continue
        instruction, position = decode_instruction(code, position, base=base, where=where)
        if instruction.name == "global.set" and instruction.immediates[0] == pointer:
            pieces += (code[kept:position], check)
            kept = position
    return FunctionBody(data=head + b"".join(pieces) + code[kept:]) if pieces else body
