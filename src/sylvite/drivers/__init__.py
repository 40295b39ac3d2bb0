"""Drivers by name. A driver is imported when it is first asked for.

A device is named by a URI: the driver's name, such as ``local-sync``, with options after a ``?``. A driver
may have one option that is written ``name://value``, such as the number of workers in ``local-task://2``
or the provider in ``webgpu://dawn``.
"""

from __future__ import annotations

import importlib
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgumentError, NotFoundError
from ..hal import Device, Driver

if TYPE_CHECKING:
    from ..engines.base import Engine, Limits
    from ..trace import Tracer

__all__ = ["create_device", "create_driver", "names"]

_DRIVERS: Final = {
    "null": ("sylvite.drivers.null", "NullDriver"),
    "local-sync": ("sylvite.drivers.local", "LocalSyncDriver"),
    "local-task": ("sylvite.drivers.local", "LocalTaskDriver"),
    "webgpu": ("sylvite.drivers.webgpu", "WebGpuDriver"),
}
# The option that ``name://value`` gives, by driver.
_PATH_OPTIONS: Final = {"local-task": "workers", "webgpu": "provider"}


def names() -> tuple[str, ...]:
    """Names of the drivers of this release."""
    return tuple(_DRIVERS)


def create_driver(name: str) -> Driver:
    """The driver of this name.

    Raises:
        NotFoundError: there is none.
    """
    try:
        module_name, class_name = _DRIVERS[name]
    except KeyError:
        raise NotFoundError(f"there is no driver {name!r}; there are {', '.join(_DRIVERS)}") from None
    driver = getattr(importlib.import_module(module_name), class_name)()
    if not isinstance(driver, Driver):
        raise TypeError(f"{class_name} is not a Driver")
    return driver


def create_device(
    uri: str,
    *,
    engine: Engine | None = None,
    limits: Limits | None = None,
    tracer: Tracer | None = None,
    **options: Any,
) -> Device:
    """Open a device.

    Args:
        uri: the driver's name, with options as in ``local-sync?stack_bytes=65536``.
        engine: the WebAssembly engine to run on, for drivers that need one.
        limits: sandbox limits, for drivers that run guest code.
        tracer: counts and times what happens on the device.
        options: further options of the driver; they win over those in ``uri``.

    Raises:
        NotFoundError: there is no such driver.
        InvalidArgumentError: an option is not known or malformed.
        UnavailableError: the device cannot be used here.
    """
    address, _, query = uri.partition("?")
    name, _, path = address.partition("://")
    try:
        parsed = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise InvalidArgumentError(f"the options of device {uri!r} are malformed: {error}") from error
    if path:
        if name not in _PATH_OPTIONS:
            raise InvalidArgumentError(f"device {name!r} takes nothing after ://, got {path!r}")
        parsed.setdefault(_PATH_OPTIONS[name], path)
    given = {"engine": engine, "limits": limits}
    chosen = {key: value for key, value in given.items() if value is not None}
    return create_driver(name).create_device(tracer=tracer, **{**parsed, **chosen, **options})
