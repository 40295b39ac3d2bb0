import io
import threading
import time

import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    ProgramError,
    StatusCode,
    UnsupportedFeatureError,
)
from sylvite.hal import BufferUsage, BufferView, Fence, File, MemoryAccess, MemoryType
from sylvite.hal.element_types import ElementType, NumericalType
from sylvite.vm.modules import HalModule
from sylvite.vm.modules.hal.table import TABLE
from sylvite.vm.refs import VmBuffer
from sylvite.vm.watch import Watch

LOCAL = int(MemoryType.DEVICE_LOCAL | MemoryType.HOST_LOCAL)
USAGE = int(BufferUsage.DEFAULT | BufferUsage.DISPATCH_INDIRECT_PARAMETERS | BufferUsage.MAPPING)
F32, I32, SI32, I64, OPAQUE32 = 0x21000020, 0x10000020, 0x11000020, 0x10000040, 0x20
DENSE = 1


@pytest.fixture
def device():
    with drivers.create_device("null") as device:
        yield device


class Hal:
    """Calls imports by name, the way translated programs do."""

    def __init__(self, devices, **options):
        self.module = HalModule(devices, **options)
        self.state = self.module.create_state()

    def __call__(self, name, *arguments):
        return self.module.functions[name].call(self.state, *arguments)


@pytest.fixture
def hal(device):
    return Hal([device])


def text(value):
    return VmBuffer.from_text(value)


def allocate(hal, device, byte_length=64, memory=LOCAL, usage=USAGE):
    return hal("allocator.allocate", hal("device.allocator", device), -1, memory, usage, byte_length)


def view_of(device, array):
    return BufferView.from_numpy(device.allocator, array)


# -- every import ----------------------------------------------------------------------------------------

NO_REFERENCES = {"devices.count", "devices.get", "fence.join", "fence.await", "allocator.select"}
COLLECTIVES = {"channel.create", "channel.split", "channel.rank_and_count", "command_buffer.collective"}
_SAMPLES = {"i": 0, "I": 0, "f": 0.0, "F": 0.0, "r": None}


def null_arguments(convention):
    arguments, depth = [], 0
    for character in convention.partition("_")[0]:
        if character == "C":
            arguments.append([])
        depth += (character == "C") - (character == "D")
        if depth == 0 and character in _SAMPLES:
            arguments.append(_SAMPLES[character])
    return arguments


@pytest.mark.parametrize(
    ("name", "convention"), [row[:2] for row in TABLE if row[0] not in NO_REFERENCES | COLLECTIVES]
)
def test_hal_null_references_are_refused_naming_the_argument(hal, name, convention):
    with pytest.raises(InvalidArgumentError, match=r"argument \w+ must be a \w+ and is null"):
        hal(name, *null_arguments(convention))


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_hal_collectives_are_refused_as_unimplemented(hal, name):
    convention = next(row[1] for row in TABLE if row[0] == name)
    with pytest.raises(UnsupportedFeatureError, match="collectives") as caught:
        hal(name, *null_arguments(convention))
    assert caught.value.status is StatusCode.UNIMPLEMENTED


def test_hal_module_without_devices_is_refused():
    with pytest.raises(InvalidArgumentError):
        HalModule([])


# -- devices ---------------------------------------------------------------------------------------------


def test_devices_count_and_get(device):
    with drivers.create_device("null") as other:
        hal = Hal([device, other])
        assert hal("devices.count") == 2
        assert hal("devices.get", 0) is device
        assert hal("devices.get", 1) is other
        assert hal("devices.get", 2) is None
        assert hal("devices.get", -1) is None


def test_device_query_answers_with_known_flag(hal, device):
    def query(category, key):
        return hal("device.query.i64", device, text(category), text(key))

    assert query("hal.device.id", f"{device.identifier[:2]}*") == (1, 1)
    assert query("hal.device.id", "other*") == (1, 0)
    assert query("hal.executable.format", "null") == (1, 1)
    assert query("hal.executable.format", "embedded-elf-x86_64") == (1, 0)
    assert query("hal.nonsense", "x") == (0, 0)


def test_device_query_key_that_is_not_text_is_refused(hal, device):
    with pytest.raises(InvalidArgumentError, match="key is not UTF-8"):
        hal("device.query.i64", device, text("hal.device.id"), VmBuffer(b"\xff"))


def test_allocator_select_takes_the_first_pair(hal, device):
    assert hal("allocator.select", LOCAL, USAGE, 0, [(device, 3), (device, 4)]) == (device, 3)
    with pytest.raises(InvalidArgumentError):
        hal("allocator.select", LOCAL, USAGE, 0, [])


# -- buffers ---------------------------------------------------------------------------------------------


def test_allocate_unknown_usage_bit_is_refused(hal, device):
    with pytest.raises(InvalidArgumentError, match="buffer usage"):
        allocate(hal, device, usage=1 << 30)
    with pytest.raises(InvalidArgumentError, match="memory type"):
        allocate(hal, device, memory=1 << 20)
    with pytest.raises(InvalidArgumentError):
        allocate(hal, device, byte_length=-1)


@pytest.mark.parametrize("length", range(5))
def test_buffer_store_and_load_keep_the_low_bytes(hal, device, length):
    buffer = allocate(hal, device)
    buffer.write(0, bytes(64))
    hal("buffer.store", -2, buffer, 8, length)
    expected = int.from_bytes(b"\xfe\xff\xff\xff"[:length].ljust(4, b"\0"), "little", signed=True)
    assert hal("buffer.load", buffer, 8, length) == expected
    assert hal("buffer.load", buffer, 8 + length, 4) == 0


@pytest.mark.parametrize(("offset", "length"), [(0, 5), (0, -1), (62, 4), (-1, 4), (1 << 62, 1)])
def test_buffer_load_and_store_outside_are_refused(hal, device, offset, length):
    buffer = allocate(hal, device)
    with pytest.raises(InvalidArgumentError):
        hal("buffer.load", buffer, offset, length)
    with pytest.raises(InvalidArgumentError):
        hal("buffer.store", 1, buffer, offset, length)


def test_buffer_subspan_shares_memory(hal, device):
    buffer = allocate(hal, device)
    part = hal("buffer.subspan", buffer, 16, 8)
    assert hal("buffer.length", part) == 8
    hal("buffer.store", 77, part, 0, 4)
    assert hal("buffer.load", buffer, 16, 4) == 77
    with pytest.raises(InvalidArgumentError):
        hal("buffer.subspan", part, 4, 8)


def test_buffer_allocation_owners_are_counted_over_subspans(hal, device):
    buffer = allocate(hal, device)
    part = hal("buffer.subspan", buffer, 0, 4)
    assert hal("buffer.allocation.is_terminal", part) == 1
    hal("buffer.allocation.preserve", buffer)
    assert hal("buffer.allocation.is_terminal", part) == 0
    assert hal("buffer.allocation.discard", part) == 0
    assert hal("buffer.allocation.discard", buffer) == 1


def test_buffer_assert_checks_length_type_and_usage(hal, device):
    buffer, allocator = allocate(hal, device), device.allocator
    hal("buffer.assert", buffer, text("tensor"), allocator, 64, 0x30, USAGE)
    with pytest.raises(InvalidArgumentError, match="tensor: the buffer has 64 bytes, at least 65"):
        hal("buffer.assert", buffer, text("tensor"), allocator, 65, 0, 0)
    with pytest.raises(InvalidArgumentError, match="tensor: the buffer is in"):
        hal("buffer.assert", buffer, text("tensor"), allocator, 0, int(MemoryType.HOST_CACHED), 0)
    with pytest.raises(InvalidArgumentError, match=r"tensor: the buffer allows .*SHARING_EXPORT"):
        hal("buffer.assert", buffer, text("tensor"), allocator, 0, 0, int(BufferUsage.SHARING_EXPORT))
    with pytest.raises(InvalidArgumentError, match="allocator"):
        hal("buffer.assert", buffer, text("tensor"), None, 0, 0, 0)


def test_allocator_import_copies_once_or_says_no(hal, device):
    immutable = int(BufferUsage.DEFAULT | BufferUsage.SHARING_IMMUTABLE | BufferUsage.MAPPING)
    source = VmBuffer(b"0123456789")
    allocator = device.allocator
    assert hal("allocator.import", allocator, 1, -1, LOCAL, immutable, source, 2, 4) is None
    before = device.tracer.counters.bytes_copied
    buffer = hal("allocator.import", allocator, 0, -1, LOCAL, immutable, source, 2, -1)
    assert device.tracer.counters.bytes_copied - before == 8
    assert buffer.read() == b"23456789"
    assert buffer.allowed_access == MemoryAccess.READ
    with pytest.raises(InvalidArgumentError, match="read-only memory"):
        hal("allocator.import", allocator, 0, -1, LOCAL, USAGE, source, 0, -1)
    with pytest.raises(InvalidArgumentError, match="bytes 4 to 14 of source"):
        hal("allocator.import", allocator, 0, -1, LOCAL, immutable, source, 4, 10)
    mutable = VmBuffer(bytearray(b"abcd"), mutable=True)
    buffer = hal("allocator.import", allocator, 0, -1, LOCAL, USAGE, mutable, 0, -1)
    buffer.write(0, b"z")
    assert buffer.read() == b"zbcd"


# -- buffer views ----------------------------------------------------------------------------------------


def test_buffer_view_create_looks_at_a_part(hal, device):
    buffer = allocate(hal, device)
    buffer.write(0, np.arange(16, dtype=np.int32).tobytes())
    view = hal("buffer_view.create", buffer, 8, 24, I32, DENSE, [2, 3])
    np.testing.assert_array_equal(np.asarray(view), [[2, 3, 4], [5, 6, 7]])
    assert hal("buffer_view.rank", view) == 2
    assert [hal("buffer_view.dim", view, axis) for axis in (-1, 0, 1, 2)] == [0, 2, 3, 0]
    assert hal("buffer_view.element_type", view) == I32
    assert hal("buffer_view.encoding_type", view) == DENSE
    assert hal("buffer.length", hal("buffer_view.buffer", view)) == 24


@pytest.mark.parametrize(
    ("offset", "length", "element", "encoding", "shape"),
    [
        (60, 8, I32, DENSE, [2]),
        (0, 64, I32, DENSE, [17]),
        (0, 64, I32, 9, [4]),
        (0, 64, 0x7F000020, DENSE, [4]),
        (0, 64, I32, DENSE, [-1]),
        (0, 64, I32, DENSE, [1 << 62, 4]),
    ],
)
def test_buffer_view_create_that_does_not_fit_is_refused(
    hal, device, offset, length, element, encoding, shape
):
    with pytest.raises(InvalidArgumentError):
        hal("buffer_view.create", allocate(hal, device), offset, length, element, encoding, shape)


def test_buffer_view_assert_takes_what_matches(hal, device):
    view = view_of(device, np.zeros((2, 3), np.int32))
    for element in (I32, SI32):
        hal("buffer_view.assert", view, text("input0"), element, DENSE, [2, 3])
    opaque = BufferView(view.buffer, (2, 3), ElementType(NumericalType.UNKNOWN, 32))
    hal("buffer_view.assert", opaque, text("input0"), F32, DENSE, [2, 3])


@pytest.mark.parametrize(
    ("element", "encoding", "shape", "message"),
    [
        (I32, 0, [2, 3], "input0: encoding 0 expected, 1 given"),
        (F32, DENSE, [2, 3], "input0: element type f32 expected, i32 given"),
        (I64, DENSE, [2, 3], "input0: element type i64 expected, i32 given"),
        (I32, DENSE, [], r"input0: rank 0 \(scalar\) expected, 2 \(2x3\) given"),
        (I32, DENSE, [2, 4], r"input0: shape 2 \(2x4\) expected, 2 \(2x3\) given"),
    ],
)
def test_buffer_view_assert_mismatch_says_what_and_which(hal, device, element, encoding, shape, message):
    view = view_of(device, np.zeros((2, 3), np.int32))
    with pytest.raises(InvalidArgumentError, match=message):
        hal("buffer_view.assert", view, text("input0"), element, encoding, shape)


def test_buffer_view_trace_prints_like_irees_tools(device, capsys):
    view = view_of(device, np.array([[1, 2.5], [-3e10, np.nan]], np.float32))
    hal = Hal([device])
    hal("buffer_view.trace", text("key"), [view])
    assert capsys.readouterr().err == "=== key ===\n2x2xf32=[1 2.5][-3E+10 NAN]\n\n"
    stream = io.StringIO()
    Hal([device], trace_stream=stream)("buffer_view.trace", text("k"), [])
    assert stream.getvalue() == "=== k ===\n\n"


# -- commands --------------------------------------------------------------------------------------------


def load_executable(hal, device, data=b"first 2 1\nsecond 0 2", constants=None):
    return hal("executable.create", device, -1, text("null"), VmBuffer(data), constants)


def new_commands(hal, device, capacity=0):
    return hal("command_buffer.create", device, 0, 3, -1, capacity)


def test_executable_lookup_gives_ordinals(hal, device):
    executable = load_executable(hal, device)
    assert hal("executable.lookup.function", executable, text("first")) == 0
    assert hal("executable.lookup.function", executable, text("second")) == 1
    with pytest.raises(NotFoundError):
        hal("executable.lookup.function", executable, text("third"))


def test_executable_create_refuses_bad_format_and_constants(hal, device):
    with pytest.raises(UnsupportedFeatureError):
        hal("executable.create", device, -1, text("elf"), VmBuffer(b""), None)
    with pytest.raises(InvalidArgumentError, match="whole 32-bit words"):
        load_executable(hal, device, constants=VmBuffer(b"12345"))
    load_executable(hal, device, constants=VmBuffer(b"12345678"))


def test_commands_are_recorded_as_the_program_says(hal, device):
    buffer = allocate(hal, device)
    executable = load_executable(hal, device)
    commands = new_commands(hal, device, 2)
    hal("command_buffer.begin_debug_group", commands, text("group"))
    hal("command_buffer.fill_buffer", commands, buffer, 0, 8, 0, 0x0201, 2, 0)
    hal("command_buffer.update_buffer", commands, VmBuffer(b"xabcdx"), 1, buffer, 8, 4, 0, 0)
    hal("command_buffer.copy_buffer", commands, 0, 1, buffer, 0, None, 16, 8, 0)
    hal("command_buffer.execution_barrier", commands, 4, 4, 0)
    hal("command_buffer.advise_buffer", commands, buffer, 1, 2, 3, 0)
    binding = (0, 0, buffer, 0, 64)
    hal("command_buffer.dispatch", commands, executable, 0, 2, 3, 4, 0, [-1, 5], [binding])
    hal(
        "command_buffer.dispatch.indirect",
        *(commands, executable, 1, 0, buffer, 4, 0, [], [binding, (0, 1, None, 0, 8)]),
    )
    hal("command_buffer.end_debug_group", commands)
    hal("command_buffer.finalize", commands)
    kinds = [type(command).__name__ for command in commands.commands]
    assert kinds == [
        *("BeginDebugGroup", "FillBuffer", "UpdateBuffer", "CopyBuffer", "ExecutionBarrier"),
        *("AdviseBuffer", "Dispatch", "DispatchIndirect", "EndDebugGroup"),
    ]
    fill, update, copy = commands.commands[1:4]
    dispatch, indirect = commands.commands[6:8]
    assert (fill.pattern, fill.target.length) == (b"\x01\x02", 8)
    assert (update.data, update.target.offset) == (b"abcd", 8)
    assert (copy.target.buffer, copy.target.slot, copy.target.offset) == (None, 1, 16)
    assert dispatch.workgroup_count == (2, 3, 4)
    assert dispatch.constants == (0xFFFFFFFF, 5)
    assert (indirect.workgroups.offset, indirect.workgroups.length) == (4, 12)
    assert indirect.bindings[1].slot == 1


@pytest.mark.parametrize("length", [0, -1, 9, 1 << 20])
def test_fill_pattern_of_impossible_length_is_refused(hal, device, length):
    buffer = allocate(hal, device)
    with pytest.raises(InvalidArgumentError):
        hal("command_buffer.fill_buffer", new_commands(hal, device), buffer, 0, 8, 0, 1, length, 0)
    with pytest.raises(InvalidArgumentError):
        hal("device.queue.fill", device, -1, None, None, buffer, 0, 8, 1, length, 0)


def test_update_buffer_outside_of_its_source_is_refused(hal, device):
    with pytest.raises(InvalidArgumentError, match="source_buffer"):
        hal(
            "command_buffer.update_buffer",
            *(new_commands(hal, device), VmBuffer(b"abc"), 1, allocate(hal, device), 0, 4, 0, 0),
        )


def test_dispatch_unknown_function_or_flags_are_refused(hal, device):
    commands, executable = new_commands(hal, device), load_executable(hal, device)
    binding = (0, 0, allocate(hal, device), 0, 4)
    with pytest.raises(InvalidArgumentError):
        hal("command_buffer.dispatch", commands, executable, 7, 1, 1, 1, 0, [1, 2], [binding])
    with pytest.raises(InvalidArgumentError, match="dispatch flags"):
        hal("command_buffer.dispatch", commands, executable, 0, 1, 1, 1, 1 << 40, [1, 2], [binding])
    with pytest.raises(InvalidArgumentError, match="bindings"):
        hal("command_buffer.dispatch", commands, executable, 0, 1, 1, 1, 0, [1, 2], [(0, 0, 5, 0, 4)])


# -- queues ----------------------------------------------------------------------------------------------


def test_queue_operations_follow_their_fences(hal, device):
    done = hal("fence.create", device, 0)
    buffer = hal("device.queue.alloca", device, -1, None, done, 0, LOCAL, USAGE, 16, 0)
    assert hal("fence.await", -1, 0, [done]) == 0
    start, filled = hal("fence.create", device, 0), hal("fence.create", device, 0)
    hal("device.queue.fill", device, -1, start, filled, buffer, 0, 16, 0x41, 1, 0)
    assert hal("fence.query", filled) == StatusCode.DEFERRED
    hal("fence.signal", start)
    assert hal("fence.query", filled) == StatusCode.OK
    hal("device.queue.update", device, -1, filled, None, VmBuffer(b"xyz"), 1, buffer, 4, 2, 0)
    other = allocate(hal, device, 16)
    hal("device.queue.copy", device, -1, None, None, buffer, 0, other, 0, 16, 0)
    assert other.read() == b"AAAAyzAAAAAAAAAA"
    source = hal("ex.file.from_memory", device, -1, 1, VmBuffer(b"0123456789"), 2, 8, 0)
    hal("device.queue.read", device, -1, None, None, source, 1, other, 0, 4, 0)
    assert other.read(0, 5) == b"3456y"
    memory = bytearray(8)
    target = File.from_memory(memory, access=MemoryAccess.ALL)
    hal("device.queue.write", device, -1, None, None, other, 0, target, 2, 4, 0)
    assert bytes(memory) == b"\0\x003456\0\0"
    hal("device.queue.flush", device, -1)
    hal("device.queue.dealloca", device, -1, None, None, buffer, 0)
    with pytest.raises(ClosedError):
        buffer.read()


def test_queue_execute_runs_and_binds(hal, device):
    commands = new_commands(hal, device, 1)
    hal("command_buffer.fill_buffer", commands, None, 0, 8, 0, 7, 1, 0)
    hal("command_buffer.finalize", commands)
    buffer = allocate(hal, device)
    done = hal("fence.create", device, 0)
    hal("device.queue.execute.indirect", device, -1, None, done, commands, 0, [(buffer, 8, 16)])
    assert hal("fence.await", 1000, 0, [done]) == 0
    assert buffer.read(8, 8) == b"\7" * 8
    direct = new_commands(hal, device)
    hal("command_buffer.fill_buffer", direct, buffer, 0, 4, 0, 9, 4, 0)
    hal("command_buffer.finalize", direct)
    hal("device.queue.execute", device, -1, None, None, direct, 0)
    assert buffer.read(0, 4) == b"\x09\0\0\0"


def test_queue_barrier_passes_failures_on(hal, device):
    first, second = hal("fence.create", device, 0), hal("fence.create", device, 0)
    hal("device.queue.barrier", device, -1, first, second, 0)
    hal("fence.fail", first, int(StatusCode.DATA_LOSS))
    assert hal("fence.query", second) == StatusCode.DATA_LOSS
    with pytest.raises(ProgramError) as caught:
        hal("fence.await", -1, 0, [second])
    assert caught.value.status is StatusCode.DATA_LOSS


def test_queue_alloca_from_a_pool_is_refused(hal, device):
    with pytest.raises(UnsupportedFeatureError, match="pool 3"):
        hal("device.queue.alloca", device, -1, None, None, 3, LOCAL, USAGE, 16, 0)


def test_queue_wrong_fence_is_refused(hal, device):
    with pytest.raises(InvalidArgumentError, match="wait_fence must be a Fence"):
        hal("device.queue.barrier", device, -1, device, None, 0)


def test_ex_file_from_memory_is_read_only_and_bounded(hal, device):
    with pytest.raises(InvalidArgumentError, match="to read"):
        hal("ex.file.from_memory", device, -1, 3, VmBuffer(bytearray(4), mutable=True), 0, 4, 0)
    with pytest.raises(InvalidArgumentError, match="buffer"):
        hal("ex.file.from_memory", device, -1, 1, VmBuffer(b"1234"), 2, 4, 0)


# -- fences ----------------------------------------------------------------------------------------------


def test_fence_await_times_out_with_a_status(hal, device):
    fence = hal("fence.create", device, 0)
    begin = time.monotonic()
    assert hal("fence.await", 20, 0, [fence]) == StatusCode.DEADLINE_EXCEEDED
    assert 0.015 < time.monotonic() - begin < 5
    assert hal("fence.await", 0, 0, [fence]) == StatusCode.DEADLINE_EXCEEDED


def test_fence_await_wakes_up_when_signalled_elsewhere(hal, device):
    fence = hal("fence.create", device, 0)
    timer = threading.Timer(0.02, hal, ("fence.signal", fence))
    timer.start()
    assert hal("fence.await", -1, 0, [None, fence]) == 0
    timer.join()


def test_fence_await_of_what_nobody_signals_ends_with_the_calls_time(hal, device):
    watch = Watch()
    hal.module.bound_state(hal.state, watch)
    fence = hal("fence.create", device, 0)
    watch.start(20_000_000)
    with pytest.raises(DeadlineExceededError, match="limit of 20000000 ns"):
        hal("fence.await", -1, 0, [fence])
    # What is reached counts, however late.
    hal("fence.signal", fence)
    assert hal("fence.await", -1, 0, [fence]) == 0


def test_fence_await_ends_when_the_call_is_interrupted(hal, device):
    watch = Watch()
    hal.module.bound_state(hal.state, watch)
    watch.start(None)
    timer = threading.Timer(0.02, watch.interrupt)
    timer.start()
    with pytest.raises(ProgramError, match="interrupted"):
        hal("fence.await", -1, 0, [hal("fence.create", device, 0)])
    timer.join()


def test_fence_join_waits_for_all(hal, device):
    fences = [hal("fence.create", device, 0) for _ in range(3)]
    joined = hal("fence.join", 0, [*fences, None])
    for fence in fences:
        assert hal("fence.query", joined) == StatusCode.DEFERRED
        hal("fence.signal", fence)
    assert hal("fence.query", joined) == StatusCode.OK
    assert hal("fence.join", 0, [None, Fence()]) is None
    assert hal("fence.await", -1, 0, []) == 0


@pytest.mark.parametrize(("code", "status"), [(13, 13), (13 | 0x100, 13), (0, 2), (31, 2)])
def test_fence_fail_carries_the_programs_status(hal, device, code, status):
    fence = hal("fence.create", device, 0)
    hal("fence.fail", fence, code)
    assert hal("fence.query", fence) == status


def test_closed_device_is_refused_everywhere(hal, device):
    commands = new_commands(hal, device)
    hal("command_buffer.finalize", commands)
    device.close()
    for name, arguments in {
        "command_buffer.create": (device, 0, 3, -1, 0),
        "executable.create": (device, -1, text("null"), VmBuffer(b""), None),
        "device.queue.execute": (device, -1, None, None, commands, 0),
        "fence.create": (device, 0),
    }.items():
        with pytest.raises(ClosedError):
            hal(name, *arguments)
