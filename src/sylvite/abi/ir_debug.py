"""C declarations rebuilt from a module's debug information, so that the oracle can judge IR whose source
is not at hand."""

from __future__ import annotations

import re
from pathlib import Path

from .debug_info import CType, DebugInfo, TypeGraph
from .ir_text import IrModule
from .oracle import Query

__all__ = ["debug_query", "declarations_text"]

_ATTACHED = re.compile(r"!dbg (!\d+)")
# Other languages may call their records so.
_TAKEN = re.compile(
    "auto|bool|break|case|char|const|constexpr|continue|default|do|double|else|enum|extern|false|float|for|goto"
    "|if|inline|int|long|nullptr|register|restrict|return|short|signed|sizeof|static|static_assert|struct"
    "|switch|thread_local|true|typedef|typeof|union|unsigned|void|volatile|while|asm"
)
_BASICS = {"complex": {64: "float _Complex", 128: "double _Complex"}}


class _Writer:
    """Writes types as C. Pointees are left incomplete unless they are functions: what a call needs is the
    shape of the values it passes."""

    def __init__(self, graph: TypeGraph) -> None:
        self.graph = graph
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.tags: set[str] = set()
        self.typedefs = {
            graph.plain(index): node.name
            for index, node in reversed(list(enumerate(graph.nodes)))
            if node.kind == "typedef"
        }

    def name(self, index: int) -> str:
        """A C type name for the type, declaring it first where it needs a declaration."""
        plain = self.graph.plain(index)
        known = self.names.get(plain)
        if known is None:
            known = self.names[plain] = self._declare(plain, self.graph.nodes[plain])
        return known

    def _declare(self, index: int, node: CType) -> str:
        if node.kind == "void":
            return "void"
        if node.kind == "basic":
            return _BASICS.get(node.name, {}).get(node.size, node.name)
        if node.kind == "pointer":
            return self._pointer(index, node)
        if node.kind == "enum":
            signed = node.encoding == "signed"
            return {8: "signed char", 16: "short", 64: "long long"}.get(
                node.size, "int" if signed else "unsigned int"
            )
        if node.kind in ("struct", "union"):
            return self._record(index, node)
        if node.kind == "array":
            name = f"sylvite_a{index}"
            self.lines.append(f"typedef {self.name(node.target)} {name}[{max(node.count, 0)}];")
            return name
        return "void *" if node.kind != "forward" else "void"

    def _pointer(self, index: int, node: CType) -> str:
        function = self.graph.nodes[self.graph.plain(node.target)]
        if function.kind != "function":
            return "void *"
        self.names[index] = "void *"
        name = f"sylvite_p{index}"
        self.lines.append(f"typedef {self.name(function.target)} (*{name})({self.parameters(function)});")
        return name

    def _record(self, index: int, node: CType) -> str:
        tag = self._tag(index, node)
        name = f"{node.kind} {tag}"
        attributes = ""
        if self._packed(node):
            attributes += " __attribute__((packed))"
        if node.align:
            attributes += f" __attribute__((aligned({node.align // 8})))"
        members = []
        for number, field in enumerate(node.fields):
            width = f" : {field.bits}" if field.bits else ""
            members.append(f"  {self.name(field.type)} {field.name or f'sylvite_m{number}'}{width};")
        self.lines += [f"{node.kind}{attributes} {tag} {{", *members, "};"]
        return name

    def _tag(self, index: int, node: CType) -> str:
        """The record's own tag, or its typedef, so that findings speak of what the reader knows."""
        written = node.name or self.typedefs.get(index, "")
        if not re.fullmatch(r"[A-Za-z]\w*", written) or _TAKEN.fullmatch(written) or written in self.tags:
            written = f"sylvite_r{index}"
        self.tags.add(written)
        return written

    def _packed(self, node: CType) -> bool:
        """Whether members lie closer than their alignment allows."""
        alignments = [self._alignment(field.type) for field in node.fields if not field.bits]
        misplaced = any(field.offset % self._alignment(field.type) for field in node.fields if not field.bits)
        return misplaced or (bool(alignments) and node.size % max(alignments) != 0)

    def _alignment(self, index: int) -> int:
        """Natural alignment in bits; 8 for what is packed itself."""
        node = self.graph.nodes[self.graph.plain(index)]
        if node.kind in ("struct", "union"):
            if node.align or self._packed(node):
                return node.align or 8
            return max((self._alignment(field.type) for field in node.fields), default=8)
        if node.kind == "array":
            return self._alignment(node.target)
        return max(node.size if node.encoding != "complex_float" else node.size // 2, 8)

    def parameters(self, node: CType) -> str:
        """A parameter list."""
        parts = [self.name(item) for item in node.parameters] + (["..."] if node.variadic else [])
        return ", ".join(parts) or "void"


def _subprogram_types(module: IrModule, info: DebugInfo) -> dict[str, int]:
    """Graph indices of function types by symbol, for functions that carry debug information."""
    found = {}
    for function in module.functions.values():
        line = module.lines[function.line]
        match = _ATTACHED.search(line)
        if match is None or function.name.startswith("llvm."):
            continue
        reference = info.attributes(match[1]).get("type")
        if reference is not None:
            found[function.name] = info.type(reference)
    return found


def declarations_text(module: IrModule) -> str | None:
    """C prototypes of the module's boundary functions that have debug information; None without any."""
    info = module.debug_info()
    boundary = {function.name for function in module.boundary()}
    types = {name: index for name, index in _subprogram_types(module, info).items() if name in boundary}
    if not types:
        return None
    writer = _Writer(info.graph)
    prototypes = []
    for name, index in types.items():
        node = info.graph.nodes[index]
        if name == "main":
            prototypes.append(f"int main({'int, char **' if node.parameters else 'void'});")
        elif node.kind == "function" and re.fullmatch(r"[A-Za-z_]\w*", name):
            prototypes.append(f"{writer.name(node.target)} {name}({writer.parameters(node)});")
    return "\n".join([*writer.lines, *prototypes]) + "\n"


def debug_query(module: IrModule, folder: Path) -> Query | None:
    """A query about the rebuilt declarations, written to ``folder``; None without debug information."""
    text = declarations_text(module)
    if text is None:
        return None
    header = folder / "from_debug_info.h"
    header.write_text(text, encoding="utf-8")
    return Query(files=(str(header),))
