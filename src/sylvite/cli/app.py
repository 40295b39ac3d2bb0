"""The command group, and what becomes of errors.

Exit codes: 0 success; 1 the model, a file or the machine failed, or outputs differ from what was expected;
2 the command line is wrong. Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from .. import __version__
from ..errors import InternalError, SylviteError

__all__ = ["cli", "main"]

_COMMANDS: Final = {
    "abi": "Prove that portable code depends on no platform's calling convention.",
    "bench": "Time a function of a model.",
    "compile": "Compile a model to a .vmfb.",
    "demo": "Classify handwritten digits and compare sentences.",
    "devices": "List devices and engines, and what they can do.",
    "halide": "Build, run, inspect and time Halide pipelines.",
    "inspect": "Show what is in a module, a .wasm or a parameter file.",
    "profile": "Record where the time of a model goes: a timeline and a table.",
    "run": "Run a function of a model and print its results.",
}
_TRACEBACK_OPTION = "--traceback"
_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """Imports a command when it is asked for, so that ``--help`` needs neither numpy nor an engine."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = importlib.import_module(f"sylvite.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        own = {name: command.get_short_help_str() for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**_COMMANDS, **own}.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sylvite")
def cli() -> None:
    """Run IREE-compiled models sandboxed in WebAssembly.

    Any command takes --traceback, which shows where an error came from.
    """


@cli.command("version")
def version() -> None:
    """Print the versions of Sylvite and of what it uses."""
    from importlib import metadata

    click.echo(f"sylvite {__version__}")
    for name in ("wasmtime", "numpy", "iree-base-compiler", "onnx", "onnxslim"):
        try:
            click.echo(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            click.echo(f"{name} not installed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: the arguments without the program's name; those of the process when absent.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = _TRACEBACK_OPTION in given
    given = [argument for argument in given if argument != _TRACEBACK_OPTION]
    try:
        result = cli.main(given, prog_name="sylvite", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return _EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away; the interpreter must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_FAILED
    except SylviteError as error:
        if show_traceback:
            traceback.print_exc()
        else:
            click.echo(f"error: {error}", err=True)
            if isinstance(error, InternalError):
                click.echo("this is a bug in sylvite; please report it with --traceback", err=True)
        return _EXIT_FAILED
