"""What the ``hal`` module keeps for one context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from ....hal.device import Device
from ...watch import Watch

__all__ = ["HalState"]


class HalState:
    """The devices a program sees, in order, where traces are printed, and what bounds waiting."""

    __slots__ = ("devices", "trace_stream", "watch")

    def __init__(self, devices: Sequence[Device], trace_stream: TextIO | None) -> None:
        self.devices = tuple(devices)
        self.trace_stream = trace_stream
        self.watch = Watch()
