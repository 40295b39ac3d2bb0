"""The second gate: LLVM IR without its source.

At the boundary (undefined, exported and address-taken functions, calls through pointers) everything that
shows a target's convention is named; functions internal to the module are consistent with themselves. In
x86-64 IR most structs of 16 bytes or less look like separate scalars, so with a header or debug
information the calls are judged by the oracle instead.

Source: the LLVM Language Reference.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import InvalidArgumentError
from .byte_order import bit_field_records, folded_functions
from .ir_debug import debug_query
from .ir_text import SHIM_INTERNAL, IrCall, IrFunction, IrModule, load_ir
from .lowered import LoweredSignature, LoweredValue
from .nesting import refuse_deep_nesting
from .oracle import Examination, Query, examine
from .retarget import data_layout, extension_tables, wanted_extension
from .rules import Entity, Finding, Report, Verdict, judge
from .targets import TARGETS, Target
from .toolchain import Toolchain, default_toolchain

__all__ = ["check_ir", "check_ir_file"]

_LONG_DOUBLES = {
    "x86_fp80": "x87's 80-bit float",
    "fp128": "a 128-bit float",
    "ppc_fp128": "a pair of doubles",
}
_HALVES = ("half", "bfloat")
_PLACED = {
    "byval": "a record copied onto the stack",
    "sret": "a record returned through a hidden pointer",
    "dead_on_return": "a record passed through a hidden pointer",
    "inalloca": "arguments laid out in memory for 32-bit Windows",
    "preallocated": "arguments laid out in memory for 32-bit Windows",
    "inreg": "a value forced into registers",
    "byref": "a record passed by reference",
    "nest": "a hidden static-chain pointer",
    "swiftself": "Swift's context register",
    "swifterror": "Swift's error register",
    "swiftasync": "Swift's async context register",
    "alignstack": "a value with its own stack alignment",
}
_TARGET_INTRINSIC = re.compile(
    r"llvm\.(x86|aarch64|arm|riscv|ppc|s390|wasm|mips|loongarch|nvvm|amdgcn|hexagon|ve|bpf|xcore|r600|spv|dx)\."
)
_VA = re.compile(r"llvm\.va_(start|copy|end)")
_CPU = re.compile(r'"(target-cpu|target-features|tune-cpu)"="([^"]+)"')
_INTEGER = re.compile(r"i(\d+)$")
_WIDTHS = (1, 8, 16, 32, 64)


def check_ir_file(
    path: str | os.PathLike[str], targets: Sequence[Target], *, base: Target | None = None,
    query: Query | None = None, toolchain: Toolchain | None = None,
) -> Report:  # fmt: skip
    """Read a ``.ll`` or ``.bc`` file and check it.

    Raises:
        NotFoundError: no such file.
        FormatError: the IR or a header is malformed.
        UnavailableError: the ``abi`` extra is not installed.
    """
    return check_ir(load_ir(path, toolchain), targets, base=base, query=query, toolchain=toolchain)


@refuse_deep_nesting
def check_ir(
    module: IrModule, targets: Sequence[Target], *, base: Target | None = None, query: Query | None = None,
    toolchain: Toolchain | None = None,
) -> Report:  # fmt: skip
    """Check a module's boundary for ``targets``. ``query`` names the headers of what it calls; debug
    information tells the rest, where there is any."""
    toolchain = toolchain or default_toolchain()
    base = base or base_of(module)
    gate = _Gate(module, targets, base, toolchain)
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
        rebuilt = debug_query(module, Path(folder))
        for asked in (rebuilt, query):
            # What a header says goes before what debug information says.
            if asked is not None:
                gate.consult(asked)
    entities = [
        *gate.functions(), *gate.indirect_calls(), *gate.module_findings(), *gate.byte_order()
    ]  # fmt: skip
    return Report(
        targets=tuple(target.name for target in targets),
        base=base.name,
        entities=tuple(sorted(entities, key=lambda entity: entity.line)),
    )


def base_of(module: IrModule) -> Target:
    """The built-in target whose triple a module states, or the most alike; x86-64 Linux when it has none.

    Raises:
        InvalidArgumentError: the triple is like none of the targets.
    """
    for target in TARGETS.values():
        if target.triple == module.triple:
            return target
    arch = module.triple.split("-")[0]
    system = "darwin" if "apple" in module.triple else "windows" if "windows" in module.triple else "linux"
    alike = [t for t in TARGETS.values() if t.triple.split("-")[0] == arch]
    exact = [t for t in alike if t.system == system]
    if module.triple and not alike:
        raise InvalidArgumentError(
            f"{module.where} was compiled for {module.triple}, which is like no target: give its base"
        )
    return (exact or alike or [TARGETS["x86_64-linux"]])[0]


class _Gate:
    def __init__(
        self, module: IrModule, targets: Sequence[Target], base: Target, toolchain: Toolchain
    ) -> None:
        self.module = module
        self.targets = tuple(targets)
        self.base = base
        self.toolchain = toolchain
        self.others = tuple(target.name for target in targets if target.name != base.name) or (base.name,)
        self.tables = extension_tables(self.targets, toolchain)
        self.judged: Mapping[str, Entity] = {}
        self.base_signatures: Mapping[str, LoweredSignature] = {}

    def consult(self, query: Query) -> None:
        """Let the oracle judge the functions that a header (or debug information) declares."""
        examination: Examination = examine(query, self.targets, base=self.base, toolchain=self.toolchain)
        report = judge(examination, self.targets, self.base)
        told = {entity.name: entity for entity in report.entities if entity.kind == "function"}
        self.judged = {**self.judged, **told}
        view = examination.views[self.base.name]
        lowered = {key[2:]: signature for key, signature in view.signatures.items() if key[0] == "f"}
        self.base_signatures = {**self.base_signatures, **lowered}

    # -- findings -------------------------------------------------------------------------------

    def _finding(
        self, verdict: Verdict, rule: str, reason: str, differs: Iterable[str] | None = None
    ) -> Finding:
        names = tuple(differs) if differs is not None else self.others
        return Finding(
            verdict=verdict, rule=rule, reason=reason, groups=((self.base.name,), names), differs=names,
            base=self.base.name,
        )  # fmt: skip

    def _entity(self, name: str, kind: str, line: int, findings: Iterable[Finding]) -> Entity:
        unique = {(f.verdict, f.rule, f.reason): f for f in findings}
        ordered = sorted(unique.values(), key=lambda finding: -finding.verdict.severity)
        return Entity(name=name, kind=kind, file=self.module.where, line=line + 1, findings=tuple(ordered))

    # -- functions ------------------------------------------------------------------------------

    def functions(self) -> Iterator[Entity]:
        """One entity per boundary function."""
        calls: dict[str, list[IrCall]] = {}
        for call in self.module.calls:
            calls.setdefault(call.callee, []).append(call)
        for function in self.module.boundary():
            kind = "callback" if function.internal else "function"
            findings = list(self._function(function, calls.get(function.name, ())))
            yield self._entity(function.name, kind, function.line, findings)

    def _function(self, function: IrFunction, calls: Sequence[IrCall]) -> Iterator[Finding]:
        told = self.judged.get(function.name)
        if told is not None:
            yield from told.findings
            yield from self._mismatch(function.name, function.signature)
            for call in calls:
                yield from self._mismatch(function.name, call.signature, call)
        else:
            yield from self._signature(function.signature, function.defined and function.name == "main")
            for call in calls:
                if call.signature.shape != function.signature.shape:
                    yield from self._signature(call.signature, variadic=function.signature.variadic)
        if "comdat" in function.rest and not function.internal:
            yield self._finding(
                Verdict.RULE, "ir-module", "it is in a comdat group, which Mach-O does not have",
                [t.name for t in self.targets if t.system == "darwin"] or None,
            )  # fmt: skip
        if function.defined:
            yield from self._cpu(function)

    def _cpu(self, function: IrFunction) -> Iterator[Finding]:
        found = dict(_CPU.findall(self.module.attributes(function.rest)))
        features = found.get("target-features", "")
        if found and (features or found.get("target-cpu")):
            words = ", ".join(f"{key} {value.split(',')[0]}" for key, value in found.items())
            yield self._finding(Verdict.PATCH, "ir-cpu", f"it is bound to a CPU ({words})")

    def _mismatch(
        self, name: str, signature: LoweredSignature, call: IrCall | None = None
    ) -> Iterator[Finding]:
        expected = self.base_signatures.get(name)
        if expected is None or expected.registers == signature.registers:
            return
        if expected.variadic and signature.variadic:
            return
        where = f"a call in {call.caller}" if call is not None else "its declaration"
        yield self._finding(
            Verdict.SHIM, "ir-mismatch",
            f"{where} has the signature {signature.shape}, but its C declaration lowers to "
            f"{expected.shape} on {self.base.name}",
        )  # fmt: skip

    def _signature(
        self, signature: LoweredSignature, is_main: bool = False, variadic: bool | None = None
    ) -> Iterator[Finding]:
        if signature.convention:
            yield self._finding(
                Verdict.SHIM, "ir-value", f"it has the calling convention {signature.convention}"
            )
        if signature.variadic if variadic is None else variadic:
            yield self._finding(
                Verdict.RULE, "variadic", "it is variadic: variable arguments travel differently",
                [t.name for t in self.targets if t.varargs != self.base.varargs] or None,
            )  # fmt: skip
        for number, value in enumerate((signature.result, *signature.parameters)):
            label = "the result" if number == 0 else f"parameter {number}"
            yield from self._value(label, value)
        if not is_main:
            yield from self._extensions(signature)

    def _value(self, label: str, value: LoweredValue) -> Iterator[Finding]:
        for attribute in value.placing:
            word = attribute.split("(")[0].split()[0]
            if word in _PLACED:
                yield self._finding(Verdict.SHIM, "ir-value", f"{label} is {_PLACED[word]} ({word})")
        words = _type_hazard(value.type)
        if words is not None:
            verdict = Verdict.RULE if value.type in _HALVES else Verdict.SHIM
            yield self._finding(verdict, "ir-value", f"{label} is {words} ({value.type})")

    def _extensions(self, signature: LoweredSignature) -> Iterator[Finding]:
        patched, unknown = [], []
        for target in self.targets:
            table = self.tables[target.name]
            wanted = [wanted_extension(value, table) for value in (signature.result, *signature.parameters)]
            narrow = [v for v in (signature.result, *signature.parameters) if _is_narrow(v)]
            if narrow and any(want is None for want in wanted):
                unknown.append(target.name)
            elif any(
                want != value.extension
                for want, value in zip(wanted, (signature.result, *signature.parameters), strict=True)
            ):
                patched.append(target.name)
        if patched:
            yield self._finding(
                Verdict.PATCH, "extension", "small integers lack the extension these targets expect", patched
            )
        if unknown:
            yield self._finding(
                Verdict.RULE, "ir-sign", "small integers are extended by sign, which the IR does not tell",
                unknown,
            )  # fmt: skip

    # -- calls through pointers -----------------------------------------------------------------

    def indirect_calls(self) -> Iterator[Entity]:
        """One entity per function that calls through pointers with a hazard."""
        for call in self.module.calls:
            if call.callee or call.assembly or SHIM_INTERNAL.match(call.caller):
                continue
            findings = list(self._signature(call.signature))
            if findings:
                yield self._entity(
                    f"call through a pointer in {call.caller}", "callback", call.line, findings
                )

    # -- the module -----------------------------------------------------------------------------

    def module_findings(self) -> Iterator[Entity]:
        """Inline assembly, target intrinsics, variable arguments, TLS, layouts that depend on the target."""
        by_caller: dict[str, list[tuple[int, Finding]]] = {}
        for call in self.module.calls:
            finding = self._call_finding(call)
            if finding is not None:
                by_caller.setdefault(call.caller, []).append((call.line, finding))
        for caller, found in by_caller.items():
            yield self._entity(
                f"body of {caller}", "function", found[0][0], [finding for _, finding in found]
            )
        for index, line in enumerate(self.module.lines):
            if re.match(r"\s+%\S+ = va_arg ", line):
                finding = self._finding(
                    Verdict.RULE, "va-list", "it reads variable arguments itself (va_arg)"
                )
                yield self._entity(f"va_arg in line {index + 1}", "function", index, [finding])
            elif line.startswith("module asm "):
                finding = self._finding(Verdict.SHIM, "ir-target-code", "it contains assembly")
                yield self._entity(f"module assembly in line {index + 1}", "function", index, [finding])
        for name, (index, text) in self.module.globals.items():
            if re.search(r"\bthread_local\b", text.split(" = ")[0][:200]):
                finding = self._finding(
                    Verdict.RULE,
                    "ir-module",
                    "it is thread-local, and each system finds such data its own way",
                )
                yield self._entity(name, "struct", index, [finding])
        yield from self._pointer_width()

    def _call_finding(self, call: IrCall) -> Finding | None:
        if call.assembly:
            return self._finding(Verdict.SHIM, "ir-target-code", "it contains inline assembly")
        if _TARGET_INTRINSIC.match(call.callee):
            return self._finding(
                Verdict.SHIM, "ir-target-code", f"it uses the target intrinsic {call.callee}"
            )
        if _VA.match(call.callee):
            return self._finding(
                Verdict.RULE,
                "va-list",
                f"it handles variable arguments ({call.callee}), laid out for the base",
            )
        return None

    def _pointer_width(self) -> Iterator[Entity]:
        stated = self.module.data_layout or data_layout(self.base, self.toolchain)
        mine = _pointer_bits(stated)
        wrong = [t.name for t in self.targets if _pointer_bits(data_layout(t, self.toolchain)) != mine]
        if wrong:
            finding = self._finding(
                Verdict.LAYOUT, "ir-pointer-width",
                f"sizes and offsets are baked in for {mine}-bit pointers", wrong,
            )  # fmt: skip
            yield self._entity(Path(self.module.where).name, "struct", 0, [finding])
        yield from self._dependent_types()

    def _dependent_types(self) -> Iterator[Entity]:
        """Named types with members that are aligned otherwise by another data layout."""
        mine = _alignments(self.module.data_layout or data_layout(self.base, self.toolchain))
        for name, body in self.module.types.items():
            for target in self.targets:
                other = _alignments(data_layout(target, self.toolchain))
                odd = [
                    type_
                    for type_ in mine
                    if mine[type_] != other[type_]
                    and re.search(rf"\b{type_}\b", body)
                    and not body.startswith("<{")
                ]
                if odd:
                    finding = self._finding(
                        Verdict.LAYOUT, "layout",
                        f"its member of type {odd[0]} is aligned to {mine[odd[0]] // 8} bytes in the module "
                        f"and to {other[odd[0]] // 8} on {target.name}", [target.name],
                    )  # fmt: skip
                    line = next(
                        (i for i, text in enumerate(self.module.lines) if text.startswith(f"{name} =")), 0
                    )
                    yield self._entity(name, "struct", line, [finding])
                    break

    def byte_order(self) -> Iterator[Entity]:
        """What the base's byte order has left in the code, for targets of the other order."""
        stated = self.module.data_layout or data_layout(self.base, self.toolchain)
        order = "big" if stated.startswith("E") else "little"
        wrong = [target.name for target in self.targets if target.byte_order != order]
        if not wrong:
            return
        for function, line, words in folded_functions(self.module):
            finding = self._finding(
                Verdict.RULE, "ir-byte-order",
                f"it was optimized for {order}-endian memory and {words}", wrong,
            )  # fmt: skip
            yield self._entity(f"body of {function.name}", "function", line, [finding])
        for name, line in bit_field_records(self.module).items():
            finding = self._finding(
                Verdict.LAYOUT, "ir-byte-order",
                f"its bit-fields are counted from the other end than on {wrong[0]}", wrong,
            )  # fmt: skip
            yield self._entity(name, "struct", line, [finding])


def _pointer_bits(layout: str) -> int:
    match = re.search(r"(?:^|-)p:(\d+)", layout)
    return int(match[1]) if match else 64


def _alignments(layout: str) -> dict[str, int]:
    """ABI alignment in bits of the scalars that targets disagree about.

    Source: the LLVM Language Reference, "Data Layout": what a string leaves out has a default.
    """
    found = {"i64": 32, "double": 64, "i128": 128, "x86_fp80": 128, "fp128": 128}
    names = {"i64": "i64", "f64": "double", "i128": "i128", "f80": "x86_fp80", "f128": "fp128"}
    for part in layout.split("-"):
        kind, _, sizes = part.partition(":")
        if kind in names and sizes:
            found[names[kind]] = int(sizes.split(":")[0])
    return found


def _type_hazard(type_: str) -> str | None:
    """Words for a type that no two conventions pass alike; None for the harmless ones."""
    if type_.startswith(("{", "[", "<{", "%")):
        return "an aggregate by value"
    if type_.startswith("<"):
        return "a vector by value"
    if type_ in _LONG_DOUBLES:
        return _LONG_DOUBLES[type_]
    if type_ in _HALVES:
        return "a 16-bit float, whose registers depend on CPU features"
    match = _INTEGER.match(type_)
    if match is None:
        return None
    bits = int(match[1])
    if bits > 64:
        return f"a {bits}-bit integer"
    return None if bits in _WIDTHS else f"an integer of {bits} bits, most likely a record in disguise"


def _is_narrow(value: LoweredValue) -> bool:
    match = _INTEGER.match(value.type)
    return match is not None and int(match[1]) <= 32
