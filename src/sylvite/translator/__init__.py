"""VM bytecode to Python: `translate` turns a module's functions into code, see docs/vm.md."""

from __future__ import annotations

from .module import TranslatedModule, translate
from .numerics import NUMERICS
from .repeatable import is_repeatable

__all__ = ["NUMERICS", "TranslatedModule", "is_repeatable", "translate"]
