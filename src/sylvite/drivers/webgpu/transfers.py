"""Kernels for the transfers that WebGPU's own commands cannot do: those that are not whole words.

Each invocation owns whole words of the target: it reads the word, replaces the bytes that are in the range,
and writes it. Grids are strided, so no range is too long.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from .gpu import Gpu

__all__ = ["MAX_GROUPS", "TransferKernels", "group_count"]

MAX_GROUPS: Final = 4096
GROUP_SIZE: Final = 64

_COMMON: Final = """
struct Range { begin: u32, end: u32, source: u32, pattern_low: u32, pattern_high: u32, groups: u32 }
fn mask(word: u32, begin: u32, end: u32) -> u32 {
  var bits = 0u;
  for (var i = 0u; i < 4u; i++) {
    let byte = word * 4u + i;
    if (byte >= begin && byte < end) { bits |= 0xffu << (8u * i); }
  }
  return bits;
}
"""

_FILL: Final = (
    _COMMON
    + """
@group(0) @binding(0) var<storage, read_write> bytes: array<u32>;
@group(0) @binding(1) var<uniform> range: Range;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let last = (range.end + 3u) / 4u;
  for (var word = range.begin / 4u + id.x; word < last; word += range.groups * 64u) {
    let keep = mask(word, range.begin, range.end);
    var value = 0u;
    for (var i = 0u; i < 4u; i++) {
      let at = (word * 4u + i - range.begin) & 7u;
      let half = select(range.pattern_low, range.pattern_high, at >= 4u);
      value |= ((half >> (8u * (at & 3u))) & 0xffu) << (8u * i);
    }
    bytes[word] = (bytes[word] & ~keep) | (value & keep);
  }
}
"""
)

_COPY: Final = (
    _COMMON
    + """
@group(0) @binding(0) var<storage, read_write> bytes: array<u32>;
@group(0) @binding(1) var<uniform> range: Range;
@group(0) @binding(2) var<storage, read_write> taken: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let last = (range.end + 3u) / 4u;
  for (var word = range.begin / 4u + id.x; word < last; word += range.groups * 64u) {
    let keep = mask(word, range.begin, range.end);
    var value = 0u;
    for (var i = 0u; i < 4u; i++) {
      let byte = word * 4u + i;
      if (byte >= range.begin && byte < range.end) {
        let at = byte - range.begin + range.source;
        value |= ((taken[at / 4u] >> (8u * (at & 3u))) & 0xffu) << (8u * i);
      }
    }
    bytes[word] = (bytes[word] & ~keep) | value;
  }
}
"""
)


def group_count(begin: int, end: int) -> int:
    """Workgroups for the words of a byte range."""
    words = -(-end // 4) - begin // 4
    return max(1, min(MAX_GROUPS, -(-words // GROUP_SIZE)))


def range_words(begin: int, end: int, *, source: int = 0, pattern: bytes = b"\0") -> bytes:
    """The uniform of a transfer. Offsets count bytes from the start of what is bound."""
    low, high = struct.unpack("<2I", (pattern * 8)[:8])
    return struct.pack("<8I", begin, end, source, low, high, group_count(begin, end), 0, 0)


class TransferKernels:
    """The pipelines, made when they are first needed.

    Args:
        gpu: for which device.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._pipelines: dict[str, tuple[Any, Any]] = {}

    @property
    def fill(self) -> tuple[Any, Any]:
        """Repeats a pattern: pipeline and layout; bindings target, range."""
        return self._pipeline("fill", _FILL)

    @property
    def copy(self) -> tuple[Any, Any]:
        """Copies: pipeline and layout; bindings target, range, source."""
        return self._pipeline("copy", _COPY)

    def _pipeline(self, name: str, source: str) -> tuple[Any, Any]:
        made = self._pipelines.get(name)
        if made is None:
            device = self._gpu.device
            try:
                module = device.create_shader_module(label=name, code=source)
                stage = {"module": module, "entry_point": "main"}
                pipeline = device.create_compute_pipeline(label=name, layout="auto", compute=stage)
                made = pipeline, pipeline.get_bind_group_layout(0)
            except Exception as error:
                raise self._gpu.translate(error, f"the {name} kernel", kernel=name) from error
            self._pipelines[name] = made
        return made
