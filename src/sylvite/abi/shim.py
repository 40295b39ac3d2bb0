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
from .targets import Target
from .toolchain import Toolchain, default_toolchain, failure_text

__all__ = ["Shim", "Skipped", "build_shim", "generate_shim"]

SLOTS = 16
"""Distinct generic functions that can be handed over per callback type at one time."""

_UNSUITABLE = re.compile(r"\(\*?\(|\((?:unnamed|anonymous)\b")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entity no wrapper can be written for, and why."""

    name: str
    reason: str


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A parameter or result. ``way`` is void, pointer, integer, real or memory."""

    way: str
    type: str
    wrap: str = ""
    members: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Routine:
    name: str
    mangled: str
    result: _Value
    parameters: tuple[_Value, ...]
    handed: bool = True


_CROSSING = {"pointer": "void *", "integer": "sylvite_i64 ", "real": "double ", "memory": "const void *"}
_RESULT = {"pointer": "void **", "integer": "sylvite_i64 *", "real": "double *", "memory": "void *"}


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
        self.callbacks: dict[str, _Routine] = {}
        self.handed = self._handed()

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
            native=_native_text(includes, functions, callbacks, self._assertions(), slots),
            header=_header_text(name, includes, functions, callbacks, self.skipped),
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

    def _function(self, function: Function) -> _Routine | None:
        if not function.prototype:
            self._skip(function.name, "it has no prototype")
            return None
        root = self.graph.roots.get(f"f:{function.name}")
        return None if root is None else self._routine(function.name, function.type, root, function.name)

    def _routine(self, name: str, written: str, root: int, callee: str) -> _Routine | None:
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
        return _Routine(name=name, mangled=mangled, result=result, parameters=parameters)

    def _value(self, text: str, index: int) -> _Value:
        plain = self.graph.plain(index)
        node = self.graph.nodes[plain]
        if node.kind == "forward" or (node.kind == "enum" and not node.size):
            raise FormatError(f"{self.graph.name(index)} is passed by value but not defined", where=text)
        spelled = text if text.startswith("__typeof__") else f"__typeof__({text})"
        way = _way(self.graph, node)
        if way == "pointer":
            return _Value(way=way, type=spelled, wrap=self._callback_of(plain))
        members = tuple(self._callback_members(plain, "")) if way == "memory" else ()
        return _Value(way=way, type=spelled, members=members)

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


# -- text -------------------------------------------------------------------------------------------

_PROLOGUE = "typedef __INT64_TYPE__ sylvite_i64;\n"


def _crossing_parameters(routine: _Routine, first: Sequence[str] = ()) -> str:
    parts = list(first)
    if routine.result.way != "void":
        parts.append(f"{_RESULT[routine.result.way]}result")
    parts += [f"{_CROSSING[value.way]}a{i}" for i, value in enumerate(routine.parameters)]
    return ", ".join(parts) or "void"


def _unpack(routine: _Routine) -> tuple[list[str], list[str]]:
    """Statements that rebuild the values a crossing call carries, and the argument expressions."""
    statements, arguments = [], []
    for index, value in enumerate(routine.parameters):
        if value.way == "memory":
            statements.append(f"  {value.type} v{index};")
            statements.append(f"  __builtin_memcpy(&v{index}, a{index}, sizeof v{index});")
            arguments.append(f"v{index}")
        else:
            arguments.append(f"({value.type})a{index}")
    return statements, arguments


def _call_and_return(routine: _Routine, callee: str, arguments: Sequence[str]) -> list[str]:
    call = f"{callee}({', '.join(arguments)})"
    way = routine.result.way
    if way == "void":
        return [f"  {call};"]
    if way == "memory":
        return [f"  {routine.result.type} r = {call};", "  __builtin_memcpy(result, &r, sizeof r);"]
    cast = {"pointer": "(void *)", "integer": "(sylvite_i64)", "real": "(double)"}[way]
    return [f"  *result = {cast}{call};"]


def _pack(routine: _Routine) -> list[str]:
    """Argument expressions of a crossing call, from parameters ``p0``, ``p1``, ..."""
    packed = []
    for index, value in enumerate(routine.parameters):
        forms = {"pointer": f"(void *)p{index}", "integer": f"(sylvite_i64)p{index}",
                 "real": f"(double)p{index}", "memory": f"&p{index}"}  # fmt: skip
        packed.append(forms[value.way])
    return packed


def _plain_parameters(routine: _Routine, first: Sequence[str] = ()) -> str:
    parts = [*first, *(f"{value.type} p{i}" for i, value in enumerate(routine.parameters))]
    return ", ".join(parts) or "void"


def _crossing_body(routine: _Routine, callee: str, first: Sequence[str] = ()) -> list[str]:
    """The body of a function of original signature that makes a crossing call."""
    way = routine.result.way
    arguments = [*first, *_pack(routine)]
    if way == "void":
        return [f"  {callee}({', '.join(arguments)});"]
    local = {"pointer": "void *r", "integer": "sylvite_i64 r", "real": "double r"}.get(
        way, f"{routine.result.type} r"
    )
    arguments.insert(len(first), "&r")
    value = "r" if way == "memory" else f"({routine.result.type})r"
    return [f"  {local};", f"  {callee}({', '.join(arguments)});", f"  return {value};"]


def _native_text(
    includes: Sequence[str], functions: Sequence[_Routine], callbacks: Sequence[_Routine],
    assertions: Sequence[str], slots: int,
) -> str:  # fmt: skip
    lines = ["/* Generated by `sylvite abi shim`. Compile it with each target's own compiler. */"]
    lines += [f'#include "{name}"' for name in includes]
    lines += ["", _PROLOGUE]
    if assertions:
        lines += ["/* Both sides rely on these layouts. */", *assertions, ""]
    if callbacks:
        each = " ".join(f"M({k})" for k in range(slots))
        lines += [f"#define SYLVITE_EACH_SLOT(M) {each}", ""]
    for callback in callbacks:
        lines += _native_callback(callback, slots)
    for function in functions:
        statements, arguments = _unpack(function)
        prototype = f"void sylvite_shim_{function.mangled}({_crossing_parameters(function)})"
        lines += [f"{prototype};", f"{prototype} {{", *statements]
        lines += [*_call_and_return(function, function.name, arguments), "}", ""]
    return "\n".join(lines) + "\n"


def _pointer_type(routine: _Routine) -> str:
    """A typedef's text for a pointer to the callback's function type."""
    inside = ", ".join(value.type for value in routine.parameters) or "void"
    result = "void" if routine.result.way == "void" else f"sylvite_result_{routine.mangled}"
    return f"typedef {result} (*sylvite_type_{routine.mangled})({inside});"


def _result_typedef(routine: _Routine) -> list[str]:
    if routine.result.way == "void":
        return []
    return [f"typedef {routine.result.type} sylvite_result_{routine.mangled};"]


def _native_callback(routine: _Routine, slots: int) -> list[str]:
    m = routine.mangled
    result = "void" if routine.result.way == "void" else f"sylvite_result_{m}"
    thunk_parameters = _crossing_parameters(routine, ["void *generic"])
    body = _crossing_body(routine, f"sylvite_slots_{m}[K].thunk", [f"sylvite_slots_{m}[K].generic"])
    first = f"static {result} sylvite_tramp_{m}_##K({_plain_parameters(routine)}) {{"
    trampoline = " \\\n".join([f"#define SYLVITE_TRAMPOLINE(K) {first}", *body, "}"])
    bind = f"void *sylvite_bind_{m}(void *generic, void *thunk)"
    unbind = f"void sylvite_unbind_{m}(void *generic)"
    statements, arguments = _unpack(routine)
    native_call = f"void sylvite_call_{m}({_crossing_parameters(routine, ['void *native'])})"
    call = [
        f"{native_call};",
        f"{native_call} {{",
        *statements,
        *_call_and_return(routine, f"((sylvite_type_{m})native)", arguments),
        "}",
        "",
    ]
    head = [f"/* {routine.name} */", *_result_typedef(routine), _pointer_type(routine)]
    if not routine.handed:
        return [*head, *call]
    return [
        *head,
        "static struct {",
        "  void *generic;",
        f"  void (*thunk)({thunk_parameters});",
        f"}} sylvite_slots_{m}[{slots}];",
        trampoline,
        "SYLVITE_EACH_SLOT(SYLVITE_TRAMPOLINE)",
        "#undef SYLVITE_TRAMPOLINE",
        f"#define SYLVITE_TRAMPOLINE(K) sylvite_tramp_{m}_##K,",
        f"static sylvite_type_{m} const sylvite_table_{m}[] = {{SYLVITE_EACH_SLOT(SYLVITE_TRAMPOLINE)}};",
        "#undef SYLVITE_TRAMPOLINE",
        f"{bind};",
        f"{bind} {{",
        f"  for (int k = 0; k < {slots}; k++) {{",
        f"    if (__atomic_load_n(&sylvite_slots_{m}[k].generic, __ATOMIC_ACQUIRE) == generic)",
        f"      return (void *)sylvite_table_{m}[k];",
        f"    if ((void *)sylvite_table_{m}[k] == generic) return generic;",
        "  }",
        f"  for (int k = 0; k < {slots}; k++) {{",
        "    void *nobody = (void *)0;",
        f"    if (__atomic_compare_exchange_n(&sylvite_slots_{m}[k].generic, &nobody, generic, 0,",
        "                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {",
        f"      sylvite_slots_{m}[k].thunk = (void (*)({thunk_parameters}))thunk;",
        f"      return (void *)sylvite_table_{m}[k];",
        "    }",
        "  }",
        "  __builtin_trap(); /* More callbacks at a time than slots: generate with more. */",
        "}",
        f"{unbind};",
        f"{unbind} {{",
        f"  for (int k = 0; k < {slots}; k++) {{",
        "    void *mine = generic;",
        f"    __atomic_compare_exchange_n(&sylvite_slots_{m}[k].generic, &mine, (void *)0, 0,",
        "                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);",
        "  }",
        "}",
        *call,
    ]


def _header_text(
    name: str, includes: Sequence[str], functions: Sequence[_Routine], callbacks: Sequence[_Routine],
    skipped: Sequence[Skipped],
) -> str:  # fmt: skip
    guard = f"SYLVITE_{name.upper()}_GENERIC_H"
    lines = [
        "/* Generated by `sylvite abi shim`. For the portable code: include it instead of the headers. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        *(f'#include "{include}"' for include in includes),
        "",
        _PROLOGUE,
    ]
    lines += [f"/* Not covered: {item.name}: {item.reason}. */" for item in skipped]
    for callback in callbacks:
        lines += _header_callback(callback)
    for function in functions:
        lines += _header_function(function)
    lines += ["#ifndef SYLVITE_SHIM_NO_RENAME"]
    lines += [f"#define {function.name} sylvite_generic_{function.mangled}" for function in functions]
    lines += ["#endif", f"#endif /* {guard} */"]
    return "\n".join(lines) + "\n"


def _header_callback(routine: _Routine) -> list[str]:
    m = routine.mangled
    result = "void" if routine.result.way == "void" else f"sylvite_result_{m}"
    statements, arguments = _unpack(routine)
    head = [
        f"/* {routine.name}: wrap what native code will call, call what native code has given. */",
        *_result_typedef(routine),
        _pointer_type(routine),
        f"void sylvite_call_{m}({_crossing_parameters(routine, ['void *native'])});",
        f"static inline {result} sylvite_invoke_{m}("
        f"{_plain_parameters(routine, [f'sylvite_type_{m} native'])}) {{",
        *_crossing_body(routine, f"sylvite_call_{m}", ["(void *)native"]),
        "}",
        "",
    ]
    if not routine.handed:
        return head
    return [
        *head,
        f"void *sylvite_bind_{m}(void *generic, void *thunk);",
        f"void sylvite_unbind_{m}(void *generic);",
        f"static inline void sylvite_thunk_{m}({_crossing_parameters(routine, ['void *generic'])}) {{",
        *statements,
        *_call_and_return(routine, f"((sylvite_type_{m})generic)", arguments),
        "}",
        f"static inline sylvite_type_{m} sylvite_wrap_{m}(sylvite_type_{m} generic) {{",
        "  if (!generic) return generic;",
        f"  return (sylvite_type_{m})sylvite_bind_{m}((void *)generic, (void *)sylvite_thunk_{m});",
        "}",
        "",
    ]


def _header_function(routine: _Routine) -> list[str]:
    m = routine.mangled
    result = "void" if routine.result.way == "void" else f"sylvite_result_{m}"
    wraps = []
    for index, value in enumerate(routine.parameters):
        if value.wrap:
            wraps.append(
                f"  p{index} = ({value.type})sylvite_wrap_{value.wrap}((sylvite_type_{value.wrap})p{index});"
            )
        for member, wrap in value.members:
            place = f"p{index}.{member}"
            wraps.append(f"  {place} = sylvite_wrap_{wrap}((sylvite_type_{wrap}){place});")
    return [
        *_result_typedef(routine),
        f"void sylvite_shim_{m}({_crossing_parameters(routine)});",
        f"static inline {result} sylvite_generic_{m}({_plain_parameters(routine)}) {{",
        *wraps,
        *_crossing_body(routine, f"sylvite_shim_{m}"),
        "}",
        "",
    ]


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
