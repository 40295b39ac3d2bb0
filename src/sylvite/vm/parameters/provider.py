"""Providers: the parameters a program finds under one scope."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from ...hal.element_types import element_type_from_numpy
from ...hal.file import File
from ...hal.types import MemoryAccess
from .element_types import ParameterType
from .files import ParameterFile
from .index import FileRange, ParameterEntry, ParameterIndex
from .open import open_parameters
from .paths import parse_parameter_flag

__all__ = ["ParameterProvider", "index_arrays", "open_providers"]


class ParameterProvider:
    """Parameters of one scope. Owns its index.

    Args:
        scope: The name programs use; ``""`` is the unnamed scope.
        index: The parameters.
    """

    def __init__(self, scope: str, index: ParameterIndex) -> None:
        self.scope = scope
        self.index = index
        self._files: dict[ParameterFile, File] = {}

    def resolve(
        self, key: str, offset: int, byte_length: int, access: MemoryAccess = MemoryAccess.READ
    ) -> ParameterEntry:
        """The parameter of that key, after checking that the program may access these bytes of it.

        Raises:
            NotFoundError: There is none; the message names the scope, the key and the closest keys.
            InvalidArgumentError: It has another length than the program expects, or cannot be written.
        """
        entry = self.index.lookup(key, scope=self.scope)
        entry.check_span(offset, byte_length)
        if access & MemoryAccess.WRITE and not self._is_writable(entry):
            raise InvalidArgumentError(f"parameter {key!r} of scope {self.scope!r} cannot be written")
        return entry

    @staticmethod
    def _is_writable(entry: ParameterEntry) -> bool:
        return isinstance(entry.storage, FileRange) and entry.storage.file.writable

    def file(self, file: ParameterFile) -> File:
        """The file as queues take it. Nothing is copied."""
        found = self._files.get(file)
        if found is None:
            access = MemoryAccess.READ | (MemoryAccess.WRITE if file.writable else MemoryAccess.NONE)
            found = File.from_memory(file.data, access=access, name=file.name, opened=file.opened)
            self._files[file] = found
        return found

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self.index.close()

    def __enter__(self) -> ParameterProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def index_arrays(arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> ParameterIndex:
    """Index arrays of this process as parameters. Contiguous arrays are not copied, and the program can
    write them where they are writable; others are copied and cannot be written.

    Raises:
        InvalidArgumentError: An array's dtype has no element type (big endian, objects, records).
    """
    index = ParameterIndex()
    for key, array in arrays.items():
        kind = element_type_from_numpy(array.dtype)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        writable = array.flags.c_contiguous and array.flags.writeable
        file = ParameterFile(data, name=f"array {key!r}", writable=writable)
        index.own(file)
        entry = ParameterEntry(
            key=key,
            byte_length=len(data),
            storage=FileRange(file=file, offset=0),
            element_type=ParameterType(name=kind.name, block_bits=kind.bit_count),
            shape=array.shape,
        )
        index.add(entry)
    return index


def open_providers(
    parameters: Iterable[str | os.PathLike[str]], *, writable: bool = False
) -> list[ParameterProvider]:
    """Open parameter files given as ``path`` or ``scope=path``. Files of one scope are joined.

    Raises:
        NotFoundError: A file does not exist.
        FormatError: A file is malformed, or two files of one scope have a key in common.
    """
    providers: dict[str, ParameterProvider] = {}
    try:
        for flag in parameters:
            scope, path = parse_parameter_flag(flag) if isinstance(flag, str) else ("", flag)
            index = open_parameters(path, writable=writable)
            provider = providers.setdefault(scope, ParameterProvider(scope, ParameterIndex()))
            provider.index.merge(index)
    except BaseException:
        for provider in providers.values():
            provider.close()
        raise
    return list(providers.values())
