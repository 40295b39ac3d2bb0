"""``sylvite devices``."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from .. import drivers, engines
from ..errors import SylviteError
from .console import print_json, print_table

__all__ = ["command"]


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List drivers, their devices, and what the engines can do."""
    devices = [
        _device(name, info)
        for name in drivers.names()
        for info in drivers.create_driver(name).query_devices()
    ]
    found = [_engine(name) for name in engines.names()]
    if as_json:
        print_json({"devices": devices, "engines": found})
        return
    print_table("Devices", ("device", "name"), [(device["device"], device["name"]) for device in devices])
    rows = [
        (
            engine["engine"],
            engine.get("version", ""),
            ", ".join(engine.get("capabilities", ())) or engine.get("error", ""),
        )
        for engine in found
    ]
    print_table("Engines", ("engine", "version", "capabilities"), rows)


def _device(driver: str, info: Any) -> dict[str, Any]:
    return {
        "driver": driver,
        "device": info.identifier,
        "name": info.name,
        "details": dict(info.details),
    }


def _engine(name: str) -> dict[str, Any]:
    """What an engine says of itself, or why it cannot be used here."""
    try:
        engine = engines.create(name)
    except SylviteError as error:
        return {"engine": name, "error": str(error)}
    try:
        values = dataclasses.asdict(engine.capabilities)
    finally:
        engine.close()
    return {
        "engine": name,
        "version": values["version"],
        "capabilities": [key for key, value in values.items() if value is True],
    }
