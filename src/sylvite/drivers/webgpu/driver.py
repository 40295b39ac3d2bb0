"""The driver of WebGPU devices, and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...errors import InvalidArgumentError, UnavailableError
from ...hal import DeviceInfo, Driver
from .device import IDENTIFIER, WebGpuDevice
from .providers import PROVIDERS, Provider, choose_adapter, describe, load_provider

if TYPE_CHECKING:
    from ...trace import Tracer

__all__ = ["WebGpuDriver"]

_OPTIONS: Final = frozenset({"provider", "adapter", "backend", "power"})
# Sandbox options of other devices, which mean nothing to a GPU.
_IGNORED: Final = frozenset({"engine", "limits"})


class WebGpuDriver(Driver):
    """Opens ``webgpu`` devices: ``webgpu``, ``webgpu://dawn``, ``webgpu://wgpu?adapter=nvidia&backend=vulkan``."""

    name = IDENTIFIER

    def query_devices(self) -> tuple[DeviceInfo, ...]:
        """The adapters of every provider that is installed."""
        infos = []
        for name in PROVIDERS:
            try:
                provider = load_provider(name)
                adapters = provider.adapters()
            except UnavailableError:
                # What is not installed has no devices.
                continue
            infos += [self._info(provider, adapter) for adapter in adapters]
        return tuple(infos)

    @staticmethod
    def _info(provider: Provider, adapter: Any) -> DeviceInfo:
        return DeviceInfo(
            identifier=IDENTIFIER,
            name=f"webgpu on {provider.title}: {describe(adapter)}",
            details=(
                ("uri", f"webgpu://{provider.name}"),
                ("adapter", adapter.info["device"]),
                ("backend", adapter.info["backend_type"]),
                ("type", adapter.info["adapter_type"]),
            ),
        )

    def create_device(self, *, tracer: Tracer | None = None, **options: Any) -> WebGpuDevice:
        """Open an adapter.

        Args:
            tracer: counts and times what happens.
            options: ``provider``: ``wgpu`` or ``dawn``, by default the first that is installed;
                ``adapter``: part of its name; ``backend``: ``vulkan``, ``metal`` or ``d3d12``; ``power``:
                ``high`` or ``low``; ``limits``: of which the deadline is observed.

        Raises:
            InvalidArgumentError: an option is not known.
            UnavailableError: no provider is installed, or it has no adapter.
            NotFoundError: no adapter fits.
        """
        unknown = options.keys() - _OPTIONS - _IGNORED
        if unknown:
            raise InvalidArgumentError(f"device {self.name} has no options {', '.join(sorted(unknown))}")
        provider = self._provider(options.get("provider"))
        adapter = choose_adapter(
            provider, name=options.get("adapter"), backend=options.get("backend"), power=options.get("power")
        )
        deadline_ns = getattr(options.get("limits"), "deadline_ns", None)
        return WebGpuDevice(provider, adapter, tracer=tracer, deadline_ns=deadline_ns)

    @staticmethod
    def _provider(name: str | None) -> Provider:
        if name is not None:
            return load_provider(name)
        missing = []
        for candidate in PROVIDERS:
            try:
                return load_provider(candidate)
            except UnavailableError as error:
                missing.append(error)
        raise missing[0]
