"""Paths named by people and by files.

A person may name any path. A *file* (an ONNX model with external data, an archive with external
entries) may only name files in its own folder: it can come from a stranger.
"""

from __future__ import annotations

import os
import pathlib
import re

from ...errors import FormatError, InvalidArgumentError

__all__ = ["parse_parameter_flag", "resolve_parameter_path"]

_REFUSAL = "parameter paths cannot leave their folder"
_WINDOWS_ROOT = re.compile(r"^[A-Za-z]:")
_SCOPE = re.compile(r"^[^=/\\]*$")


def resolve_parameter_path(
    folder: str | os.PathLike[str], relative: str, *, where: str | None = None
) -> pathlib.Path:
    """Resolve a path that a file in ``folder`` names, and make sure it stays inside that folder.

    Both separators count on every platform, so that a file means the same everywhere. Symbolic links
    are followed and may not lead outside. The target need not exist. ``where`` is what names the path,
    for errors.

    Raises:
        FormatError: ``relative`` is empty, absolute, holds ``..`` or a NUL, or leaves the folder
            through a link.
    """
    parts = re.split(r"[/\\]", relative)
    if not relative or "\0" in relative:
        raise FormatError(f"not a parameter path: {relative!r}", where=where)
    if parts[0] == "" or _WINDOWS_ROOT.match(relative):
        raise FormatError(f"{_REFUSAL}: {relative!r} is absolute", where=where)
    if ".." in parts:
        raise FormatError(f"{_REFUSAL}: {relative!r} goes up", where=where)
    try:
        root = pathlib.Path(folder).resolve()
        target = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise FormatError(f"not a parameter path: {relative!r} ({error})", where=where) from error
    if target == root or not target.is_relative_to(root):
        raise FormatError(f"{_REFUSAL}: {relative!r} is a link to {target}", where=where)
    return target


def parse_parameter_flag(text: str) -> tuple[str, pathlib.Path]:
    """Split ``scope=path`` or ``path`` (the unnamed scope ``""``), as given on a command line.

    Raises:
        InvalidArgumentError: There is no path in ``text``.
    """
    scope, separator, path = text.partition("=")
    if not separator or not _SCOPE.match(scope):
        scope, path = "", text
    if not path:
        raise InvalidArgumentError(f"no parameter file in {text!r}; write path or scope=path")
    return scope, pathlib.Path(path)
