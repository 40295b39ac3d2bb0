"""The two implementations of WebGPU that Python has, behind one face.

``wgpu`` is wgpu-native, ``dawn`` is Dawn; both packages speak the API of wgpu-py. What differs between
them, or is broken in the pinned releases, is kept in this file:

* wgpu 0.32's ``on_submitted_work_done_async`` does not match its own header. The end of a submission is
  therefore seen by mapping a buffer that the submission writes.
* wgpu-native ends the process when a submission is refused. ``finish`` reports the same errors as
  exceptions, so nothing is submitted that was not finished a moment before, and buffers are never destroyed.
* Dawn's objects may be used by one thread at a time: the caller holds a lock for every call.
* Flags are passed as numbers: the packages add up flag names instead of joining them.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from ...errors import InvalidArgumentError, NotFoundError, UnavailableError

__all__ = ["PROVIDERS", "BufferUsageBits", "Provider", "load_provider"]


class BufferUsageBits:
    """``GPUBufferUsage``. Source: WebGPU specification, section 5.1.2."""

    MAP_READ: Final = 0x1
    COPY_SRC: Final = 0x4
    COPY_DST: Final = 0x8
    UNIFORM: Final = 0x40
    STORAGE: Final = 0x80
    QUERY_RESOLVE: Final = 0x200


MAP_MODE_READ: Final = 0x1
_ASK_SECONDS: Final = 0.1


class Promise(Protocol):
    """What the packages return for things that end later."""

    _state: str

    def sync_wait(self) -> Any:
        """Block until it is settled."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    module: str
    backend: str
    extra: str
    title: str


PROVIDERS: Final = {
    "wgpu": _Package(module="wgpu", backend="wgpu.backends.wgpu_native", extra="webgpu", title="wgpu-native"),
    "dawn": _Package(module="wgpudawn", backend="wgpudawn.backends.dawn", extra="dawn", title="Dawn"),
}


def _pauses() -> Iterator[float]:
    """Seconds to sleep between looks: none at first, then up to a millisecond."""
    for _ in range(20):
        yield 0.0
    pause = 0.00005
    while True:
        yield pause
        pause = min(pause * 1.5, 0.001)


class Provider:
    """One of the packages, loaded.

    Args:
        name: ``wgpu`` or ``dawn``.
        package: where it is.
    """

    def __init__(self, name: str, package: _Package) -> None:
        self.name = name
        self.title = package.title
        try:
            self._module = importlib.import_module(package.module)
            self._backend = importlib.import_module(package.backend)
        except ImportError as error:
            message = f"device webgpu://{name} needs the package {package.module}"
            raise UnavailableError(message, extra=package.extra) from error
        except OSError as error:
            raise UnavailableError(f"the package {package.module} cannot be loaded: {error}") from error
        # Losses are ours to report, as exceptions.
        logging.getLogger(package.module).addFilter(_is_no_loss)
        self.error: type[Exception] = self._module.GPUError
        self.validation_error: type[Exception] = self._module.GPUValidationError
        self.memory_error: type[Exception] = self._module.GPUOutOfMemoryError
        self.version = str(getattr(self._module, "__version__", ""))

    def adapters(self) -> Sequence[Any]:
        """Every adapter it finds. Those of OpenGL come last: they lack what compute needs.

        Raises:
            UnavailableError: the package fails to look for adapters.
        """
        try:
            found = self._backend.gpu.enumerate_adapters_async().sync_wait()
        except (RuntimeError, OSError, self.error) as error:
            raise UnavailableError(f"{self.title} cannot list adapters: {error}") from error
        return sorted(found, key=lambda adapter: "OpenGL" in adapter.info["backend_type"])

    def open(self, adapter: Any, features: Sequence[str], limits: dict[str, int]) -> Any:
        """A device of an adapter.

        Raises:
            UnavailableError: the adapter refuses.
        """
        try:
            return adapter.request_device_async(
                required_features=list(features), required_limits=limits
            ).sync_wait()
        except (RuntimeError, KeyError, self.error) as error:
            raise UnavailableError(f"adapter {adapter.info['device']!r} gives no device: {error}") from error

    def is_settled(self, promise: Promise) -> bool:
        """Let callbacks come in; whether the promise is settled. The caller holds the lock."""
        if promise._state == "pending" and self.name == "dawn":
            self._backend._api.process_events()
        return promise._state != "pending"

    def wait(
        self,
        promise: Promise,
        *,
        step: Callable[[Callable[[], bool]], bool],
        give_up: Callable[[], bool],
    ) -> bool:
        """Wait for a promise.

        Args:
            promise: what to wait for.
            step: calls its argument with whatever lock is needed.
            give_up: whether to stop waiting, asked now and then with the lock: promises of a lost device may
                never be settled.

        Returns:
            Whether it was settled.
        """
        asked = time.monotonic()
        for pause in _pauses():
            if step(lambda: self.is_settled(promise)):
                return True
            if pause:
                time.sleep(pause)
            if time.monotonic() - asked > _ASK_SECONDS:
                if step(give_up):
                    return step(lambda: self.is_settled(promise))
                asked = time.monotonic()
        return False


def _is_no_loss(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return "device was lost" not in text.lower() and text != "DEVICE LOST!"


def load_provider(name: str) -> Provider:
    """The package behind a provider's name.

    Raises:
        InvalidArgumentError: there is no such provider.
        UnavailableError: it is not installed.
    """
    package = PROVIDERS.get(name)
    if package is None:
        raise InvalidArgumentError(f"WebGPU is provided by {' or '.join(PROVIDERS)}, not {name!r}")
    return Provider(name, package)


def describe(adapter: Any) -> str:
    """An adapter in words."""
    info = adapter.info
    return f"{info['device'] or info['description']} ({info['backend_type']}, {info['adapter_type']})"


def choose_adapter(provider: Provider, *, name: str | None, backend: str | None, power: str | None) -> Any:
    """The first adapter that fits.

    Args:
        provider: whose adapters.
        name: part of the adapter's name, any case.
        backend: ``vulkan``, ``metal``, ``d3d12`` or ``opengl``.
        power: ``high`` for a discrete GPU first, ``low`` for an integrated one first.

    Raises:
        UnavailableError: there is no adapter at all.
        NotFoundError: none fits; the message lists those there are.
        InvalidArgumentError: ``power`` is neither.
    """
    orders = {
        None: ("DiscreteGPU", "IntegratedGPU"),
        "high": ("DiscreteGPU", "IntegratedGPU"),
        "low": ("IntegratedGPU", "DiscreteGPU"),
    }
    if power not in orders:
        raise InvalidArgumentError(f"option power of device webgpu is high or low, not {power!r}")
    adapters = provider.adapters()
    if not adapters:
        raise UnavailableError(
            f"{provider.title} finds no adapter: there is no GPU, or no Vulkan, Metal or Direct3D driver"
        )
    fitting = [
        adapter
        for adapter in adapters
        if (name is None or name.lower() in describe(adapter).lower())
        and (backend is None or backend.lower() == adapter.info["backend_type"].lower())
    ]
    if not fitting:
        wanted = ", ".join(part for part in (name, backend) if part is not None)
        listed = "; ".join(map(describe, adapters))
        raise NotFoundError(f"{provider.title} has no adapter {wanted!r}; it has {listed}")

    def rank(adapter: Any) -> tuple[bool, int]:
        kind = adapter.info["adapter_type"].replace("-", "").replace(" ", "")
        order = orders[power]
        return "OpenGL" in adapter.info["backend_type"], order.index(kind) if kind in order else len(order)

    return min(fitting, key=rank)
