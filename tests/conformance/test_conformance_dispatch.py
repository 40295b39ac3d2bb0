"""Dispatches: constants, bindings, grids, indirect parameters, failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sylvite.errors import ClosedError, InvalidArgumentError, NotFoundError, TrapError
from sylvite.hal import BufferRef, BufferUsage, DispatchFlags

# Devices with threads of their own are not done when submitting returns.
PATIENCE_NS = 30 * 10**9

SCALE, IDS, NEGATE, DIVIDE, COUNT = range(5)


def array_of(buffer):
    return buffer.view().view(np.int32)


def i32(*values):
    return np.array(values, np.int32)


@pytest.mark.runs_kernels
@pytest.mark.parametrize(("scale", "offset"), [(3, 10), (-1, 0), (2, -5), (0x7FFFFFFF, 1)])
def test_dispatch_passes_constants_and_bindings(target, scale, offset):
    source, result = target.buffer(i32(1, 2, -3, 4)), target.buffer(16)
    command_buffer = target.recorder()
    command_buffer.dispatch(
        target.executable(),
        SCALE,
        (1, 1, 1),
        constants=[scale, offset],
        bindings=[target.ref(source), target.ref(result)],
    )
    target.run(command_buffer)
    expected = (np.array([1, 2, -3, 4], np.int64) * scale + offset).astype(np.int32)
    np.testing.assert_array_equal(array_of(result), expected)


@pytest.mark.runs_kernels
@pytest.mark.parametrize("grid", [(1, 1, 1), (32, 1, 1), (5, 3, 1), (4, 3, 2), (1, 1, 7), (16, 16, 16)])
def test_dispatch_runs_every_workgroup_once(target, grid):
    result = target.buffer(np.full(4096, -1, np.int32))
    command_buffer = target.recorder()
    command_buffer.dispatch(target.executable(), IDS, grid, bindings=[target.ref(result)])
    target.run(command_buffer)
    z, y, x = np.indices(grid[::-1])
    count = grid[0] * grid[1] * grid[2]
    np.testing.assert_array_equal(array_of(result)[:count], (x | y << 8 | z << 16).ravel())
    np.testing.assert_array_equal(array_of(result)[count:], -1)
    counters = target.device.tracer.counters
    assert (counters.dispatches, counters.workgroups, counters.engine_calls) == (1, count, 1)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_dispatch_of_no_workgroups_touches_nothing(target, grid):
    result = target.buffer(np.full(4096, -1, np.int32))
    command_buffer = target.recorder()
    command_buffer.dispatch(target.executable(), IDS, grid, bindings=[target.ref(result)])
    target.run(command_buffer)
    np.testing.assert_array_equal(array_of(result), -1)


@pytest.mark.runs_kernels
def test_dispatch_sees_offsets_of_references_and_subspans(target):
    source, result = target.buffer(np.arange(64, dtype=np.int32)), target.buffer(256)
    command_buffer = target.recorder()
    command_buffer.dispatch(
        target.executable(),
        NEGATE,
        (4, 1, 1),
        bindings=[target.ref(source.subspan(16), 8, 64), target.ref(result, 32, 16)],
    )
    target.run(command_buffer)
    np.testing.assert_array_equal(array_of(result)[6:14], [0, 0, -6, -7, -8, -9, 0, 0])


@pytest.mark.runs_kernels
def test_dispatches_chain_through_transfers(target):
    source, middle, result = target.buffer(64), target.buffer(64), target.buffer(64)
    executable = target.executable()
    command_buffer = target.recorder()
    refs = [target.ref(buffer) for buffer in (source, middle, result)]
    command_buffer.update_buffer(i32(*range(16)), 0, refs[0])
    command_buffer.execution_barrier()
    command_buffer.dispatch(executable, NEGATE, (16, 1, 1), bindings=refs[:2])
    command_buffer.execution_barrier()
    command_buffer.fill_buffer(BufferRef(refs[1].buffer, refs[1].slot, 0, 4), i32(99).tobytes())
    command_buffer.execution_barrier()
    command_buffer.dispatch(executable, NEGATE, (16, 1, 1), bindings=refs[1:])
    target.run(command_buffer)
    np.testing.assert_array_equal(array_of(result), [-99, *range(1, 16)])


@pytest.mark.runs_kernels
def test_dispatch_again_with_other_bindings_sees_those(device, kernels, own_format):
    data = b"a 0 1\nb 0 1\nnegate 0 2" if own_format == "null" else kernels
    target_executable = device.create_executable(format=own_format, data=data)
    command_buffer = device.create_command_buffer(binding_capacity=2)
    command_buffer.dispatch(
        target_executable, NEGATE, (4, 1, 1), bindings=[BufferRef(None, 1), BufferRef(None, 0, 16, 16)]
    )
    command_buffer.finalize()
    for round_number in range(10):
        source, result = device.allocator.allocate(16), device.allocator.allocate(64)
        array_of(source)[:] = round_number
        fence = device.create_fence()
        table = [BufferRef(result, 0, 16), BufferRef(source)]
        device.queue_execute(command_buffer=command_buffer, binding_table=table, signal=fence)
        fence.wait(PATIENCE_NS)
        np.testing.assert_array_equal(array_of(result)[8:12], -round_number)


@pytest.mark.runs_kernels
@pytest.mark.parametrize(
    "flags", [DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS, DispatchFlags.STATIC_INDIRECT_PARAMETERS]
)
@pytest.mark.parametrize("length", [12, -1, 20])
def test_dispatch_indirect_reads_its_grid_when_executed(target, flags, length):
    counts, result = target.buffer(i32(9, 9, 9, 3, 2, 1, 7, 7)), target.buffer(16384)
    command_buffer = target.recorder()
    command_buffer.dispatch_indirect(
        target.executable(),
        IDS,
        target.ref(counts, 12, length),
        bindings=[target.ref(result)],
        flags=flags,
    )
    command_buffer.finalize()
    for grid in [(3, 2, 1), (2, 2, 2), (0, 5, 5), (1, 1, 9)]:
        array_of(counts)[3:6] = grid
        array_of(result)[:] = -1
        target.submit(command_buffer).wait(PATIENCE_NS)
        z, y, x = np.indices(grid[::-1])
        written = array_of(result)
        np.testing.assert_array_equal(written[: x.size], (x | y << 8 | z << 16).ravel())
        np.testing.assert_array_equal(written[x.size :], -1)


@pytest.mark.runs_kernels
def test_dispatch_indirect_takes_a_grid_that_commands_before_it_wrote(target):
    counts, result = target.buffer(12), target.buffer(np.full(4096, -1, np.int32))
    executable = target.executable()
    command_buffer = target.recorder()
    ref = target.ref(counts)
    command_buffer.fill_buffer(ref, i32(-2).tobytes())
    command_buffer.execution_barrier()
    command_buffer.dispatch(executable, NEGATE, (3, 1, 1), bindings=[ref, ref])
    command_buffer.execution_barrier()
    command_buffer.dispatch_indirect(executable, IDS, ref, bindings=[target.ref(result)])
    target.run(command_buffer)
    assert np.count_nonzero(array_of(result) >= 0) == 8


@pytest.mark.runs_kernels
def test_dispatch_indirect_with_too_many_workgroups_along_z_fails(target):
    counts, result = target.buffer(i32(1, 1, 65536)), target.buffer(4)
    command_buffer = target.recorder()
    command_buffer.dispatch_indirect(
        target.executable(), IDS, target.ref(counts), bindings=[target.ref(result)]
    )
    command_buffer.finalize()
    with pytest.raises(InvalidArgumentError, match="65536 workgroups along z"):
        target.submit(command_buffer).wait(PATIENCE_NS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"constants": [1]}, "takes 2 constants, not 1"),
        ({"bindings": []}, "takes 2 bindings, not 0"),
        ({"grid": (1, 1, 65536)}, "along z"),
        ({"grid": (1 << 32, 1, 1)}, "along x"),
        ({"grid": (1, -1, 1)}, "along y"),
        ({"ordinal": 5}, "ordinal 5"),
        ({"ordinal": -1}, "ordinal -1"),
        ({"flags": DispatchFlags.CUSTOM_DIRECT_ARGUMENTS}, "not supported"),
    ],
)
def test_dispatch_that_does_not_fit_its_export_is_refused(target, arguments, message):
    buffer = target.buffer(16)
    command_buffer = target.recorder()
    with pytest.raises(InvalidArgumentError, match=message):
        command_buffer.dispatch(
            target.executable(),
            arguments.get("ordinal", SCALE),
            arguments.get("grid", (1, 1, 1)),
            constants=arguments.get("constants", [1, 2]),
            bindings=arguments.get("bindings", [target.ref(buffer)] * 2),
            flags=arguments.get("flags", DispatchFlags.NONE),
        )


def test_dispatch_of_buffers_not_meant_for_it_is_refused(target):
    command_buffer = target.recorder()
    executable = target.executable()
    transfer_only = target.allocator.allocate(16, usage=BufferUsage.TRANSFER)
    with pytest.raises(InvalidArgumentError, match="DISPATCH"):
        command_buffer.dispatch(executable, IDS, (1, 1, 1), bindings=[BufferRef(transfer_only)])
    storage_only = target.allocator.allocate(16, usage=BufferUsage.DISPATCH_STORAGE)
    good = target.buffer(16)
    for workgroups, message in [
        (BufferRef(storage_only), "INDIRECT_PARAMETERS"),
        (BufferRef(good, 0, 2), "multiple of 4"),
        (BufferRef(good, 0, 8), "12 bytes at offset 8"),
        (BufferRef(good, 0, 0, 8), "need 12 bytes"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            command_buffer.dispatch_indirect(executable, IDS, workgroups, bindings=[BufferRef(good)])


def test_executable_knows_its_exports(target):
    executable = target.executable()
    assert [export.name for export in executable.exports] == [
        "scale_and_offset",
        "write_workgroup_ids",
        "negate",
        "divide",
        "count_while_set",
    ]
    assert [(export.constant_count, export.binding_count) for export in executable.exports][:2] == [
        (2, 2),
        (0, 1),
    ]
    assert executable.lookup("negate") == NEGATE
    with pytest.raises(NotFoundError, match="missing"):
        executable.lookup("missing")


def test_executable_after_close_is_refused_everywhere(target):
    executable = target.executable()
    recorded = target.recorder()
    recorded.dispatch(executable, IDS, (0, 1, 1), bindings=[target.ref(target.buffer(16384))])
    recorded.finalize()
    target.submit(recorded).wait(PATIENCE_NS)
    executable.close()
    executable.close()
    for use in (
        lambda: executable.lookup("negate"),
        lambda: target.submit(recorded),
        lambda: target.recorder().dispatch(executable, IDS, (1, 1, 1)),
    ):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.parametrize("what", ["executable", "command buffer"])
def test_dispatch_of_what_was_closed_while_it_waited_fails_its_fence(target, what):
    executable = target.executable()
    command_buffer = target.recorder()
    command_buffer.dispatch(executable, IDS, (1, 1, 1), bindings=[target.ref(target.buffer(16384))])
    command_buffer.finalize()
    wait = target.device.create_fence()
    done = target.submit(command_buffer, wait=wait)
    (executable if what == "executable" else command_buffer).close()
    wait.signal()
    with pytest.raises(ClosedError, match=what):
        done.wait(PATIENCE_NS)


@pytest.mark.traps
def test_kernel_that_traps_fails_its_fence_and_nothing_else(target):
    source, result = target.buffer(i32(7, 0)), target.buffer(4)
    executable = target.executable()
    command_buffer = target.recorder()
    command_buffer.dispatch(executable, DIVIDE, (1, 1, 1), bindings=[target.ref(source), target.ref(result)])
    command_buffer.finalize()
    other = target.device.create_fence()
    failed = target.submit(command_buffer)
    target.device.queue_barrier(signal=other)
    with pytest.raises(TrapError) as caught:
        failed.wait(PATIENCE_NS)
    assert caught.value.kernel == "divide"
    assert caught.value.code == "integer_divide_by_zero"
    assert "divide" in str(caught.value)
    other.wait(PATIENCE_NS)
    array_of(source)[:] = [42, 6]
    target.submit(command_buffer).wait(PATIENCE_NS)
    assert array_of(result)[0] == 7


@pytest.mark.runs_kernels
def test_dispatches_from_several_threads_get_everything_right(target):
    if target.driver == "null":
        pytest.fail("needs kernels")
    executable = target.executable()
    device, errors = target.device, []

    def work(seed):
        try:
            source, result = device.allocator.allocate(64), device.allocator.allocate(64)
            command_buffer = device.create_command_buffer(binding_capacity=2)
            refs = (
                [BufferRef(source), BufferRef(result)]
                if target.mode == "direct"
                else [BufferRef(None, 0), BufferRef(None, 1)]
            )
            command_buffer.dispatch(executable, NEGATE, (16, 1, 1), bindings=refs)
            command_buffer.finalize()
            for round_number in range(40):
                array_of(source)[:] = seed * 1000 + round_number
                fence = device.create_fence()
                device.queue_execute(
                    command_buffer=command_buffer,
                    binding_table=[BufferRef(source), BufferRef(result)],
                    signal=fence,
                )
                fence.wait(10_000_000_000)
                np.testing.assert_array_equal(array_of(result), -(seed * 1000 + round_number))
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
