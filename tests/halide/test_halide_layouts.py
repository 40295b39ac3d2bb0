"""The layout tables against Halide's own header, as clang sees it for wasm32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import halide
from sylvite import wasm
from sylvite.abi.structs import Array
from sylvite.halide import failures, layouts
from sylvite.halide.runtime import _USABLE_FEATURES

HEADER = Path(halide.__file__).parent / "include" / "HalideRuntime.h"

# C's names of members where ours differ.
_RENAMED = {"functions": "device_malloc"}


def _c_member(name: str) -> str:
    return _RENAMED.get(name, name)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes, offsets and enumerators by C expression, as clang folds them into a wasm32 object."""
    expressions = []
    for layout in layouts.STRUCTS:
        type_name = layout.name if layout.name.endswith("_t") else f"struct {layout.name}"
        if layout.name in ("halide_semaphore_t", "halide_semaphore_acquire_t", "halide_parallel_task_t"):
            type_name = f"struct {layout.name}"
        if layout.name in ("halide_type_t", "halide_trace_event_t", "halide_device_interface_t",
                           "halide_filter_argument_t", "halide_filter_metadata_t"):  # fmt: skip
            type_name = f"struct {layout.name}"
        expressions.append((f"sizeof {layout.name}", f"sizeof({type_name})"))
        for name, _, _ in layout.members():
            expressions.append(
                (f"{layout.name}.{name}", f"__builtin_offsetof({type_name}, {_c_member(name)})")
            )
    for kind in failures.FAILURES.values():
        base = kind.reason
        for suffix in ("_i64", "_u64", "_f64"):
            base = base.removesuffix(suffix)
        if kind.code != failures.GENERIC_CODE:
            expressions.append((f"code {base}", f"halide_error_code_{base}"))
    for name in ("wasm_simd128", "wasm_threads", "wasm_bulk_memory", "user_context", "no_runtime", "profile"):
        expressions.append((f"feature {name}", f"halide_target_feature_{name}"))
    for event in layouts.TraceEvent:
        if event is not layouts.TraceEvent.TAG:
            expressions.append((f"event {event.name}", f"halide_trace_{event.name.lower()}"))
    folder = tmp_path_factory.mktemp("layouts")
    source = folder / "layouts.c"
    # The header wants memcpy declared for inline functions that the probe does not use.
    (folder / "string.h").write_text("#include <stddef.h>\nvoid *memcpy(void *, const void *, size_t);\n")
    values = ",\n".join(text for _, text in expressions)
    source.write_text(
        '#include "HalideRuntime.h"\n'
        f"int values[] = {{\n{values}\n}};\n"
        "int *halide_values(void) { return values; }\n"
    )
    target = folder / "layouts.wasm"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding", "-nostdlib",
               "-I", str(HEADER.parent), "-I", str(folder), "-Wl,--no-entry", "-Wl,--export=halide_values",
               "-w", str(source), "-o", str(target)]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)
    module = wasm.decode(target.read_bytes())
    data = max((segment.data for segment in module.data), key=len)
    found = [
        int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, 4 * len(expressions), 4)
    ]
    return dict(zip((name for name, _ in expressions), found, strict=True))


@pytest.mark.parametrize("layout", layouts.STRUCTS, ids=lambda layout: layout.name)
def test_layout_of_struct_is_what_clang_says(layout, measured):
    assert layout.byte_length == measured[f"sizeof {layout.name}"]
    for name, offset, member in layout.members():
        assert offset == measured[f"{layout.name}.{name}"], name
        assert isinstance(member, Array) or member.byte_length in (1, 2, 4, 8)


def test_failure_codes_are_those_of_the_header(measured):
    for kind in failures.FAILURES.values():
        base = kind.reason
        for suffix in ("_i64", "_u64", "_f64"):
            base = base.removesuffix(suffix)
        if f"code {base}" in measured:
            assert kind.code == measured[f"code {base}"], base


def test_failure_functions_are_all_those_of_the_header():
    declared = {
        line.split("(")[0].split()[-1]
        for line in HEADER.read_text().splitlines()
        if line.startswith("extern int halide_error_")
    }
    assert declared == set(failures.FAILURES)


def test_usable_features_have_the_header_s_numbers(measured):
    for name in ("wasm_simd128", "wasm_threads", "wasm_bulk_memory", "user_context", "no_runtime", "profile"):
        assert measured[f"feature {name}"] in _USABLE_FEATURES


def test_trace_events_have_the_header_s_numbers(measured):
    for event in layouts.TraceEvent:
        if event is not layouts.TraceEvent.TAG:
            assert event == measured[f"event {event.name}"]
