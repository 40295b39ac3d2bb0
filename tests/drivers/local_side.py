"""A local device with hand-written kernels, and how to write them."""

from __future__ import annotations

import numpy as np

from sylvite import drivers
from sylvite.abi import structs
from sylvite.engines.base import ValueType

FORMAT = "system-wasm-wasm_32"
I32 = ValueType.I32
STATE, WORKGROUP = 1, 2
PATIENCE_NS = 60 * 10**9
WORDS = 4096
BUFFERS = 6


def member(function, argument, name, layout, load="i32.load"):
    return function.get(argument).emit(load, offset=layout.offsets[name])


def push_linear_id(function):
    """Push the workgroup's number."""
    workgroup, state = structs.WORKGROUP_STATE, structs.DISPATCH_STATE
    member(function, WORKGROUP, "workgroup_id_z", workgroup, "i32.load16_u")
    member(function, STATE, "workgroup_count_y", state).emit("i32.mul")
    member(function, WORKGROUP, "workgroup_id_y", workgroup).emit("i32.add")
    member(function, STATE, "workgroup_count_x", state).emit("i32.mul")
    member(function, WORKGROUP, "workgroup_id_x", workgroup).emit("i32.add")


def push_binding(function, index):
    member(function, STATE, "binding_ptrs", structs.DISPATCH_STATE).emit("i32.load", offset=4 * index)


class Side:
    """A device with the kernels loaded."""

    def __init__(self, wasm, uri, **options):
        self.device = drivers.create_device(uri, **options)
        self.executable = self.device.create_executable(format=FORMAT, data=wasm)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.device.close()

    def buffers(self, seed):
        generator = np.random.default_rng(seed)
        found = []
        for _ in range(BUFFERS):
            found.append(self.device.allocator.allocate(4 * WORDS))
            found[-1].write(0, generator.integers(0, 2**31, WORDS, dtype=np.int32))
        return found

    def record(self, name, grid=(16, 1, 1), bindings=()):
        command_buffer = self.device.create_command_buffer()
        ordinal = self.executable.lookup(name)
        command_buffer.dispatch(self.executable, ordinal, grid, bindings=bindings)
        command_buffer.finalize()
        return command_buffer

    def start(self, command_buffer, wait=None, table=()):
        fence = self.device.create_fence()
        self.device.queue_execute(command_buffer=command_buffer, wait=wait, signal=fence, binding_table=table)
        return fence

    def run(self, name, grid=(16, 1, 1), bindings=()):
        self.start(self.record(name, grid, bindings)).wait(PATIENCE_NS)
