"""The modules that compiled programs import from: ``hal``, ``io_parameters``, ``check``."""

from __future__ import annotations

from .check import CheckModule
from .hal import HalModule
from .io_parameters import IoParametersModule

__all__ = ["CheckModule", "HalModule", "IoParametersModule"]
