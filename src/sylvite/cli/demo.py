"""``sylvite demo``."""

from __future__ import annotations

import importlib

import click

from .console import output_console

__all__ = ["command"]


@click.command("demo")
@click.option("--device", default="local-sync", show_default=True, help="Device to run on.")
@click.argument("steps", nargs=-1)
def command(device: str, steps: tuple[str, ...]) -> None:
    """Classify digits, compare sentences, sharpen a photograph; STEPS choose some of: mnist, bert, halide."""
    demo = importlib.import_module("sylvite.demo")
    unknown = [step for step in steps if step not in demo.STEPS]
    if unknown:
        raise click.UsageError(f"no step {', '.join(unknown)}; there are: {', '.join(demo.STEPS)}")
    demo.run_steps(output_console(), device=device, steps=steps or tuple(demo.STEPS))
