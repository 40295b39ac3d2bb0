"""Drivers and devices: names, properties, formats."""

from __future__ import annotations

import pytest

from sylvite import drivers
from sylvite.errors import InvalidArgumentError, NotFoundError, UnsupportedFeatureError


@pytest.fixture
def name(driver):
    """The driver's name in the URI under test."""
    return driver.partition("?")[0].partition("://")[0]


def test_driver_lists_devices_that_can_be_opened(name):
    infos = drivers.create_driver(name).query_devices()
    assert {info.identifier for info in infos} == {name}


def test_driver_table_names_every_driver_and_refuses_others(name):
    assert name in drivers.names()
    with pytest.raises(NotFoundError, match="no driver 'nothing'"):
        drivers.create_device("nothing")
    with pytest.raises(InvalidArgumentError, match="no options"):
        drivers.create_device(f"{name}?colour=blue")
    with pytest.raises(InvalidArgumentError, match="malformed"):
        drivers.create_device(f"{name}?colour")


def test_device_identifier_matches_patterns(device, name):
    assert device.identifier == name
    assert device.query_i64("hal.device.id", name) == 1
    assert device.query_i64("hal.device.id", name[:3] + "*") == 1
    assert device.query_i64("hal.device.id", "cuda*") == 0


def test_device_knows_its_formats_and_properties(device, name, own_format):
    assert device.query_i64("hal.executable.format", own_format) == 1
    assert device.query_i64("hal.executable.format", "embedded-elf-x86_64") == 0
    assert device.query_i64("hal.nonsense", "key") is None
    if name != "null":
        assert device.query_i64("hal.dispatch", "concurrency") == (3 if name == "local-task" else 1)
    with pytest.raises(UnsupportedFeatureError, match="embedded-elf"):
        device.create_executable(format="embedded-elf-x86_64", data=b"")


def test_device_is_a_context_manager(driver):
    with drivers.create_device(driver) as device:
        assert not device.closed
    assert device.closed
