"""``sylvite inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .. import spirv, vmfb
from ..errors import FormatError, NotFoundError
from ..halide.cli import describe_pipelines, holds_pipeline
from ..model.signature import function_signature
from ..model.source import is_module
from ..vm.parameters import ParameterEntry, open_parameters
from .console import format_bytes, output_console, print_json, print_table
from .options import CompileSettings, compile_options
from .wasm_report import describe_wasm, disassemble_wasm, is_wasm, print_wasm

__all__ = ["command"]

_PARAMETER_SUFFIXES = frozenset({".irpa", ".safetensors", ".gguf"})


@click.command("inspect")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--disassemble", is_flag=True, help="Print the code as text.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@compile_options
def command(path: Path, disassemble: bool, as_json: bool, **settings: Any) -> None:
    """Show what is in FILE: a module (.vmfb), WebAssembly (.wasm), parameters, or a model to compile."""
    if not path.exists():
        raise NotFoundError(f"no such file: {path}")
    if path.suffix.lower() in _PARAMETER_SUFFIXES:
        _inspect_parameters(path, as_json)
    elif is_wasm(path):
        _inspect_wasm(path, disassemble, as_json)
    else:
        _inspect_module(_module_path(path, settings), path, disassemble, as_json)


def _module_path(path: Path, settings: dict[str, Any]) -> Path:
    """``path`` itself, or what it compiles to."""
    if is_module(path):
        return path
    from ..compile import compile as compile_model
    from .console import print_notes, progress_bar

    with progress_bar(str(path)) as progress:
        artifact = compile_model(path, progress=progress, **CompileSettings(**settings).arguments())
    print_notes([artifact])
    return artifact.path


def _inspect_wasm(path: Path, disassemble: bool, as_json: bool) -> None:
    data = path.read_bytes()
    report = describe_wasm(data, where=path.name)
    pipelines = describe_pipelines(path) if holds_pipeline(path) and not disassemble else []
    if pipelines:
        report["pipelines"] = pipelines
    if disassemble:
        click.echo(disassemble_wasm(data, where=path.name), nl=False)
    elif as_json:
        print_json(report)
    else:
        print_wasm(path.name, report)
        for pipeline in pipelines:
            click.echo(f"pipeline {pipeline['signature']}\n  target {pipeline['target']}")


def _inspect_parameters(path: Path, as_json: bool) -> None:
    with open_parameters(path) as index:
        entries = [_parameter(entry) for entry in index.values()]
    if as_json:
        print_json({"path": str(path), "parameters": entries})
        return
    rows = [
        (e["key"], e["type"] or "", str(e["shape"] or ""), format_bytes(e["byte_length"])) for e in entries
    ]
    total = sum(e["byte_length"] for e in entries)
    print_table(
        f"{path.name}: {len(entries)} parameters, {format_bytes(total)}",
        ("key", "type", "shape", "size"),
        rows,
    )


def _parameter(entry: ParameterEntry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "type": None if entry.element_type is None else entry.element_type.name,
        "shape": None if entry.shape is None else list(entry.shape),
        "byte_length": entry.byte_length,
    }


def _inspect_module(path: Path, given: Path, disassemble: bool, as_json: bool) -> None:
    with vmfb.open_archive(path) as archive:
        if disassemble:
            click.echo(vmfb.disassemble(archive.module), nl=False)
            return
        report = {**_describe_module(archive, path), "path": str(given)}
        if given != path:
            report["compiled"] = str(path)
    if as_json:
        print_json(report)
    else:
        _print_module(report)


def _describe_module(archive: vmfb.Archive, path: Path) -> dict[str, Any]:
    module = archive.module
    executables: list[dict[str, Any]] = []
    shaders: list[dict[str, Any]] = []
    data_bytes = 0
    for segment in module.rodata:
        data = archive.rodata(segment.ordinal)
        if bytes(data[:4]) == b"\0asm":
            name = segment.member or f"rodata[{segment.ordinal}]"
            executables.append({"name": name, **describe_wasm(bytes(data), where=name)})
        elif spirv.is_executable(data):
            shaders += _shaders(data, segment.member or f"rodata[{segment.ordinal}]")
        else:
            data_bytes += segment.byte_length
    return {
        "path": str(path),
        "file_bytes": path.stat().st_size,
        "module": module.name,
        "version": module.version,
        "bytecode_version": ".".join(map(str, module.bytecode_version)),
        "functions": _functions(module),
        "dependencies": [
            {"module": item.name, "minimum_version": item.minimum_version, "optional": item.is_optional}
            for item in module.dependencies
        ],
        "imports": [{"name": item.full_name, "optional": item.is_optional} for item in module.imports],
        "internal_functions": len(module.functions),
        "bytecode_bytes": len(module.bytecode),
        "constant_bytes": data_bytes,
        "global_bytes": module.global_bytes,
        "global_refs": module.global_ref_count,
        "executables": executables,
        "shaders": shaders,
    }


def _shaders(data: memoryview, executable: str) -> list[dict[str, Any]]:
    """Kernels of an executable for GPUs."""
    definition = spirv.read_executable(data, where=executable)
    return [
        {
            "name": entry.name,
            "executable": executable,
            "bindings": len(entry.bindings),
            "constants": entry.push_constant_words,
            "spirv_bytes": len(definition.shader_modules[entry.shader_module]),
        }
        for entry in definition.entry_points
    ]


def _functions(module: vmfb.ModuleDef) -> list[dict[str, Any]]:
    found = []
    for export in module.exports:
        if export.name.startswith("__"):
            continue
        function = module.functions[export.ordinal]
        try:
            signature, is_async = function_signature(function, export.name)
        except FormatError:
            # A recorded signature of another program; what the archive itself says is still worth showing.
            found.append({"name": export.name, "signature": function.calling_convention, "async": False})
            continue
        found.append({"name": export.name, "signature": str(signature), "async": is_async})
    return found


def _print_module(report: dict[str, Any]) -> None:
    console = output_console()
    console.print(
        f"{report['path']}: module {report['module']} version {report['version']}, bytecode "
        f"{report['bytecode_version']}, {format_bytes(report['file_bytes'])}",
        markup=False,
    )
    functions = [(item["signature"] + (" (async)" if item["async"] else ""),) for item in report["functions"]]
    print_table("Functions", ("signature",), functions)
    print_table(
        "Memory",
        ("bytecode", "constants", "globals", "references"),
        [
            (
                format_bytes(report["bytecode_bytes"]),
                format_bytes(report["constant_bytes"]),
                format_bytes(report["global_bytes"]),
                str(report["global_refs"]),
            )
        ],
    )
    print_table(
        "Imports",
        ("function", "optional"),
        [(i["name"], "yes" if i["optional"] else "") for i in report["imports"]],
    )
    for executable in report["executables"]:
        print_wasm(executable["name"], executable)
    if report["shaders"]:
        rows = [
            (item["name"], str(item["bindings"]), str(item["constants"]), format_bytes(item["spirv_bytes"]))
            for item in report["shaders"]
        ]
        print_table("Kernels for GPUs", ("name", "bindings", "constants", "SPIR-V"), rows)
