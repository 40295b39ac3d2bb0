"""Buffer views: shapes, dtypes, numpy and DLPack."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import drivers
from sylvite.errors import ClosedError, InvalidArgumentError
from sylvite.hal import BufferView, EncodingType, MemoryAccess, element_type_from_name

F32 = element_type_from_name("f32")


@pytest.fixture
def device():
    with drivers.create_device("null") as device:
        yield device


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(20, dtype=np.float64)[::-3],
        np.asfortranarray(np.arange(6, dtype=np.complex64).reshape(2, 3)),
        np.array([True, False, True]),
        np.float32(3.5),
        np.zeros((0, 4), np.uint8),
        np.broadcast_to(np.int64(7), (2, 2)),
    ],
    ids=lambda array: f"{array.dtype}{np.shape(array)}",
)
def test_buffer_view_from_numpy_holds_the_array(device, array):
    view = BufferView.from_numpy(device.allocator, array)
    result = view.numpy()
    assert result.dtype == np.asarray(array).dtype
    assert result.shape == view.shape == np.shape(array)
    np.testing.assert_array_equal(result, array)
    assert device.tracer.counters.bytes_copied == np.asarray(array).nbytes


def test_buffer_view_numpy_is_the_buffer(device):
    view = BufferView.from_numpy(device.allocator, np.zeros((2, 2), np.float32))
    view.numpy()[1, 1] = 5
    assert view.buffer.read(12, 4) == np.float32(5).tobytes()
    assert np.shares_memory(view.numpy(), np.asarray(view))


def test_buffer_view_survives_close_of_its_buffer_and_device(device):
    buffer = device.allocator.allocate(16)
    view = BufferView(buffer, (4,), F32)
    view.numpy()[:] = [1, 2, 3, 4]
    buffer.close()
    array = view.numpy()
    device.close()
    del view, buffer
    np.testing.assert_array_equal(array, [1, 2, 3, 4])


def test_buffer_view_of_closed_buffer_is_refused(device):
    buffer = device.allocator.allocate(16)
    buffer.close()
    with pytest.raises(ClosedError):
        BufferView(buffer, (4,), F32)


@pytest.mark.parametrize(("shape", "message"), [((5,), "takes 20 bytes"), ((2, -1), "negative extent")])
def test_buffer_view_that_does_not_fit_is_refused(device, shape, message):
    with pytest.raises(InvalidArgumentError, match=message):
        BufferView(device.allocator.allocate(16), shape, F32)


def test_buffer_view_smaller_than_its_buffer_shows_its_part(device):
    buffer = device.allocator.allocate(64)
    buffer.fill(np.float32(2).tobytes())
    view = BufferView(buffer, (3,), F32)
    assert view.byte_length == 12
    np.testing.assert_array_equal(view.numpy(), [2, 2, 2])


def test_buffer_view_reshape_keeps_elements(device):
    view = BufferView.from_numpy(device.allocator, np.arange(6, dtype=np.int32))
    assert np.array_equal(view.reshape((2, 3)).numpy(), [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(InvalidArgumentError, match="cannot be reshaped"):
        view.reshape((4,))


def test_buffer_view_with_wrong_dtype_is_refused(device):
    with pytest.raises(InvalidArgumentError, match="dtype float64"):
        BufferView.from_numpy(device.allocator, np.zeros(2), element_type=F32)
    signed = BufferView.from_numpy(
        device.allocator, np.zeros(2, np.int32), element_type=element_type_from_name("si32")
    )
    assert signed.element_type.name == "si32"


def test_buffer_view_opaque_encoding_has_no_array(device):
    view = BufferView(device.allocator.allocate(4), (1,), F32, EncodingType.OPAQUE)
    with pytest.raises(InvalidArgumentError, match="opaque encoding"):
        view.numpy()


def test_buffer_view_read_only_buffer_gives_read_only_array(device):
    view = BufferView(device.allocator.allocate(4, access=MemoryAccess.READ), (1,), F32)
    with pytest.raises(ValueError, match="read-only"):
        view.numpy()[0] = 1


def test_buffer_view_dlpack_shares_memory_with_numpy(device):
    view = BufferView.from_numpy(device.allocator, np.arange(6, dtype=np.float32).reshape(2, 3))
    other = np.from_dlpack(view)
    assert np.shares_memory(other, view.numpy())
    del view
    np.testing.assert_array_equal(other, [[0, 1, 2], [3, 4, 5]])


def test_buffer_view_from_dlpack_takes_another_librarys_tensor(device):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return (1, 0)

    source = np.arange(12, dtype=np.int64).reshape(3, 4).T
    view = BufferView.from_dlpack(device.allocator, Foreign(source))
    np.testing.assert_array_equal(view.numpy(), source)
    assert BufferView.from_dlpack(device.allocator, view) is view
    with pytest.raises(InvalidArgumentError, match="DLPack"):
        BufferView.from_dlpack(device.allocator, object())


def test_buffer_view_array_protocol_converts_on_demand(device):
    view = BufferView.from_numpy(device.allocator, np.arange(3, dtype=np.float32))
    assert np.asarray(view, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(view, copy=True), view.numpy())
    np.testing.assert_array_equal(np.add(view, 1), [1, 2, 3])


@pytest.mark.parametrize(("name", "expected"), [("i4", [-1, 7, -8]), ("ui4", [15, 7, 8])])
def test_buffer_view_packed_elements_unpack_low_bits_first(device, name, expected):
    buffer = device.allocator.allocate(2)
    buffer.write(0, b"\x7f\xf8")
    view = BufferView(buffer, (3,), element_type_from_name(name))
    with pytest.raises(InvalidArgumentError, match="unpack"):
        view.numpy()
    np.testing.assert_array_equal(view.unpack(), expected)
    with pytest.raises(InvalidArgumentError, match="unpacked"):
        BufferView(buffer, (1,), element_type_from_name("i8")).unpack()


def test_buffer_view_bf16_is_named_clearly(device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    view = BufferView.from_numpy(device.allocator, array)
    assert repr(view) == "<BufferView 2xbf16>"
    assert view.numpy().dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(view.numpy().astype(np.float32), [1.5, -2])
