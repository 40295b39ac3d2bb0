"""Shims: wrappers that cross the boundary with nothing but ``void``, pointers, ``i64`` and ``double``.

For a header two files come out:

* ``NAME_native.c``, compiled by each target's own compiler: a wrapper for every function that needs one,
  trampolines for every callback, and static assertions of every layout that both sides rely on;
* ``NAME_generic.h``, for the portable code: inline functions of the original signatures that call the
  wrappers, so that the code itself stays as it is.

Callbacks from generic to native code get a slot: a native trampoline that looks its record (the generic
function and its thunk) up. A record lives until ``sylvite_unbind_...`` is called, else as long as the
program; one generic function takes one slot, however often it is handed over. The other direction,
native function pointers called by generic code, needs no record: the pointer is an argument.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import FormatError, InvalidArgumentError
from .debug_info import CType, TypeGraph
from .declarations import Callback, Function, Record, parameter_texts
from .layouts import Interner, LayoutReader
from .nesting import refuse_deep_nesting
from .oracle import Examination, Query, examine
from .rules import Entity, Report, Verdict, callback_key, callback_keys, judge
from .shim_text import Routine, Skipped, Value, header_text, native_text
from .targets import Target
from .toolchain import Toolchain, default_toolchain, failure_text

__all__ = ["Shim", "Skipped", "build_shim", "generate_shim"]

SLOTS = 16
"""Distinct generic functions that can be handed over per callback type at one time."""

_UNSUITABLE = re.compile(r"\(\*?\(|\((?:unnamed|anonymous)\b")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shim:
    """The generated text. ``functions`` and ``callbacks`` are the names that are covered."""

    name: str
    native: str
    header: str
    functions: tuple[str, ...]
    callbacks: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Write ``NAME_native.c`` and ``NAME_generic.h``; returns their paths."""
        native = Path(folder) / f"{self.name}_native.c"
        header = Path(folder) / f"{self.name}_generic.h"
        native.parent.mkdir(parents=True, exist_ok=True)
        native.write_text(self.native, encoding="utf-8")
        header.write_text(self.header, encoding="utf-8")
        return native, header


@refuse_deep_nesting
def generate_shim(
    query: Query,
    targets: Sequence[Target],
    *,
    base: Target,
    name: str = "shim",
    everything: bool = False,
    slots: int = SLOTS,
    header_names: Sequence[str] = (),
    toolchain: Toolchain | None = None,
) -> Shim:
    """Generate the shim that the headers of ``query`` need when code for ``base`` runs on ``targets``.

    ``everything`` wraps what is safe too. ``header_names`` is how the generated files include the
    headers (default: their base names).

    Raises:
        FormatError: the headers do not compile.
        InvalidArgumentError: ``name`` is no C identifier, or ``slots`` is not between 1 and 256.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InvalidArgumentError(f"a shim's name must be a C identifier, not {name!r}")
    if not 1 <= slots <= 256:
        raise InvalidArgumentError(f"slots must be between 1 and 256, not {slots}")
    examination = examine(query, targets, base=base, toolchain=toolchain or default_toolchain())
    report = judge(examination, targets, base)
    maker = _Maker(examination, report, everything)
    includes = tuple(header_names) or tuple(os.path.basename(file) for file in query.files)
    return maker.make(name, includes, slots)


class _Maker:
    def __init__(self, examination: Examination, report: Report, everything: bool) -> None:
        self.examination = examination
        self.graph: TypeGraph = examination.views[examination.base].graph
        self.entities = {(e.kind, e.name): e for e in report.entities}
        self.everything = everything
        self.keys = callback_keys(self.graph)
        self.skipped: list[Skipped] = []
        self.callbacks: dict[str, Routine] = {}
        self.handed = self._handed()
        self.expressions = {
            self.graph.plain(self.graph.roots[f"s:{record.name}"]): record.expression
            for record in reversed(examination.declarations.records)
            if f"s:{record.name}" in self.graph.roots
        }

    def _handed(self) -> set[str]:
        """Callbacks that some function can hand over; of the others only the call is needed."""
        reader = LayoutReader(
            self.examination.targets[0], self.examination.views[self.examination.base], Interner()
        )
        found: set[str] = set()
        for function in self.examination.declarations.functions:
            root = self.graph.function(self.graph.roots.get(f"f:{function.name}", 0))
            for index in reader.walk(root) if root is not None else ():
                if index != root and self.graph.nodes[index].kind == "function":
                    found.add(self.keys.get(callback_key(self.graph, index), ""))
        return found

    def make(self, name: str, includes: Sequence[str], slots: int) -> Shim:
        declared = self.examination.declarations
        for callback in declared.callbacks:
            if self._needs("callback", callback.name):
                self._add_callback(callback)
        functions = [
            routine
            for function in declared.functions
            if self._needs("function", function.name) and (routine := self._function(function)) is not None
        ]
        callbacks = list(self.callbacks.values())
        return Shim(
            name=name,
            native=native_text(includes, functions, callbacks, self._assertions(), slots),
            header=header_text(name, includes, functions, callbacks, self.skipped),
            functions=tuple(routine.name for routine in functions),
            callbacks=tuple(routine.name for routine in callbacks),
            skipped=tuple(self.skipped),
        )

    def _needs(self, kind: str, name: str) -> bool:
        entity: Entity | None = self.entities.get((kind, name))
        if entity is None:
            return False
        if self.everything:
            return True
        wrapping = [f for f in entity.findings if f.rule not in ("layout", "absent")]
        return any(f.verdict in (Verdict.SHIM, Verdict.RULE) for f in wrapping)

    def _skip(self, name: str, reason: str) -> None:
        self.skipped.append(Skipped(name=name, reason=reason))

    # -- signatures -----------------------------------------------------------------------------

    def _add_callback(self, callback: Callback) -> None:
        root = self.graph.roots.get(f"c:{callback.name}")
        if root is None or callback.expression is None:
            self._skip(callback.name, "its type has no name in C")
            return
        # Types that are the same to C share one set of trampolines.
        key = self.keys.get(callback_key(self.graph, self.graph.function(root) or 0))
        if key != f"c:{callback.name}":
            return
        pointer = f"__typeof__({callback.expression}) *"
        routine = self._routine(callback.name, callback.type, root, f"((__typeof__({pointer}))0)")
        if routine is not None:
            self.callbacks[key] = dataclasses.replace(routine, handed=key in self.handed)

    def _function(self, function: Function) -> Routine | None:
        if not function.prototype:
            self._skip(function.name, "it has no prototype")
            return None
        root = self.graph.roots.get(f"f:{function.name}")
        if root is None:
            return None
        routine = self._routine(function.name, function.type, root, function.name)
        return None if routine is None else self._behind_pointers(function, routine, root)

    def _routine(self, name: str, written: str, root: int, callee: str) -> Routine | None:
        index = self.graph.function(root)
        if index is None or (_UNSUITABLE.search(written.replace("(*)(", "(", 1)) and not _simple(written)):
            self._skip(name, "its type cannot be spelled piece by piece")
            return None
        node = self.graph.nodes[index]
        texts = [text for text in parameter_texts(written) if text not in ("void", "...")]
        if len(texts) != len(node.parameters):
            self._skip(name, "its parameters cannot be told apart")
            return None
        try:
            parameters = tuple(
                self._value(text, place) for text, place in zip(texts, node.parameters, strict=True)
            )
            nulls = ", ".join(f"*(__typeof__({text}) *)0" for text in texts)
            result = self._value(f"__typeof__({callee}({nulls}))", node.target)
        except FormatError as error:
            self._skip(name, error.message)
            return None
        if node.variadic:
            self._skip(name, "only its fixed arguments are passed on; write a wrapper for each set of others")
        mangled = re.sub(r"\W", "_", name)
        return Routine(name=name, mangled=mangled, result=result, parameters=parameters)

    def _value(self, text: str, index: int) -> Value:
        plain = self.graph.plain(index)
        node = self.graph.nodes[plain]
        if node.kind == "forward" or (node.kind == "enum" and not node.size):
            raise FormatError(f"{self.graph.name(index)} is passed by value but not defined", where=text)
        spelled = text if text.startswith("__typeof__") else f"__typeof__({text})"
        way = _way(self.graph, node)
        if way == "pointer":
            return Value(way=way, type=spelled, wrap=self._callback_of(plain))
        members = tuple(self._callback_members(plain, "")) if way == "memory" else ()
        return Value(way=way, type=spelled, members=members)

    def _callback_of(self, index: int) -> str:
        """The mangled name of the trampolines that a function pointer needs, "" when it needs none."""
        function = self.graph.function(index)
        key = self.keys.get(callback_key(self.graph, function)) if function is not None else None
        return self.callbacks[key].mangled if key in self.callbacks and key in self.handed else ""

    def _callback_members(self, record: int, path: str) -> Iterator[tuple[str, str]]:
        for field in self.graph.nodes[record].fields:
            plain = self.graph.plain(field.type)
            node = self.graph.nodes[plain]
            place = f"{path}.{field.name}" if field.name else path
            if node.kind == "pointer" and (wrap := self._callback_of(plain)):
                yield place.lstrip("."), wrap
            elif node.kind == "struct":
                yield from self._callback_members(plain, place)

    # -- callbacks behind pointers --------------------------------------------------------------

    def _behind_pointers(self, function: Function, routine: Routine, root: int) -> Routine:
        """Wrap the callbacks in records that parameters point at, where that can be known to be right: a
        pointer to const says that the function does not fill the record; an integer beside it might say
        that it is the first of several. What is left to the caller is noted."""
        node = self.graph.nodes[self.graph.function(root) or 0]
        texts = [text for text in parameter_texts(function.type) if text not in ("void", "...")]
        ways = [value.way for value in routine.parameters]
        values = []
        for number, (value, text) in enumerate(zip(routine.parameters, texts, strict=True)):
            record = self.graph.plain(self.graph.nodes[self.graph.plain(node.parameters[number])].target)
            if value.way != "pointer" or self.graph.nodes[record].kind != "struct":
                values.append(value)
                continue
            members = tuple(self._callback_members(record, ""))
            beside = ways[max(number - 1, 0) : number + 2]
            single = re.search(r"\bconst\b", text) and "integer" not in beside and record in self.expressions
            if members and single:
                value = dataclasses.replace(value, members=members, copied=self.expressions[record])
            elif members:
                paths = ", ".join(path for path, _ in members)
                self._note(function, number, f"set {paths} with {_wrap_names(members)} before the call")
            self._deeper(function, number, record)
            values.append(value)
        return dataclasses.replace(routine, parameters=tuple(values))

    def _deeper(self, function: Function, number: int, record: int) -> None:
        """Note callbacks in records that only further pointers lead to."""
        reader = LayoutReader(
            self.examination.targets[0], self.examination.views[self.examination.base], Interner()
        )
        inside = {record, *self._members_by_value(record)}
        for index in reader.walk(record):
            if index in inside or self.graph.nodes[index].kind != "struct":
                continue
            inside |= {index, *self._members_by_value(index)}
            if members := tuple(self._callback_members(index, "")):
                paths = ", ".join(path for path, _ in members)
                name = self.expressions.get(index) or self.graph.name(index)
                self._note(
                    function, number, f"it leads to {name}: set its {paths} with {_wrap_names(members)}"
                )

    def _members_by_value(self, record: int) -> Iterator[int]:
        for field in self.graph.nodes[record].fields:
            plain = self.graph.plain(field.type)
            if self.graph.nodes[plain].kind == "struct":
                yield plain
                yield from self._members_by_value(plain)

    def _note(self, function: Function, number: int, reason: str) -> None:
        names = function.parameters
        label = names[number] if number < len(names) and names[number] else f"parameter {number + 1}"
        self._skip(f"callbacks behind {label} of {function.name}", reason)

    # -- layouts --------------------------------------------------------------------------------

    def _assertions(self) -> list[str]:
        """Static assertions of the base's layout, for every named record that is the same everywhere."""
        lines = []
        for record in self.examination.declarations.records:
            entity = self.entities.get(("struct", record.name))
            root = self.graph.roots.get(f"s:{record.name}")
            if root is None or entity is None or entity.verdict is not Verdict.SAFE:
                continue
            lines += _record_assertions(record, self.graph.nodes[self.graph.plain(root)], self.graph)
        return lines


def _wrap_names(members: Sequence[tuple[str, str]]) -> str:
    return ", ".join(dict.fromkeys(f"sylvite_wrap_{wrap}" for _, wrap in members))


def _simple(written: str) -> bool:
    """Whether a function pointer type is ``RESULT (*)(...)`` without another one in its result."""
    return written.count("(*)") >= 1 and not written.startswith("(")


def _way(graph: TypeGraph, node: CType) -> str:
    if node.kind == "void":
        return "void"
    if node.kind in ("pointer", "function"):
        pointee = graph.nodes[graph.plain(node.target)]
        if pointee.name in ("__va_list_tag", "__va_list"):
            raise FormatError("it takes a va_list, which cannot cross")
        return "pointer"
    if node.kind in ("struct", "union", "vector"):
        if node.name in ("__va_list_tag", "__va_list"):
            raise FormatError("it takes a va_list, which cannot cross")
        return "memory"
    if node.kind == "enum":
        return "integer"
    if node.kind == "basic":
        if node.encoding == "float":
            return "real"
        return "integer" if node.size <= 64 and "complex" not in node.encoding else "memory"
    raise FormatError(f"a {node.kind} cannot be passed by value")


def _record_assertions(record: Record, node: CType, graph: TypeGraph) -> list[str]:
    type_ = record.expression
    lines = [f'_Static_assert(sizeof({type_}) == {node.size // 8}, "size of {type_}");']
    if node.align:
        lines.append(f'_Static_assert(_Alignof({type_}) == {node.align // 8}, "alignment of {type_}");')
    for field in node.fields:
        if field.name and not field.bits:
            lines.append(
                f"_Static_assert(__builtin_offsetof({type_}, {field.name}) == {field.offset // 8}, "
                f'"offset of {field.name} in {type_}");'
            )
    return lines


# -- building ---------------------------------------------------------------------------------------


def build_shim(
    shim: Shim, target: Target, folder: str | os.PathLike[str], *, query: Query, kind: str = "object",
    triple: str | None = None, toolchain: Toolchain | None = None,
) -> Path:  # fmt: skip
    """Compile the native side for one target. ``kind`` is ``object``, ``library`` (static) or ``ir``.

    Raises:
        FormatError: clang refuses it; warnings count.
        InvalidArgumentError: no such kind.
    """
    if kind not in ("object", "library", "ir"):
        raise InvalidArgumentError(f"kind must be object, library or ir, not {kind!r}")
    toolchain = toolchain or default_toolchain()
    native, _ = shim.write(folder)
    stem = Path(folder) / f"{shim.name}-{target.name}"
    output = stem.with_name(stem.name + (".ll" if kind == "ir" else ".o"))
    flags = toolchain.compile_flags(target, triple=triple)
    flags += [flag for file in query.files for flag in ("-I", os.path.dirname(os.path.abspath(file)))]
    flags += [*query.flags()[:-3], "-Wall", "-Wextra", "-Werror", "-O1", "-fno-ident"]
    flags += (
        ["-S", "-emit-llvm"]
        if kind == "ir"
        else ["-c", "-fPIC"]
        if "windows" not in target.triple
        else ["-c"]
    )
    done = toolchain.run([*flags, str(native), "-o", str(output)])
    if done.returncode != 0:
        raise FormatError(failure_text(done), where=str(native))
    if kind == "library":
        library = stem.with_name(f"lib{stem.name}.a")
        library.unlink(missing_ok=True)
        toolchain.check(["rcsD", str(library), str(output)], where=str(library), tool="ar")
        return library
    return output
