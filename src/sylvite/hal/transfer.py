"""Transfers carried out by the host through views, for devices whose memory it sees.

Each returns the number of bytes it moved. Ranges were checked when they were bound; what can only be
known at execution (lengths that come with a slot, overlap) is checked here.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidArgumentError
from .command_buffer import Binding, check_fill, overlaps

__all__ = ["copy", "fill", "update"]


def fill(target: Binding, pattern: bytes) -> int:
    """Repeat ``pattern`` over the target.

    Raises:
        InvalidArgumentError: the pattern does not divide the range.
    """
    check_fill(0, target.byte_length, pattern, what="fill target")
    view = target.storage.view(target.byte_offset, target.byte_length, writable=True)
    if len(set(pattern)) == 1:
        view[:] = pattern[0]
    else:
        view.reshape(-1, len(pattern))[:] = np.frombuffer(pattern, np.uint8)
    return target.byte_length


def copy(source: Binding, target: Binding) -> int:
    """Copy the source over the target.

    Raises:
        InvalidArgumentError: the lengths differ or the ranges overlap.
    """
    if source.byte_length != target.byte_length:
        message = f"copy: {source.byte_length} source bytes do not fill {target.byte_length} target bytes"
        raise InvalidArgumentError(message)
    if overlaps(source, target):
        raise InvalidArgumentError("copy: source and target overlap")
    target_view = target.storage.view(target.byte_offset, target.byte_length, writable=True)
    target_view[:] = source.storage.view(source.byte_offset, source.byte_length, writable=False)
    return target.byte_length


def update(data: bytes | memoryview, target: Binding) -> int:
    """Write host bytes to the target.

    Raises:
        InvalidArgumentError: there are not as many bytes as the target has.
    """
    if len(data) != target.byte_length:
        raise InvalidArgumentError(f"update: {len(data)} bytes do not fill {target.byte_length} target bytes")
    view = target.storage.view(target.byte_offset, target.byte_length, writable=True)
    view[:] = np.frombuffer(data, np.uint8)
    return target.byte_length
