"""Enumerations: IREE's numbers, and numbers that are none of them."""

from __future__ import annotations

import pytest

from sylvite import hal
from sylvite.errors import InvalidArgumentError
from sylvite.hal import BufferUsage, EncodingType, MemoryType, parse_enum, parse_flags

# Ours against the members of iree.runtime's enumerations.
PAIRS = {
    "MemoryType": ("MemoryType", ["OPTIMAL", "HOST_VISIBLE", "HOST_LOCAL", "DEVICE_VISIBLE", "DEVICE_LOCAL"]),
    "BufferUsage": (
        "BufferUsage",
        ["TRANSFER_SOURCE", "TRANSFER_TARGET", "TRANSFER", "DISPATCH_STORAGE", "MAPPING_SCOPED", "DEFAULT"],
    ),
    "MemoryAccess": ("MemoryAccess", ["READ", "WRITE", "DISCARD", "DISCARD_WRITE", "ALL"]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_enumeration_numbers_agree_with_iree_runtime(name):
    runtime = pytest.importorskip("iree.runtime")
    iree_name, members = PAIRS[name]
    theirs = getattr(runtime, iree_name)
    compared = [member for member in members if hasattr(theirs, member)]
    assert compared
    for member in compared:
        assert int(getattr(getattr(hal, name), member)) == int(getattr(theirs, member)), member


def test_parse_flags_takes_known_bits_and_refuses_others():
    assert parse_flags(BufferUsage, 0xC03, what="usage") == BufferUsage.DEFAULT
    assert parse_flags(MemoryType, 0x30, what="type") == MemoryType.DEVICE_LOCAL
    for value in (1 << 5, -1, 1 << 40):
        with pytest.raises(InvalidArgumentError, match="usage"):
            parse_flags(BufferUsage, value, what="usage")


def test_parse_enum_refuses_other_numbers():
    assert parse_enum(EncodingType, 1, what="encoding") is EncodingType.DENSE_ROW_MAJOR
    with pytest.raises(InvalidArgumentError, match="encoding 7"):
        parse_enum(EncodingType, 7, what="encoding")
