"""Whether a thread's stack is long enough for the guest.

Wasmtime stops a guest that used what the engine was made with, counted from where its call began. On a
shorter stack the guest would run out of it first, and take the process along. Threads have short stacks
where somebody asked for it (`threading.stack_size`, ``ulimit -s``).
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from ...errors import InvalidArgumentError

__all__ = ["require_stack", "stack_length"]

MARGIN_BYTES = 96 * 1024
"""What Python, wasmtime and host functions take beside."""


def _load() -> tuple[Any, ...] | None:
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    names = ("pthread_self", "pthread_getattr_np", "pthread_attr_getstack", "pthread_attr_destroy")
    # Not everywhere: the second one is glibc's and musl's.
    if not all(hasattr(library, name) for name in names):
        return None
    current, *others = (getattr(library, name) for name in names)
    current.restype = ctypes.c_void_p
    others[0].argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return current, *others


_FUNCTIONS = _load()
_known = threading.local()


def stack_length() -> int | None:
    """Bytes of this thread's stack, None where the system does not tell."""
    if _FUNCTIONS is None:
        return None
    current, get_attributes, get_stack, destroy = _FUNCTIONS
    # Longer than a pthread_attr_t anywhere.
    attributes = (ctypes.c_uint64 * 32)()
    if get_attributes(current(), attributes) != 0:
        return None
    address, length = ctypes.c_void_p(), ctypes.c_size_t()
    failed = get_stack(attributes, ctypes.byref(address), ctypes.byref(length))
    destroy(attributes)
    return None if failed else length.value


def require_stack(byte_length: int) -> None:
    """Check that calls of this thread may use that much.

    Raises:
        InvalidArgumentError: its stack is shorter.
    """
    try:
        length = _known.length
    except AttributeError:
        length = _known.length = stack_length()
    if length is not None and length < byte_length + MARGIN_BYTES:
        raise InvalidArgumentError(
            f"this thread's stack of {length} bytes is too short for calls that may use {byte_length} bytes: "
            "start it with a longer one (threading.stack_size, ulimit -s), or make the engine with less "
            "stack_bytes"
        )
