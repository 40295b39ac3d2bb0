"""LLVM IR text as records: functions, calls, globals, what is address-taken, debug information.

Only the boundary matters here, so instructions other than calls are kept as text. IR is first read by
clang, which judges its syntax; what arrives here is well formed.

Source: the LLVM Language Reference.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import FormatError, NotFoundError
from .debug_info import DebugInfo
from .lowered import (
    LoweredSignature,
    LoweredValue,
    Scanner,
    parse_convention,
    parse_declaration,
    plain_symbol,
)
from .toolchain import Toolchain, default_toolchain, failure_text, require_llvmlite

__all__ = ["IrCall", "IrFunction", "IrModule", "load_ir", "parse_ir"]

_CALL = re.compile(r"^\s+(?:%\S+ = )?(?:(?:tail|musttail|notail) )?(?:call|invoke|callbr)\b")
_FAST_MATH = re.compile(r"(?:nnan|ninf|nsz|arcp|contract|afn|reassoc|fast)\b")
_TYPE_DEFINITION = re.compile(r'^(%(?:[\w.$-]+|"[^"]*")) = type (.+)$', re.MULTILINE)
_ATTRIBUTE_GROUP = re.compile(r"^attributes (#\d+) = \{(.*)\}\s*$", re.MULTILINE)
_SYMBOL = re.compile(r'@(?:[\w.$-]+|"(?:[^"\\]|\\.)*")')
_GLOBAL = re.compile(r'^(@(?:[\w.$-]+|"(?:[^"\\]|\\.)*")) = (.*)$')
SHIM_INTERNAL = re.compile(r"sylvite_(?:bind|unbind|wrap|generic|thunk)_")
"""Names in generated shims that take generic functions' addresses without giving them to native code."""
_CLOSER = re.compile(r"^\}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IrCall:
    """A call. ``callee`` is a symbol, or "" for a call through a pointer; ``assembly`` marks inline
    assembly. ``line`` is an index into the module's lines."""

    callee: str
    signature: LoweredSignature
    line: int
    caller: str
    assembly: bool = False
    rest: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IrFunction:
    """A function. ``words`` are linkage and visibility; ``rest`` is the text behind the parameter list;
    ``line`` is an index into the module's lines."""

    name: str
    signature: LoweredSignature
    words: frozenset[str]
    rest: str
    line: int
    defined: bool

    @property
    def internal(self) -> bool:
        """Whether nothing outside the module can name it."""
        return bool(self.words & {"internal", "private"})


@dataclasses.dataclass(slots=True, kw_only=True)
class IrModule:
    """One module. ``lines`` is its text; ``attribute_groups`` maps ``#0`` to its attributes."""

    where: str
    lines: list[str]
    triple: str
    data_layout: str
    functions: dict[str, IrFunction]
    calls: list[IrCall]
    globals: dict[str, tuple[int, str]]
    address_taken: frozenset[str]
    attribute_groups: dict[str, str]
    types: dict[str, str]

    @property
    def text(self) -> str:
        """The whole module as text."""
        return "\n".join(self.lines) + "\n"

    def boundary(self) -> Iterator[IrFunction]:
        """Functions that code outside may call or that outside code provides: undefined, exported,
        address-taken. Intrinsics of LLVM are none."""
        for function in self.functions.values():
            if function.name.startswith("llvm."):
                continue
            if not function.internal or function.name in self.address_taken:
                yield function

    def attributes(self, rest: str) -> str:
        """The attributes behind a signature, groups spelled out."""
        return re.sub(r"#\d+", lambda match: self.attribute_groups.get(match.group(), ""), rest)

    def debug_info(self) -> DebugInfo:
        """The module's metadata."""
        return DebugInfo(self.lines)


def load_ir(path: str | os.PathLike[str], toolchain: Toolchain | None = None) -> IrModule:
    """Read a ``.ll`` or ``.bc`` file.

    Raises:
        NotFoundError: no such file.
        FormatError: clang refuses it; the message is clang's, with line and column.
    """
    where = str(path)
    if not Path(path).is_file():
        raise NotFoundError(f"no such file: {where}")
    if Path(path).suffix == ".bc":
        return parse_ir(_disassembled(Path(path)), where)
    toolchain = toolchain or default_toolchain()
    # Clang judges the syntax; the text is kept as written, for clang would put the host's triple into it.
    done = toolchain.run(
        ["-x", "ir", "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-w", "-o", os.devnull, where]
    )
    if done.returncode != 0:
        raise FormatError(failure_text(done), where=where)
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return parse_ir(text, where)


def _disassembled(path: Path) -> str:
    binding: Any = require_llvmlite()
    try:
        return str(binding.parse_bitcode(path.read_bytes()))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise FormatError(str(error), where=str(path)) from error


def parse_ir(text: str, where: str = "module") -> IrModule:
    """Parse IR text that is known to be well formed."""
    lines = text.splitlines()
    types = dict(_TYPE_DEFINITION.findall(text))
    functions: dict[str, IrFunction] = {}
    calls: list[IrCall] = []
    globals_: dict[str, tuple[int, str]] = {}
    taken: set[str] = set()
    current = ""
    for index, line in enumerate(lines):
        if line.startswith(("declare ", "define ")):
            name, signature, words, rest = parse_declaration(line, types)
            defined = line.startswith("define ")
            functions[name] = IrFunction(
                name=name, signature=signature, words=words, rest=rest, line=index, defined=defined
            )
            current = name if defined else ""
            taken.update(plain_symbol(symbol) for symbol in _SYMBOL.findall(rest))
        elif _CLOSER.match(line):
            current = ""
        elif current:
            _body_line(line, index, current, types, calls, taken)
        elif match := _GLOBAL.match(line):
            globals_[plain_symbol(match[1])] = (index, match[2])
            taken.update(plain_symbol(symbol) for symbol in _SYMBOL.findall(match[2]))
    return IrModule(
        where=where,
        lines=lines,
        triple=_string(text, "triple"),
        data_layout=_string(text, "datalayout"),
        functions=functions,
        calls=calls,
        globals=globals_,
        address_taken=frozenset(taken),
        attribute_groups=dict(_ATTRIBUTE_GROUP.findall(text)),
        types=types,
    )


def _string(text: str, key: str) -> str:
    match = re.search(rf'^target {key} = "([^"]*)"', text, re.MULTILINE)
    return match[1] if match else ""


def _body_line(
    line: str, index: int, current: str, types: dict[str, str], calls: list[IrCall], taken: set[str]
) -> None:
    if "@" not in line and "call" not in line and "invoke" not in line:
        return
    symbols = [plain_symbol(symbol) for symbol in _SYMBOL.findall(line)]
    if _CALL.match(line):
        call = parse_call(line, index, current, types)
        calls.append(call)
        if call.callee in symbols:
            symbols.remove(call.callee)
        if SHIM_INTERNAL.match(call.callee):
            # Our own shim carries function addresses to a trampoline; nobody else calls through them.
            return
    taken.update(symbols)


@dataclasses.dataclass(slots=True)
class CallScanner:
    """Positions found while reading a call, for those who rewrite it."""

    scanner: Scanner
    result_start: int = 0
    result_end: int = 0


def open_call(line: str, types: dict[str, str]) -> CallScanner:
    """A scanner behind ``call`` and its flags, at the result's attributes."""
    match = _CALL.match(line)
    if match is None:
        raise FormatError("not a call", where=line.strip()[:120])
    scanner = Scanner(line, match.end(), types)
    while scanner.pattern(_FAST_MATH):
        pass
    return CallScanner(scanner)


def parse_call(line: str, index: int, caller: str, types: dict[str, str]) -> IrCall:
    """Parse a ``call``, ``invoke`` or ``callbr`` line."""
    scanner = open_call(line, types).scanner
    convention = parse_convention(scanner)
    extension, placing = scanner.attributes()
    if scanner.take("addrspace"):
        scanner.bracketed()
    result = LoweredValue(type=scanner.type(), extension=extension, placing=placing)
    variadic = False
    if scanner.peek("("):
        variadic = "..." in scanner.bracketed()
    scanner.space()
    callee, assembly = "", False
    if scanner.peek("asm"):
        assembly = True
        scanner.position = len(line)
    else:
        callee = called(scanner)
    parameters = tuple(value for value, _ in arguments(scanner)) if scanner.take("(") and not assembly else ()
    signature = LoweredSignature(
        result=result, parameters=parameters, variadic=variadic, convention=convention
    )
    return IrCall(
        callee=callee, signature=signature, line=index, caller=caller, assembly=assembly,
        rest="" if assembly else line[scanner.position :],
    )  # fmt: skip


def called(scanner: Scanner) -> str:
    """Consume the called value; the symbol, or "" for a pointer."""
    scanner.space()
    text, position = scanner.text, scanner.position
    match = _SYMBOL.match(text, position)
    if match is not None:
        scanner.position = match.end()
        return plain_symbol(match.group())
    while scanner.position < len(text) and text[scanner.position] not in "(":
        scanner.position += 1
    inside = text[position : scanner.position].strip()
    if inside and not inside.startswith("%") and inside not in ("null", "undef", "poison"):
        # A constant expression such as inttoptr (...): the call's arguments are the group behind it.
        scanner.bracketed()
    return ""


def arguments(scanner: Scanner) -> Iterator[tuple[LoweredValue, tuple[int, int]]]:
    """Consume call arguments behind the opening bracket: each with the span of its attributes."""
    while not scanner.take(")"):
        type_ = scanner.type()
        start = scanner.position
        extension, placing = scanner.attributes()
        yield LoweredValue(type=type_, extension=extension, placing=placing), (start, scanner.position)
        _skip_value(scanner)
        scanner.take(",")


def _skip_value(scanner: Scanner) -> None:
    """Move to the comma or bracket that ends an argument's value."""
    while scanner.position < len(scanner.text):
        character = scanner.text[scanner.position]
        if character in ",)":
            return
        if character in "({[<":
            scanner.bracketed()
        elif character == '"':
            scanner.pattern(_quoted())
        else:
            scanner.position += 1


@functools.cache
def _quoted() -> re.Pattern[str]:
    return re.compile(r'"(?:[^"\\]|\\.)*"')
