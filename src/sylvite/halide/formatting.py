"""``halide_*_to_string``: how pipelines print.

Each function writes at ``target``, never past ``end``, and returns where it stopped.
Source: ``HalideRuntime.h`` and C's ``%f`` and ``%e``.
"""

from __future__ import annotations

import math

from .guest_memory import GuestMemory, as_unsigned
from .types import HalideType

__all__ = ["Formatter"]


class Formatter:
    """Writes texts into guest memory."""

    def __init__(self, memory: GuestMemory) -> None:
        self._memory = memory

    def put(self, target: int, end: int, text: str) -> int:
        """Write a text and its terminating zero; cut where there is no room."""
        target, end = as_unsigned(target), as_unsigned(end)
        room = end - target
        if room <= 0:
            return target
        data = text.encode()
        if len(data) >= room:
            self._memory.write(target, data[: room - 1] + b"\0")
            return end
        self._memory.write(target, data + b"\0")
        return target + len(data)

    def string(self, target: int, end: int, address: int) -> int:
        """A text of the guest."""
        return self.put(target, end, self._memory.text(address))

    def signed(self, target: int, end: int, value: int, digits: int) -> int:
        """A signed number with at least ``digits`` digits."""
        sign = "-" if value < 0 else ""
        return self.put(target, end, f"{sign}{abs(value):0{max(digits, 1)}d}")

    def unsigned(self, target: int, end: int, value: int, digits: int) -> int:
        """An unsigned number with at least ``digits`` digits."""
        return self.put(target, end, f"{value & 0xFFFFFFFFFFFFFFFF:0{max(digits, 1)}d}")

    def double(self, target: int, end: int, value: float, scientific: int) -> int:
        """A floating-point number with six digits after the point."""
        if math.isnan(value) or math.isinf(value):
            sign = "-" if math.copysign(1.0, value) < 0 else ""
            return self.put(target, end, sign + ("nan" if math.isnan(value) else "inf"))
        return self.put(target, end, f"{value:e}" if scientific else f"{value:f}")

    def pointer(self, target: int, end: int, value: int) -> int:
        """An address."""
        return self.put(target, end, f"{as_unsigned(value):#018x}")

    def type(self, target: int, end: int, address: int) -> int:
        """A ``halide_type_t``."""
        return self.put(target, end, str(HalideType.from_word(int(self._memory.unpack("I", address)[0]))))
