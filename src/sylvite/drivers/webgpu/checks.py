"""Small kernels with known answers, to tell what an adapter gets wrong before a model does.

Run in a process of its own: a driver that is wrong may also hang or crash. ``python -m
sylvite.drivers.webgpu.checks URI`` prints one line of JSON per check.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import SylviteError
from ...hal import BufferRef, Device
from .kernels import JSON_FORMAT

__all__ = ["CHECKS", "Check", "Outcome", "run_checks"]

Words = npt.NDArray[np.uint32]

_PATIENCE_NS: Final = 60 * 10**9
_COUNT: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check found."""

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kernel over 64 elements.

    Args:
        name: what it is about.
        body: WGSL; reads ``a[i]`` and ``b[i]`` (u32), writes ``c[i]``.
        inputs: the two operands.
        expected: the answer; bits unless ``tolerance`` is given.
        tolerance: relative and absolute error allowed to f32 answers.
        prelude: WGSL before the entry point.
        size: invocations per workgroup.
    """

    name: str
    body: str
    inputs: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    expected: npt.NDArray[Any]
    tolerance: float | None = None
    prelude: str = ""
    size: int = 64


def _cycle(values: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.resize(np.array(values, dtype), _COUNT)


_NONE: Final = np.zeros(_COUNT, np.uint32)
_WILD: Final = np.random.default_rng(5).integers(0, 1 << 32, _COUNT, np.uint32)
_OTHER: Final = np.random.default_rng(6).integers(0, 1 << 32, _COUNT, np.uint32)
_FLOATS: Final = _cycle([0.0, -0.0, 1.5, -1.5, 2147483520.0, -2147483648.0, 0.999, -0.999, 1e9], np.float32)
_POSITIVE: Final = _cycle([0.0, 1.5, 4294967040.0, 3e9, 255.99, 2147483648.0], np.float32)
_SPECIAL: Final = _cycle([np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 3e38], np.float32)
_MODEST: Final = np.linspace(-8, 8, _COUNT, dtype=np.float32)
_DIVIDENDS: Final = _cycle([7, -7, 7, -7, 2147483647, -2147483648, 0, 1], np.int32)
_DIVISORS: Final = _cycle([2, 2, -2, -2, 3, 7, 5, -3], np.int32)


def _signed_quotients() -> npt.NDArray[np.int32]:
    magnitudes = abs(_DIVIDENDS.astype(np.int64)) // abs(_DIVISORS)
    quotients: npt.NDArray[np.int32] = (np.sign(_DIVIDENDS) * np.sign(_DIVISORS) * magnitudes).astype(
        np.int32
    )
    return quotients


def _elementwise(
    name: str, value: str, a: Any, b: Any, expected: Any, tolerance: float | None = None
) -> Check:
    return Check(name=name, body=f"c[i] = {value};", inputs=(a, b), expected=expected, tolerance=tolerance)


_X, _Y = "bitcast<f32>(a[i])", "bitcast<f32>(b[i])"
_SUM = f"bitcast<u32>({_X} + {_Y})"
_NEIGHBOR: Final = 1.3e-7
"""Numbers that f32 does not have may become either of their neighbors."""

with np.errstate(all="ignore"):
    CHECKS: Final[tuple[Check, ...]] = (
        _elementwise("f32 to i32", f"bitcast<u32>(i32({_X}))", _FLOATS, _NONE, _FLOATS.astype(np.int32)),
        _elementwise("f32 to u32", f"u32({_X})", _POSITIVE, _NONE, _POSITIVE.astype(np.uint32)),
        _elementwise(
            "i32 to f32",
            "bitcast<u32>(f32(bitcast<i32>(a[i])))",
            _WILD,
            _NONE,
            _WILD.view(np.int32).astype(np.float32),
            _NEIGHBOR,
        ),
        _elementwise(
            "u32 to f32", "bitcast<u32>(f32(a[i]))", _WILD, _NONE, _WILD.astype(np.float32), _NEIGHBOR
        ),
        _elementwise(
            "NaN is not itself", f"select(0u, 1u, {_X} != {_X})", _SPECIAL, _NONE, np.isnan(_SPECIAL)
        ),
        _elementwise(
            "comparison with infinity", f"select(0u, 1u, {_X} > 3.0e38)", _SPECIAL, _NONE, _SPECIAL > 3e38
        ),
        _elementwise(
            "arithmetic with NaN and infinity",
            f"select({_SUM}, 1u, ({_SUM} & 0x7fffffffu) > 0x7f800000u)",
            _SPECIAL,
            _cycle([1.0, np.inf, np.inf], np.float32),
            np.where(
                np.isnan(_SPECIAL + _cycle([1.0, np.inf, np.inf], np.float32)),
                np.uint32(1),
                (_SPECIAL + _cycle([1.0, np.inf, np.inf], np.float32)).view(np.uint32),
            ),
        ),
        _elementwise(
            "exp of -infinity",
            f"bitcast<u32>(exp({_X}))",
            _cycle([-np.inf, 0.0], np.float32),
            _NONE,
            _cycle([0.0, 1.0], np.float32),
            1e-6,
        ),
        _elementwise("integers wrap: products", "a[i] * b[i]", _WILD, _OTHER, _WILD * _OTHER),
        _elementwise("integers wrap: sums", "a[i] + b[i] - 7u", _WILD, _OTHER, _WILD + _OTHER - np.uint32(7)),
        _elementwise(
            "signed division",
            "bitcast<u32>(bitcast<i32>(a[i]) / bitcast<i32>(b[i]))",
            _DIVIDENDS,
            _DIVISORS,
            _signed_quotients(),
        ),
        _elementwise(
            "signed remainder",
            "bitcast<u32>(bitcast<i32>(a[i]) % bitcast<i32>(b[i]))",
            _DIVIDENDS,
            _DIVISORS,
            _DIVIDENDS - _signed_quotients() * _DIVISORS,
        ),
        _elementwise("unsigned division", "a[i] / (b[i] | 1u)", _WILD, _OTHER, _WILD // (_OTHER | 1)),
        _elementwise(
            "shifts",
            "(a[i] << (b[i] & 31u)) ^ bitcast<u32>(bitcast<i32>(a[i]) >> (b[i] & 31u))",
            _WILD,
            _OTHER,
            (_WILD << (_OTHER & 31))
            ^ (_WILD.view(np.int32) >> (_OTHER & 31).astype(np.int32)).view(np.uint32),
        ),
        _elementwise(
            "signed bytes of words",
            "bitcast<u32>(extractBits(bitcast<i32>(a[i]), 8u * (i & 3u), 8u))",
            _WILD,
            _NONE,
            np.array([_WILD[i : i + 1].view(np.int8)[i & 3] for i in range(_COUNT)], np.int32),
        ),
        _elementwise("exp", f"bitcast<u32>(exp({_X}))", _MODEST, _NONE, np.exp(_MODEST), 1e-5),
        _elementwise("tanh", f"bitcast<u32>(tanh({_X}))", _MODEST, _NONE, np.tanh(_MODEST), 1e-4),
        _elementwise("sine", f"bitcast<u32>(sin({_X}))", _MODEST, _NONE, np.sin(_MODEST), 1e-3),
        _elementwise(
            "logarithm and root",
            f"bitcast<u32>(log(abs({_X}) + 0.5) + sqrt(abs({_X})))",
            _MODEST,
            _NONE,
            np.log(abs(_MODEST) + np.float32(0.5)) + np.sqrt(abs(_MODEST)),
            1e-5,
        ),
        Check(
            name="workgroup memory and barriers",
            prelude="var<workgroup> shared_words: array<u32, 64>;",
            body="shared_words[i] = a[i]; workgroupBarrier();"
            "for (var step = 32u; step > 0u; step /= 2u) {"
            "if (i < step) { shared_words[i] += shared_words[i + step]; } workgroupBarrier(); }"
            "c[i] = shared_words[0] + i;",
            inputs=(_WILD, _NONE),
            expected=np.add.reduce(_WILD, dtype=np.uint32) + np.arange(_COUNT, dtype=np.uint32),
        ),
        Check(
            name="workgroup memory starts as zeros",
            prelude="var<workgroup> shared_words: array<u32, 64>;",
            body="c[i] = shared_words[63u - i]; workgroupBarrier(); shared_words[i] = 1u;",
            inputs=(_NONE, _NONE),
            expected=_NONE,
        ),
        Check(
            name="workgroup atomics",
            prelude="var<workgroup> total: atomic<u32>;",
            body="atomicAdd(&total, a[i]); workgroupBarrier(); c[i] = atomicLoad(&total);",
            inputs=(_WILD, _NONE),
            expected=np.full(_COUNT, np.add.reduce(_WILD, dtype=np.uint32)),
        ),
    )


def _executable(
    device: Device, source: str, bindings: Sequence[str], *, size: int, grid: bool = False
) -> Any:
    export = {
        "name": "check",
        "source": source,
        "entry_point": "main",
        "workgroup_size": [size, 1, 1],
        "bindings": list(bindings),
        "constants": 0,
        "grid": grid,
    }
    return device.create_executable(format=JSON_FORMAT, data=json.dumps({"exports": [export]}).encode())


def _dispatch(
    device: Device, executable: Any, groups: int, buffers: Sequence[Any], *, times: int = 1
) -> None:
    recorded = device.create_command_buffer()
    for _ in range(times):
        recorded.dispatch(executable, 0, (groups, 1, 1), bindings=[BufferRef(buffer) for buffer in buffers])
        recorded.execution_barrier()
    recorded.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=recorded, signal=fence)
    fence.wait(_PATIENCE_NS)


def _put(device: Device, data: npt.NDArray[Any]) -> Any:
    buffer = device.allocator.allocate(data.nbytes)
    buffer.write(0, data)
    return buffer


def _compare(
    name: str, got: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float | None
) -> Outcome:
    if tolerance is None:
        wrong = np.flatnonzero(got != expected)
    else:
        error = np.abs(got - expected) - tolerance * np.maximum(np.abs(expected), 1e-3)
        wrong = np.flatnonzero(~(error <= 0))
    if not wrong.size:
        return Outcome(name=name, passed=True, detail="")
    first = int(wrong[0])
    detail = f"{wrong.size} of {got.size} wrong; element {first} is {got[first]}, not {expected[first]}"
    return Outcome(name=name, passed=False, detail=detail)


def _run(device: Device, *, check: Check) -> Outcome:
    source = (
        "".join(
            f"@group(0) @binding({index}) var<storage, read_write> {name}: array<u32>;\n"
            for index, name in enumerate("abc")
        )
        + f"{check.prelude}\n@compute @workgroup_size({check.size}) "
        f"fn main(@builtin(local_invocation_id) id: vec3<u32>) {{ let i = id.x; {check.body} }}"
    )
    executable = _executable(device, source, ("read", "read", "write"), size=check.size)
    expected = check.expected
    if expected.dtype == np.bool_:
        expected = expected.astype(np.uint32)
    result = device.allocator.allocate(4 * _COUNT)
    _dispatch(device, executable, 1, [*(_put(device, data) for data in check.inputs), result])
    got = result.view().view(np.uint32 if check.tolerance is None else np.float32)
    answer = expected.view(np.uint32) if check.tolerance is None else expected.astype(np.float32)
    return _compare(check.name, got, answer, check.tolerance)


def _check_groups(device: Device) -> Outcome:
    source = (
        "struct Grid { bx: u32, by: u32, bz: u32, cx: u32, cy: u32, cz: u32 }\n"
        "@group(0) @binding(0) var<storage, read_write> c: array<u32>;\n"
        "@group(0) @binding(1) var<uniform> grid: Grid;\n"
        "@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {"
        " let x = id.x + grid.bx; c[x] = x ^ grid.cx; }"
    )
    count = 65535 + 4466
    result = device.allocator.allocate(4 * count)
    _dispatch(device, _executable(device, source, ("write",), size=1, grid=True), count, [result])
    expected = np.arange(count, dtype=np.uint32) ^ np.uint32(count)
    return _compare("more than 65,535 workgroups", result.view().view(np.uint32), expected, None)


def _check_order(device: Device) -> Outcome:
    source = (
        "@group(0) @binding(0) var<storage, read_write> c: array<u32>;\n"
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {"
        " c[id.x] = c[(id.x + 0u)] * 3u + 1u; }"
    )
    data = np.arange(4096, dtype=np.uint32)
    buffer = _put(device, data)
    _dispatch(device, _executable(device, source, ("write",), size=64), 64, [buffer], times=50)
    for _ in range(50):
        data = data * np.uint32(3) + np.uint32(1)
    return _compare("dispatches in order", buffer.view().view(np.uint32), data, None)


def _check_transfers(device: Device) -> Outcome:
    data = np.random.default_rng(7).integers(0, 256, 1031, np.uint8)
    source, target = _put(device, data), _put(device, np.zeros(1031, np.uint8))
    recorded = device.create_command_buffer()
    recorded.copy_buffer(BufferRef(source, 0, 3, 1001), BufferRef(target, 0, 6, 1001))
    recorded.fill_buffer(BufferRef(target, 0, 1, 5), b"\x5a")
    recorded.fill_buffer(BufferRef(target, 0, 1010, 14), b"\x01\x02")
    recorded.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=recorded, signal=fence)
    fence.wait(_PATIENCE_NS)
    expected = np.zeros(1031, np.uint8)
    expected[6:1007] = data[3:1004]
    expected[1:6] = 0x5A
    expected[1010:1024] = [1, 2] * 7
    return _compare("transfers of odd sizes", target.view(), expected, None)


_FURTHER: Final[tuple[tuple[str, Callable[[Device], Outcome]], ...]] = (
    ("more than 65,535 workgroups", _check_groups),
    ("dispatches in order", _check_order),
    ("transfers of odd sizes", _check_transfers),
)


def run_checks(device: Device) -> Iterator[Outcome]:
    """Run every check on a WebGPU device. An error of a check is its outcome."""
    runs: list[tuple[str, Callable[[Device], Outcome]]] = [
        (check.name, functools.partial(_run, check=check)) for check in CHECKS
    ]
    for name, run in (*runs, *_FURTHER):
        try:
            yield run(device)
        except SylviteError as error:
            yield Outcome(name=name, passed=False, detail=f"{type(error).__name__}: {error}")


def main(uri: str) -> None:
    """Check a device and print an outcome per line."""
    from .. import create_device

    with create_device(uri) as device:
        for outcome in run_checks(device):
            print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
