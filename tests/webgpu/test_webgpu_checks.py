"""The checks of an adapter: they find nothing but what is known, and they can fail."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
from click.testing import CliRunner

from sylvite.cli.devices import command
from sylvite.drivers.webgpu import checks

# SwiftShader takes a comparison of a value with itself for true, as WGSL allows.
KNOWN = {"NaN is not itself"}


def test_checks_find_nothing_unknown(device):
    outcomes = list(checks.run_checks(device))
    assert len(outcomes) == len(checks.CHECKS) + 3
    assert {outcome.name for outcome in outcomes if not outcome.passed} <= KNOWN


def test_checks_tell_a_wrong_answer(device, monkeypatch):
    wrong = dataclasses.replace(checks.CHECKS[8], expected=checks.CHECKS[8].expected + np.uint32(1))
    broken = dataclasses.replace(wrong, name="broken", body="c[i] = nonsense;")
    monkeypatch.setattr(checks, "CHECKS", (wrong, broken))
    outcomes = list(checks.run_checks(device))
    assert [outcome.passed for outcome in outcomes] == [False, False, True, True, True]
    assert "64 of 64 wrong" in outcomes[0].detail
    assert "nonsense" in outcomes[1].detail


def test_devices_check_prints_every_adapter(provider):
    result = CliRunner().invoke(command, ["--check", "--json"])
    report = json.loads(result.output)
    mine = [entry for entry in report["checks"] if entry["uri"].startswith(f"webgpu://{provider}")]
    assert mine
    assert all(entry["error"] == "" for entry in mine)
    failed = {item["name"] for entry in report["checks"] for item in entry["checks"] if not item["passed"]}
    assert result.exit_code == (1 if failed else 0)
