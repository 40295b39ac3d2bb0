"""Executables: loaded device code with its exports.

Source: ``iree/hal/executable.h``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

from ..errors import ClosedError, InvalidArgumentError, NotFoundError

__all__ = ["Executable", "ExecutableExport"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableExport:
    """One entry point.

    Args:
        name: symbol name.
        ordinal: index in the export table.
        constant_count: 32-bit constants a dispatch must pass; ``None`` when the device cannot tell.
        binding_count: buffers a dispatch must bind; ``None`` when the device cannot tell.
        workgroup_size: invocations per workgroup, by dimension; zeros when chosen by the code.
        local_memory_bytes: scratch memory one workgroup needs.
        flags: dispatch flags of the export, in the format's own numbers.
    """

    name: str
    ordinal: int
    constant_count: int | None = None
    binding_count: int | None = None
    workgroup_size: tuple[int, int, int] = (0, 0, 0)
    local_memory_bytes: int = 0
    flags: int = 0


class Executable(abc.ABC):
    """Device code that command buffers dispatch. Unloaded when the last reference dies or at `close`.

    Args:
        exports: entry points, in the order of their ordinals.
        format: executable format it was made from.
    """

    def __init__(self, exports: Sequence[ExecutableExport], *, format: str) -> None:
        self.exports = tuple(exports)
        self.format = format
        self._ordinals = {export.name: export.ordinal for export in self.exports}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Refuse use after `close`.

        Raises:
            ClosedError
        """
        if self._closed:
            raise ClosedError("the executable is closed")

    def lookup(self, name: str) -> int:
        """Ordinal of the export called ``name``.

        Raises:
            NotFoundError: there is none.
            ClosedError: the executable is closed.
        """
        self.check_open()
        try:
            return self._ordinals[name]
        except KeyError:
            known = ", ".join(self._ordinals) or "nothing"
            raise NotFoundError(f"the executable exports no {name!r}; it exports {known}") from None

    def export(self, ordinal: int) -> ExecutableExport:
        """The export with this ordinal.

        Raises:
            InvalidArgumentError: there is none.
            ClosedError: the executable is closed.
        """
        self.check_open()
        if not 0 <= ordinal < len(self.exports):
            message = f"export ordinal {ordinal} is out of range: the executable has {len(self.exports)}"
            raise InvalidArgumentError(message)
        return self.exports[ordinal]

    def close(self) -> None:
        """Unload the code. Command buffers that dispatch it cannot be executed any more. Idempotent."""
        if not self._closed:
            self._closed = True
            self._close()

    @abc.abstractmethod
    def _close(self) -> None:
        """Unload; called once."""

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
