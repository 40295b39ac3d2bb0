"""Differential runs: random C signatures, called from generic code into native code, compared with the
guard's verdicts.

Each signature gets a caller (compiled for the base, retargeted) and a callee (compiled natively). Both
know from a seed what every leaf of every argument must hold, and check it; stacks are poisoned before
each call. The guard is wrong when a signature misbehaves that it called safe (or patched).
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .ir_text import parse_ir
from .oracle import Query, examine
from .retarget import known_signatures, view_signatures
from .rules import Verdict, judge
from .running import Program, generic_ir
from .targets import Target
from .toolchain import Toolchain, default_toolchain

__all__ = ["Batch", "Tally", "generate_batch", "run_differential", "run_differentials"]

_SCALARS = (
    "_Bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int",
    "long long", "unsigned long long", "float", "double", "void *", "long", "enum colour",
)  # fmt: skip
# What portable headers use: most of it is safe or mended by extension attributes.
_MILD = tuple(scalar for scalar in _SCALARS if scalar not in ("char", "long"))

_PRELUDE = """
enum colour { RED, GREEN, BLUE };
static inline unsigned mix(unsigned seed) {
  seed ^= seed >> 16; seed *= 0x7feb352du; seed ^= seed >> 15; seed *= 0x846ca68bu;
  return seed ^ (seed >> 16);
}
static inline unsigned long long wide(unsigned seed) {
  return (unsigned long long)mix(seed) << 32 | mix(seed + 77);
}
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Type:
    """A C type: how it is spelled, and how its leaves are visited. ``leaves`` are (path, scalar, bits)."""

    spelled: str
    leaves: tuple[tuple[str, str, int], ...]
    aggregate: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The C text of one batch: ``header`` declares, ``caller`` is generic, ``callee`` native."""

    names: tuple[str, ...]
    header: str
    caller: str
    callee: str


@dataclasses.dataclass(slots=True, kw_only=True)
class Tally:
    """What a run showed. ``missed`` are signatures that misbehave though the guard called them safe;
    ``flagged_harmless`` counts those flagged that ran right."""

    target: str
    total: int = 0
    right: int = 0
    wrong: int = 0
    crash: int = 0
    flagged: int = 0
    flagged_harmless: int = 0
    missed: list[str] = dataclasses.field(default_factory=list)

    @property
    def harmless_share(self) -> float:
        """The share of flagged signatures that ran right, 0 to 1."""
        return self.flagged_harmless / self.flagged if self.flagged else 0.0


class _Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.types: list[str] = []
        self.counter = 0
        self.mild = False

    # -- types ----------------------------------------------------------------------------------

    def scalar(self) -> _Type:
        spelled = self.random.choice(_MILD if self.mild else _SCALARS)
        return _Type(spelled=spelled, leaves=(("", spelled, 0),))

    def value(self) -> _Type:
        if not self.mild:
            return self.aggregate(2) if self.random.random() < 0.5 else self.scalar()
        # Now and then a record that many conventions happen to pass alike.
        return self.aggregate(0) if self.random.random() < 0.05 else self.scalar()

    def aggregate(self, depth: int) -> _Type:
        shape = self.random.choice(
            ("struct", "struct", "struct", "floats", "union", "bits", "packed", "aligned")
        )
        self.counter += 1
        name = f"t{self.counter}"
        if shape == "floats":
            return self._floats(name)
        members: list[str] = []
        leaves: list[tuple[str, str, int]] = []
        for number in range(self.random.randint(1, 4)):
            if shape == "bits" and self.random.random() < 0.7:
                self._bit_field(f"m{number}", members, leaves)
            else:
                self._member(f"m{number}", depth, members, leaves)
        keyword = "union" if shape == "union" else "struct"
        suffix = {"packed": " __attribute__((packed))", "aligned": " __attribute__((aligned(16)))"}.get(
            shape, ""
        )
        if keyword == "union":
            # Only one member can hold a value: the first that has leaves.
            first = leaves[0][0].split(".")[1].split("[")[0] if leaves else "m0"
            leaves = [leaf for leaf in leaves if leaf[0].split(".")[1].split("[")[0] == first]
        self.types.append(f"{keyword}{suffix} {name} {{ {' '.join(members)} }};")
        return _Type(spelled=f"{keyword} {name}", leaves=tuple(leaves), aggregate=True)

    def _floats(self, name: str) -> _Type:
        scalar = self.random.choice(("float", "double"))
        count = self.random.randint(1, 5)
        if self.random.random() < 0.5:
            self.types.append(f"struct {name} {{ {scalar} m[{count}]; }};")
            leaves = tuple((f".m[{i}]", scalar, 0) for i in range(count))
        else:
            self.types.append(f"struct {name} {{ {' '.join(f'{scalar} m{i};' for i in range(count))} }};")
            leaves = tuple((f".m{i}", scalar, 0) for i in range(count))
        return _Type(spelled=f"struct {name}", leaves=leaves, aggregate=True)

    def _bit_field(self, name: str, members: list[str], leaves: list[tuple[str, str, int]]) -> None:
        spelled = self.random.choice(("int", "unsigned int", "unsigned short", "unsigned long long"))
        bits = self.random.randint(1, {"unsigned short": 15, "unsigned long long": 40}.get(spelled, 30))
        members.append(f"{spelled} {name} : {bits};")
        leaves.append((f".{name}", spelled, bits))

    def _member(self, name: str, depth: int, members: list[str], leaves: list[tuple[str, str, int]]) -> None:
        inner = self.aggregate(depth - 1) if depth > 0 and self.random.random() < 0.25 else self.scalar()
        count = self.random.randint(1, 3) if self.random.random() < 0.25 else 0
        members.append(f"{inner.spelled} {name}{f'[{count}]' if count else ''};")
        for place in [f".{name}[{i}]" for i in range(count)] if count else [f".{name}"]:
            leaves.extend((place + path, scalar, bits) for path, scalar, bits in inner.leaves)

    # -- signatures -----------------------------------------------------------------------------

    def parameters(self, most: int) -> list[_Type]:
        values = [self.value() for _ in range(self.random.randint(0, most))]
        if not self.mild and most > 2 and self.random.random() < 0.5:
            # Two aggregates at least: one alone is often right by luck.
            values = [self.aggregate(1), *values[: most - 2], self.aggregate(1)]
        return values

    def result(self) -> _Type | None:
        return None if self.random.random() < 0.25 else self.value()


def _leaf_value(scalar: str, bits: int, seed: str) -> str:
    if scalar == "float":
        return f"(union {{ unsigned u; float f; }}){{0x3f800000u | (mix({seed}) & 0x7fffffu)}}.f"
    if scalar == "double":
        return (
            f"(union {{ unsigned long long u; double d; }}){{0x3ff0000000000000ull | (wide({seed}) & "
            "0xfffffffffffffull)}.d"
        )
    if scalar == "_Bool":
        return f"(_Bool)(mix({seed}) & 1)"
    if scalar == "void *":
        return f"(void *)(__UINTPTR_TYPE__)wide({seed})"
    if scalar == "enum colour":
        return f"(enum colour)(mix({seed}) % 3)"
    if bits:
        mask = (1 << (bits - 1)) - 1 if scalar == "int" else (1 << bits) - 1
        return f"({scalar})(wide({seed}) & {mask}ull)"
    return f"({scalar})wide({seed})"


def _bits_of(scalar: str, expression: str) -> str:
    """An expression that compares bit for bit."""
    if scalar == "float":
        return f"(union {{ float f; unsigned u; }}){{{expression}}}.u"
    if scalar == "double":
        return f"(union {{ double d; unsigned long long u; }}){{{expression}}}.u"
    return expression


def _fill(type_: _Type, name: str, seed: int) -> list[str]:
    return [
        f"  {name}{path} = {_leaf_value(scalar, bits, f'{seed}u + {number}u')};"
        for number, (path, scalar, bits) in enumerate(type_.leaves)
    ]


def _check(type_: _Type, name: str, seed: int, flag: str) -> list[str]:
    lines = []
    for number, (path, scalar, bits) in enumerate(type_.leaves):
        value = _leaf_value(scalar, bits, f"{seed}u + {number}u")
        lines.append(f"  if ({_bits_of(scalar, name + path)} != {_bits_of(scalar, value)}) {flag} = 1;")
    return lines


@dataclasses.dataclass(slots=True)
class _Texts:
    header: list[str] = dataclasses.field(default_factory=list)
    caller: list[str] = dataclasses.field(default_factory=list)
    callee: list[str] = dataclasses.field(default_factory=list)


def generate_batch(seed: int, count: int) -> Batch:
    """``count`` signatures from ``seed``; the same arguments always give the same text."""
    generator = _Generator(seed)
    texts = _Texts()
    names = tuple(f"f{index}" for index in range(count))
    for index, name in enumerate(names):
        _signature(generator, texts, index, name)
    header = _PRELUDE + "\n".join(texts.header) + "\nvoid native_failed(int *out);\n"
    caller = '#include "batch.h"\n' + _CALLER_HEAD + "\n".join(texts.caller) + _caller_main(names)
    callee = '#include "batch.h"\n' + _CALLEE_HEAD + "\n".join(texts.callee) + "\n"
    return Batch(names=names, header=header, caller=caller, callee=callee)


_CALLER_HEAD = """
void sylvite_write(const char *text, __UINTPTR_TYPE__ length);
static int failed;
__attribute__((noinline)) static void poison(void) {
  volatile unsigned char junk[3000];
  for (int i = 0; i < 3000; i++) junk[i] = 0xA5;
}
"""
_CALLEE_HEAD = """
static int failed;
void native_failed(int *out) { *out = failed; failed = 0; }
__attribute__((noinline)) static void poison(void) {
  volatile unsigned char junk[3000];
  for (int i = 0; i < 3000; i++) junk[i] = 0x5A;
}
"""


def _caller_main(names: Sequence[str]) -> str:
    cases = "\n".join(f"    case {index}: test_{name}(); break;" for index, name in enumerate(names))
    return f"""
int main(int argc, char **argv) {{
  int at = 0;
  for (const char *c = argc > 1 ? argv[1] : "0"; *c; c++) at = at * 10 + (*c - '0');
  /* A second argument: only that one. */
  int end = argc > 2 ? at + 1 : {len(names)};
  for (; at < end; at++) {{
    int theirs = 0;
    failed = 0;
    sylvite_write("?", 1);
    switch (at) {{
{cases}
    }}
    native_failed(&theirs);
    sylvite_write(failed || theirs ? "w" : "r", 1);
  }}
  return 0;
}}
"""


def _signature(generator: _Generator, texts: _Texts, index: int, name: str) -> None:
    seed = 1000 * (index + 1)
    first_type = len(generator.types)
    generator.mild = generator.random.random() < 0.45
    parameters = generator.parameters(12 if generator.random.random() < 0.3 else 5)
    result = generator.result()
    callback = generator.random.random() < 0.25
    inner = generator.parameters(4) if callback else []
    inner_result = generator.result() if callback else None
    texts.header += generator.types[first_type:]
    spelled = [f"{p.spelled} a{i}" for i, p in enumerate(parameters)]
    if callback:
        inside = ", ".join(p.spelled for p in inner) or "void"
        texts.header.append(f"typedef {_spelled(inner_result)} (*cb_{name})({inside});")
        spelled.append(f"cb_{name} call")
        _callback(texts, name, inner, inner_result, seed)
    prototype = f"{_spelled(result)} {name}({', '.join(spelled) or 'void'})"
    texts.header.append(prototype + ";")
    texts.callee.append(prototype + " {")
    for i, parameter in enumerate(parameters):
        texts.callee += _check(parameter, f"a{i}", seed + 50 * i, "failed")
    if callback:
        texts.callee.append("  poison();")
        texts.callee += list(_call(inner, inner_result, "call", seed + 700, "failed"))
    if result is not None:
        texts.callee += [f"  {result.spelled} r;", *_fill(result, "r", seed + 900), "  return r;"]
    texts.callee.append("}")
    texts.caller.append(f"static void test_{name}(void) {{\n  poison();")
    more = [f"callback_{name}"] if callback else []
    texts.caller += list(_call(parameters, result, name, seed, "failed", more))
    texts.caller.append("}")


def _spelled(result: _Type | None) -> str:
    return "void" if result is None else result.spelled


def _call(
    parameters: Sequence[_Type], result: _Type | None, callee: str, seed: int, flag: str,
    more: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    for i, parameter in enumerate(parameters):
        yield f"  {parameter.spelled} v{i};"
        yield from _fill(parameter, f"v{i}", seed + 50 * i)
    call = f"{callee}({', '.join([*(f'v{i}' for i in range(len(parameters))), *more])})"
    if result is None:
        yield f"  {call};"
    else:
        yield f"  {result.spelled} got = {call};"
        yield from _check(result, "got", seed + _result_seed(callee), flag)


def _result_seed(callee: str) -> int:
    """Where a result's values start: what the callee (or the callback, called from seed + 700) fills."""
    return 900 if callee != "call" else 250


def _callback(
    texts: _Texts, name: str, inner: Sequence[_Type], inner_result: _Type | None, seed: int
) -> None:
    spelled = ", ".join(f"{p.spelled} a{i}" for i, p in enumerate(inner)) or "void"
    lines = [f"static {_spelled(inner_result)} callback_{name}({spelled}) {{"]
    for i, parameter in enumerate(inner):
        lines += _check(parameter, f"a{i}", seed + 700 + 50 * i, "failed")
    if inner_result is not None:
        lines += [f"  {inner_result.spelled} r;", *_fill(inner_result, "r", seed + 950), "  return r;"]
    texts.caller += [*lines, "}"]


def run_differential(
    base: Target, target: Target, *, seed: int, count: int, toolchain: Toolchain | None = None
) -> Tally:
    """Run one batch for one pair of targets and compare with the guard's verdicts.

    Raises:
        UnavailableError: the target cannot be run here.
    """
    return next(run_differentials(base, [target], seed=seed, count=count, toolchain=toolchain))


def run_differentials(
    base: Target, targets: Sequence[Target], *, seed: int, count: int, toolchain: Toolchain | None = None
) -> Iterator[Tally]:
    """Run one batch for several targets. The generic side is compiled once, and clang is asked about all
    targets together.

    Raises:
        UnavailableError: a target cannot be run here.
    """
    toolchain = toolchain or default_toolchain()
    batch = generate_batch(seed, count)
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as name:
        folder = Path(name)
        for file, text in (("batch.h", batch.header), ("caller.c", batch.caller), ("callee.c", batch.callee)):
            (folder / file).write_text(text, encoding="utf-8")
        query = Query(files=(str(folder / "batch.h"),), include_dirs=(str(folder),))
        examination = examine(query, [base, *targets], base=base, toolchain=toolchain)
        # With debug information the retargeter knows the callbacks' C types too.
        ir = parse_ir(generic_ir(folder / "caller.c", base, query, toolchain=toolchain, flags=["-g"]))
        implied = known_signatures(ir, targets, toolchain=toolchain)
        for target in targets:
            report = judge(examination, [target], base)
            verdicts = {e.name: e.verdict for e in report.entities if e.kind == "function"}
            known = {**implied[target.name], **view_signatures(examination.views.get(target.name))}
            (folder / target.name).mkdir()
            program = Program(target, folder / target.name, toolchain=toolchain)
            program.add_generic(ir, force=True, known=known)
            program.add_source(folder / "callee.c", query)
            yield _compared(program, program.link(), batch, verdicts)


def _compared(program: Program, binary: Path, batch: Batch, verdicts: dict[str, Verdict]) -> Tally:
    tally = _tally(program.target, batch, verdicts, _run_all(program, binary, len(batch.names)))
    # A call that went wrong may have spoiled the ones after it: a miss must stand alone.
    tally.missed = [
        name for name in tally.missed if not _right_alone(program, binary, batch.names.index(name))
    ]
    return tally


def _run_all(program: Program, binary: Path, count: int) -> str:
    """One character a signature: r right, w wrong, c crash. A crash costs one restart."""
    marks = ""
    while len(marks) < count:
        outcome = program.run(binary, str(len(marks)))
        done = outcome.output.replace("?", "")
        marks += "".join(mark for mark in done if mark in "rw")[: count - len(marks)]
        if outcome.result == "right":
            break
        if len(marks) < count:
            marks += "c"
    return marks


def _right_alone(program: Program, binary: Path, index: int) -> bool:
    return program.run(binary, str(index), "only").output == "?r"


def _tally(target: Target, batch: Batch, verdicts: dict[str, Verdict], marks: str) -> Tally:
    tally = Tally(target=target.name, total=len(batch.names))
    for name, mark in zip(batch.names, marks, strict=True):
        flagged = verdicts[name] not in (Verdict.SAFE, Verdict.PATCH)
        tally.right += mark == "r"
        tally.wrong += mark == "w"
        tally.crash += mark == "c"
        tally.flagged += flagged
        tally.flagged_harmless += flagged and mark == "r"
        if mark != "r" and not flagged:
            tally.missed.append(name)
    return tally
