"""``sylvite compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..compile import compile as compile_model
from ..compile import targets
from .console import format_bytes, print_json, print_notes, progress_bar
from .options import CompileSettings, compile_options

__all__ = ["command"]


@click.command("compile")
@click.argument("model_path", metavar="MODEL")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Where to put the .vmfb (default: MODEL.vmfb)."
)
@click.option(
    "--target",
    type=click.Choice([target.name for target in targets()]),
    default="wasm32",
    show_default=True,
    help="What to compile for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a description of the result as JSON.")
@compile_options
def command(model_path: str, output: str | None, target: str, as_json: bool, **settings: Any) -> None:
    """Compile MODEL (.onnx, .mlir, .pt2) to a .vmfb, with its parameters beside it."""
    arguments = CompileSettings(**settings).arguments()
    if target != "wasm32" and not settings["feature"]:
        arguments["features"] = None
    elif target != "wasm32":
        arguments["features"] = tuple(settings["feature"])
    destination = Path(output) if output is not None else Path(Path(model_path).name).with_suffix(".vmfb")
    with progress_bar(model_path) as progress:
        artifact = compile_model(model_path, target, output=destination, progress=progress, **arguments)
    print_notes([artifact])
    if as_json:
        print_json(artifact.to_json())
        return
    click.echo(f"{artifact.path}  {format_bytes(artifact.path.stat().st_size)}")
    for path in artifact.parameters:
        click.echo(f"{path}  {format_bytes(path.stat().st_size)}")
