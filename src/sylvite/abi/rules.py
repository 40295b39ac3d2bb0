"""Verdicts: which functions, callbacks and records generic code may share between targets, and why not.

The oracle's lowered signatures and layouts decide; the rules here add what equal lowering hides and put
reasons into words.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from .debug_info import CType, TypeGraph
from .declarations import Callback, Function
from .layouts import Interner, LayoutReader, first_difference, own_difference
from .lowered import LoweredSignature
from .mends import MENDS
from .nesting import refuse_deep_nesting
from .oracle import Examination, Rejection, TargetView
from .targets import Target

__all__ = ["Entity", "Finding", "Report", "Verdict", "judge"]


class Verdict(str, enum.Enum):
    """What must be done before generic code may call (or be called through) something; mildest first."""

    SAFE = "SAFE"
    PATCH = "PATCH"
    RULE = "RULE"
    LAYOUT = "LAYOUT"
    SHIM = "SHIM"

    @property
    def severity(self) -> int:
        """0 for SAFE, rising."""
        return _ORDER.index(self)


_ORDER = (Verdict.SAFE, Verdict.PATCH, Verdict.RULE, Verdict.LAYOUT, Verdict.SHIM)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason against sharing. ``groups`` are targets that agree among themselves; ``differs`` are
    those that do not agree with the base (or, without one, with the first group)."""

    verdict: Verdict
    rule: str
    reason: str
    groups: tuple[tuple[str, ...], ...]
    differs: tuple[str, ...]
    base: str | None = None

    @property
    def mend(self) -> str:
        """What to do about it."""
        return MENDS[self.rule]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of targets that disagree; with a base, only pairs with the base."""
        if self.base is not None:
            return tuple((self.base, other) for other in self.differs)
        found = []
        for index, group in enumerate(self.groups):
            for later in self.groups[index + 1 :]:
                found += [(one, other) for one in group for other in later]
        return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A function, callback or struct (or union) with everything found about it, gravest first."""

    name: str
    kind: str
    file: str
    line: int
    findings: tuple[Finding, ...]
    signatures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The gravest finding's verdict."""
        return self.findings[0].verdict if self.findings else Verdict.SAFE

    @property
    def reason(self) -> str:
        """The gravest finding's reason, "" when there is none."""
        return self.findings[0].reason if self.findings else ""

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets that differ, over all findings."""
        return tuple(dict.fromkeys(name for finding in self.findings for name in finding.differs))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdicts of one check. ``base`` is None when all pairs of targets were compared."""

    targets: tuple[str, ...]
    base: str | None
    entities: tuple[Entity, ...]
    rejections: tuple[Rejection, ...] = ()

    def find(self, name: str, kind: str | None = None) -> Entity | None:
        """The entity called ``name``, if there is one."""
        return next((e for e in self.entities if e.name == name and kind in (None, e.kind)), None)

    def counts(self) -> dict[str, int]:
        """Number of entities by verdict."""
        return {verdict.value: sum(e.verdict is verdict for e in self.entities) for verdict in _ORDER}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    key: str
    name: str
    parameters: tuple[str, ...]
    prototype: bool
    file: str
    line: int


class _Judge:
    """Judges the entities of one examination."""

    def __init__(self, examination: Examination, targets: Sequence[Target], base: Target | None) -> None:
        intern = Interner()
        self.examination = examination
        self.base = base
        ordered = {target.name: target for target in ([base] if base else []) + list(targets)}
        self.targets = [target for target in ordered.values() if target.name in examination.views]
        self.readers = {t.name: LayoutReader(t, examination.views[t.name], intern) for t in self.targets}
        self.first = examination.views[examination.base]
        self.callback_keys = callback_keys(self.first.graph)
        self.callback_findings: dict[str, tuple[Finding, ...]] = {}

    # -- grouping -------------------------------------------------------------------------------

    def views(self, key: str) -> list[TargetView]:
        """The selected targets that have the entity."""
        views = [self.examination.views[target.name] for target in self.targets]
        return [view for view in views if key in view.graph.roots and key not in view.missing]

    def finding(
        self, verdict: Verdict, rule: str, values: Mapping[str, Hashable], reason: Callable[[str, str], str],
        *, always: bool = False,
    ) -> Finding | None:  # fmt: skip
        """Group targets by value; a finding when they do not all agree. ``reason`` gets one target of the
        first group and one that differs. ``always`` reports agreement too, against all targets."""
        groups: dict[Hashable, list[str]] = {}
        for target, value in values.items():
            groups.setdefault(value, []).append(target)
        if len(groups) < 2:
            if not always or not values:
                return None
            names = list(values)
            everyone = tuple(names[1:]) or tuple(names)
            return Finding(
                verdict=verdict, rule=rule, reason=reason(names[0], everyone[0]), groups=(tuple(names),),
                differs=everyone, base=self.base.name if self.base else None,
            )  # fmt: skip
        tuples = tuple(tuple(group) for group in groups.values())
        differs = tuple(name for group in tuples[1:] for name in group)
        return Finding(
            verdict=verdict, rule=rule, reason=reason(tuples[0][0], tuples[1][0]), groups=tuples,
            differs=differs, base=self.base.name if self.base else None,
        )  # fmt: skip

    # -- functions and callbacks ----------------------------------------------------------------

    def callable_findings(self, subject: _Subject) -> Iterator[Finding | None]:
        views = self.views(subject.key)
        yield self._absent(subject)
        if not views:
            return
        signatures = {
            view.target: view.signatures[subject.key] for view in views if subject.key in view.signatures
        }
        yield self._shape(subject, signatures)
        yield from self._extension(subject, signatures)
        yield from self._layout(subject, views)
        yield from self._rules(subject, views)
        yield from self._callbacks(subject)

    def _absent(self, subject: _Subject) -> Finding | None:
        present = {
            target.name: subject.key not in self.examination.views[target.name].missing
            for target in self.targets
        }
        missing = [name for name, there in present.items() if not there]
        why = self.examination.views[missing[0]].missing[subject.key] if missing else ""
        return self.finding(
            Verdict.RULE, "absent", present,
            lambda _a, _b: f"it does not exist on {missing[0]}: {why}",
        )  # fmt: skip

    def _shape(self, subject: _Subject, signatures: Mapping[str, LoweredSignature]) -> Finding | None:
        def reason(a: str, b: str) -> str:
            return (
                f"{self._by_value_words(subject)} lowered to {signatures[a].shape} on {a} "
                f"and to {signatures[b].shape} on {b}"
            )

        return self.finding(Verdict.SHIM, "shape", {name: s.shape for name, s in signatures.items()}, reason)

    def _by_value_words(self, subject: _Subject) -> str:
        """The aggregates a function passes by value, named; else just "it is"."""
        graph = self.first.graph
        function = graph.function(graph.roots.get(subject.key, 0))
        if function is None:
            return "it is"
        parts = [
            f"{_label(subject, number)} ({graph.name(index)})"
            for number, index in enumerate(_value_types(graph.nodes[function]))
            if graph.nodes[graph.plain(index)].kind in ("struct", "union", "vector")
        ]
        return f"{' and '.join(parts)} by value: the call is" if parts else "it is"

    def _extension(
        self, subject: _Subject, signatures: Mapping[str, LoweredSignature]
    ) -> Iterator[Finding | None]:
        """Within each group of equal shape, missing or different extension attributes."""
        by_shape: dict[str, dict[str, LoweredSignature]] = {}
        for name, signature in signatures.items():
            by_shape.setdefault(signature.shape, {})[name] = signature

        def reason(a: str, b: str) -> str:
            return (
                "only the extension of small integers differs: "
                f"{signatures[a]} on {a}, {signatures[b]} on {b}"
            )

        for number, group in enumerate(by_shape.values()):
            if number == 0 or self.base is None:
                yield self.finding(
                    Verdict.PATCH, "extension", {name: s.extensions for name, s in group.items()}, reason
                )

    def _layout(self, subject: _Subject, views: Sequence[TargetView]) -> Iterator[Finding | None]:
        functions = {view.target: view.graph.function(view.graph.roots[subject.key]) for view in views}
        known = {name: index for name, index in functions.items() if index is not None}

        def reason(a: str, b: str) -> str:
            found = first_difference(self.readers[a], self.readers[b], known[a], known[b], subject.parameters)
            return found or f"what its pointers lead to differs between {a} and {b}"

        by_value = {name: self.readers[name].by_value(index) for name, index in known.items()}
        yield self.finding(Verdict.SHIM, "by-value-layout", by_value, reason)
        orders = {
            name: self.readers[name].target.byte_order if self.readers[name].folds_records(index) else ""
            for name, index in known.items()
        }
        yield self.finding(
            Verdict.SHIM, "byte-order", orders,
            lambda a, b: "a record by value is folded into integers, whose bytes stand in "
            f"another order on {b} than on {a}",
        )  # fmt: skip
        pointees = {name: self.readers[name].pointees(index) for name, index in known.items()}
        yield self.finding(Verdict.LAYOUT, "layout", pointees, reason)

    def _callbacks(self, subject: _Subject) -> Iterator[Finding | None]:
        """Function pointers that a function hands over, directly or inside what it points at."""
        graph = self.first.graph
        function = graph.function(graph.roots.get(subject.key, 0))
        if function is None:
            return
        reader = self.readers.get(self.first.target) or LayoutReader(
            self.examination.targets[0], self.first, Interner()
        )
        for index in reader.walk(function):
            if index == function or graph.nodes[index].kind != "function":
                continue
            key = self.callback_keys.get(callback_key(graph, index))
            if key is None:
                yield self._unjudged(graph, index)
            elif key != subject.key:
                yield from _through_callback(key[2:], self.callback_findings.get(key, ()))

    def _unjudged(self, graph: TypeGraph, index: int) -> Finding | None:
        node = graph.nodes[index]
        plain = [graph.nodes[graph.plain(item)] for item in _value_types(node)]
        if not node.variadic and all(_is_neutral(item) for item in plain):
            return None
        return self.finding(
            Verdict.RULE, "unjudged-callback", {target.name: 0 for target in self.targets},
            lambda _a, _b: "it hands over a callback whose type has no name to ask clang about",
            always=True,
        )  # fmt: skip

    # -- what equal lowering hides --------------------------------------------------------------

    def _rules(self, subject: _Subject, views: Sequence[TargetView]) -> Iterator[Finding | None]:
        names = [view.target for view in views]
        graph = self.first.graph
        function = graph.function(graph.roots.get(subject.key, 0))
        if function is None:
            return
        node = graph.nodes[function]
        targets = {target.name: target for target in self.targets}
        same = dict.fromkeys(names, 0)
        if not subject.prototype:
            yield self.finding(
                Verdict.RULE, "no-prototype", same, always=True,
                reason=lambda _a, _b: "it has no prototype, so calls lower their arguments by promotion",
            )  # fmt: skip
        elif node.variadic:
            yield self.finding(
                Verdict.RULE, "variadic", {name: targets[name].varargs for name in names}, always=True,
                reason=lambda a, b: _variadic_words(targets[a], targets[b]),
            )  # fmt: skip
        for number, index in enumerate(_value_types(node)):
            yield from self._value_rules(_label(subject, number), index, views)
        yield self._float_abi(node, names)

    def _value_rules(self, label: str, index: int, views: Sequence[TargetView]) -> Iterator[Finding | None]:
        graph = self.first.graph
        same = dict.fromkeys((view.target for view in views), 0)
        chain = _typedef_names(graph, index)
        plain = graph.nodes[graph.plain(index)]
        if _is_va_list(graph, plain, chain):
            yield self.finding(
                Verdict.RULE, "va-list", same, always=True,
                reason=lambda _a, _b: f"{label} is a va_list, whose form is each target's own",
            )  # fmt: skip
        if plain.kind == "vector":
            yield self.finding(
                Verdict.RULE, "vector", same, always=True,
                reason=lambda _a, _b: f"{label} is a vector by value: its registers depend on CPU features",
            )  # fmt: skip
        if plain.kind == "forward" or (plain.kind == "enum" and not plain.size):
            yield self.finding(
                Verdict.RULE, "incomplete", same, always=True,
                reason=lambda _a, _b: f"{label} ({graph.name(index)}) is passed by value, but is "
                "not defined here, so clang cannot tell",
            )  # fmt: skip
        inside = _basics_inside(graph, index)
        if inside & {"_Float16", "__fp16", "__bf16"}:
            yield self.finding(
                Verdict.RULE, "half-float", same, always=True,
                reason=lambda _a, _b: f"{label} is a 16-bit float by value: its registers depend on features",
            )  # fmt: skip
        if "long double" in inside or plain.name == "long double":
            yield self.finding(
                Verdict.RULE, "long-double", {view.target: view.long_double for view in views},
                lambda a, b: f"{label} is long double, another number format on {a} than on {b}",
            )  # fmt: skip
        if plain.kind == "basic":
            yield from self._named_scalar(label, plain.name, chain, views)

    def _named_scalar(
        self, label: str, name: str, chain: Sequence[str], views: Sequence[TargetView]
    ) -> Iterator[Finding | None]:
        if "wchar_t" in chain:
            yield self.finding(
                Verdict.RULE, "wchar",
                {view.target: _typedef_format(view.graph, "wchar_t") for view in views},
                lambda a, b: f"{label} is wchar_t, of another size or sign on {a} than on {b}",
            )  # fmt: skip
        elif name == "char":
            yield self.finding(
                Verdict.RULE, "plain-char",
                {view.target: _basic(view.graph, "char").encoding for view in views},
                lambda a, b: f"{label} is plain char, whose sign differs between {a} and {b}",
            )  # fmt: skip
        elif name in ("long", "unsigned long") and not set(chain) & _WIDTH_NAMES:
            sizes = {view.target: _basic(view.graph, name).size for view in views}
            known = {target: size for target, size in sizes.items() if size}
            yield self.finding(
                Verdict.RULE, "long", known,
                lambda a, b: f"{label} is {name}: {known[a]} bits on {a}, {known[b]} on {b}",
            )  # fmt: skip

    def _float_abi(self, node: CType, names: Sequence[str]) -> Finding | None:
        """Floats in or out of core registers among targets a linker would join. Between different
        machines this is no hazard: the object cannot be taken for the other."""
        graph = self.first.graph
        if not any(_basics_inside(graph, index) & {"float", "double"} for index in _value_types(node)):
            return None
        rows = [target for target in self.targets if target.name in names]
        family = self.base.family if self.base else rows[0].family
        if self.base is None and any(row.family != family for row in rows):
            return None
        values = {row.name: (row.float_abi, row.abi_name) for row in rows if row.family == family}
        return self.finding(
            Verdict.RULE, "float-abi", values,
            lambda a, b: f"floating-point values travel in other registers on {a} than on {b}, "
            "and the generic IR does not say which",
        )  # fmt: skip

    # -- records --------------------------------------------------------------------------------

    def record_findings(self, key: str) -> Iterator[Finding | None]:
        views = self.views(key)
        roots = {view.target: view.graph.roots[key] for view in views}
        owns = {name: self.readers[name].own(index) for name, index in roots.items()}

        def reason(a: str, b: str) -> str:
            one, other = self.readers[a], self.readers[b]
            return own_difference(one, other, roots[a], roots[b], one.graph.name(roots[a]))

        yield self.finding(Verdict.LAYOUT, "layout", owns, reason)


_WIDTH_NAMES = frozenset(
    {
        "size_t", "ssize_t", "ptrdiff_t", "intptr_t", "uintptr_t", "int64_t", "uint64_t", "int32_t",
        "uint32_t", "intmax_t", "uintmax_t",
    }
)  # fmt: skip
_VARARGS = {
    "stack": "variable arguments travel on the stack",
    "registers": "they continue in registers",
    "windows": "floats travel in both register files",
    "windows-arm64": "they travel in integer registers only",
    "memory": "they travel in a buffer",
}


def _varargs(target: Target) -> str:
    return _VARARGS.get(target.varargs, target.varargs)


def _variadic_words(a: Target, b: Target) -> str:
    if a.varargs == b.varargs:
        return "it is variadic: a call through a fixed prototype is lowered otherwise than its callee expects"
    return (
        f"it is variadic: a call through a fixed prototype puts arguments where {b.name} does not look for "
        f"them ({_varargs(b)}; on {a.name}: {_varargs(a)})"
    )


def _label(subject: _Subject, number: int) -> str:
    """The result (number 0) or a parameter (counted from 1) in words."""
    if number == 0:
        return "the result"
    name = subject.parameters[number - 1] if number <= len(subject.parameters) else ""
    return name or f"parameter {number}"


def _value_types(node: CType) -> tuple[int, ...]:
    """Result first, then the parameters."""
    return (node.target, *node.parameters)


def _typedef_names(graph: TypeGraph, index: int) -> list[str]:
    names = []
    node = graph.nodes[index]
    while node.kind in ("typedef", "atomic"):
        names.append(node.name)
        node = graph.nodes[node.target]
    return names


def _typedef_format(graph: TypeGraph, name: str) -> tuple[int, str]:
    for index, node in enumerate(graph.nodes):
        if node.kind == "typedef" and node.name == name:
            plain = graph.nodes[graph.plain(index)]
            return plain.size, plain.encoding
    return 0, ""


def _basic(graph: TypeGraph, name: str) -> CType:
    return next((n for n in graph.nodes if n.kind == "basic" and n.name == name), CType(kind="basic"))


def _basics_inside(graph: TypeGraph, index: int) -> set[str]:
    """Names of the scalar types in a value, through records and arrays."""
    node = graph.nodes[graph.plain(index)]
    if node.kind == "basic":
        return {node.name, "float" if node.encoding == "complex_float" else node.name}
    if node.kind in ("struct", "union"):
        return set().union(*(_basics_inside(graph, field.type) for field in node.fields))
    return _basics_inside(graph, node.target) if node.kind in ("array", "vector") else set()


def _is_va_list(graph: TypeGraph, plain: CType, chain: Sequence[str]) -> bool:
    if set(chain) & {"va_list", "__builtin_va_list", "__gnuc_va_list", "__va_list"}:
        return True
    if plain.name in ("__va_list", "__va_list_tag"):
        return True
    pointee = graph.nodes[graph.plain(plain.target)] if plain.kind == "pointer" else plain
    return pointee.name in ("__va_list", "__va_list_tag")


def _is_neutral(node: CType) -> bool:
    return node.kind in ("void", "pointer") or (node.kind == "basic" and node.name in ("float", "double"))


def callback_key(graph: TypeGraph, index: int) -> Hashable:
    node = graph.nodes[index]
    return (graph.plain(node.target), tuple(graph.plain(item) for item in node.parameters), node.variadic)


def callback_keys(graph: TypeGraph) -> dict[Hashable, str]:
    keys: dict[Hashable, str] = {}
    for key, index in graph.roots.items():
        function = graph.function(index)
        if key.startswith("c:") and function is not None:
            keys.setdefault(callback_key(graph, function), key)
    return keys


def _through_callback(name: str, findings: Sequence[Finding]) -> Iterator[Finding]:
    """What a callback's findings mean for a function that hands the callback over."""
    for finding in findings:
        if finding.verdict is Verdict.LAYOUT or finding.rule in ("callback", "callback-extension", "absent"):
            continue
        rule = "callback-extension" if finding.verdict is Verdict.PATCH else "callback"
        yield dataclasses.replace(
            finding, rule=rule, reason=f"it hands over the callback {name}, of which: {finding.reason}"
        )


def _sorted(findings: Iterator[Finding | None]) -> tuple[Finding, ...]:
    """Gravest first; of each rule and verdict only the first reason."""
    kept: dict[tuple[Verdict, str, str], Finding] = {}
    for finding in findings:
        if finding is not None:
            distinct = (
                finding.reason if finding.verdict is Verdict.RULE and "callback" not in finding.rule else ""
            )
            kept.setdefault((finding.verdict, finding.rule, distinct), finding)
    return tuple(sorted(kept.values(), key=lambda finding: -finding.verdict.severity))


@refuse_deep_nesting
def judge(examination: Examination, targets: Sequence[Target], base: Target | None = None) -> Report:
    """Compare every entity of an examination across ``targets``: each against ``base`` when one is given,
    else all pairs."""
    judged = _Judge(examination, targets, base)
    declared = examination.declarations
    entities: list[Entity] = []
    for callback in declared.callbacks:
        findings = _sorted(judged.callable_findings(_callback_subject(callback)))
        if callback.expression is None:
            unnamed = judged.finding(
                Verdict.RULE, "unjudged-callback", {t.name: 0 for t in judged.targets}, always=True,
                reason=lambda _a, _b: "its type uses an unnamed record, so clang cannot be asked about it",
            )  # fmt: skip
            findings = (unnamed,) if unnamed else ()
        judged.callback_findings[f"c:{callback.name}"] = findings
        entities.append(_entity(judged, callback.name, "callback", f"c:{callback.name}", callback, findings))
    for function in declared.functions:
        findings = _sorted(judged.callable_findings(_function_subject(function)))
        entities.append(_entity(judged, function.name, "function", f"f:{function.name}", function, findings))
    for record in declared.records:
        findings = _sorted(judged.record_findings(f"s:{record.name}"))
        entities.append(
            Entity(name=record.name, kind="struct", file=record.file, line=record.line, findings=findings)
        )
    selected = {target.name for target in judged.targets} | {target.name for target in targets}
    return Report(
        targets=tuple(target.name for target in targets),
        base=base.name if base else None,
        entities=tuple(sorted(entities, key=lambda entity: (entity.file, entity.line, entity.kind))),
        rejections=tuple(r for r in examination.rejections if r.target in selected),
    )


def _callback_subject(callback: Callback) -> _Subject:
    return _Subject(
        key=f"c:{callback.name}", name=callback.name, parameters=(), prototype=True, file=callback.file,
        line=callback.line,
    )  # fmt: skip


def _function_subject(function: Function) -> _Subject:
    return _Subject(
        key=f"f:{function.name}", name=function.name, parameters=function.parameters,
        prototype=function.prototype, file=function.file, line=function.line,
    )  # fmt: skip


def _entity(
    judged: _Judge, name: str, kind: str, key: str, place: Function | Callback, findings: tuple[Finding, ...]
) -> Entity:
    signatures = {
        target.name: str(judged.examination.views[target.name].signatures[key])
        for target in judged.targets
        if key in judged.examination.views[target.name].signatures
    }
    return Entity(
        name=name, kind=kind, file=place.file, line=place.line, findings=findings, signatures=signatures
    )
