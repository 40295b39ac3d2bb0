"""Dispatches, limits and failures of WebGPU devices."""

from __future__ import annotations

import contextlib
import json
import threading

import numpy as np
import pytest
from tests.wgsl import shader_runner as sr

from sylvite import drivers, spirv
from sylvite.drivers.webgpu.shaders import read_spirv
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    FormatError,
    InvalidArgumentError,
    KernelError,
    NotFoundError,
    UnavailableError,
)
from sylvite.hal import BufferRef

PATIENCE_NS = 30 * 10**9


def submit(device, executable, grid, *refs, constants=()):
    recorded = device.create_command_buffer()
    bindings = [item if isinstance(item, BufferRef) else BufferRef(item) for item in refs]
    recorded.dispatch(executable, 0, grid, bindings=bindings, constants=constants)
    recorded.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=recorded, signal=fence)
    return fence


def lose(device):
    """What a driver does that crashes or a GPU that is unplugged."""
    with device.gpu.lock:
        device.gpu.device.destroy()


def words(buffer):
    return buffer.view().view(np.uint32)


@pytest.mark.parametrize("grid", [(70000, 1, 1), (2, 65537, 1), (65536, 2, 1), (1, 1, 3)])
def test_device_grids_beyond_what_webgpu_dispatches_are_whole(device, load, grid):
    executable = load(
        "let at = group + vec3(u.base_x, u.base_y, u.base_z);"
        "a[(at.z * u.count_y + at.y) * u.count_x + at.x] = at.x + 3u * at.y + 5u * at.z;",
        bindings=("write",),
        grid=True,
    )
    result = device.allocator.allocate(4 * int(np.prod(grid)))
    submit(device, executable, grid, result).wait(PATIENCE_NS)
    z, y, x = np.indices(grid[::-1])
    np.testing.assert_array_equal(words(result), (x + 3 * y + 5 * z).ravel())


def test_device_grid_that_a_kernel_cannot_take_names_the_limit(device, load):
    executable = load("a[0] = 1u;", bindings=("write",), name="fixed")
    with pytest.raises(InvalidArgumentError, match=r"kernel fixed.*max-compute-workgroups-per-dimension"):
        submit(device, executable, (70000, 1, 1), device.allocator.allocate(16)).wait(PATIENCE_NS)


def test_device_indirect_grid_beyond_the_limit_is_whole(device, load, put):
    executable = load("a[group.x + u.base_x] = u.count_x;", bindings=("write",), grid=True)
    counts, result = put(np.array([70001, 1, 1], np.uint32)), device.allocator.allocate(4 * 70001)
    recorded = device.create_command_buffer()
    recorded.dispatch_indirect(executable, 0, BufferRef(counts), bindings=[BufferRef(result)])
    recorded.finalize()
    fence = device.create_fence()
    device.queue_execute(command_buffer=recorded, signal=fence)
    fence.wait(PATIENCE_NS)
    np.testing.assert_array_equal(words(result), 70001)


@pytest.mark.parametrize(("source_at", "target_at"), [(0, 0), (4, 256), (260, 12), (2, 7), (512, 0)])
def test_device_bindings_at_any_offset(device, load, put, source_at, target_at):
    data = np.random.default_rng(1).integers(0, 256, 1024, np.uint8)
    source, result = put(data), put(np.full(1024, 0xEE, np.uint8))
    executable = load("b[id.x] = a[id.x];")
    fence = submit(
        device,
        executable,
        (8, 1, 1),
        BufferRef(source, 0, source_at, 32),
        BufferRef(result, 0, target_at, 32),
    )
    fence.wait(PATIENCE_NS)
    expected = np.full(1024, 0xEE, np.uint8)
    expected[target_at : target_at + 32] = data[source_at : source_at + 32]
    assert result.read() == expected.tobytes()


@pytest.mark.parametrize("shift", [0, 256, 128])
def test_device_bindings_of_one_buffer_that_overlap(device, load, put, shift):
    data = np.arange(256, dtype=np.uint32)
    buffer = put(data)
    executable = load("b[id.x] = a[id.x] + 1000u;")
    source, target = BufferRef(buffer, 0, shift, 512), BufferRef(buffer, 0, 0, 512)
    submit(device, executable, (128, 1, 1), source, target).wait(PATIENCE_NS)
    expected = data.copy()
    expected[:128] = data[shift // 4 : shift // 4 + 128] + 1000
    np.testing.assert_array_equal(words(buffer), expected)


def test_device_two_writers_of_the_same_bytes_are_refused(device, load):
    executable = load("a[id.x] = 1u; b[id.x] = 2u;", bindings=("write", "write"), name="twice")
    buffer = device.allocator.allocate(512)
    with pytest.raises(InvalidArgumentError, match="kernel twice writes through two bindings"):
        submit(device, executable, (4, 1, 1), buffer, buffer).wait(PATIENCE_NS)


def test_device_shader_that_is_refused_fails_with_the_kernels_name(device, load):
    executable = load("a[0] = nonsense;", bindings=("write",), name="broken")
    with pytest.raises(KernelError, match="nonsense") as caught:
        submit(device, executable, (1, 1, 1), device.allocator.allocate(16)).wait(PATIENCE_NS)
    assert caught.value.kernel == "broken"
    good = device.allocator.allocate(16)
    submit(device, load("a[0] = 5u;", bindings=("write",)), (1, 1, 1), good).wait(PATIENCE_NS)
    assert words(good)[0] == 5


def test_device_binding_too_small_for_its_shader_fails_with_the_kernels_name(device, load):
    executable = load("a[0].y[7].x = 1u;", element="Big", bindings=("write",), name="large")
    kernel = executable.kernels[0]
    source = kernel.shader(()).source
    assert "array<Big>" in source
    data = json.dumps(
        {
            "exports": [
                {
                    "name": "large",
                    "source": "struct Big { x: u32, y: array<vec4<u32>, 64> }\n" + source,
                    "entry_point": "main",
                    "workgroup_size": [1, 1, 1],
                    "bindings": ["write"],
                    "constants": 0,
                    "grid": False,
                }
            ]
        }
    )
    executable = device.create_executable(format="webgpu-wgsl-json", data=data.encode())
    with pytest.raises(KernelError) as caught:
        submit(device, executable, (1, 1, 1), device.allocator.allocate(16)).wait(PATIENCE_NS)
    assert "large" in caught.value.kernel


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nests too deep"),
        (b"[]", "exports"),
        (b'{"exports": [{}]}', "bindings"),
        (
            b'{"exports": [{"bindings": [1], "constants": 0, "workgroup_size": [1, 1, 1]}]}',
            "'read' or 'write'",
        ),
        (b'{"exports": [{"bindings": [], "constants": true}]}', "constants"),
        (b'{"exports": [{"bindings": [], "constants": 0, "workgroup_size": [1, 0, 1]}]}', "workgroup_size"),
    ],
)
def test_device_malformed_executable_is_refused(device, data, message):
    with pytest.raises(FormatError, match=message):
        device.create_executable(format="webgpu-wgsl-json", data=data)


@pytest.mark.parametrize(
    ("words", "offset", "error", "message"),
    [
        (0, 0, FormatError, "kernel k: it reads 1 constants of 0"),
        (1 << 30, 0xFFFFFFF0, InvalidArgumentError, "max-uniform-buffer-binding-size"),
        (1, 0, None, ""),
    ],
)
def test_device_constants_of_spirv_are_those_of_its_layout(
    device, monkeypatch, words, offset, error, message
):
    globals_ = f"""
OpMemberDecorate %given 0 Offset {offset}
OpDecorate %given Block
%given = OpTypeStruct %uint
%to_given = OpTypePointer PushConstant %given
%to_word = OpTypePointer PushConstant %uint
%constants = OpVariable %to_given PushConstant
"""
    body = "%place = OpAccessChain %to_word %constants %u0\n%value = OpLoad %uint %place\n"
    text = sr.kernel({"out": "uint"}, body + sr.store("value", "out", "uint"), size=1, globals_=globals_)
    definition = spirv.ExecutableDef(
        entry_points=(
            spirv.EntryPointDef(
                name="k",
                shader_module=0,
                bindings=(spirv.LayoutBinding(set=0, binding=0, kind="storage"),),
                push_constant_words=words,
                subgroup_size=0,
            ),
        ),
        shader_modules=(spirv.assemble(text.replace('"kernel"', '"k"')),),
    )
    monkeypatch.setattr(spirv, "read_executable", lambda data, where: definition)
    (kernel,) = read_spirv(b"", (), device.gpu)
    if error is None:
        assert kernel.shader(()).constant_count == words
        return
    with pytest.raises(error, match=message):
        kernel.shader(())


def test_device_that_is_lost_says_so_everywhere(device, load, put):
    executable, buffer = load("a[0] = 1u;", bindings=("write",)), put(np.arange(4, dtype=np.uint32))
    submit(device, executable, (1, 1, 1), buffer).wait(PATIENCE_NS)
    lose(device)
    for use in (
        lambda: submit(device, executable, (1, 1, 1), buffer).wait(PATIENCE_NS),
        lambda: device.allocator.allocate(1 << 20),
        lambda: buffer.read(),
        lambda: device.queue_fill(target=buffer, pattern=b"x"),
    ):
        with pytest.raises(DeviceLostError, match="lost"):
            use()


def test_device_lost_with_work_in_flight_fails_its_fence(device, load):
    count = 1 << 16
    body = (
        "var x = a[id.x]; for (var i = 0u; i < 4000u; i++) { x = x * 1664525u + 1013904223u; } a[id.x] = x;"
    )
    executable = load(body, bindings=("write",), size=64)
    fence = submit(device, executable, (count // 64, 1, 1), device.allocator.allocate(4 * count))
    lose(device)
    # It may have ended just before.
    with contextlib.suppress(DeviceLostError):
        fence.wait(PATIENCE_NS)
    with pytest.raises(DeviceLostError):
        device.allocator.allocate(1 << 20)


def test_device_closed_with_work_in_flight_finishes_it(provider, load, device):
    count = 1 << 16
    body = "var x = id.x; for (var i = 0u; i < 2000u; i++) { x = x * 1664525u + 1013904223u; } a[id.x] = x;"
    result = device.allocator.allocate(4 * count)
    fence = submit(device, load(body, bindings=("write",), size=64), (count // 64, 1, 1), result)
    device.close()
    fence.wait(PATIENCE_NS)
    expected = np.arange(count, dtype=np.uint32)
    for _ in range(2000):
        expected = expected * np.uint32(1664525) + np.uint32(1013904223)
    np.testing.assert_array_equal(words(result), expected)
    with pytest.raises(ClosedError):
        device.create_fence()


def test_device_submission_that_takes_too_long_fails_with_its_kernel(device, load):
    count = 1 << 15
    body = "var x = id.x; for (var i = 0u; i < 60000u; i++) { x = x * 1664525u + 1u; } a[id.x] = x;"
    executable = load(body, bindings=("write",), size=64, name="slow")
    result = device.allocator.allocate(4 * count)
    with device.guard(1_000_000):
        fence = submit(device, executable, (count // 64, 1, 1), result)
    with pytest.raises(DeadlineExceededError) as caught:
        fence.wait(PATIENCE_NS)
    assert caught.value.kernel == "slow"
    quick = device.allocator.allocate(16)
    submit(device, load("a[0] = 3u;", bindings=("write",)), (1, 1, 1), quick).wait(PATIENCE_NS)
    assert words(quick)[0] == 3


def test_device_from_several_threads_with_views_gets_everything_right(device, load):
    executable = load("b[id.x] = a[id.x] + 1u;")
    errors = []

    def work(seed):
        try:
            source, result = device.allocator.allocate(256), device.allocator.allocate(256)
            seen = words(result)
            for round_number in range(20):
                words(source)[:] = seed * 1000 + round_number
                submit(device, executable, (64, 1, 1), source, result).wait(PATIENCE_NS)
                np.testing.assert_array_equal(seen, seed * 1000 + round_number + 1)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_driver_chooses_adapters(provider):
    infos = [
        info
        for info in drivers.create_driver("webgpu").query_devices()
        if dict(info.details)["uri"] == f"webgpu://{provider}"
    ]
    assert infos
    name = dict(infos[0].details)["adapter"]
    with drivers.create_device(f"webgpu://{provider}", adapter=name[:6].lower(), power="low") as device:
        assert name in device.name
    with pytest.raises(NotFoundError, match=r"no adapter 'nothing'; it has "):
        drivers.create_device(f"webgpu://{provider}?adapter=nothing")
    with pytest.raises(InvalidArgumentError, match="high or low"):
        drivers.create_device(f"webgpu://{provider}?power=huge")


def test_driver_refuses_providers_that_do_not_exist():
    with pytest.raises(InvalidArgumentError, match="wgpu or dawn, not 'metal'"):
        drivers.create_device("webgpu://metal")


@pytest.mark.parametrize(("name", "extra"), [("wgpu", "webgpu"), ("dawn", "dawn")])
def test_driver_without_its_package_names_the_extra(monkeypatch, name, extra):
    import sys

    monkeypatch.setitem(sys.modules, {"wgpu": "wgpu", "dawn": "wgpudawn"}[name], None)
    with pytest.raises(UnavailableError, match=rf"sylvite\[{extra}\]"):
        drivers.create_device(f"webgpu://{name}")
