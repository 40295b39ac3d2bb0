from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sylvite.errors import FormatError
from sylvite.wasm.leb import Reader, encode_signed, encode_unsigned, read_signed, read_unsigned


@given(st.integers(0, 2**64 - 1))
def test_unsigned_round_trips_in_the_shortest_form(value: int) -> None:
    raw = encode_unsigned(value)
    assert read_unsigned(raw, 0, 64) == (value, len(raw))
    assert len(raw) == max(1, -(-value.bit_length() // 7))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_round_trips(value: int) -> None:
    raw = encode_signed(value)
    assert read_signed(raw, 0, 64) == (value, len(raw))


@pytest.mark.parametrize(
    ("raw", "value"),
    [("808080808000", None), ("8080808000", 0), ("ffffffff0f", 2**32 - 1), ("ffffffff1f", None)],
)
def test_u32_padding_is_allowed_up_to_five_bytes(raw: str, value: int | None) -> None:
    reader = Reader(bytes.fromhex(raw), where="test", base=7)
    if value is not None:
        assert reader.u32() == value
        return
    with pytest.raises(FormatError, match="integer is") as caught:
        reader.u32()
    assert caught.value.offset == 7


@pytest.mark.parametrize("call", ["u8", "u32", "u64", "name"])
def test_reader_at_the_end_raises_format_error(call: str) -> None:
    with pytest.raises(FormatError, match="unexpected end in test at offset 0x0"):
        getattr(Reader(b"", where="test"), call)()


def test_reader_name_that_is_not_utf8_is_refused_at_the_bad_byte() -> None:
    with pytest.raises(FormatError, match="UTF-8") as caught:
        Reader(b"\x03a\xed\xa0", where="test", base=10).name()
    assert caught.value.offset == 12


def test_reader_count_is_refused_before_anything_is_read() -> None:
    reader = Reader(b"\xff\xff\xff\xff\x0fabc", where="test")
    with pytest.raises(FormatError, match="count of things is 4294967295, but only 3 bytes follow"):
        reader.count("things", limit=2**32)
    reader.position = 0
    with pytest.raises(FormatError, match="more than 1000"):
        reader.count("things", limit=1000)
