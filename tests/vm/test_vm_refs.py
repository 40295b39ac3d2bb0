"""Buffers and lists by themselves."""

from __future__ import annotations

import array

import pytest

from sylvite.errors import InvalidArgumentError, OutOfMemoryError, ProgramError, StatusCode
from sylvite.vm import VmBuffer, VmList
from sylvite.vm.operations import OPERATIONS, hash_bytes
from sylvite.vm.refs import HostHeap, convert


def test_buffer_wraps_without_copying():
    data = bytearray(b"abc")
    buffer = VmBuffer(data, mutable=True)
    data[0] = 0x7A
    assert bytes(buffer) == b"zbc"
    buffer.data[1] = 0x79
    assert data == b"zyc"
    assert len(buffer) == 3


def test_buffer_views_typed_memory_as_bytes():
    assert len(VmBuffer(array.array("i", [1, 2, 3]))) == 12


def test_immutable_buffer_gives_a_read_only_view():
    buffer = VmBuffer(bytearray(b"abc"))
    assert buffer.data.readonly
    assert repr(buffer) == "<VmBuffer of 3 bytes>"


@pytest.mark.parametrize("data", [5, None, memoryview(b"abcd")[::2]])
def test_buffer_of_no_contiguous_bytes_is_refused(data):
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        VmBuffer(data)


def test_mutable_buffer_of_read_only_bytes_is_refused():
    with pytest.raises(InvalidArgumentError, match="writable"):
        VmBuffer(b"abc", mutable=True)


def test_text_round_trip():
    assert VmBuffer.from_text("grün").text() == "grün"
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        VmBuffer(b"\xff").text()


def test_heap_counts_buffers_and_lists():
    heap = HostHeap(100)
    buffer = VmBuffer.allocate(60, heap=heap)
    assert heap.live_bytes == 60
    with pytest.raises(OutOfMemoryError) as caught:
        VmBuffer.allocate(41, heap=heap)
    assert (caught.value.requested_bytes, caught.value.limit_bytes) == (41, 100)
    numbers = VmList("i32", heap=heap)
    numbers.resize(5)
    assert heap.live_bytes == 100
    numbers.resize(2)
    assert heap.live_bytes == 76
    del buffer, numbers
    assert heap.live_bytes == 0


def test_allocation_beyond_the_machine_is_out_of_memory():
    heap = HostHeap(1 << 70)
    with pytest.raises(OutOfMemoryError, match="no memory"):
        VmBuffer.allocate(1 << 62, heap=heap)
    with pytest.raises(OutOfMemoryError):
        VmBuffer.allocate(1 << 65, heap=heap)
    assert heap.live_bytes == 0


def test_list_of_anything_keeps_what_it_is_given():
    items = VmList()
    thing = object()
    items.append(7, "i32")
    items.append(thing)
    items.append(None)
    assert list(items) == [7, thing, None]
    assert items.get_number(0, "i64") == 7
    assert items.get_reference(1, move=True) is thing
    assert items.get_reference(1) is None
    assert items.get_reference(2) is None
    assert repr(items) == "<VmList of 3 ?>"


@pytest.mark.parametrize(
    ("element", "action"),
    [
        ("?", lambda items: items.get_number(0, "i32")),
        ("!vm.buffer", lambda items: items.get_number(0, "i32")),
        ("!vm.buffer", lambda items: items.set_number(0, 5, "i32")),
        ("i32", lambda items: items.get_reference(0)),
        ("i32", lambda items: items.set_reference(0, None)),
    ],
)
def test_element_of_the_other_kind_is_a_failed_precondition(element, action):
    items = VmList(element)
    items.resize(1)
    with pytest.raises(ProgramError) as caught:
        action(items)
    assert caught.value.status is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("index", [-1, 1, 2**40])
def test_list_index_out_of_bounds_is_out_of_range(index):
    items = VmList("i32")
    items.resize(1)
    with pytest.raises(ProgramError, match="out of bounds of 1") as caught:
        items.get_number(index, "i32")
    assert caught.value.status is StatusCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (300, "i32", "i8", 44),
        (200, "i32", "i8", -56),
        (-1, "i8", "i64", -1),
        (2**40 + 7, "i64", "i32", 7),
        (1 / 3, "f64", "f32", 0.3333333432674408),
        (1.5, "f32", "i32", 0),
        (3, "i32", "f64", 0.0),
    ],
)
def test_list_conversion_is_that_of_iree(value, source, target, expected):
    assert convert(value, source, target) == expected


def test_hash_is_siphash_2_4():
    """Values of the reference implementation for the key 00..0f and messages 00 01 02 ..."""
    for length, expected in ((0, 0x726FDB47DD0E0E31), (1, 0x74F839C593DC67FD), (15, 0xA129CA6149BE45E5)):
        found = hash_bytes(memoryview(bytes(range(length))), lambda: None)
        assert found % 2**64 == expected


def test_large_fill_and_copy_cross_chunks():
    buffer = VmBuffer.allocate(5 << 20)
    OPERATIONS["fill_i32"](buffer, 1, (5 << 18) - 2, 0x01020304)
    assert OPERATIONS["load_i32"](buffer, 0) == 0
    assert OPERATIONS["load_i32"](buffer, 1) == 0x01020304
    assert OPERATIONS["load_i32"](buffer, (5 << 18) - 2) == 0x01020304
    assert OPERATIONS["load_i32"](buffer, (5 << 18) - 1) == 0
    OPERATIONS["buffer_copy"](buffer, 4, buffer, 0, (5 << 20) - 4)
    assert OPERATIONS["load_i32"](buffer, 0) == 0x01020304


@pytest.mark.parametrize("thing", [None, 5, VmList()])
def test_operation_on_something_else_is_an_invalid_argument(thing):
    for call in (
        lambda: OPERATIONS["buffer_length"](thing),
        lambda: OPERATIONS["load_i8"](thing, 0),
        lambda: OPERATIONS["store_i8"](thing, 0, 1),
        lambda: OPERATIONS["fill_i8"](thing, 0, 1, 1),
        lambda: OPERATIONS["list_size"](VmBuffer(b"") if thing.__class__ is VmList else thing),
    ):
        with pytest.raises(ProgramError, match="null or of another type") as caught:
            call()
        assert caught.value.status is StatusCode.INVALID_ARGUMENT
