"""Parameter files: weights kept outside the program, read by key, mapped instead of copied.

Three formats are read (``.irpa``, ``.safetensors``, ``.gguf``), one is written (``.irpa``). Every
reader checks each offset, length, overlap, alignment and element type before it is used, and refuses
a bad file with a `FormatError` that names the entry and the byte offset.
"""

from __future__ import annotations

from .files import ParameterFile
from .index import FileRange, ParameterEntry, ParameterIndex, Splat
from .irpa import build_archive, read_archive, write_archive
from .open import FORMATS, open_parameters, read_parameters
from .paths import parse_parameter_flag, resolve_parameter_path
from .provider import ParameterProvider, index_arrays, open_providers

__all__ = [
    "FORMATS",
    "FileRange",
    "ParameterEntry",
    "ParameterFile",
    "ParameterIndex",
    "ParameterProvider",
    "Splat",
    "build_archive",
    "index_arrays",
    "open_parameters",
    "open_providers",
    "parse_parameter_flag",
    "read_archive",
    "read_parameters",
    "resolve_parameter_path",
    "write_archive",
]
