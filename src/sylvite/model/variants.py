"""Where a model's programs come from: one compiled module, or one per set of input shapes.

The compiler often cannot take symbolic dims, and code for fixed ones is better. So an ONNX model with
symbolic dims is compiled when its first inputs are known, and again for other shapes; the compile cache
remembers across processes, and a model keeps the most recently used variants.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import ClosedError, InvalidArgumentError, NotFoundError
from .arrays import check_array, to_array
from .plans import CallPlans
from .program import Program
from .signature import Signature

__all__ = ["FixedProgram", "ProgramSource", "SpecializedPrograms", "bind_dims"]


class ProgramSource(Protocol):
    """Finds the program for a call."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by function name."""

    def program(self, name: str, values: Sequence[Any]) -> Program:
        """The program that takes ``values`` as inputs of function ``name``."""

    def plans(self, name: str) -> CallPlans | None:
        """Recorded calls of function ``name``, when they are those of one program for all calls."""

    def close(self) -> None:
        """Close all programs. Idempotent."""


class FixedProgram:
    """One program for all calls."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._closed = False

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by function name."""
        return {name: entry.signature for name, entry in self._program.entries.items()}

    def program(self, name: str, values: Sequence[Any]) -> Program:
        """The program."""
        if self._closed:
            raise ClosedError("the model is closed")
        return self._program

    def plans(self, name: str) -> CallPlans | None:
        """Recorded calls of function ``name``."""
        return self._program.entry(name).plans

    def close(self) -> None:
        """Close it. Idempotent."""
        self._closed = True
        self._program.close()


class SpecializedPrograms:
    """A program per assignment of extents to symbolic dims.

    Args:
        signature: the signature of the only function, with the names of its symbolic dims.
        build: compiles and loads the program for the given extents.
        capacity: how many programs to keep; the least recently used one is closed first.
    """

    def __init__(
        self, signature: Signature, build: Callable[[Mapping[str, int]], Program], *, capacity: int
    ) -> None:
        self._signature = signature
        self._build = build
        self._capacity = capacity
        self._programs: collections.OrderedDict[tuple[tuple[str, int], ...], Program] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()
        self._closed = False

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signature of the only function; symbolic dims have their names."""
        return {self._signature.name: self._signature}

    @property
    def variants(self) -> tuple[Mapping[str, int], ...]:
        """Extents of the programs there are, the most recently used last."""
        with self._lock:
            return tuple(dict(key) for key in self._programs)

    def program(self, name: str, values: Sequence[Any]) -> Program:
        """The program for the shapes of ``values``; compiled and loaded when there is none yet.

        Raises:
            InvalidArgumentError: an input does not fit the signature.
            CompileError: the model does not compile for these shapes.
        """
        if name != self._signature.name:
            raise NotFoundError(f"no function {name!r}; there are: {self._signature.name}")
        extents = bind_dims(self._signature, values)
        key = tuple(sorted(extents.items()))
        with self._lock:
            if self._closed:
                raise ClosedError("the model is closed")
            program = self._programs.get(key)
            if program is None:
                while len(self._programs) >= self._capacity:
                    self._programs.popitem(last=False)[1].close()
                program = self._programs[key] = self._build(extents)
            self._programs.move_to_end(key)
            return program

    def plans(self, name: str) -> CallPlans | None:
        """None: which program's they are depends on the call, and each has its own."""
        return None

    def close(self) -> None:
        """Close all programs. Idempotent."""
        with self._lock:
            self._closed = True
            while self._programs:
                self._programs.popitem()[1].close()


def bind_dims(signature: Signature, values: Sequence[Any]) -> dict[str, int]:
    """Extents of the symbolic dims, from the shapes of inputs in order.

    Raises:
        InvalidArgumentError: an input does not fit, or two inputs disagree about a dim.
    """
    extents: dict[str, int] = {}
    source: dict[str, str] = {}
    for argument, value in zip(signature.inputs, values, strict=True):
        where = f"input {argument.name!r} of {signature.name}"
        array = to_array(value, argument, where)
        check_array(array, argument, where)
        for dim, extent in zip(argument.shape or (), array.shape, strict=False):
            if not isinstance(dim, str):
                continue
            if extents.setdefault(dim, extent) != extent:
                raise InvalidArgumentError(
                    f"{where}: dim {dim} is {extent} here but {extents[dim]} in input {source[dim]!r}"
                )
            source.setdefault(dim, argument.name)
    return extents
