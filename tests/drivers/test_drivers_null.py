"""The null device as a test double."""

from __future__ import annotations

import pytest

from sylvite import drivers
from sylvite.errors import InvalidArgumentError
from sylvite.hal import BufferRef, Dispatch, FillBuffer


def test_null_device_logs_what_it_executes_when_asked_to():
    with drivers.create_device("null", record=True) as device:
        executable = device.create_executable(format="null", data=b"first 1 1\nsecond 0 1", constants=[3])
        assert executable.constants == (3,)
        buffer = device.allocator.allocate(8)
        command_buffer = device.create_command_buffer(binding_capacity=1)
        command_buffer.fill_buffer(BufferRef(buffer), b"a")
        command_buffer.dispatch(executable, 1, (4, 1, 1), bindings=[BufferRef(None, 0)])
        command_buffer.finalize()
        device.queue_execute(command_buffer=command_buffer, binding_table=[BufferRef(buffer)])
        commands = [command for command, _ in device.log]
        assert isinstance(commands[0], FillBuffer)
        assert isinstance(commands[1], Dispatch)
        assert commands[1].executable is executable
        assert device.log[1][1][0].byte_length == 8
        assert buffer.read() == b"a" * 8


def test_null_executable_that_is_malformed_is_refused():
    with drivers.create_device("null") as device:
        for data in (b"name", b"name 1", b"name x 1", b"ok 0 0\n"):
            with pytest.raises(InvalidArgumentError, match="line"):
                device.create_executable(format="null", data=data)
        assert device.create_executable(format="null", data=b"").exports == ()


def test_null_device_without_record_keeps_nothing():
    with drivers.create_device("null") as device:
        command_buffer = device.create_command_buffer()
        command_buffer.execution_barrier()
        command_buffer.finalize()
        device.queue_execute(command_buffer=command_buffer)
        assert device.log == []
