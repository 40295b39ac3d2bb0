"""Executables of the local device, made by hand: what kernels may do, and libraries that lie."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from sylvite import drivers
from sylvite.abi import structs
from sylvite.engines.base import Limits, ValueType
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    FormatError,
    InvalidArgumentError,
    KernelError,
    LinkError,
    TrapError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from sylvite.hal import BufferRef

FORMAT = "system-wasm-wasm_32"
ENVIRONMENT, STATE, WORKGROUP = range(3)
MS = 1_000_000


def kernel(name, body, **attributes):
    return {"name": name, "body": body, "attributes": attributes}


def load_pointer(function, argument, member, layout):
    """Push the word at ``member`` of the struct that an argument points to."""
    return function.get(argument).emit("i32.load", offset=layout.offsets[member])


def store_binding_word(push, index=0):
    """A kernel that stores what ``push`` pushes to word ``index`` of its first binding."""

    def body(function):
        load_pointer(function, STATE, "binding_ptrs", structs.DISPATCH_STATE).emit("i32.load")
        push(function)
        function.emit("i32.store", offset=4 * index)
        function.i32(0)

    return body


def returns(code):
    return lambda function: function.i32(code)


def forever(function):
    with function.loop() as again:
        function.br(again)


def trap(function):
    function.emit("unreachable")


def words(buffer):
    return buffer.view().view(np.uint32)


def test_kernel_sees_the_dispatch_state_it_was_promised(device, load, run, build_executable):
    layout = structs.DISPATCH_STATE
    loads = {
        "workgroup_size_x": "i32.load",
        "workgroup_size_y": "i32.load",
        "workgroup_size_z": "i32.load16_u",
        "constant_count": "i32.load16_u",
        "workgroup_count_x": "i32.load",
        "workgroup_count_y": "i32.load",
        "workgroup_count_z": "i32.load16_u",
        "max_concurrency": "i32.load8_u",
        "binding_count": "i32.load8_u",
    }

    def body(function):
        for index, (member, instruction) in enumerate(loads.items()):
            load_pointer(function, STATE, "binding_ptrs", layout).emit("i32.load")
            function.get(STATE).emit(instruction, offset=layout.offsets[member])
            function.emit("i32.store", offset=4 * index)
        for index in range(2):
            load_pointer(function, STATE, "binding_ptrs", layout).emit("i32.load")
            load_pointer(function, STATE, "binding_lengths", layout).emit("i32.load", offset=4 * index)
            function.emit("i32.store", offset=4 * (len(loads) + index))
        load_pointer(function, STATE, "binding_ptrs", layout).emit("i32.load")
        load_pointer(function, STATE, "constants", layout).emit("i32.load", offset=8)
        function.emit("i32.store", offset=4 * (len(loads) + 2))
        function.i32(0)

    attributes = {
        "constant_count": 3,
        "binding_count": 2,
        "workgroup_size_x": 4,
        "workgroup_size_y": 2,
        "workgroup_size_z": 7,
    }
    executable = load(build_executable([kernel("report", body, **attributes)]))
    result, other = device.allocator.allocate(64), device.allocator.allocate(100)
    run(
        executable,
        "report",
        (6, 5, 300),
        constants=[1, 2, -3],
        bindings=[BufferRef(result), BufferRef(other, 0, 8, 17)],
    )
    expected = [4, 2, 7, 3, 6, 5, 300, 1, 2, 64, 17, 0xFFFFFFFD]
    assert words(result)[: len(expected)].tolist() == expected
    assert device.tracer.counters.engine_calls == 1
    assert device.tracer.counters.workgroups == 6 * 5 * 300


def test_kernel_gets_scratch_memory_of_its_size(device, load, run, build_executable):
    layout = structs.WORKGROUP_STATE

    def body(function):
        load_pointer(function, STATE, "binding_ptrs", structs.DISPATCH_STATE).emit("i32.load")
        load_pointer(function, WORKGROUP, "local_memory_size", layout)
        function.emit("i32.store")
        load_pointer(function, WORKGROUP, "local_memory", layout).i32(77)
        function.emit("i32.store", offset=3 * 4096 - 4)
        load_pointer(function, STATE, "binding_ptrs", structs.DISPATCH_STATE).emit("i32.load")
        load_pointer(function, WORKGROUP, "local_memory", layout)
        function.emit("i32.store", offset=4)
        function.i32(0)

    attributes = {"binding_count": 1}
    small = load(build_executable([kernel("small", returns(0), local_memory_pages=1)]))
    large = load(build_executable([kernel("large", body, local_memory_pages=3, **attributes)]))
    result = device.allocator.allocate(8)
    run(small, "small")
    run(large, "large", bindings=[BufferRef(result)])
    size, address = words(result).tolist()
    assert size == 3 * 4096
    assert device.space.heap.size_of(address) == size
    assert large.exports[0].local_memory_bytes == 3 * 4096
    heap = device.space.heap
    live = heap.statistics.live_bytes
    large.close()
    assert heap.statistics.live_bytes <= live - 2 * 4096
    run(small, "small")
    live = heap.statistics.live_bytes
    small.close()
    assert heap.statistics.live_bytes <= live - 4096


def test_executable_constants_reach_the_kernel(device, load, run, build_executable):
    def push(function):
        load_pointer(function, ENVIRONMENT, "constants", structs.ENVIRONMENT)
        function.emit("i32.load", offset=4)

    builder = build_executable([kernel("get", store_binding_word(push), binding_count=1)], constant_count=2)
    executable = load(builder, constants=[5, 1234])
    result = device.allocator.allocate(4)
    run(executable, "get", bindings=[BufferRef(result)])
    assert words(result)[0] == 1234


@pytest.mark.parametrize("constants", [(), (1,), (1, 2, 3)])
def test_executable_with_another_number_of_constants_is_refused(load, build_executable, constants):
    with pytest.raises(InvalidArgumentError, match=f"takes 2 constants, not {len(constants)}"):
        load(build_executable([kernel("k", returns(0))], constant_count=2), constants=constants)


def test_executable_optional_imports_are_null(device, load, run, build_executable):
    def push(function):
        load_pointer(function, ENVIRONMENT, "import_funcs", structs.ENVIRONMENT)
        function.emit("i32.load", offset=4)

    builder = build_executable(
        [kernel("get", store_binding_word(push), binding_count=1)], imports=["?first", "?second"]
    )
    result = device.allocator.allocate(4)
    result.fill(b"\xff")
    run(load(builder), "get", bindings=[BufferRef(result)])
    assert words(result)[0] == 0


def test_executable_imports_that_do_not_exist_are_all_named(load, build_executable):
    builder = build_executable([kernel("k", returns(0))], imports=["?maybe", "one", "two"])
    with pytest.raises(LinkError, match="one, two") as caught:
        load(builder)
    assert caught.value.symbols == ("one", "two")


def test_kernel_that_returns_a_code_fails_with_its_name(device, load, run, build_executable):
    executable = load(build_executable([kernel("good", returns(0)), kernel("bad", returns(42))]))
    with pytest.raises(KernelError, match="42") as caught:
        run(executable, "bad")
    assert (caught.value.code, caught.value.kernel) == (42, "bad")
    run(executable, "good")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (trap, "unreachable"),
        (lambda f: f.i32(-4).emit("i32.load"), "memory_out_of_bounds"),
        (lambda f: f.i32(1).i32(0).emit("i32.rem_u"), "integer_divide_by_zero"),
    ],
)
def test_kernel_that_traps_fails_with_its_name_and_code(device, load, run, build_executable, body, code):
    executable = load(build_executable([kernel("good", returns(0)), kernel("bad", body)]))
    for _ in range(3):
        with pytest.raises(TrapError) as caught:
            run(executable, "bad", (3, 1, 1))
        assert (caught.value.kernel, caught.value.code) == ("bad", code)
        run(executable, "good")


def test_kernel_that_trapped_leaves_an_empty_stack(device, load, run, build_executable):
    builder = build_executable([])
    pointer = builder.module.import_global("env", "__stack_pointer", ValueType.I32, mutable=True)

    def take_and_trap(function):
        function.emit("global.get", pointer).i32(1000).emit("i32.sub").emit("global.set", pointer)
        function.emit("unreachable")

    def stack_pointer(function):
        function.emit("global.get", pointer)

    kernels = [
        kernel("bad", take_and_trap),
        kernel("get", store_binding_word(stack_pointer), binding_count=1),
    ]
    fresh = build_executable(kernels)
    fresh.module.import_global("env", "__stack_pointer", ValueType.I32, mutable=True)
    executable = load(fresh)
    result = device.allocator.allocate(4)
    for _ in range(2):
        with pytest.raises(TrapError):
            run(executable, "bad")
        assert device.space.stack.pointer.value == device.space.stack.top
        run(executable, "get", bindings=[BufferRef(result)])
        assert words(result)[0] == device.space.stack.top


def test_kernel_without_end_is_stopped_at_the_deadline(build_executable, run):
    limits = Limits(deadline_ns=100 * MS)
    with drivers.create_device("local-sync", limits=limits) as device:
        kernels = [kernel("forever", forever_and_zero), kernel("good", returns(0))]
        executable = device.create_executable(format=FORMAT, data=build_executable(kernels).build())
        other = device.create_fence()
        begin = time.monotonic()
        with pytest.raises(DeadlineExceededError) as caught:
            run(executable, "forever", on=device)
        assert 0.05 < time.monotonic() - begin < 5
        assert caught.value.kernel == "forever"
        device.queue_barrier(signal=other)
        assert other.query()
        run(executable, "good", on=device)


def forever_and_zero(function):
    forever(function)
    function.i32(0)


def test_deadline_is_for_the_submission_not_for_each_dispatch(build_executable):
    def spin(function):
        count = function.local(ValueType.I32)
        with function.loop() as again:
            function.get(count).i32(1).emit("i32.add").tee(count).i32(100_000_000).emit("i32.lt_u")
            function.br_if(again)
        function.i32(0)

    with drivers.create_device("local-sync", limits=Limits(deadline_ns=250 * MS)) as device:
        executable = device.create_executable(
            format=FORMAT, data=build_executable([kernel("spin", spin)]).build()
        )
        command_buffer = device.create_command_buffer()
        for _ in range(100):
            command_buffer.dispatch(executable, 0, (1, 1, 1))
        command_buffer.finalize()
        fence = device.create_fence()
        begin = time.monotonic()
        device.queue_execute(command_buffer=command_buffer, signal=fence)
        with pytest.raises(DeadlineExceededError, match="spin"):
            fence.wait(0)
        assert time.monotonic() - begin < 5


def test_dispatches_and_transfers_are_spans_when_somebody_listens(device, load, build_executable):
    executable = load(build_executable([kernel("named", returns(0))]))
    buffer = device.allocator.allocate(8)
    command_buffer = device.create_command_buffer()
    command_buffer.fill_buffer(BufferRef(buffer), b"x")
    command_buffer.dispatch(executable, 0, (2, 1, 1))
    command_buffer.finalize()
    spans = []
    with device.tracer.listen(spans.append):
        device.queue_execute(command_buffer=command_buffer)
    device.queue_execute(command_buffer=command_buffer)
    assert [(span.name, span.category) for span in spans] == [("fill", "transfer"), ("named", "dispatch")]
    assert all(span.duration_ns > 0 for span in spans)


def test_executables_share_one_memory_without_copies(device, load, run, build_executable):
    def increment(function):
        for _ in range(2):
            load_pointer(function, STATE, "binding_ptrs", structs.DISPATCH_STATE).emit("i32.load")
        function.emit("i32.load").i32(1).emit("i32.add").emit("i32.store")
        function.i32(0)

    first = load(build_executable([kernel("add", increment, binding_count=1)]))
    second = load(build_executable([kernel("add", increment, binding_count=1)]))
    buffer = device.allocator.allocate(4)
    array = words(buffer)
    array[0] = 40
    for executable in (first, second):
        run(executable, "add", bindings=[BufferRef(buffer)])
    assert array[0] == 42
    counters = device.tracer.counters
    assert (counters.bytes_copied, counters.device_bytes_copied) == (0, 0)


def test_executable_gives_memory_and_slots_back(device, load, build_executable):
    def used():
        statistics = device.space.heap.statistics
        return statistics.live_bytes, statistics.live_count, len(device.space.modules)

    load(build_executable([kernel("k", returns(0))])).close()
    before, table = used(), device.space.table.size
    for close in (True, False) * 20:
        executable = load(build_executable([kernel("k", returns(0))]))
        if close:
            executable.close()
        del executable
    gc.collect()
    load(build_executable([])).close()
    assert used() == before
    assert device.space.table.size <= table + 2


def test_executable_of_another_device_is_refused(device, build_executable):
    with drivers.create_device("local-sync") as other:
        data = build_executable([kernel("k", returns(0), binding_count=1)]).build()
        foreign = other.create_executable(format=FORMAT, data=data)
        buffer = other.allocator.allocate(4)
        mine = device.allocator.allocate(4)
        with pytest.raises(InvalidArgumentError, match="executable belongs to another device"):
            device.create_command_buffer().dispatch(foreign, 0, (1, 1, 1), bindings=[BufferRef(mine)])
        own = device.create_executable(format=FORMAT, data=data)
        with pytest.raises(InvalidArgumentError, match="buffer belongs to another device"):
            device.create_command_buffer().dispatch(own, 0, (1, 1, 1), bindings=[BufferRef(buffer)])


def test_executable_after_its_device_is_closed_is_harmless(build_executable):
    device = drivers.create_device("local-sync")
    data = build_executable([kernel("k", returns(0))]).build()
    executable = device.create_executable(format=FORMAT, data=data)
    command_buffer = device.create_command_buffer()
    command_buffer.dispatch(executable, 0, (1, 1, 1))
    command_buffer.finalize()
    recording = device.create_command_buffer()
    recording.dispatch(executable, 0, (1, 1, 1))
    device.close()
    with pytest.raises(ClosedError):
        device.queue_execute(command_buffer=command_buffer)
    with pytest.raises(ClosedError):
        recording.finalize()
    executable.close()
    command_buffer.close()
    del executable, command_buffer, recording, device
    gc.collect()


LIES = {
    "header": (0, "header is null"),
    "header far": ("header", 0xFFFFFFF0, "outside of guest memory"),
    "header.name": (0xFFFFFFFF, "header.name"),
    "exports.count": (0x7FFFFFFF, "exports.count is 2147483647, more than 65536"),
    "exports.ptrs": (0, "exports.ptrs is null"),
    "exports.names": (0xFFFFFFFC, "exports.names points to"),
    "exports.names[0]": (0, "exports.names\\[0\\] is null"),
    "exports.attrs": (4, "exports.attrs is not aligned"),
    "exports.attrs null": ("exports.attrs", 0, "exports.attrs is null"),
    "exports.ptrs[0]": (0, "not a table slot of this module"),
    "exports.ptrs[0] far": ("exports.ptrs[0]", 0xFFFFFFFF, "not a table slot of this module"),
    "exports.ptrs[0] next": ("exports.ptrs[0]", ("table", 2), "not a table slot of this module"),
    "exports.ptrs[0] type": ("exports.ptrs[0]", ("table", 1), "of another type"),
    "exports.attrs[0].word[2]": (65 << 24, "binding_count is 65"),
    "constants": ("exports.attrs[0].word[2]", 65 << 16, "constant_count is 65"),
    "imports.count": (0xFFFFFFFF, "imports.count"),
    "imports.symbols": ("imports.symbols", 2, "imports.symbols is not aligned"),
    "imports.symbols[0]": (0, "imports.symbols\\[0\\] is null"),
    "constants.count": (1 << 20, "constants.count"),
}


@pytest.mark.parametrize("lie", LIES)
def test_library_that_lies_is_refused_and_names_the_member(device, load, build_executable, lie):
    *member, word, message = LIES[lie]
    kernels = [
        kernel("k", returns(0)),
        {"name": "other", "body": lambda f: None, "type": ([ValueType.I64], [])},
    ]
    builder = build_executable(kernels, imports=["?optional"])
    builder.set("exports.count", 1)
    live = device.space.heap.statistics.live_count
    builder.set(member[0] if member else lie, word)
    with pytest.raises(FormatError, match=message):
        load(builder)
    assert device.space.heap.statistics.live_count == live
    assert not device.space.modules
    load(build_executable([kernel("k", returns(0))]))


def test_library_name_without_an_end_is_refused(device, load, build_executable):
    builder = build_executable([kernel("k", returns(0))])
    buffer = device.allocator.allocate(1 << 17)
    buffer.fill(b"a")
    builder.set("exports.names[0]", buffer.address)
    with pytest.raises(FormatError, match=r"exports.names\[0\] is not terminated"):
        load(builder)
    buffer.fill(b"\xff\0")
    with pytest.raises(FormatError, match=r"exports.names\[0\] is not UTF-8"):
        load(builder_with_name(build_executable, buffer.address))


def builder_with_name(build_executable, address):
    builder = build_executable([kernel("k", returns(0))])
    builder.set("exports.names[0]", address)
    return builder


@pytest.mark.parametrize(
    ("member", "word", "error"),
    [
        ("header.version", 5, UnsupportedVersionError),
        ("header.version", 7, UnsupportedVersionError),
        ("header.features", 1, UnsupportedFeatureError),
        ("header.sanitizer", 1, UnsupportedFeatureError),
    ],
)
def test_library_of_another_kind_is_refused(load, build_executable, member, word, error):
    builder = build_executable([kernel("k", returns(0))])
    builder.set(member, word)
    with pytest.raises(error, match="executable_0"):
        load(builder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query_body": returns(0)}, UnsupportedVersionError, "supports no library version"),
        ({"query_body": returns(-4)}, FormatError, "library points to"),
        ({"query_body": returns(6)}, FormatError, "library is not aligned"),
        ({"query_body": trap}, TrapError, "unreachable"),
        ({"query_name": "other"}, FormatError, "no function iree_hal_executable_library_query"),
        ({"query_type": ([], []), "query_body": lambda f: None}, FormatError, "is not of type"),
    ],
    ids=["null", "far", "unaligned", "traps", "missing", "typed otherwise"],
)
def test_query_that_misbehaves_is_refused(device, load, build_executable, change, error, message):
    builder = build_executable([kernel("k", returns(0))])
    for name, value in change.items():
        setattr(builder, name, value)
    live = device.space.heap.statistics.live_count
    with pytest.raises(error, match=message):
        load(builder)
    assert device.space.heap.statistics.live_count == live
    assert device.space.stack.pointer.value == device.space.stack.top


@pytest.mark.parametrize("data", [b"", b"\0asm", b"not wasm at all", b"\0asm\1\0\0\0"])
def test_executable_that_is_no_side_module_is_refused(device, data):
    with pytest.raises((FormatError, LinkError)):
        device.create_executable(format=FORMAT, data=data)
