"""The drivers of local devices, and their options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ... import engines
from ...errors import InvalidArgumentError, UnavailableError
from ...hal import DeviceInfo, Driver
from ...linker import LinkSpace
from .device import LocalDevice
from .task import LocalTaskDevice, default_worker_count, side_count

if TYPE_CHECKING:
    from ...engines.base import Engine, Limits
    from ...trace import Tracer

__all__ = ["LocalSyncDriver", "LocalTaskDriver"]

MAX_WORKERS: Final = 256
_SPACE_OPTIONS: Final = frozenset({"stack_bytes", "minimum_pages", "maximum_pages"})
_COMMAND_MODES: Final = {"compiled": False, "interpreted": True}


class LocalSyncDriver(Driver):
    """Opens ``local-sync`` devices."""

    name = "local-sync"
    options = _SPACE_OPTIONS | {"cache_dir", "commands"}

    def query_devices(self) -> tuple[DeviceInfo, ...]:
        """One device per engine of this release."""
        return tuple(
            DeviceInfo(identifier=self.name, name=f"{self.name} on {engine}", details=(("engine", engine),))
            for engine in engines.names()
        )

    def create_device(
        self,
        *,
        tracer: Tracer | None = None,
        engine: Engine | str = "wasmtime",
        limits: Limits | None = None,
        **options: Any,
    ) -> LocalDevice:
        """Open a device with a linear memory of its own.

        Args:
            tracer: counts and times what happens.
            engine: the engine to run on, which stays the caller's; or the name of one to make.
            limits: sandbox limits.
            options: ``cache_dir`` for a named engine; ``stack_bytes``, ``maximum_pages`` for the link space;
                ``commands``: ``compiled``, or ``interpreted`` to run command buffers step by step;
                ``workers`` and ``pin`` for devices with several.

        Raises:
            InvalidArgumentError: an option is not known.
            UnavailableError: the engine cannot be used here.
        """
        unknown = options.keys() - self.options
        if unknown:
            raise InvalidArgumentError(f"device {self.name} has no options {', '.join(sorted(unknown))}")
        commands = options.get("commands", "compiled")
        if commands not in _COMMAND_MODES:
            raise InvalidArgumentError(
                f"option commands of device {self.name} must be one of {', '.join(_COMMAND_MODES)}, "
                f"not {commands!r}"
            )
        numbers = {key: self._number(key, value) for key, value in options.items() if key in _SPACE_OPTIONS}
        settings = {"is_interpreted": _COMMAND_MODES[commands], **self._settings(options)}
        own = None
        if isinstance(engine, str):
            cache_dir = options.get("cache_dir")
            own = engine = engines.create(engine, **({} if cache_dir is None else {"cache_dir": cache_dir}))
        try:
            space = LinkSpace(engine, limits=limits, tracer=tracer, **numbers, **self._space(options))
            return self._open(space, own, settings)
        except BaseException:
            if own is not None:
                own.close()
            raise

    def _settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Further arguments of the device."""
        return {}

    def _space(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Further arguments of the link space."""
        return {}

    def _open(self, space: LinkSpace, own: Engine | None, settings: Mapping[str, Any]) -> LocalDevice:
        return LocalDevice(space, identifier=self.name, engine=own, **settings)

    def _number(self, key: str, value: Any) -> int:
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"option {key} of device {self.name} is not a number: {value!r}"
            ) from error


class LocalTaskDriver(LocalSyncDriver):
    """Opens ``local-task`` devices: ``local-task``, ``local-task://2``, ``local-task?workers=2&pin=0,1``."""

    name = "local-task"
    options = LocalSyncDriver.options | {"workers", "pin"}

    def _workers(self, options: Mapping[str, Any]) -> int:
        workers = self._number("workers", options.get("workers", default_worker_count()))
        if not 1 <= workers <= MAX_WORKERS:
            raise InvalidArgumentError(f"device {self.name} has 1 to {MAX_WORKERS} workers, not {workers}")
        return workers

    def _settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        workers = self._workers(options)
        return {"pin": self._processors(options.get("pin"), workers), "sides": side_count(workers)}

    def _space(self, options: Mapping[str, Any]) -> dict[str, Any]:
        workers = self._workers(options)
        return {"replicas": workers - 1 + side_count(workers)}

    def _processors(self, pin: Any, workers: int) -> Sequence[int] | None:
        """One processor for each worker; ``pin`` is a list of them, or whether to take the process's own."""
        if pin is None or pin is False or pin == "0" or pin == "false":
            return None
        if not hasattr(os, "sched_setaffinity"):
            raise UnavailableError("threads cannot be pinned on this system")
        allowed = sorted(os.sched_getaffinity(0))
        if pin is True or pin == "true":
            chosen = allowed
        else:
            parts = pin.split(",") if isinstance(pin, str) else list(pin)
            chosen = [self._number("pin", part) for part in parts]
        strangers = [processor for processor in chosen if processor not in allowed]
        if strangers or not chosen:
            raise InvalidArgumentError(
                f"processors {strangers or pin!r} cannot be used; these can be: {allowed}"
            )
        return [chosen[worker % len(chosen)] for worker in range(workers)]

    def _open(self, space: LinkSpace, own: Engine | None, settings: Mapping[str, Any]) -> LocalDevice:
        return LocalTaskDevice(space, identifier=self.name, engine=own, **settings)
