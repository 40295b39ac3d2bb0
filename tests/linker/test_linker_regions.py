"""The guest-memory allocator, against a plain model of memory."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref

import pytest

from sylvite.errors import InvalidArgumentError, OutOfMemoryError
from sylvite.linker.regions import GRANULE_BYTES, RESERVED_BYTES, RegionAllocator

PAGE = 65536


class FakeMemory:
    """A memory without contents; ``machine_pages`` is what the machine would give."""

    def __init__(self, pages=1, maximum_pages=None, machine_pages=65536):
        self.pages = pages
        self.maximum_pages = maximum_pages
        self.machine_pages = machine_pages
        self.grow_calls = 0
        self.discarded = []

    @property
    def byte_length(self):
        return self.pages * PAGE

    def grow(self, page_delta):
        self.grow_calls += 1
        if self.pages + page_delta > self.machine_pages:
            raise OutOfMemoryError("machine", requested_bytes=page_delta * PAGE)
        self.pages += page_delta
        return self.pages - page_delta

    def discard(self, address, byte_length):
        self.discarded.append((address, byte_length))
        return byte_length


def test_allocate_regions_are_aligned_disjoint_and_above_the_reserved_bytes():
    memory = FakeMemory()
    heap = RegionAllocator(memory)
    regions = [
        (heap.allocate(size, alignment), size, alignment)
        for size, alignment in [(1, 1), (64, 64), (100, 4096), (0, 8), (70000, 256), (3, 65536)]
    ]
    for address, size, alignment in regions:
        assert address % max(alignment, GRANULE_BYTES) == 0
        assert address >= RESERVED_BYTES
        assert address + size <= memory.byte_length
    ends = sorted((address, address + max(size, 1)) for address, size, _ in regions)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ends))


def test_free_then_allocate_reuses_the_same_bytes():
    heap = RegionAllocator(FakeMemory())
    first = heap.allocate(1000)
    keep = heap.allocate(1000)
    assert heap.free(first) == 1000
    assert heap.allocate(900) == first
    assert keep != first


def test_free_neighbours_coalesce_into_one_range():
    memory = FakeMemory(pages=1)
    heap = RegionAllocator(memory)
    whole = heap.statistics.largest_free_bytes
    addresses = [heap.allocate(640) for _ in range(20)]
    for address in addresses[::2] + addresses[1::2]:
        heap.free(address)
    assert heap.statistics.largest_free_bytes == whole == PAGE - RESERVED_BYTES
    assert memory.grow_calls == 0


@pytest.mark.parametrize("address", [0, RESERVED_BYTES + 64, -64, 1 << 40])
def test_free_of_an_address_that_does_not_live_is_refused(address):
    heap = RegionAllocator(FakeMemory())
    heap.allocate(10)
    with pytest.raises(InvalidArgumentError, match="no region lives"):
        heap.free(address)


def test_free_twice_is_refused_and_changes_nothing():
    heap = RegionAllocator(FakeMemory())
    address = heap.allocate(10)
    heap.free(address)
    before = heap.statistics
    with pytest.raises(InvalidArgumentError):
        heap.free(address)
    assert heap.statistics == before


@pytest.mark.parametrize(("length", "alignment"), [(-1, 64), (8, 0), (8, 3), (8, -64)])
def test_allocate_bad_arguments_are_refused(length, alignment):
    with pytest.raises(InvalidArgumentError):
        RegionAllocator(FakeMemory()).allocate(length, alignment)


def test_allocate_beyond_the_maximum_names_request_and_limit():
    heap = RegionAllocator(FakeMemory(pages=1, maximum_pages=20))
    with pytest.raises(OutOfMemoryError) as caught:
        heap.allocate(20 * PAGE)
    assert caught.value.requested_bytes == 20 * PAGE
    assert caught.value.limit_bytes == 20 * PAGE
    # Everything that does fit still can be had.
    assert heap.allocate(20 * PAGE - RESERVED_BYTES) == RESERVED_BYTES


@pytest.mark.parametrize("alignment", [1 << 31, 1 << 40])
def test_allocate_absurd_alignment_is_out_of_memory_not_growth(alignment):
    memory = FakeMemory(pages=1, maximum_pages=100)
    with pytest.raises(OutOfMemoryError):
        RegionAllocator(memory).allocate(8, alignment)
    assert memory.pages == 1


def test_allocate_whole_address_space_without_maximum_is_refused():
    with pytest.raises(OutOfMemoryError) as caught:
        RegionAllocator(FakeMemory()).allocate(1 << 32)
    assert caught.value.limit_bytes == 1 << 32


def test_allocate_falls_back_to_exact_growth_when_generous_growth_fails():
    memory = FakeMemory(pages=1, machine_pages=3)
    heap = RegionAllocator(memory)
    heap.allocate(2 * PAGE)
    assert memory.pages == 3
    with pytest.raises(OutOfMemoryError):
        heap.allocate(PAGE)


def test_trim_of_long_ranges_leaves_short_ones_alone():
    memory = FakeMemory(pages=100)
    heap = RegionAllocator(memory)
    regions = [heap.allocate(pages * PAGE) for pages in (1, 1, 8, 1, 2)]
    for region in regions[::2]:
        heap.free(region)
    heap.trim(3 * PAGE)
    assert [length for _, length in memory.discarded] == [8 * PAGE, 100 * PAGE - regions[4]]


def test_allocate_grows_long_memories_by_a_part_of_their_length():
    memory = FakeMemory(pages=1000)
    heap = RegionAllocator(memory)
    heap.allocate(1000 * PAGE)
    assert memory.pages == 1250
    for _ in range(10):
        heap.allocate(40 * PAGE)
    assert (memory.grow_calls, memory.pages) == (2, 1562)


def test_allocate_does_not_grow_beyond_the_maximum_to_be_generous():
    memory = FakeMemory(pages=1000, maximum_pages=1010)
    heap = RegionAllocator(memory)
    heap.allocate(995 * PAGE)
    heap.allocate(12 * PAGE)
    assert memory.pages == 1010


def test_allocate_after_the_guest_grew_memory_leaves_its_pages_alone():
    memory = FakeMemory(pages=1)
    heap = RegionAllocator(memory)
    memory.pages += 5
    address = heap.allocate(2 * PAGE)
    assert address >= 6 * PAGE
    small = heap.allocate(64)
    assert small == RESERVED_BYTES


def test_allocator_begin_above_the_memory_is_respected():
    heap = RegionAllocator(FakeMemory(pages=1), begin=3 * PAGE + 1)
    assert heap.allocate(8) == 3 * PAGE + GRANULE_BYTES


def test_trim_discards_only_free_ranges():
    memory = FakeMemory(pages=1)
    heap = RegionAllocator(memory)
    first = heap.allocate(64)
    heap.allocate(64)
    heap.free(first)
    assert heap.trim() == PAGE - RESERVED_BYTES - 64
    assert memory.discarded == [(RESERVED_BYTES, 64), (RESERVED_BYTES + 128, PAGE - RESERVED_BYTES - 128)]


def test_statistics_follow_allocations():
    heap = RegionAllocator(FakeMemory())
    first = heap.allocate(100)
    second = heap.allocate(200)
    heap.free(first)
    statistics = heap.statistics
    assert (statistics.live_bytes, statistics.peak_bytes) == (200, 300)
    assert (statistics.live_count, statistics.allocation_count) == (1, 2)
    assert heap.size_of(second) == 200
    with pytest.raises(InvalidArgumentError):
        heap.size_of(first)


def test_allocator_random_traffic_never_overlaps_and_ends_as_it_began():
    generator = random.Random(7)
    heap = RegionAllocator(FakeMemory(pages=1, maximum_pages=2000))
    live = {}
    for _ in range(4000):
        if live and generator.random() < 0.5:
            address = generator.choice(list(live))
            assert heap.free(address) == live.pop(address)
        else:
            size = generator.choice([0, 1, 63, 64, 65, 1000, 5000, 70000])
            alignment = 1 << generator.randrange(13)
            address = heap.allocate(size, alignment)
            assert address % alignment == 0
            assert address not in live
            live[address] = size
    ordered = sorted(live.items())
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ordered))
    assert heap.statistics.live_bytes == sum(live.values())
    for address in live:
        heap.free(address)
    end = heap.statistics
    assert end.live_bytes == end.live_count == 0
    assert end.largest_free_bytes == end.free_bytes == end.memory_bytes - RESERVED_BYTES


def test_free_from_a_finalizer_inside_allocate_does_not_deadlock():
    class Owner:
        pass

    class CollectingMemory(FakeMemory):
        def grow(self, page_delta):
            gc.collect()  # runs the finalizer below while allocate() holds its lock
            return super().grow(page_delta)

    heap = RegionAllocator(CollectingMemory())
    owner = Owner()
    owner.cycle = owner
    weakref.finalize(owner, heap.free, heap.allocate(128))
    del owner
    done = []
    worker = threading.Thread(target=lambda: done.append(heap.allocate(3 * PAGE)), daemon=True)
    worker.start()
    worker.join(20)
    assert done
    assert heap.statistics.live_count == 1


def test_allocator_many_threads_free_what_one_allocates():
    heap = RegionAllocator(FakeMemory(pages=1, maximum_pages=500))
    addresses = [heap.allocate(100) for _ in range(2000)]
    threads = [
        threading.Thread(target=lambda part=part: [heap.free(a) for a in part])
        for part in (addresses[0::4], addresses[1::4], addresses[2::4], addresses[3::4])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heap.statistics.live_bytes == 0
    assert heap.statistics.live_count == 0
