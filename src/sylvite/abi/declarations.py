"""What a header or source declares: functions, callback types, records, read from clang's syntax tree.

One target's view is enough for the list of names (the base's); what each name means on each target is
asked of clang again, per target (`sylvite.abi.oracle`).

Source: clang's ``-ast-dump=json`` (``clang/lib/AST/JSONNodeDumper.cpp`` writes a location's file and
line only where they changed since the location before, so all of them are read, in order).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Callback", "Declarations", "Function", "Record", "read_declarations"]

Node = dict[str, Any]

_FUNCTION_POINTER = re.compile(r"\((?:[\w ]+ )?\*[^()]*\)\s*\(|\(\^[^()]*\)\s*\(")
_UNSPELLABLE = re.compile(r"\((?:unnamed|anonymous)\b")
_SCOPES = frozenset({"LinkageSpecDecl", "NamespaceDecl", "ExportDecl"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of external linkage. ``line`` counts from 1. ``parameters`` are names, "" where the
    header gives none."""

    name: str
    file: str
    line: int
    parameters: tuple[str, ...]
    prototype: bool
    variadic: bool
    defined: bool
    type: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A function type that others call through a pointer.

    ``name`` is the typedef, or ``owner.member`` for a type written in place. ``expression`` is C text of
    the function type, None where C has no way to spell it. ``typedef`` tells whether ``name`` is one.
    ``type`` is the (pointer) type as written, typedefs of typedefs taken off.
    """

    name: str
    file: str
    line: int
    expression: str | None
    typedef: bool
    type: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A complete struct or union that has a name. ``expression`` is how C spells it."""

    name: str
    file: str
    line: int
    expression: str
    union: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Everything one translation unit declares outside system headers, in source order."""

    functions: tuple[Function, ...]
    callbacks: tuple[Callback, ...]
    records: tuple[Record, ...]


class _Reader:
    def __init__(self, is_user: Callable[[str], bool]) -> None:
        self.is_user = is_user
        self.file = ""
        self.line = 0
        self.user = False
        self.functions: dict[str, Function] = {}
        self.callbacks: dict[str, Callback] = {}
        self.records: dict[str, Record] = {}
        self.typedefs: dict[str, str] = {}

    # -- places ---------------------------------------------------------------------------------

    def _bare(self, place: Node) -> None:
        file = place.get("file")
        if file is not None and file != self.file:
            self.file = file
            self.user = self.is_user(file)
        line = place.get("line")
        if line is not None:
            self.line = line

    def _place(self, place: Node) -> None:
        if "expansionLoc" in place:
            self._bare(place["spellingLoc"])
            self._bare(place["expansionLoc"])
        else:
            self._bare(place)

    def _skip(self, node: Node) -> None:
        """Read only the locations of a subtree."""
        loc = node.get("loc")
        if loc:
            self._place(loc)
        span = node.get("range")
        if span:
            self._place(span["begin"])
            self._place(span["end"])
        for child in node.get("inner", ()):
            self._skip(child)

    # -- declarations ---------------------------------------------------------------------------

    def scope(self, node: Node) -> None:
        for child in node.get("inner", ()):
            if child.get("kind") == "TypedefDecl" and (record := _unnamed_record(child)) is not None:
                self.typedefs.setdefault(record[1], child["name"])
        for child in node.get("inner", ()):
            self.declaration(child)

    def declaration(self, node: Node) -> None:
        kind = node.get("kind")
        if kind in _SCOPES:
            self._skip({key: value for key, value in node.items() if key != "inner"})
            self.scope(node)
            return
        self._place(node.get("loc") or {})
        user, file, line = self.user and not node.get("isImplicit"), self.file, self.line
        self._skip(node)
        if not user:
            return
        if kind == "FunctionDecl":
            self._function(node, file, line)
        elif kind == "TypedefDecl" or kind == "TypeAliasDecl":
            self._typedef(node, file, line)
        elif kind == "RecordDecl" or kind == "CXXRecordDecl":
            self._record(node, file, line)
        elif kind == "VarDecl":
            self._spelled(node["name"], node["type"]["qualType"], file, line)

    def _function(self, node: Node, file: str, line: int) -> None:
        name = node.get("name", "")
        cplusplus = str(node.get("mangledName", "")).startswith(("_Z", "__Z", "?"))
        if node.get("storageClass") == "static" or cplusplus:
            return
        spelled = node["type"]["qualType"]
        inner = node.get("inner", ())
        parameters = [child for child in inner if child.get("kind") == "ParmVarDecl"]
        known = self.functions.get(name)
        defined = any(child.get("kind") == "CompoundStmt" for child in inner)
        if known is None or (defined and not known.defined) or not any(known.parameters):
            self.functions[name] = Function(
                name=name,
                file=known.file if known and not defined else file,
                line=known.line if known and not defined else line,
                parameters=tuple(child.get("name", "") for child in parameters),
                prototype=not spelled.endswith("()") or file.endswith((".hpp", ".cpp", ".cc", ".hh")),
                variadic=bool(node.get("variadic")),
                defined=defined,
                type=spelled,
            )
        for index, child in enumerate(parameters):
            self._spelled(f"{name}.{child.get('name') or index}", child["type"]["qualType"], file, line)

    def _typedef(self, node: Node, file: str, line: int) -> None:
        name = node["name"]
        written = node["type"]["qualType"]
        chain = _type_kinds(node)
        if "FunctionProtoType" in chain or "FunctionNoProtoType" in chain:
            pointer = "PointerType" in chain
            expression = f"__typeof__(***(__typeof__({name})*)0)" if pointer else name
            self.callbacks.setdefault(
                name,
                Callback(
                    name=name, file=file, line=line, expression=expression, typedef=True,
                    type=node["type"].get("desugaredQualType", written),
                ),
            )  # fmt: skip
            self._nested(name, written, file, line)
        elif (unnamed := _unnamed_record(node)) is not None:
            self._named_record(name, name, unnamed[0] == "union", file, line)

    def _record(self, node: Node, file: str, line: int) -> None:
        if not node.get("completeDefinition"):
            return
        name = node.get("name")
        tag = node.get("tagUsed", "struct")
        if name:
            self._named_record(name, f"{tag} {name}", tag == "union", file, line)
        self._fields(name or self.typedefs.get(node.get("id", ""), ""), node, file, line)

    def _named_record(self, name: str, expression: str, union: bool, file: str, line: int) -> None:
        self.records.setdefault(
            name, Record(name=name, file=file, line=line, expression=expression, union=union)
        )

    def _fields(self, owner: str, node: Node, file: str, line: int) -> None:
        for child in node.get("inner", ()):
            kind = child.get("kind")
            if kind == "FieldDecl":
                name = child.get("name", "")
                self._spelled(f"{owner}.{name}", child["type"]["qualType"], file, line)
            elif kind in ("RecordDecl", "CXXRecordDecl") and child.get("completeDefinition"):
                inner = child.get("name")
                if inner:
                    tag = child.get("tagUsed", "struct")
                    self._named_record(inner, f"{tag} {inner}", tag == "union", file, line)
                self._fields(inner or owner, child, file, line)

    def _spelled(self, name: str, spelled: str, file: str, line: int) -> None:
        """A type written in place: a callback when it is a pointer to (an array of ...) functions."""
        if not _FUNCTION_POINTER.search(spelled):
            return
        unspellable = _UNSPELLABLE.search(spelled)
        expression = None if unspellable else f"__typeof__(***(__typeof__({spelled})*)0)"
        self.callbacks.setdefault(
            name,
            Callback(name=name, file=file, line=line, expression=expression, typedef=False, type=spelled),
        )
        self._nested(name, spelled, file, line)

    def _nested(self, name: str, spelled: str, file: str, line: int) -> None:
        """Function pointers written inside the parameter list of another."""
        for index, part in enumerate(parameter_texts(spelled)):
            self._spelled(f"{name}.{index}", part, file, line)


def _type_kinds(node: Node) -> list[str]:
    """Kinds of the type nodes from a typedef down, through sugar, pointers and arrays."""
    kinds: list[str] = []
    here: Node | None = node
    through = ("PointerType", "ParenType", "ElaboratedType", "TypedefType", "QualType", "AttributedType",
               "MacroQualifiedType", "ConstantArrayType")  # fmt: skip
    while here is not None:
        inner = [child for child in here.get("inner", ()) if str(child.get("kind", "")).endswith("Type")]
        here = inner[0] if inner else None
        if here is None:
            break
        kinds.append(here["kind"])
        if here["kind"] not in through:
            break
    return kinds


def _unnamed_record(node: Node) -> tuple[str, str] | None:
    """``struct`` or ``union``, and the node's id, when a typedef is the only name of a record."""
    here = node
    while True:
        inner = [child for child in here.get("inner", ()) if str(child.get("kind", "")).endswith("Type")]
        if not inner:
            return None
        here = inner[0]
        if here["kind"] == "RecordType":
            declared = here.get("decl", {})
            spelled = str(here.get("type", {}).get("qualType", ""))
            word = "union" if spelled.startswith("union") else "struct"
            return None if declared.get("name") else (word, str(declared.get("id", "")))
        if here["kind"] not in ("ElaboratedType", "QualType", "AttributedType"):
            return None


def parameter_texts(spelled: str) -> Iterator[str]:
    """The parameter types of a function (pointer) type as C text."""
    if not spelled.endswith(")"):
        return
    depth, start = 0, len(spelled) - 1
    for start in range(len(spelled) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(spelled[start], 0)
        if depth == 0:
            break
    text, depth, begin = spelled[start + 1 : -1], 0, 0
    for index, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[begin:index].strip()
            begin = index + 1
    if text[begin:].strip():
        yield text[begin:].strip()


def read_declarations(tree: Node, is_user: Callable[[str], bool]) -> Declarations:
    """Read the declarations of a translation unit from clang's JSON tree.

    ``is_user`` says of a file name whether its declarations are to be judged.
    """
    reader = _Reader(is_user)
    reader.scope(tree)
    return Declarations(
        functions=tuple(reader.functions.values()),
        callbacks=tuple(reader.callbacks.values()),
        records=tuple(reader.records.values()),
    )
