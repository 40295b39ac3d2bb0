"""Sets of byte ranges against sets of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sylvite.drivers.webgpu.ranges import Ranges

spans = st.tuples(st.integers(0, 40), st.integers(0, 40))


@given(st.lists(st.tuples(st.booleans(), spans), max_size=20), spans)
def test_ranges_are_the_bytes_that_were_put_in_and_not_taken_out(steps, window):
    ranges, expected = Ranges(), set()
    for adds, (begin, end) in steps:
        if adds:
            ranges.add(begin, end)
            expected |= set(range(begin, end))
        elif begin < end:
            ranges.remove(begin, end)
            expected -= set(range(begin, end))
    parts = list(ranges)
    assert {byte for begin, end in parts for byte in range(begin, end)} == expected
    assert all(first[1] < second[0] for first, second in itertools.pairwise(parts))
    assert bool(ranges) == bool(expected)
    inside = {byte for begin, end in ranges.within(*window) for byte in range(begin, end)}
    assert inside == expected & set(range(*window))
