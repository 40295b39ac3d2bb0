"""``sylvite halide``: the commands for Halide pipelines."""

from __future__ import annotations

from ..halide.cli import halide as command

__all__ = ["command"]
