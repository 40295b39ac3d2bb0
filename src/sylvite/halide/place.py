"""Where pipelines live: a link space with guest memory, a lock and arrays over its memory.

A place is made of a device (any with a ``space``), or of a link space of its own when the caller has no
device: pipelines alone need no HAL.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import engines
from ..errors import ClosedError, InvalidArgumentError
from ..linker import LinkSpace

if TYPE_CHECKING:
    from ..engines.base import Engine, Limits
    from ..hal import Device
    from .team import Workers

__all__ = ["DevicePlace", "Place", "SpacePlace", "place_of"]

ByteArray: TypeAlias = "npt.NDArray[np.uint8]"


class Place(abc.ABC):
    """A link space with what pipelines need around it.

    Args:
        space: memory, table and store.
    """

    def __init__(self, space: LinkSpace) -> None:
        self.space = space
        self._base = space.memory.base_address

    @property
    @abc.abstractmethod
    def lock(self) -> AbstractContextManager[Any]:
        """Held while guest code runs or memory may grow."""

    @abc.abstractmethod
    def allocate(self, byte_length: int) -> ByteArray:
        """New guest memory as bytes; it is given back when no array over it lives.

        Raises:
            OutOfMemoryError, ClosedError
        """

    @property
    def call_lock(self) -> AbstractContextManager[Any]:
        """Held while a pipeline runs; the same each time."""
        return self.lock

    @property
    def workers(self) -> Workers | None:
        """What runs parallel loops. Without it they run in the calling thread."""
        return None

    def address_of(self, host_address: int) -> int | None:
        """Guest address of an address of this process; ``None`` when it is not in the guest's memory."""
        address = host_address - self._base
        return address if 0 <= address < self.space.memory.byte_length else None

    def check_open(self) -> None:
        """Refuse use after the space closed.

        Raises:
            ClosedError
        """
        if self.space.closed:
            raise ClosedError("the device of the pipeline is closed")

    def close(self) -> None:  # noqa: B027 - a place on somebody's device owns nothing
        """Close what the place itself made."""


class DevicePlace(Place):
    """On a device, in the memory of its models."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.space)  # type: ignore[attr-defined]
        self.device = device

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The device's."""
        return self.device.lock

    @property
    def call_lock(self) -> AbstractContextManager[Any]:
        """The device's, where helpers may take part; its `lock` elsewhere."""
        found: AbstractContextManager[Any] = getattr(self.device, "call_lock", None) or self.lock
        return found

    @property
    def workers(self) -> Workers | None:
        """The device's, when it has several."""
        workers: Workers | None = getattr(self.device, "workers", None)
        return workers if workers is not None and workers.count > 1 else None

    def allocate(self, byte_length: int) -> ByteArray:
        """Memory of the device's allocator, counted there."""
        return self.device.allocator.allocate(byte_length, tag="halide").view(0, byte_length)


class _Region:
    """A region of the guest heap behind numpy arrays; they hold it, it holds the store."""

    __slots__ = ("__array_interface__", "_address", "_heap", "_store")

    def __init__(self, space: LinkSpace, base: int, byte_length: int) -> None:
        self._heap = space.heap
        self._store = space.store
        address = space.heap.allocate(byte_length, 128)
        space.store.retain()
        self.__array_interface__ = {
            "data": (base + address, False),
            "shape": (byte_length,),
            "typestr": "|u1",
            "version": 3,
        }
        # Set last: a region that was not finished has nothing to give back.
        self._address = address

    def __del__(self) -> None:
        # The garbage collector may call this anywhere, in any thread; both are made for that.
        address = getattr(self, "_address", None)
        if address is not None:
            self._heap.free(address)
            self._store.release()


class SpacePlace(Place):
    """A link space of its own."""

    def __init__(self, space: LinkSpace, engine: Engine | None = None) -> None:
        super().__init__(space)
        self._engine = engine
        self._lock = threading.RLock()

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """One for the space."""
        return self._lock

    def allocate(self, byte_length: int) -> ByteArray:
        """Memory of the guest heap."""
        self.check_open()
        with self._lock:
            return np.asarray(_Region(self.space, self._base, byte_length))

    def close(self) -> None:
        """Close the space, and the engine when it was made for it. Arrays stay valid."""
        with self._lock:
            self.space.close()
            if self._engine is not None:
                self._engine.close()


def place_of(device: Device | LinkSpace | Place | None, *, limits: Limits | None = None) -> Place:
    """The place that a caller's ``device`` stands for; a new one for ``None``.

    Raises:
        InvalidArgumentError: the device has no link space, or limits were given for one that exists.
    """
    if device is None:
        with contextlib.ExitStack() as undo:
            engine = engines.create("wasmtime")
            undo.callback(engine.close)
            place = SpacePlace(LinkSpace(engine, limits=limits), engine)
            undo.pop_all()
        return place
    if limits is not None:
        raise InvalidArgumentError("limits belong to the device: give them where it is created")
    if isinstance(device, Place):
        return device
    if isinstance(device, LinkSpace):
        return SpacePlace(device)
    if not isinstance(getattr(device, "space", None), LinkSpace):
        raise InvalidArgumentError(f"pipelines cannot run on {device!r}: it has no WebAssembly memory")
    return DevicePlace(device)
