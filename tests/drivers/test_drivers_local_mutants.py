"""Damaged executables are refused with a typed error, or load and then run within their sandbox."""

from __future__ import annotations

import random

import pytest

from sylvite import drivers, engines
from sylvite.engines.base import Limits
from sylvite.errors import GuestError, SylviteError
from sylvite.hal import BufferRef

FORMAT = "system-wasm-wasm_32"


def mutants(data, count, seed):
    generator = random.Random(seed)
    for _ in range(count):
        mutant = bytearray(data)
        kind = generator.randrange(4)
        if kind == 0:
            del mutant[generator.randrange(len(mutant)) :]
        elif kind == 1:
            mutant[generator.randrange(len(mutant))] = generator.choice([0, 1, 0x7F, 0x80, 0xFF])
        else:
            for _ in range(generator.randint(1, 4)):
                mutant[generator.randrange(len(mutant))] ^= 1 << generator.randrange(8)
        yield bytes(mutant)


def load_and_run(device, data):
    """Load, dispatch every export over a few buffers, unload; how far it got."""
    try:
        executable = device.create_executable(format=FORMAT, data=data)
    except SylviteError:
        return "refused"
    outcome = "ran"
    buffers = [BufferRef(device.allocator.allocate(64)) for _ in range(64)]
    for export in executable.exports:
        command_buffer = device.create_command_buffer()
        command_buffer.dispatch(
            executable,
            export.ordinal,
            (2, 1, 1),
            constants=[1] * export.constant_count,
            bindings=buffers[: export.binding_count],
        )
        command_buffer.finalize()
        fence = device.create_fence()
        device.queue_execute(command_buffer=command_buffer, signal=fence)
        try:
            fence.wait(0)
        except GuestError as error:
            outcome = "stopped" if error.kernel == export.name else "stopped without a name"
    executable.close()
    return outcome


@pytest.mark.parametrize(
    ("count", "seed"), [(150, 1), pytest.param(3000, 2, marks=pytest.mark.slow)], ids=["150", "3000"]
)
def test_executable_mutants_are_refused_or_contained(build_executable, count, seed):
    from test_drivers_local_executable import kernel, returns, store_binding_word

    def push(function):
        function.get(1).emit("i32.load", offset=12)

    kernels = [
        kernel("store", store_binding_word(push), binding_count=1),
        kernel("code", returns(3), constant_count=2),
    ]
    data = build_executable(kernels, imports=["?optional"]).build()
    engine = engines.create("wasmtime")
    limits = Limits(memory_bytes=64 << 20, deadline_ns=2_000_000_000)
    outcomes = {}
    with drivers.create_device("local-sync", engine=engine, limits=limits) as device:
        assert load_and_run(device, data) == "stopped"
        live = device.space.heap.statistics.live_count
        for mutant in mutants(data, count, seed):
            outcome = load_and_run(device, mutant)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            assert device.space.heap.statistics.live_count == live
        assert load_and_run(device, data) == "stopped"
    engine.close()
    assert outcomes.keys() <= {"refused", "ran", "stopped"}
    assert outcomes["refused"] > count // 4
    assert sum(outcomes.values()) == count
