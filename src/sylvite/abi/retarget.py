"""Taking generic IR to a concrete target: triple, data layout, ABI name, attributes.

What LLVM derives from the triple is left to it. What the front end of the *base* target baked in is
undone where that is sound (CPU attributes, extension of small integers) and refused where it is not
(aggregates and everything else `sylvite.abi.ir_gate` finds at the boundary).

Source: the LLVM Language Reference, "Data Layout", "Module Flags Metadata", "Parameter Attributes".
"""

from __future__ import annotations

import ctypes
import functools
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FormatError, LinkError
from .ir_text import IrModule, arguments, called, open_call, parse_ir
from .lowered import LoweredSignature, LoweredValue, Scanner, parse_convention
from .oracle import Query, TargetView, examine
from .rules import Verdict
from .targets import Target
from .toolchain import Toolchain, default_toolchain, failure_text, require_llvmlite

__all__ = ["HostProgram", "compile_ir", "load_host_library", "retarget"]

_CPU_ATTRIBUTES = re.compile(
    r'\s*"(?:target-cpu|target-features|tune-cpu|probe-stack|stack-probe-size|min-legal-vector-width'
    r"|no-realign-stack|stackrealign|branch-target-enforcement|sign-return-address[\w-]*|patchable-function[\w-]*"
    r'|use-soft-float|fentry-call|guarded-control-stack|branch-protection-pauth-lr)"(?:="[^"]*")?'
)
_BASE_FLAGS = re.compile(
    r'!"(?:target-abi|cf-protection-\w+|wchar_size|branch-target-enforcement|sign-return-address[\w-]*'
    r'|guarded-control-stack|long-double-type|float-abi|ibt-seal|min_enum_size)"'
)
_EXTENSION_WORD = re.compile(r"\s*\b(?:signext|zeroext)\b")
_INTEGER = re.compile(r"i(\d+)$")
_PROBES = (
    ("bool", "_Bool"), ("s8", "signed char"), ("u8", "unsigned char"), ("s16", "short"),
    ("u16", "unsigned short"), ("s32", "int"), ("u32", "unsigned int"),
)  # fmt: skip


def retarget(
    module: IrModule | str,
    target: Target,
    *,
    query: Query | None = None,
    base: Target | None = None,
    force: bool = False,
    known: Mapping[str, LoweredSignature] | None = None,
    toolchain: Toolchain | None = None,
) -> str:
    """The IR text of ``module`` for ``target``.

    ``query`` names the headers of the functions it calls; with them every extension attribute is the one
    clang would write, without them it follows from the width and the base's attribute. ``force`` skips
    the gate. ``known`` is what `known_signatures` has told of the target, for those who retarget one module
    often.

    Raises:
        LinkError: the gate found calls that no attribute can mend; ``symbols`` names them.
        FormatError: the IR cannot be read.
        UnavailableError: the ``abi`` extra is not installed.
    """
    parsed = parse_ir(module) if isinstance(module, str) else module
    toolchain = toolchain or default_toolchain()
    if known is None:
        known = known_signatures(parsed, [target], query=query, toolchain=toolchain)[target.name]
    if not force:
        _refuse(parsed, target, base, query)
    lines = list(parsed.lines)
    _patch_extensions(parsed, lines, target, known, toolchain)
    text = "\n".join(lines) + "\n"
    text = _set_target(text, target.triple, data_layout(target, toolchain))
    text = _strip_attributes(text)
    return _set_abi_name(text, target.abi_name)


def _refuse(module: IrModule, target: Target, base: Target | None, query: Query | None) -> None:
    from .ir_gate import check_ir

    report = check_ir(module, [target], base=base, query=query)
    refused = [e for e in report.entities if e.verdict not in (Verdict.SAFE, Verdict.PATCH)]
    if refused:
        reasons = "\n".join(f"  {entity.name}: {entity.reason}" for entity in refused)
        raise LinkError(
            f"{module.where} cannot be taken to {target.name}:\n{reasons}",
            module=module.where,
            symbols=[entity.name for entity in refused],
        )


@functools.cache
def _layout_of(triple: str, flags: tuple[str, ...], toolchain: Toolchain) -> str:
    text = toolchain.check(
        ["-target", triple, *flags, "-S", "-emit-llvm", "-x", "c", "-o", "-", "-"],
        where=triple,
        input_text="",
    )
    match = re.search(r'^target datalayout = "([^"]*)"', text, re.MULTILINE)
    if match is None:
        raise FormatError("clang states no data layout", where=triple)
    return match[1]


def data_layout(target: Target, toolchain: Toolchain | None = None, *, run: bool = False) -> str:
    """LLVM's data layout of a target; of its runnable ELF triple when ``run``."""
    triple = (target.run_triple or target.triple) if run else target.triple
    return _layout_of(triple, target.flags, toolchain or default_toolchain())


def _set_target(text: str, triple: str, layout: str) -> str:
    text = re.sub(r'^target (?:triple|datalayout) = "[^"]*"\n', "", text, flags=re.MULTILINE)
    return f'target datalayout = "{layout}"\ntarget triple = "{triple}"\n{text}'


def _strip_attributes(text: str) -> str:
    def cleaned(match: re.Match[str]) -> str:
        return f"attributes {match[1]} = {{{_CPU_ATTRIBUTES.sub('', match[2])} }}"

    return re.sub(r"^attributes (#\d+) = \{(.*?)\s*\}\s*$", cleaned, text, flags=re.MULTILINE)


def _set_abi_name(text: str, abi_name: str) -> str:
    """Drop the base's module flags and state the ABI's name where LLVM needs it."""
    nodes = dict(re.findall(r"^!(\d+) = (!\{.*\})$", text, re.MULTILINE))
    flags = re.search(r"^!llvm\.module\.flags = !\{(.*)\}$", text, re.MULTILINE)
    kept = [item.strip() for item in flags[1].split(",")] if flags and flags[1].strip() else []
    kept = [item for item in kept if not _BASE_FLAGS.search(nodes.get(item.lstrip("!"), ""))]
    extra = ""
    if abi_name in ("lp64d", "ilp32d", "lp64", "ilp32", "lp64f", "ilp32f"):
        number = max((int(item) for item in re.findall(r"^!(\d+) = ", text, re.MULTILINE)), default=-1) + 1
        kept.append(f"!{number}")
        extra = f'!{number} = !{{i32 1, !"target-abi", !"{abi_name}"}}\n'
    text = re.sub(r"^!llvm\.module\.flags = .*\n", "", text, flags=re.MULTILINE)
    return text + (f"!llvm.module.flags = !{{{', '.join(kept)}}}\n{extra}" if kept else "")


# -- extension attributes ---------------------------------------------------------------------------


def extension_tables(
    targets: Sequence[Target], toolchain: Toolchain | None = None
) -> dict[str, Mapping[str, str]]:
    """By target, the extension attribute of each small integer (``bool``, ``s8`` ... ``u32``), as clang
    lowers it."""
    toolchain = toolchain or default_toolchain()
    missing = [target for target in targets if target not in _TABLES]
    if missing:
        with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
            header = Path(folder) / "extensions.h"
            header.write_text("".join(f"void probe_{name}({c});\n" for name, c in _PROBES), encoding="utf-8")
            examination = examine(Query(files=(str(header),)), missing, toolchain=toolchain)
        for target in missing:
            signatures = examination.view(target.name).signatures
            _TABLES[target] = {
                name: signatures[f"f:probe_{name}"].parameters[0].extension for name, _ in _PROBES
            }
    return {target.name: _TABLES[target] for target in targets}


# Facts of the compiler that is installed; they cannot change while the process lives.
_TABLES: dict[Target, Mapping[str, str]] = {}


def wanted_extension(value: LoweredValue, table: Mapping[str, str]) -> str | None:
    """The attribute that a value needs on the target; None where the IR does not tell (a 32-bit integer
    without a sign on a target that extends by sign)."""
    match = _INTEGER.match(value.type)
    if match is None or int(match[1]) > 32:
        return ""
    bits = int(match[1])
    if bits == 1:
        return table["bool"]
    if bits in (8, 16):
        if not value.extension:
            signed, unsigned = table[f"s{bits}"], table[f"u{bits}"]
            return signed if signed == unsigned else None
        return table[f"{'s' if value.extension == 'signext' else 'u'}{bits}"]
    if bits != 32:
        return None
    signed, unsigned = table["s32"], table["u32"]
    if signed == unsigned:
        return signed
    if value.extension:
        return signed if value.extension == "signext" else unsigned
    return None


def _patch_extensions(
    module: IrModule, lines: list[str], target: Target, known: Mapping[str, LoweredSignature],
    toolchain: Toolchain,
) -> None:  # fmt: skip
    table = extension_tables([target], toolchain)[target.name]
    boundary = {function.name for function in module.boundary()}
    for function in module.boundary():
        wanted = _wanted(function.signature, known.get(function.name), table)
        lines[function.line] = rewrite_declaration(lines[function.line], wanted)
    for call in module.calls:
        if call.assembly or call.callee.startswith("llvm.") or (call.callee and call.callee not in boundary):
            continue
        wanted = _wanted(call.signature, known.get(call.callee), table)
        lines[call.line] = rewrite_call(lines[call.line], wanted, module.types)


def known_signatures(
    module: IrModule, targets: Sequence[Target], *, query: Query | None = None,
    toolchain: Toolchain | None = None,
) -> dict[str, Mapping[str, LoweredSignature]]:  # fmt: skip
    """By target, how clang lowers the functions by symbol: those of the headers in ``query``, and those whose
    C types debug information tells."""
    from .ir_debug import debug_query

    known: dict[str, dict[str, LoweredSignature]] = {target.name: {} for target in targets}
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
        # What a header says goes before what debug information says.
        for asked in (debug_query(module, Path(folder)), query):
            if asked is not None:
                views = examine(asked, targets, toolchain=toolchain).views
                for target in targets:
                    known[target.name].update(view_signatures(views.get(target.name)))
    return dict(known)


def view_signatures(view: TargetView | None) -> dict[str, LoweredSignature]:
    """A view's functions by symbol."""
    if view is None:
        return {}
    return {view.symbols[key]: signature for key, signature in view.signatures.items() if key[0] == "f"}


def _wanted(
    mine: LoweredSignature, known: LoweredSignature | None, table: Mapping[str, str]
) -> tuple[str, ...]:
    """Extension attributes for result and parameters; those the IR does not tell keep their own."""
    values = (mine.result, *mine.parameters)
    if known is not None:
        told = known.extensions
        if len(told) == len(values) and known.registers == mine.registers:
            return told
        if known.variadic and len(told) < len(values):
            # What is beyond the prototype has been promoted to int or wider.
            return told + tuple(wanted_extension(v, table) or "" for v in values[len(told) :])
    wanted = (wanted_extension(value, table) for value in values)
    return tuple(
        value.extension if want is None else want for value, want in zip(values, wanted, strict=True)
    )


def _respell(line: str, spans: Sequence[tuple[int, int]], wanted: Sequence[str]) -> str:
    """Replace the extension word in each span of attributes (the last span first, so places hold)."""
    for (start, end), word in sorted(zip(spans, wanted, strict=False), reverse=True):
        attributes = _EXTENSION_WORD.sub("", line[start:end])
        line = line[:start] + (f" {word}" if word else "") + attributes + line[end:]
    return line


def rewrite_declaration(line: str, wanted: Sequence[str]) -> str:
    """A ``declare`` or ``define`` line with other extension attributes (result first)."""
    name = re.search(r'@(?:[\w.$-]+|"(?:[^"\\]|\\.)*")\(', line)
    if name is None:
        return line
    scanner = Scanner(line, name.end())
    spans = []
    while not scanner.take(")"):
        if scanner.take("..."):
            continue
        scanner.type()
        start = scanner.position
        scanner.attributes()
        spans.append((start, scanner.position))
        scanner.pattern(re.compile(r'%(?:[\w.$-]+|"[^"]*")'))
        scanner.take(",")
    line = _respell(line, spans, wanted[1:])
    head = _EXTENSION_WORD.sub("", line[: name.start()])
    if wanted[0]:
        head = _before_result(head, wanted[0])
    return head + line[name.start() :]


def _before_result(head: str, word: str) -> str:
    """Put a result attribute before the integer type that ends the head of a declaration or call."""
    return re.sub(r"(i\d+)(\s*)$", rf"{word} \1\2", head)


def rewrite_call(line: str, wanted: Sequence[str], types: dict[str, str]) -> str:
    """A call with other extension attributes (result first)."""
    scanner = open_call(line, types).scanner
    parse_convention(scanner)
    head_start = scanner.position
    scanner.attributes()
    scanner.type()
    head_end = scanner.position
    if scanner.peek("("):
        scanner.bracketed()
    called(scanner)
    if not scanner.take("("):
        return line
    spans = [span for _, span in arguments(scanner)]
    line = _respell(line, spans, wanted[1:])
    head = _EXTENSION_WORD.sub("", line[head_start:head_end])
    if wanted[0]:
        head = _before_result(head, wanted[0])
    return line[:head_start] + head + line[head_end:]


# -- objects and the host ---------------------------------------------------------------------------


def compile_ir(
    text: str, target: Target, output: Path, *, optimize: int = 1, position_independent: bool = False,
    triple: str | None = None, toolchain: Toolchain | None = None,
) -> Path:  # fmt: skip
    """Compile retargeted IR to an object file with clang.

    Raises:
        FormatError: clang refuses the IR.
    """
    toolchain = toolchain or default_toolchain()
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
        source = Path(folder) / "module.ll"
        source.write_text(text, encoding="utf-8")
        arguments_ = ["-target", triple or target.triple, *code_flags(target), "-w", f"-O{optimize}"]
        arguments_ += ["-fPIC" if position_independent else "-fno-pic", "-x", "ir", "-c", str(source)]
        done = toolchain.run([*arguments_, "-o", str(output)])
    if done.returncode != 0:
        raise FormatError(failure_text(done), where=target.name)
    return output


def code_flags(target: Target) -> list[str]:
    return [flag for flag in target.flags if flag.startswith("-m")]


class HostProgram:
    """Retargeted IR compiled in this process by llvmlite. Symbols it needs must be loaded already, or be
    given as addresses. Close it to free the code; functions must not be called afterwards."""

    def __init__(self, text: str, symbols: Mapping[str, int] | None = None) -> None:
        binding: Any = require_llvmlite()
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        for name, address in (symbols or {}).items():
            binding.add_symbol(name, address)
        try:
            module = binding.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise FormatError(str(error), where="module") from error
        machine = binding.Target.from_triple(module.triple).create_target_machine(opt=1, jit=True)
        self._engine: Any = binding.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        self._engine.run_static_constructors()

    def address(self, name: str) -> int:
        """The address of a function; 0 when there is none."""
        return int(self._engine.get_function_address(name)) if self._engine is not None else 0

    def function(self, name: str, prototype: Callable[[int], Any]) -> Any:
        """A function as a ctypes callable. ``prototype`` is what `ctypes.CFUNCTYPE` returns."""
        address = self.address(name)
        if not address:
            raise LinkError(f"no function {name}", symbols=[name])
        return prototype(address)

    def close(self) -> None:
        """Free the code."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> HostProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_host_library(path: Path) -> ctypes.CDLL:
    """Load a shared library so that a `HostProgram` finds its symbols."""
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
