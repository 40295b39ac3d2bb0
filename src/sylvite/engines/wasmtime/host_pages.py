"""Giving physical pages of a mapping back to the operating system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

__all__ = ["DISCARDED_IS_ZERO", "discard_pages", "page_bounds"]


def _load_madvise() -> Any:
    # Only Linux both drops the pages at once and reads zeros afterwards.
    if not sys.platform.startswith("linux"):
        return None
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.restype = ctypes.c_int
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


_MADVISE = _load_madvise()

DISCARDED_IS_ZERO = _MADVISE is not None
"""Whether discarded pages read as zeros."""


def page_bounds(address: int, byte_length: int) -> tuple[int, int]:
    """Host addresses of the first page boundary in a range and of the last; equal when no page fits."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + byte_length) // mmap.PAGESIZE * mmap.PAGESIZE
    return begin, max(begin, end)


def discard_pages(address: int, byte_length: int) -> int:
    """Drop the contents of the whole pages inside a range of this process's memory.

    Args:
        address: host address of private anonymous memory.
        byte_length: length of the range in bytes.

    Returns:
        Bytes given back; 0 where the system has no way to take them.
    """
    if _MADVISE is None:
        return 0
    begin, end = page_bounds(address, byte_length)
    if end == begin or _MADVISE(begin, end - begin, mmap.MADV_DONTNEED) != 0:
        return 0
    return end - begin
