"""Devices of both providers, on whatever GPU there is, or on a software one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests import software_gpu

from sylvite import drivers


@pytest.fixture(params=software_gpu.PROVIDERS)
def provider(request):
    missing = software_gpu.find(request.param)
    if missing is not None:
        pytest.skip(missing)
    return request.param


@pytest.fixture
def device(provider):
    with drivers.create_device(f"webgpu://{provider}") as device:
        yield device


@pytest.fixture
def load(device):
    """Loads one kernel: its body sees ``a``, ``b`` (both arrays), ``id`` and, with constants, ``c``."""

    def load(
        body, *, element="u32", bindings=("read", "write"), constants=0, grid=False, size=1, name="kernel"
    ):
        members = [f"c{index}: u32" for index in range(constants)]
        if grid:
            members += [f"{kind}_{axis}: u32" for kind in ("base", "count") for axis in "xyz"]
        source = "".join(
            f"@group(0) @binding({index}) var<storage, read_write> {chr(97 + index)}: array<{element}>;\n"
            for index in range(len(bindings))
        )
        if members:
            source += f"struct Uniform {{ {', '.join(members)} }}\n"
            source += f"@group(0) @binding({len(bindings)}) var<uniform> u: Uniform;\n"
        source += (
            f"@compute @workgroup_size({size}) fn main(@builtin(workgroup_id) group: vec3<u32>, "
            f"@builtin(global_invocation_id) id: vec3<u32>) {{ {body} }}"
        )
        export = {
            "name": name,
            "source": source,
            "entry_point": "main",
            "workgroup_size": [size, 1, 1],
            "bindings": list(bindings),
            "constants": constants,
            "grid": grid,
        }
        data = json.dumps({"exports": [export]}).encode()
        return device.create_executable(format="webgpu-wgsl-json", data=data)

    return load


@pytest.fixture
def put(device):
    """A buffer with the contents of an array."""

    def put(array):
        buffer = device.allocator.allocate(array.nbytes)
        buffer.write(0, np.ascontiguousarray(array))
        return buffer

    return put
