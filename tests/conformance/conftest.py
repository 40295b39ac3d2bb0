"""The conformance suite runs every case on every driver, with direct and with indirect bindings.

A case that a driver cannot pass by its nature is declared in `UNSUPPORTED` with the reason; it runs all
the same, and passing it is a failure of the declaration.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import software_gpu
from tests.conformance import wgsl_kernels

from sylvite import drivers
from sylvite.hal import BufferRef, CommandBufferMode

# Three workers whatever the machine has: more than one, and a number that divides no grid evenly.
DRIVERS = (
    "null",
    "local-sync",
    "local-sync?commands=interpreted",
    "local-task://3",
    "webgpu://wgpu",
    "webgpu://dawn",
)
MODES = ("direct", "indirect")
DATA = Path(__file__).parent / "data"

# Exports of data/kernels.mlir by ordinal: name, constants, bindings.
KERNELS = (
    ("scale_and_offset", 2, 2),
    ("write_workgroup_ids", 0, 1),
    ("negate", 0, 2),
    ("divide", 0, 2),
    ("count_while_set", 0, 2),
)

# (driver, marker) -> reason
UNSUPPORTED = {
    ("null", "runs_kernels"): "null devices only take note of dispatches",
    ("null", "traps"): "null devices only take note of dispatches",
    ("webgpu://wgpu", "traps"): "shaders do not trap: a division by zero has a value",
    ("webgpu://dawn", "traps"): "shaders do not trap: a division by zero has a value",
}


def pytest_configure(config):
    for _, marker in UNSUPPORTED:
        config.addinivalue_line("markers", f"{marker}: a case that not every driver can pass")


@dataclasses.dataclass
class Target:
    """A device under test and the way its command buffers refer to buffers."""

    device: object
    driver: str
    mode: str
    kernels: bytes
    table: list = dataclasses.field(default_factory=list)

    @property
    def allocator(self):
        return self.device.allocator

    def buffer(self, data):
        """A buffer with the bytes of an array (or of a number of zeros)."""
        array = np.zeros(data, np.uint8) if isinstance(data, int) else np.ascontiguousarray(data)
        buffer = self.allocator.allocate(array.nbytes)
        buffer.write(0, array)
        return buffer

    def ref(self, buffer, offset=0, length=-1):
        """A reference of the mode under test; indirect ones take the next slot of `table`."""
        if self.mode == "direct":
            return BufferRef(buffer, 0, offset, length)
        self.table.append(BufferRef(buffer))
        return BufferRef(None, len(self.table) - 1, offset, length)

    def recorder(self, **arguments):
        self.table = []
        return self.device.create_command_buffer(binding_capacity=16, **arguments)

    def submit(self, command_buffer, **arguments):
        fence = self.device.create_fence()
        self.device.queue_execute(
            command_buffer=command_buffer, binding_table=self.table, signal=fence, **arguments
        )
        return fence

    def run(self, command_buffer):
        command_buffer.finalize()
        self.submit(command_buffer).wait(30 * 10**9)

    def executable(self):
        if self.driver == "null":
            text = "\n".join(f"{name} {constants} {bindings}" for name, constants, bindings in KERNELS)
            return self.device.create_executable(format="null", data=text.encode())
        return self.device.create_executable(format=own_format(self.driver), data=self.kernels)


def own_format(driver):
    """The executable format of the kernels for a driver."""
    name = driver.partition("?")[0].partition("://")[0]
    return {"null": "null", "webgpu": "webgpu-wgsl-json"}.get(name, "system-wasm-wasm_32")


@pytest.fixture(scope="session")
def kernels_wasm(tmp_path_factory):
    compiler = Path(sys.executable).parent / "iree-compile"
    if not compiler.exists():
        found = shutil.which("iree-compile")
        if found is None:
            pytest.skip("needs the compile extra (iree-compile)")
        compiler = Path(found)
    output = tmp_path_factory.mktemp("kernels") / "kernels.wasm"
    command = [
        str(compiler),
        "--compile-mode=hal-executable",
        str(DATA / "kernels.mlir"),
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten",
        "--iree-llvmcpu-target-cpu-features=+simd128",
        "-o",
        str(output),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return output.read_bytes()


@pytest.fixture(params=DRIVERS)
def driver(request):
    for marker in request.node.iter_markers():
        reason = UNSUPPORTED.get((request.param, marker.name))
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    if request.param.startswith("webgpu://"):
        missing = software_gpu.find(request.param.removeprefix("webgpu://"))
        if missing is not None:
            pytest.skip(missing)
    return request.param


@pytest.fixture
def device(driver):
    with drivers.create_device(driver) as device:
        yield device


@pytest.fixture(name="own_format")
def own_format_fixture(driver):
    """The executable format of the driver."""
    return own_format(driver)


@pytest.fixture
def kernels(request, driver):
    """The kernels, in the format of the driver."""
    if driver.startswith("webgpu"):
        return wgsl_kernels.executable()
    return request.getfixturevalue("kernels_wasm") if driver != "null" else b""


@pytest.fixture(params=MODES)
def target(request, device, driver, kernels):
    return Target(device=device, driver=driver, mode=request.param, kernels=kernels)


@pytest.fixture(params=[CommandBufferMode.DEFAULT, CommandBufferMode.ONE_SHOT], ids=["reusable", "one-shot"])
def command_buffer_mode(request):
    return request.param
