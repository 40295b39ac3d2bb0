"""VM bytecode to Python: `translate` turns a module's functions into code, see docs/vm.md."""

from __future__ import annotations

from .module import TranslatedModule, translate
from .numerics import NUMERICS

__all__ = ["NUMERICS", "TranslatedModule", "translate"]
