"""The oracle: what every function, callback type and record lowers to on every target, asked of clang.

One C file per question: it includes the header, takes the address of every function, declares one
function per callback type, and points at every record; clang writes fully lowered declarations and, as
debug information, the layout of everything reachable. Nothing here knows a calling convention.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import FormatError, InvalidArgumentError, NotFoundError
from .cache import ExaminationCache
from .debug_info import DebugInfo, TypeGraph
from .declarations import Callback, Declarations, Function, Record, read_declarations
from .lowered import LoweredSignature, LoweredValue, parse_declaration
from .nesting import refuse_deep_nesting
from .targets import Target
from .toolchain import Diagnostic, Toolchain, default_toolchain, diagnostics, failure_text, include_flags

__all__ = ["Examination", "Query", "Rejection", "TargetView", "examine"]

_UNIT = "sylvite-oracle"
_STORE = re.compile(r'^\s+store ptr (@[\w.$-]+|@"[^"]*"), ptr @sylvite_([fc])_(\d+),', re.MULTILINE)
_TYPE_DEFINITION = re.compile(r'^(%(?:[\w.$-]+|"[^"]*")) = type (.+)$', re.MULTILINE)
_ALIGNMENT = re.compile(r"^@sylvite_l_(\d+) = .*constant i64 (\d+)", re.MULTILINE)
_LONG_DOUBLE = re.compile(r"^@sylvite_long_double = .*global (\w+) ", re.MULTILINE)
_CPP_SUFFIXES = frozenset({".hpp", ".hh", ".hxx", ".cpp", ".cc", ".cxx"})
_ROUNDS = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to examine: C or C++ headers and sources, and how to compile them. ``language`` is ``c``,
    ``c++`` or "" (by suffix). ``include_system`` judges declarations of system headers too."""

    files: tuple[str, ...]
    include_dirs: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    language: str = ""
    include_system: bool = False

    @property
    def cplusplus(self) -> bool:
        """Whether clang reads the files as C++."""
        if self.language:
            return self.language in ("c++", "cpp", "cxx")
        return any(Path(file).suffix.lower() in _CPP_SUFFIXES for file in self.files)

    def key_data(self) -> list[object]:
        """What a cache key says of the query, as JSON."""
        return [dataclasses.asdict(self), [os.path.abspath(file) for file in self.files], os.getcwd()]

    def flags(self) -> list[str]:
        """Clang's flags for the user's options."""
        given = include_flags(include_dirs=self.include_dirs, defines=self.defines, includes=self.includes)
        return [*given, "-x", "c++" if self.cplusplus else "c", "-w"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A target whose compiler refuses the headers themselves, with clang's first errors."""

    target: str
    message: str
    file: str
    line: int


@dataclasses.dataclass(slots=True, kw_only=True)
class TargetView:
    """One target's answer. Keys are ``f:name`` (functions), ``c:name`` (callbacks), ``s:name`` (records).
    ``symbols`` are linker names by key; ``missing`` maps keys to clang's reason where the target has no
    such thing; ``long_double`` is LLVM's type for it."""

    target: str
    data_layout: str
    signatures: dict[str, LoweredSignature]
    symbols: dict[str, str]
    graph: TypeGraph
    missing: dict[str, str]
    long_double: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Examination:
    """All targets' answers to one query. ``base`` names the target whose view gave the declarations;
    ``dependencies`` are the files, system headers aside, that were read."""

    declarations: Declarations
    base: str
    targets: tuple[Target, ...]
    views: dict[str, TargetView]
    rejections: tuple[Rejection, ...]
    dependencies: tuple[str, ...] = ()

    def view(self, target: str) -> TargetView:
        """The answer of one target.

        Raises:
            NotFoundError: the target was not asked or refused the headers.
        """
        try:
            return self.views[target]
        except KeyError:
            raise NotFoundError(f"no answer of target {target!r}") from None


class _Unit:
    """The text of the oracle's C file and, for each of its lines, the entity that needs it."""

    def __init__(self, query: Query, declarations: Declarations | None) -> None:
        self.lines: list[str] = []
        self.owners: list[str | None] = []
        self.functions: tuple[Function, ...] = declarations.functions if declarations else ()
        self.callbacks = tuple(c for c in (declarations.callbacks if declarations else ()) if c.expression)
        self.records: tuple[Record, ...] = declarations.records if declarations else ()
        linkage = 'extern "C" ' if query.cplusplus else "extern "
        for file in query.files:
            self._add(f'#include "{_c_path(file)}"')
        if declarations is not None:
            self._add("long double sylvite_long_double;")
        body: list[tuple[str, str]] = []
        for index, function in enumerate(self.functions):
            key = f"f:{function.name}"
            self._add(f"#undef {function.name}", key)
            self._add(f"__typeof__(&{function.name}) sylvite_f_{index};", key)
            body.append((f"  sylvite_f_{index} = &{function.name};", key))
        for index, callback in enumerate(self.callbacks):
            key = f"c:{callback.name}"
            self._add(f"{linkage}__typeof__({callback.expression}) sylvite_cb_{index};", key)
            self._add(f"__typeof__(&sylvite_cb_{index}) sylvite_c_{index};", key)
            body.append((f"  sylvite_c_{index} = &sylvite_cb_{index};", key))
        for index, record in enumerate(self.records):
            key = f"s:{record.name}"
            self._add(f"__typeof__({record.expression}) *sylvite_s_{index};", key)
            constant = 'extern "C" const' if query.cplusplus else "const"
            self._add(
                f"{constant} unsigned long long sylvite_l_{index} = _Alignof({record.expression});", key
            )
        if body:
            self._add(f"{linkage if query.cplusplus else ''}void sylvite_refs(void) {{")
            for text, key in body:
                self._add(text, key)
            self._add("}")

    def _add(self, text: str, owner: str | None = None) -> None:
        self.lines.append(text)
        self.owners.append(owner)

    def text(self, dropped: Mapping[str, str]) -> str:
        """The file without the entities in ``dropped``; lines keep their numbers."""
        return (
            "\n".join(
                "" if owner in dropped else line for line, owner in zip(self.lines, self.owners, strict=True)
            )
            + "\n"
        )


def _c_path(file: str) -> str:
    return os.path.abspath(file).replace("\\", "/")


@refuse_deep_nesting
def examine(
    query: Query,
    targets: Sequence[Target],
    *,
    base: Target | None = None,
    toolchain: Toolchain | None = None,
    cache: ExaminationCache | None = None,
    jobs: int | None = None,
) -> Examination:
    """Ask every target about everything ``query`` declares. ``jobs`` compilers run at a time.

    Raises:
        FormatError: the headers do not compile for the base; the message is clang's, with file and line.
        InvalidArgumentError: no file or no target was given.
        NotFoundError: a file does not exist.
        UnavailableError: the ``abi`` extra is not installed.
    """
    if not query.files or not targets:
        raise InvalidArgumentError("nothing to examine: give at least one file and one target")
    for file in query.files:
        if not os.path.isfile(file):
            raise NotFoundError(f"no such file: {file}")
    toolchain = toolchain or default_toolchain()
    first = base or targets[0]
    asked = tuple({target.name: target for target in (first, *targets)}.values())
    key = _cache_key(query, asked, toolchain)
    if cache is not None and (stored := cache.load(key)) is not None:
        # An entry that something else wrote counts as absent.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            return _from_data(stored, asked)
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
        workspace = _Workspace(query=query, toolchain=toolchain, folder=Path(folder))
        declarations = workspace.declarations(first)
        unit = _Unit(query, declarations)
        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count() or 2) as pool:
            answers = list(pool.map(lambda target: workspace.ask(unit, target), asked))
        views = {answer.target: answer for answer in answers if isinstance(answer, TargetView)}
        rejections = tuple(answer for answer in answers if isinstance(answer, Rejection))
        if first.name not in views:
            raise FormatError(
                next(r.message for r in rejections if r.target == first.name), where=query.files[0]
            )
        examination = Examination(
            declarations=declarations, base=first.name, targets=asked, views=views,
            rejections=rejections, dependencies=tuple(workspace.dependencies),
        )  # fmt: skip
        if cache is not None:
            cache.store(key, _to_data(examination), workspace.dependencies)
    return examination


class _Workspace:
    """A temporary folder in which one query is compiled for several targets."""

    def __init__(self, *, query: Query, toolchain: Toolchain, folder: Path) -> None:
        self.query = query
        self.toolchain = toolchain
        self.folder = folder
        self.suffix = ".cpp" if query.cplusplus else ".c"
        self.dependencies: list[str] = []
        self._given = {_c_path(file): file for file in query.files}

    def _arguments(self, target: Target, *more: str) -> list[str]:
        flags = self.toolchain.compile_flags(target)
        if self.query.cplusplus:
            flags += ["-isystem", str(self.toolchain.library / "libcxx" / "include"), *_CPP_DEFINES]
        return [*flags, *self.query.flags(), *more]

    def declarations(self, base: Target) -> Declarations:
        """Every name of the translation unit, as the base target sees it."""
        source = self.folder / f"{_UNIT}-names{self.suffix}"
        source.write_text(_Unit(self.query, None).text({}), encoding="utf-8")
        depfile = self.folder / "names.d"
        arguments = self._arguments(
            base, "-fsyntax-only", "-Xclang", "-ast-dump=json", "-MD", "-MF", str(depfile), str(source)
        )
        done = self.toolchain.run(arguments)
        if done.returncode != 0:
            raise FormatError(self._placed(failure_text(done), source), where=self.query.files[0])
        self.dependencies = [
            file
            for file in read_depfile(depfile)
            if file != str(source) and not self.toolchain.is_system(file)
        ]
        try:
            tree = json.loads(done.stdout)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"clang's syntax tree cannot be read: {error}", where=self.query.files[0]
            ) from error
        found = read_declarations(tree, self._is_user)
        return _renamed(found, self._given)

    def _placed(self, message: str, source: Path) -> str:
        """An error that clang saw only behind a file's end, put at that file's last line."""

        def last_line(match: re.Match[str]) -> str:
            file = self.query.files[min(int(match[1]), len(self.query.files)) - 1]
            return f"{file}:{len(Path(file).read_bytes().splitlines())}"

        return re.sub(re.escape(str(source)) + r":(\d+)(:\d+)?", last_line, message)

    def _is_user(self, file: str) -> bool:
        if not file or file.startswith(str(self.folder)):
            return False
        return self.query.include_system or not self.toolchain.is_system(file)

    def ask(self, unit: _Unit, target: Target) -> TargetView | Rejection:
        """Lower everything for one target, leaving out what that target does not have."""
        source = self.folder / f"{_UNIT}-{target.name}{self.suffix}"
        dropped: dict[str, str] = {}
        for _ in range(_ROUNDS):
            source.write_text(unit.text(dropped), encoding="utf-8")
            done = self.toolchain.run(
                self._arguments(
                    target, "-S", "-emit-llvm", "-g", "-gdwarf-4", "-fstandalone-debug", "-ferror-limit=0",
                    "-Xclang", "-disable-llvm-passes", "-o", "-", str(source),
                )
            )  # fmt: skip
            if done.returncode == 0:
                return self._view(unit, target, done.stdout, dropped)
            outside = self._sort_errors(unit, diagnostics(done.stderr), source, dropped)
            if outside is not None or not done.stderr:
                break
        place = outside or Diagnostic(file="", line=0, column=0, message=failure_text(done))
        # What our own file lacks follows from the headers' errors and would only hide them.
        theirs = [str(error) for error in diagnostics(done.stderr) if error.file != str(source)]
        message = "\n".join(theirs[:5]) or failure_text(done)
        return Rejection(target=target.name, message=message, file=place.file, line=place.line)

    def _sort_errors(
        self, unit: _Unit, errors: list[Diagnostic], source: Path, dropped: dict[str, str]
    ) -> Diagnostic | None:
        """Note the entities that clang complained about; the first error that is none of ours, if any."""
        before = len(dropped)
        for error in errors:
            owner = unit.owners[error.line - 1] if error.file == str(source) and error.line else None
            if owner is None:
                return error
            dropped.setdefault(owner, error.message)
        return errors[0] if errors and len(dropped) == before else None

    def _view(self, unit: _Unit, target: Target, text: str, dropped: dict[str, str]) -> TargetView:
        types = dict(_TYPE_DEFINITION.findall(text))
        long_double = _LONG_DOUBLE.search(text)
        declared: dict[str, LoweredSignature] = {}
        lines = text.splitlines()
        for line in lines:
            if line.startswith(("declare ", "define ")):
                symbol, signature, _, _ = parse_declaration(line, types)
                declared[symbol] = signature
        view = TargetView(
            target=target.name, data_layout=_data_layout(text), signatures={}, symbols={},
            graph=TypeGraph(), missing=dict(dropped), long_double=long_double[1] if long_double else "",
        )  # fmt: skip
        for reference, kind, index in _STORE.findall(text):
            symbol = reference[1:].strip('"').removeprefix("\\01")
            owner: Function | Callback = (unit.functions if kind == "f" else unit.callbacks)[int(index)]
            key = f"{kind}:{owner.name}"
            view.symbols[key] = symbol
            if symbol in declared:
                view.signatures[key] = declared[symbol]
        info = DebugInfo(lines)
        self._roots(unit, info)
        _set_alignments(unit, info.graph, text)
        view.graph = info.graph
        return view

    def _roots(self, unit: _Unit, info: DebugInfo) -> None:
        owners: dict[str, tuple[str, Sequence[Function | Callback | Record]]] = {
            "f": ("f:", unit.functions),
            "c": ("c:", unit.callbacks),
            "s": ("s:", unit.records),
        }
        for name, reference in info.variables().items():
            match = re.fullmatch(r"sylvite_([fcs])_(\d+)", name)
            if match is None:
                continue
            prefix, rows = owners[match[1]]
            pointer = info.type(reference)
            # Every variable is a pointer to what is asked about.
            info.graph.roots[prefix + rows[int(match[2])].name] = info.graph.nodes[pointer].target


# What zig's build of libc++ is configured with; enough for headers that include <cstdint> and friends.
_CPP_DEFINES = (
    "-D_LIBCPP_ABI_VERSION=1",
    "-D_LIBCPP_ABI_NAMESPACE=__1",
    "-D_LIBCPP_HAS_THREADS=0",
    "-D_LIBCPP_HAS_MONOTONIC_CLOCK=0",
    "-D_LIBCPP_HAS_TERMINAL=0",
    "-D_LIBCPP_HAS_WIDE_CHARACTERS=1",
    "-D_LIBCPP_HAS_LOCALIZATION=0",
    "-D_LIBCPP_HAS_UNICODE=1",
    "-D_LIBCPP_HAS_RANDOM_DEVICE=0",
    "-D_LIBCPP_HAS_FILESYSTEM=0",
    "-D_LIBCPP_HAS_TIME_ZONE_DATABASE=0",
    "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=0",
    "-D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE",
    "-D_LIBCPP_HARDENING_MODE_DEFAULT=_LIBCPP_HARDENING_MODE_NONE",
    "-D_LIBCPP_PSTL_BACKEND_SERIAL",
)


def _set_alignments(unit: _Unit, graph: TypeGraph, text: str) -> None:
    for index, align in _ALIGNMENT.findall(text):
        root = graph.roots.get(f"s:{unit.records[int(index)].name}")
        if root is not None:
            place = graph.plain(root)
            graph.nodes[place] = dataclasses.replace(graph.nodes[place], align=int(align) * 8)


def _data_layout(text: str) -> str:
    match = re.search(r'^target datalayout = "([^"]*)"', text, re.MULTILINE)
    return match[1] if match else ""


def read_depfile(path: Path) -> list[str]:
    """The prerequisites in a make dependency file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    _, _, rest = text.replace("\\\n", " ").partition(": ")
    return [part.replace("\\ ", " ") for part in re.split(r"(?<!\\)\s+", rest) if part.strip()]


def _renamed(found: Declarations, given: Mapping[str, str]) -> Declarations:
    """Files under the names the user gave them."""
    return Declarations(
        functions=tuple(dataclasses.replace(f, file=given.get(f.file, f.file)) for f in found.functions),
        callbacks=tuple(dataclasses.replace(c, file=given.get(c.file, c.file)) for c in found.callbacks),
        records=tuple(dataclasses.replace(r, file=given.get(r.file, r.file)) for r in found.records),
    )


# -- the cache's form -------------------------------------------------------------------------------

_FORMAT = 7


def _cache_key(query: Query, targets: Sequence[Target], toolchain: Toolchain) -> str:
    rows = [target.key_data() for target in targets]
    text = json.dumps([_FORMAT, toolchain.version, query.key_data(), rows], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _value_data(value: LoweredValue) -> list[object]:
    return [value.type, value.extension, *value.placing]


def _value_from(row: Sequence[str]) -> LoweredValue:
    return LoweredValue(type=row[0], extension=row[1], placing=tuple(row[2:]))


def _to_data(examination: Examination) -> dict[str, object]:
    views = [
        {
            "target": view.target,
            "data_layout": view.data_layout,
            "symbols": view.symbols,
            "missing": view.missing,
            "long_double": view.long_double,
            "graph": view.graph.to_data(),
            "signatures": {
                key: [s.convention, s.variadic, _value_data(s.result), *map(_value_data, s.parameters)]
                for key, s in view.signatures.items()
            },
        }
        for view in examination.views.values()
    ]
    return {
        "base": examination.base,
        "declarations": dataclasses.asdict(examination.declarations),
        "rejections": [dataclasses.asdict(rejection) for rejection in examination.rejections],
        "views": views,
    }


def _from_data(data: dict[str, object], targets: tuple[Target, ...]) -> Examination:
    declared: dict[str, list[dict[str, object]]] = data["declarations"]  # type: ignore[assignment]
    functions = [{**row, "parameters": tuple(row["parameters"])} for row in declared["functions"]]  # type: ignore[arg-type]
    views = {}
    for row in data["views"]:  # type: ignore[attr-defined]
        signatures = {
            key: LoweredSignature(
                convention=s[0], variadic=s[1], result=_value_from(s[2]),
                parameters=tuple(_value_from(value) for value in s[3:]),
            )
            for key, s in row["signatures"].items()
        }  # fmt: skip
        views[row["target"]] = TargetView(
            target=row["target"], data_layout=row["data_layout"], signatures=signatures,
            symbols=row["symbols"], missing=row["missing"], graph=TypeGraph.from_data(row["graph"]),
            long_double=row["long_double"],
        )  # fmt: skip
    return Examination(
        declarations=Declarations(
            functions=tuple(Function(**row) for row in functions),  # type: ignore[arg-type]
            callbacks=tuple(Callback(**row) for row in declared["callbacks"]),  # type: ignore[arg-type]
            records=tuple(Record(**row) for row in declared["records"]),  # type: ignore[arg-type]
        ),
        base=str(data["base"]),
        targets=targets,
        views=views,
        rejections=tuple(Rejection(**row) for row in data["rejections"]),  # type: ignore[attr-defined]
    )
