"""``sylvite abi``: the ABI guard's commands."""

from __future__ import annotations

from ..abi.cli import abi as command

__all__ = ["command"]
