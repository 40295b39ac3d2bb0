"""The kernels of kernels.mlir in WGSL, as an executable of a WebGPU device."""

from __future__ import annotations

import json

_ONE = "@group(0) @binding(0) var<storage, read_write> out: array<i32>;\n"
_TWO = (
    "@group(0) @binding(0) var<storage, read_write> in: array<i32>;\n"
    "@group(0) @binding(1) var<storage, read_write> out: array<i32>;\n"
)
_GRID = "base_x: u32, base_y: u32, base_z: u32, count_x: u32, count_y: u32, count_z: u32"
_ENTRY = "@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) "


def _uniform(slot, members):
    return f"struct Uniform {{ {members} }}\n@group(0) @binding({slot}) var<uniform> uniform_: Uniform;\n"


def _export(name, source, bindings, constants=0, grid=False):
    return {
        "name": name,
        "source": source,
        "entry_point": "main",
        "workgroup_size": [1, 1, 1],
        "bindings": bindings,
        "constants": constants,
        "grid": grid,
    }


def executable():
    scale = (
        _TWO
        + _uniform(2, "scale: i32, offset: i32")
        + _ENTRY
        + "{ for (var i = 0; i < 4; i++) { out[i] = in[i] * uniform_.scale + uniform_.offset; } }"
    )
    ids = (
        _ONE
        + _uniform(1, _GRID)
        + _ENTRY
        + "{ let at = id + vec3(uniform_.base_x, uniform_.base_y, uniform_.base_z);"
        "out[(at.z * uniform_.count_y + at.y) * uniform_.count_x + at.x] ="
        " i32(at.x | (at.y << 8u) | (at.z << 16u)); }"
    )
    negate = _TWO + _uniform(2, _GRID) + _ENTRY + "{ let x = id.x + uniform_.base_x; out[x] = -in[x]; }"
    divide = _TWO + _ENTRY + "{ out[0] = in[0] / in[1]; }"
    count = _TWO + _ENTRY + "{ while (in[0] != 0) { out[0] = out[0] + 1; } }"
    both = ["read", "write"]
    exports = [
        _export("scale_and_offset", scale, both, constants=2),
        _export("write_workgroup_ids", ids, ["write"], grid=True),
        _export("negate", negate, both, grid=True),
        _export("divide", divide, both),
        _export("count_while_set", count, both),
    ]
    return json.dumps({"exports": exports}).encode()
