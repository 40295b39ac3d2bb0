"""Layouts of records as plain data, targets that agree joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import NotFoundError
from .layouts import Interner, LayoutReader
from .nesting import refuse_deep_nesting
from .oracle import Examination

__all__ = ["record_layouts"]


@refuse_deep_nesting
def record_layouts(examination: Examination, names: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Layouts of records by name: groups of targets that agree, with ``size`` and ``align`` in bytes and
    ``members`` (``offset_bits``; ``bits`` for bit-fields). Only ``names``, when there are any.

    Raises:
        NotFoundError: a name is no record's.
        FormatError: records are nested too deeply.
    """
    known = {record.name for record in examination.declarations.records}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise NotFoundError(f"no complete struct or union called {', '.join(unknown)}")
    intern = Interner()
    readers = [
        LayoutReader(t, examination.views[t.name], intern)
        for t in examination.targets
        if t.name in examination.views
    ]
    found: dict[str, list[dict[str, Any]]] = {}
    for record in examination.declarations.records:
        if names and record.name not in names:
            continue
        groups: dict[int, dict[str, Any]] = {}
        for reader in readers:
            root = reader.graph.roots.get(f"s:{record.name}")
            if root is not None:
                group = groups.setdefault(reader.own(root), _layout_data(reader, root))
                group["targets"].append(reader.target.name)
        found[record.name] = list(groups.values())
    return found


def _layout_data(reader: LayoutReader, root: int) -> dict[str, Any]:
    node = reader.graph.nodes[reader.graph.plain(root)]
    members = [
        {"name": f.name, "offset_bits": f.offset, "bits": f.bits, "type": reader.graph.name(f.type)}
        for f in node.fields
    ]
    return {"targets": [], "size": node.size // 8, "align": node.align // 8, "members": members}
