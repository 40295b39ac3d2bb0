"""``sylvite devices``."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from typing import Any
from urllib.parse import quote

import click

from .. import drivers, engines
from ..compile.toolchain import python_command
from ..errors import SylviteError
from .console import print_json, print_table

__all__ = ["command"]

_CHECKS_MODULE = "sylvite.drivers.webgpu.checks"
_CHECK_SECONDS = 300


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--check",
    is_flag=True,
    help="Run small kernels with known answers on every GPU adapter, and say what it gets wrong.",
)
def command(as_json: bool, check: bool) -> None:
    """List drivers, their devices, and what the engines can do."""
    devices = [
        _device(name, info)
        for name in drivers.names()
        for info in drivers.create_driver(name).query_devices()
    ]
    found = [_engine(name) for name in engines.names()]
    checks = _check_all(devices) if check else []
    if as_json:
        print_json({"devices": devices, "engines": found, **({"checks": checks} if check else {})})
    else:
        _print(devices, found)
        if check:
            _print_checks(checks)
    if any(outcome["error"] or not all(item["passed"] for item in outcome["checks"]) for outcome in checks):
        raise SystemExit(1)


def _print(devices: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
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


def _print_checks(checks: list[dict[str, Any]]) -> None:
    for outcome in checks:
        rows = [
            (item["name"], "right" if item["passed"] else "WRONG", item["detail"])
            for item in outcome["checks"]
        ]
        if outcome["error"]:
            rows.append(("all the checks", "WRONG", outcome["error"]))
        print_table(outcome["name"], ("check", "", "what is wrong"), rows)
    if not checks:
        print_table("Checks", ("there is no GPU adapter to check",), [])


def _check_all(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_check(device) for device in devices if device["driver"] == "webgpu"]


def _check(device: dict[str, Any]) -> dict[str, Any]:
    """Check one adapter in a child process, which a bad driver may take down."""
    details = device["details"]
    uri = f"{details['uri']}?adapter={quote(details['adapter'])}&backend={quote(details['backend'])}"
    command, environment = python_command(_CHECKS_MODULE, uri)
    error, output = "", ""
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            env={**os.environ, **environment},
            check=False,
        )
        output = result.stdout
        if result.returncode:
            last = result.stderr.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
            error = f"the checks ended early: {last[0]}"
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        error = f"the checks did not end in {_CHECK_SECONDS} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    return {"uri": uri, "name": device["name"], "checks": lines, "error": error}


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
