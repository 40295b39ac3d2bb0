"""Types nested so deeply that following them ends Python's stack: a typed error instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import FormatError

__all__ = ["refuse_deep_nesting"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def refuse_deep_nesting(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn a `RecursionError` of ``function`` into a `FormatError`."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except RecursionError as error:
            raise FormatError("types are nested too deeply to be followed", where="declarations") from error

    return guarded
