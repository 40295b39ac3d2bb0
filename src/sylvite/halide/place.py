"""Where pipelines live: a link space with guest memory, a lock and arrays over its memory.

A place is made of a device (any with a ``space``), or of a link space of its own when the caller has no
device: pipelines alone need no HAL.
"""

from __future__ import annotations

import abc
import contextlib
import threading
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import engines
from ..errors import ClosedError, InvalidArgumentError
from ..linker import LinkSpace
from .device_buffers import DeviceRange
from .device_kernels import KERNEL_FORMAT
from .device_runtime import DeviceRuntime

if TYPE_CHECKING:
    from ..engines.base import Engine, Limits
    from ..hal import Device
    from .team import Workers

__all__ = ["DevicePlace", "GpuPlace", "Place", "SpacePlace", "is_gpu", "place_of"]

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

    @property
    def device_runtime(self) -> DeviceRuntime | None:
        """What runs kernels. Without it pipelines cannot have any."""
        return None

    def shared(self, array: Any) -> DeviceRange | None:
        """Memory of the device under an array, when kernels can use it as it is."""
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


class OwnDevicePlace(DevicePlace):
    """On a device that was opened for it."""

    def close(self) -> None:
        """Close the device. Arrays stay valid."""
        self.device.close()


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


class GpuPlace(SpacePlace):
    """A link space for the pipeline itself, and a GPU for its kernels.

    Args:
        device: runs the kernels; closed with the place when ``owns_device``.
        limits: of the sandbox.
    """

    def __init__(self, device: Device, *, limits: Limits | None = None, owns_device: bool = False) -> None:
        with contextlib.ExitStack() as undo:
            engine = engines.create("wasmtime")
            undo.callback(engine.close)
            space = LinkSpace(engine, limits=limits, tracer=device.tracer)
            undo.callback(space.close)
            super().__init__(space, engine)
            self.device = device
            self._owns_device = owns_device
            self._runtime = DeviceRuntime(space, device)
            undo.pop_all()

    @property
    def device_runtime(self) -> DeviceRuntime:
        """The device's."""
        return self._runtime

    def shared(self, array: Any) -> DeviceRange | None:
        """See `Place.shared`: arrays over the device's memory, in one piece."""
        if (
            not array.flags.c_contiguous
            or not array.size
            or self.address_of(_host_address(array)) is not None
        ):
            return None
        buffer = self.device.allocator.import_host(array.reshape(-1).view(np.uint8), copy=False)
        return None if buffer is None else DeviceRange(buffer, 0, buffer.byte_length, is_shared=True)

    def check_open(self) -> None:
        """Refuse use after the space or the device closed."""
        super().check_open()
        if self.device.closed:
            raise ClosedError("the device of the pipeline is closed")

    def close(self) -> None:
        """Close the space, and the device when it was opened for it."""
        with self._lock:
            if not self.space.closed:
                self._runtime.close()
            super().close()
            if self._owns_device:
                self.device.close()


def _host_address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_gpu_places: weakref.WeakKeyDictionary[Device, weakref.ref[GpuPlace]] = weakref.WeakKeyDictionary()


def _gpu_place(device: Device) -> GpuPlace:
    """The place of a device: pipelines on it share their memory, and their kernels."""
    reference = _gpu_places.get(device)
    place = None if reference is None else reference()
    if place is None:
        place = GpuPlace(device)
        _gpu_places[device] = weakref.ref(place)
    return place


def is_gpu(device: Any) -> bool:
    """Whether pipelines for this device may have kernels."""
    if isinstance(device, str):
        return device.partition("?")[0].partition("://")[0] == "webgpu"
    if isinstance(device, Place):
        return device.device_runtime is not None
    can_load = getattr(device, "can_load", None)
    return can_load is not None and can_load(KERNEL_FORMAT)


def _open(uri: str, limits: Limits | None) -> Place:
    """A device of a name, and its place, which closes it."""
    from .. import drivers

    if not is_gpu(uri):
        return OwnDevicePlace(drivers.create_device(uri, limits=limits))
    device = drivers.create_device(uri)
    try:
        return GpuPlace(device, limits=limits, owns_device=True)
    except BaseException:
        device.close()
        raise


def place_of(device: Device | LinkSpace | Place | str | None, *, limits: Limits | None = None) -> Place:
    """The place that a caller's ``device`` stands for; a new one for ``None``, or for the name of a device.

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
    if isinstance(device, str):
        return _open(device, limits)
    if limits is not None:
        raise InvalidArgumentError("limits belong to the device: give them where it is created")
    if isinstance(device, Place):
        return device
    if isinstance(device, LinkSpace):
        return SpacePlace(device)
    if is_gpu(device):
        return _gpu_place(device)
    if not isinstance(getattr(device, "space", None), LinkSpace):
        raise InvalidArgumentError(f"pipelines cannot run on {device!r}: it has no WebAssembly memory")
    return DevicePlace(device)
