"""What a WebAssembly module holds, as JSON values, tables and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import wasm
from .console import format_bytes, print_table

__all__ = ["describe_wasm", "disassemble_wasm", "is_wasm", "print_wasm"]

_MAGIC = b"\0asm"
_INDENT = "  "


def is_wasm(path: Path) -> bool:
    """Whether a file begins as a WebAssembly module does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


def describe_wasm(data: bytes, *, where: str) -> dict[str, Any]:
    """Features, imports, exports, sizes and memory of a module.

    Raises:
        FormatError: it is malformed.
    """
    module = wasm.decode(data, where=where)
    info = wasm.dylink.read(module)
    names = wasm.names.read(module)
    features = wasm.features.required(module)
    return {
        "byte_length": len(data),
        "code_bytes": sum(len(body.data) for body in module.code),
        "functions": len(module.functions),
        "kernels": _kernels(names.functions),
        "features": sorted(feature.name.lower() for feature in features),
        "target_features": wasm.target_features.read(module),
        "imports": [
            {"module": i.module, "name": i.name, "kind": i.kind.name.lower()} for i in module.imports
        ],
        "exports": [{"name": e.name, "kind": e.kind.name.lower()} for e in module.exports],
        "data_bytes": None if info is None else info.memory_size,
        "table_slots": None if info is None else info.table_size,
        "custom_sections": [section.name for section in module.customs],
    }


def _kernels(functions: Any) -> list[str]:
    """Names of dispatch functions, which the compiler numbers."""
    return [name for name in functions.values() if "_dispatch_" in name]


def print_wasm(name: str, report: dict[str, Any]) -> None:
    """Print a report of `describe_wasm`."""
    facts = [
        ("size", format_bytes(report["byte_length"])),
        ("functions", str(report["functions"])),
        ("features used", ", ".join(report["features"]) or "none beyond the first release"),
        ("features declared", ", ".join(f"{sign}{key}" for key, sign in report["target_features"].items())),
        ("imports", ", ".join(f"{i['module']}.{i['name']}" for i in report["imports"])),
        ("exports", ", ".join(e["name"] for e in report["exports"])),
    ]
    if report["data_bytes"] is not None:
        facts.append(("data", f"{format_bytes(report['data_bytes'])}, {report['table_slots']} table slots"))
    print_table(f"Executable {name}", ("what", "value"), facts)
    print_table("Kernels", ("name",), [(kernel,) for kernel in report["kernels"]])


def disassemble_wasm(data: bytes, *, where: str) -> str:
    """The functions of a module as indented instructions.

    Raises:
        FormatError: it is malformed.
    """
    module = wasm.decode(data, where=where)
    names = wasm.names.read(module).functions
    imported = module.imported_count(wasm.ExternKind.FUNCTION)
    lines: list[str] = []
    for number, body in enumerate(module.code):
        index = imported + number
        lines.append(f"func {index} {names.get(index, '')}".rstrip())
        depth = 1
        for instruction in body.instructions():
            if instruction.name in ("end", "else"):
                depth = max(depth - 1, 1)
            words = [instruction.name, *(str(value) for value in instruction.immediates)]
            lines.append(_INDENT * depth + " ".join(words))
            if instruction.name in ("block", "loop", "if", "else", "try_table"):
                depth += 1
    return "\n".join(lines) + "\n"
