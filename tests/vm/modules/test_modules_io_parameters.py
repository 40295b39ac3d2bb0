import struct

import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import FormatError, InvalidArgumentError, NotFoundError, SylviteError
from sylvite.hal import BufferUsage, MemoryType
from sylvite.vm.modules import IoParametersModule
from sylvite.vm.parameters import (
    ParameterIndex,
    ParameterProvider,
    Splat,
    index_arrays,
    open_parameters,
    open_providers,
    write_archive,
)
from sylvite.vm.refs import VmBuffer

LOCAL = int(MemoryType.DEVICE_LOCAL)
USAGE = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)
WEIGHT = np.arange(8, dtype=np.float32)


@pytest.fixture
def device():
    with drivers.create_device("null") as device:
        yield device


@pytest.fixture
def path(tmp_path):
    parameters = {
        "weight": WEIGHT,
        "bytes": bytes(range(16)),
        "s4": (32, Splat(pattern=b"abcd")),
        "s16": (3 << 20, Splat(pattern=bytes(range(16)))),
    }
    return write_archive(tmp_path / "w.irpa", parameters)


@pytest.fixture
def module(path):
    with ParameterProvider("model", open_parameters(path, writable=True)) as provider:
        yield IoParametersModule([provider])


def tables(*requests):
    """The three tables of a call for (key, parameter offset, buffer offset, length)."""
    keys = [request[0].encode() for request in requests]
    table, data = b"", b""
    for key in keys:
        table += struct.pack("<II", len(data), len(key))
        data += key
    spans = b"".join(struct.pack("<QQQ", *request[1:]) for request in requests)
    return VmBuffer(table), VmBuffer(data), VmBuffer(spans)


def call(module, name, *arguments):
    return module.functions[name].call(module.create_state(), *arguments)


def load(module, device, *requests, wait=None, signal=None, scope="model"):
    scope = None if scope is None else VmBuffer.from_text(scope)
    found = call(module, "load", device, -1, wait, signal, scope, -1, LOCAL, USAGE, *tables(*requests))
    return list(found)


def test_load_copies_each_parameter_once(module, device):
    counters = device.tracer.counters
    before = counters.bytes_copied
    done = device.create_fence()
    weight, part = load(module, device, ("weight", 0, 0, 32), ("bytes", 4, 0, 8), signal=done)
    done.wait(0)
    assert counters.bytes_copied - before == 40
    assert weight.read() == WEIGHT.tobytes()
    assert part.read() == bytes(range(4, 12))


def test_load_waits_for_its_fence(module, device):
    wait, done = device.create_fence(), device.create_fence()
    (buffer,) = load(module, device, ("weight", 0, 0, 32), wait=wait, signal=done)
    assert not done.query()
    wait.signal()
    assert done.query()
    assert buffer.read() == WEIGHT.tobytes()


def test_load_failed_wait_fails_the_signal(module, device):
    wait, done = device.create_fence(), device.create_fence()
    load(module, device, ("weight", 0, 0, 32), wait=wait, signal=done)
    wait.fail(NotFoundError("gone"))
    with pytest.raises(NotFoundError, match="gone"):
        done.query()


def test_load_of_nothing_still_signals(module, device):
    done = device.create_fence()
    assert load(module, device, signal=done) == []
    assert done.query()


def test_load_splats_of_any_pattern_and_phase(module, device):
    whole, turned, odd, wide = load(
        module,
        device,
        ("s4", 0, 0, 32),
        ("s4", 2, 0, 8),
        ("s4", 1, 0, 5),
        ("s16", 8, 0, (2 << 20) + 24),
    )
    assert whole.read() == b"abcd" * 8
    assert turned.read() == b"cdabcdab"
    assert odd.read() == b"bcdab"
    data = wide.read()
    assert data == (bytes(range(8, 16)) + bytes(range(8))) * (len(data) // 16) + bytes(range(8, 16))


def test_gather_fills_places_of_one_buffer(module, device):
    target = device.allocator.allocate(64)
    target.write(0, b"." * 64)
    done = device.create_fence()
    scope = VmBuffer.from_text("model")
    requests = (("bytes", 0, 8, 4), ("s4", 0, 21, 6), ("weight", 4, 32, 8))
    call(module, "gather", device, -1, None, done, scope, target, *tables(*requests))
    done.wait(0)
    data = target.read()
    assert data[:32] == b"." * 8 + bytes(range(4)) + b"." * 9 + b"abcdab" + b"." * 5
    assert data[32:40] == WEIGHT[1:3].tobytes()


def test_gather_outside_of_the_buffer_is_refused(module, device):
    target = device.allocator.allocate(16)
    done = device.create_fence()
    with pytest.raises(InvalidArgumentError):
        call(
            module,
            "gather",
            *(device, -1, None, done, VmBuffer.from_text("model"), target, *tables(("bytes", 0, 8, 12))),
        )
    with pytest.raises(InvalidArgumentError):
        done.query()


def test_scatter_writes_the_file(module, device, path):
    source = device.allocator.allocate(16)
    source.write(0, b"ABCDEFGHIJKLMNOP")
    scope = VmBuffer.from_text("model")
    requests = (("bytes", 2, 4, 3), ("weight", 0, 8, 8))
    call(module, "scatter", device, -1, None, None, source, scope, *tables(*requests))
    module._providers["model"].index.flush()
    with open_parameters(path) as index:
        assert index["bytes"].read() == b"\0\1EFG" + bytes(range(5, 16))
        assert index["weight"].read() == b"IJKLMNOP" + WEIGHT.tobytes()[8:]


def test_scatter_to_splat_or_read_only_file_is_refused(module, device, path):
    source = device.allocator.allocate(16)
    scope = VmBuffer.from_text("model")
    with pytest.raises(InvalidArgumentError, match="'s4' of scope 'model' cannot be written"):
        call(module, "scatter", device, -1, None, None, source, scope, *tables(("s4", 0, 0, 4)))
    with ParameterProvider("model", open_parameters(path)) as provider:
        module = IoParametersModule([provider])
        with pytest.raises(InvalidArgumentError, match="cannot be written"):
            call(module, "scatter", device, -1, None, None, source, scope, *tables(("bytes", 0, 0, 4)))


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (("wieght", 0, 0, 32), NotFoundError, r"'wieght' in scope 'model' .*closest: 'weight'"),
        (("weight", 0, 0, 64), InvalidArgumentError, "wants 64 bytes .*'weight', which has 32 bytes"),
        (("weight", 8, 0, 32), InvalidArgumentError, "wants 32 bytes at offset 8"),
        (("weight", 0, 4, 32), InvalidArgumentError, "read target"),
        (("weight", 1 << 63, 0, 32), InvalidArgumentError, "span 0"),
    ],
)
def test_load_bad_request_raises_and_fails_the_signal(module, device, request_, error, text):
    done = device.create_fence()
    with pytest.raises(error, match=text):
        load(module, device, request_, signal=done)
    with pytest.raises(error, match=text):
        done.query()


def test_load_unknown_scope_says_which_there_are(module, device):
    with pytest.raises(NotFoundError, match="scope 'other'; scopes given: 'model'"):
        load(module, device, ("weight", 0, 0, 32), scope="other")
    with pytest.raises(NotFoundError, match="scope ''; scopes given: none"):
        load(IoParametersModule([]), device, ("weight", 0, 0, 32), scope=None)


@pytest.mark.parametrize(
    ("table", "data", "spans", "text"),
    [
        (b"", b"", bytes(24), "does not go with"),
        (bytes(8), b"", bytes(23), "does not go with"),
        (struct.pack("<II", 1, 1), b"k", bytes(24), "key 0 spans bytes 1 to 2 of 1"),
        (struct.pack("<II", 0xFFFFFFFF, 2), b"k", bytes(24), "key 0 spans"),
        (struct.pack("<II", 0, 1), b"\xff", bytes(24), "key 0 is not UTF-8"),
    ],
)
def test_load_malformed_tables_are_refused(module, device, table, data, spans, text):
    scope = VmBuffer.from_text("model")
    buffers = (VmBuffer(table), VmBuffer(data), VmBuffer(spans))
    with pytest.raises(InvalidArgumentError, match=text):
        call(module, "load", device, -1, None, None, scope, -1, LOCAL, USAGE, *buffers)


def test_module_two_providers_of_one_scope_are_refused():
    with pytest.raises(InvalidArgumentError, match="two providers"):
        IoParametersModule(
            [ParameterProvider("a", ParameterIndex()), ParameterProvider("a", ParameterIndex())]
        )


def test_arrays_of_this_process_are_parameters(device):
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "t": np.arange(4).reshape(2, 2).T}
    with ParameterProvider("", index_arrays(arrays)) as provider:
        module = IoParametersModule([provider])
        a, t = load(module, device, ("a", 0, 0, 12), ("t", 0, 0, 32), scope=None)
        assert a.read() == arrays["a"].tobytes()
        assert t.read() == arrays["t"].tobytes()
        source = device.allocator.allocate(2)
        source.write(0, b"\x07\x01")
        call(module, "scatter", device, -1, None, None, source, None, *tables(("a", 0, 0, 2)))
        np.testing.assert_array_equal(provider.index["t"].array(), arrays["t"])
        with pytest.raises(InvalidArgumentError, match=r"'t' .*cannot be written"):
            call(module, "scatter", device, -1, None, None, source, None, *tables(("t", 0, 0, 2)))
    assert arrays["a"][0, 0] == 0x107
    with pytest.raises(InvalidArgumentError, match="element type"):
        index_arrays({"b": np.arange(3, dtype=">i4")})


def test_open_providers_joins_files_of_one_scope(tmp_path, path):
    other = write_archive(tmp_path / "o.irpa", {"other": b"1"})
    providers = open_providers([f"model={path}", f"model={other}", other])
    assert [provider.scope for provider in providers] == ["model", ""]
    assert {"weight", "other"} <= set(providers[0].index)
    for provider in providers:
        provider.close()
        provider.close()
    with pytest.raises(FormatError, match="twice"):
        open_providers([path, path])
    with pytest.raises(SylviteError):
        open_providers([path, tmp_path / "missing.irpa"])


def test_loaded_buffers_outlive_the_files(device, path):
    with ParameterProvider("", open_parameters(path)) as provider:
        (buffer,) = load(IoParametersModule([provider]), device, ("weight", 0, 0, 32), scope=None)
    assert buffer.read() == WEIGHT.tobytes()


def test_load_deferred_past_the_end_of_the_file_still_reads_it(device, path):
    wait, done = device.create_fence(), device.create_fence()
    with ParameterProvider("", open_parameters(path)) as provider:
        module = IoParametersModule([provider])
        (buffer,) = load(module, device, ("weight", 0, 0, 32), wait=wait, signal=done, scope=None)
    wait.signal()
    done.wait(0)
    assert buffer.read() == WEIGHT.tobytes()
