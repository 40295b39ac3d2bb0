"""C types out of LLVM debug information, as a graph of plain records.

The graph is what clang itself laid out for one target: every size and offset in it is clang's. It may
have cycles (a list node points at itself), so nodes refer to each other by index.

Source: LLVM's "Source Level Debugging" and ``llvm/lib/IR/AsmWriter.cpp``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["CField", "CType", "DebugInfo", "TypeGraph"]

_NODE = re.compile(r"^!(\d+) = (?:distinct )?(!.*)$")
_ATTRIBUTE = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*"|![\w.]*\([^()]*\)|!\{[^}]*\}|[^,()\s]+(?: -?\d+)?)')
_KINDS = {
    "DW_TAG_structure_type": "struct",
    "DW_TAG_class_type": "struct",
    "DW_TAG_union_type": "union",
    "DW_TAG_enumeration_type": "enum",
    "DW_TAG_array_type": "array",
    "DW_TAG_pointer_type": "pointer",
    "DW_TAG_reference_type": "pointer",
    "DW_TAG_rvalue_reference_type": "pointer",
    "DW_TAG_typedef": "typedef",
    "DW_TAG_atomic_type": "atomic",
}
_QUALIFIERS = frozenset({"DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type"})
VOID = 0
"""Index of ``void`` in every graph."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CField:
    """A member. ``offset`` counts bits from the record's start; ``bits`` is a bit-field's width, else 0."""

    name: str
    type: int
    offset: int
    bits: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CType:
    """One type. ``kind`` is void, basic, pointer, struct, union, enum, array, vector, function, typedef,
    atomic or forward (an incomplete record). ``size`` is in bits, 0 where unknown. ``target`` is the
    pointee, element, underlying or result type. ``count`` is an array's length, -1 for a flexible one.
    ``align`` is in bits, 0 where it was not asked for."""

    kind: str
    name: str = ""
    size: int = 0
    align: int = 0
    encoding: str = ""
    target: int = VOID
    fields: tuple[CField, ...] = ()
    parameters: tuple[int, ...] = ()
    variadic: bool = False
    count: int = 0
    file: str = ""
    line: int = 0


class TypeGraph:
    """The types of one target. ``nodes[0]`` is void; ``roots`` maps entity keys to indices."""

    def __init__(self) -> None:
        self.nodes: list[CType] = [CType(kind="void", name="void")]
        self.roots: dict[str, int] = {}

    def plain(self, index: int) -> int:
        """``index`` with typedefs and atomics taken off."""
        node = self.nodes[index]
        while node.kind in ("typedef", "atomic"):
            index = node.target
            node = self.nodes[index]
        return index

    def function(self, index: int) -> int | None:
        """The function type a (pointer to a) function leads to, else None."""
        index = self.plain(index)
        node = self.nodes[index]
        if node.kind == "pointer":
            index = self.plain(node.target)
            node = self.nodes[index]
        return index if node.kind == "function" else None

    def name(self, index: int) -> str:
        """The type in C words, for messages."""
        node = self.nodes[index]
        if node.kind == "pointer":
            return (
                f"{self.name(node.target)} *"
                if self.nodes[node.target].kind != "function"
                else "function pointer"
            )
        if node.kind in ("array", "vector"):
            return f"{self.name(node.target)}[{node.count if node.count >= 0 else ''}]"
        if node.kind in ("struct", "union", "enum", "forward") and node.name:
            return f"{'struct' if node.kind == 'forward' else node.kind} {node.name}"
        return node.name or f"unnamed {node.kind}"

    # -- storage --------------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """A JSON value that `from_data` reads back."""
        return {"roots": self.roots, "nodes": [_node_data(node) for node in self.nodes]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TypeGraph:
        """Rebuild a graph from `to_data`."""
        graph = cls()
        graph.roots = dict(data["roots"])
        graph.nodes = [_node_from(row) for row in data["nodes"]]
        return graph


_NODE_FIELDS = tuple(field.name for field in dataclasses.fields(CType))
_NODE_DEFAULTS = CType(kind="")


def _node_data(node: CType) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(node, name)
        for name in _NODE_FIELDS
        if getattr(node, name) != getattr(_NODE_DEFAULTS, name)
    }
    if node.fields:
        row["fields"] = [(f.name, f.type, f.offset, f.bits) for f in node.fields]
    return row


def _node_from(row: dict[str, Any]) -> CType:
    fields = tuple(CField(name=f[0], type=f[1], offset=f[2], bits=f[3]) for f in row.pop("fields", ()))
    parameters = tuple(row.pop("parameters", ()))
    return CType(**row, fields=fields, parameters=parameters)


class DebugInfo:
    """The metadata of one IR module, read on demand."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.raw: dict[str, str] = {}
        for line in lines:
            match = _NODE.match(line)
            if match is not None:
                self.raw[match[1]] = match[2]
        self.graph = TypeGraph()
        self._known: dict[str, int] = {}

    def attributes(self, reference: str) -> dict[str, str]:
        """The fields of node ``reference`` (``!12``), strings without quotes."""
        text = self.raw.get(reference.lstrip("!"), "")
        return {
            key: value[1:-1] if value.startswith('"') else value for key, value in _ATTRIBUTE.findall(text)
        }

    def elements(self, reference: str | None) -> list[str]:
        """The items of the tuple node ``reference``."""
        if reference is None:
            return []
        text = reference if reference.startswith("!{") else self.raw.get(reference.lstrip("!"), "!{}")
        return [item.strip() for item in text[2:-1].split(",") if item.strip()]

    def variables(self) -> dict[str, str]:
        """Global variables by name, with their type references."""
        found = {}
        for text in self.raw.values():
            if text.startswith("!DIGlobalVariable("):
                fields = dict(_ATTRIBUTE.findall(text))
                found[fields.get("name", '""')[1:-1]] = fields.get("type", "null")
        return found

    def _file(self, fields: Mapping[str, str]) -> str:
        return self.attributes(fields["file"]).get("filename", "") if "file" in fields else ""

    def type(self, reference: str | None) -> int:
        """The graph index of type node ``reference``; null is void."""
        if reference is None or reference == "null":
            return VOID
        known = self._known.get(reference)
        if known is not None:
            return known
        fields = self.attributes(reference)
        tag = fields.get("tag", "")
        if tag in _QUALIFIERS:
            index = self.type(fields.get("baseType"))
            self._known[reference] = index
            return index
        # The place is taken before the members are read: they may lead back here.
        index = len(self.graph.nodes)
        self._known[reference] = index
        self.graph.nodes.append(CType(kind="void"))
        self.graph.nodes[index] = self._read(self.raw.get(reference.lstrip("!"), ""), tag, fields)
        return index

    def _read(self, text: str, tag: str, fields: Mapping[str, str]) -> CType:
        name, size = fields.get("name", ""), int(fields.get("size", "0"))
        if text.startswith("!DIBasicType"):
            return CType(kind="basic", name=name, size=size, encoding=fields.get("encoding", "")[7:])
        if text.startswith("!DISubroutineType"):
            return self._function(fields)
        kind = _KINDS.get(tag, "other")
        place = {"file": self._file(fields), "line": int(fields.get("line", "0"))}
        if kind in ("struct", "union"):
            if "DIFlagFwdDecl" in fields.get("flags", ""):
                return CType(kind="forward", name=name, **place)  # type: ignore[arg-type]
            members = self._members(fields.get("elements"))
            align = int(fields.get("align", "0"))
            return CType(kind=kind, name=name, size=size, align=align, fields=members, **place)  # type: ignore[arg-type]
        if kind == "array":
            return self._array(fields, size)
        base = self.type(fields.get("baseType"))
        if kind == "enum":
            encoding = self.graph.nodes[self.graph.plain(base)].encoding
            return CType(kind=kind, name=name, size=size, encoding=encoding, **place)  # type: ignore[arg-type]
        return CType(kind=kind, name=name, size=size, target=base)

    def _function(self, fields: Mapping[str, str]) -> CType:
        types = self.elements(fields.get("types"))
        variadic = len(types) > 1 and types[-1] == "null"
        parameters = tuple(self.type(item) for item in types[1 : -1 if variadic else None])
        result = self.type(types[0]) if types else VOID
        return CType(
            kind="function", target=result, parameters=parameters, variadic=variadic,
            encoding=fields.get("cc", ""),
        )  # fmt: skip

    def _array(self, fields: Mapping[str, str], size: int) -> CType:
        element = self.type(fields.get("baseType"))
        counts = [self.attributes(item).get("count", "-1") for item in self.elements(fields.get("elements"))]
        count = 1
        for text in counts:
            number = int(text) if re.fullmatch(r"-?\d+", text) else -1
            count = -1 if number < 0 or count < 0 else count * number
        kind = "vector" if "DIFlagVector" in fields.get("flags", "") else "array"
        return CType(kind=kind, size=size, target=element, count=count, name=fields.get("name", ""))

    def _members(self, reference: str | None) -> tuple[CField, ...]:
        members = []
        for item in self.elements(reference):
            fields = self.attributes(item)
            tag = fields.get("tag")
            if tag not in ("DW_TAG_member", "DW_TAG_inheritance") or "DIFlagStaticMember" in fields.get(
                "flags", ""
            ):
                continue
            bits = int(fields.get("size", "0")) if "DIFlagBitField" in fields.get("flags", "") else 0
            members.append(
                CField(
                    name=fields.get("name", ""),
                    type=self.type(fields.get("baseType")),
                    offset=int(fields.get("offset", "0")),
                    bits=bits,
                )
            )
        return tuple(members)
