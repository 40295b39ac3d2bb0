"""Opening parameter files of any format."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

from ...errors import FormatError
from .files import ParameterFile
from .gguf import read_gguf
from .index import ParameterIndex
from .irpa import read_archive
from .safetensors import read_safetensors

__all__ = ["FORMATS", "open_parameters", "read_parameters"]

FORMATS: dict[str, Callable[[ParameterFile], ParameterIndex]] = {
    ".irpa": read_archive,
    ".safetensors": read_safetensors,
    ".gguf": read_gguf,
}
"""Readers by file name suffix."""

_MAGICS = {b"IRPA": ".irpa", b"GGUF": ".gguf"}


def read_parameters(file: ParameterFile) -> ParameterIndex:
    """Index a file, whose format is told by its first bytes, then by its name.

    Raises:
        FormatError: The file is malformed, or of none of the formats.
    """
    suffix = _MAGICS.get(bytes(file.data[:4])) or pathlib.PurePath(file.name).suffix.lower()
    reader = FORMATS.get(suffix)
    if reader is None:
        known = ", ".join(FORMATS)
        raise FormatError(f"not a parameter file; formats are {known}", offset=0, where=file.name)
    return reader(file)


def open_parameters(path: str | os.PathLike[str], *, writable: bool = False) -> ParameterIndex:
    """Map and index a parameter file. Close the index to close the file.

    Raises:
        NotFoundError: There is no such file.
        FormatError: It is malformed; the message names the entry and the offset.
    """
    file = ParameterFile.open(path, writable=writable)
    try:
        return read_parameters(file)
    except BaseException:
        file.close()
        raise
