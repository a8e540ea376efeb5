"""The caching allocator: sizes from torch's documentation, and rules that must always hold."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.footprint.replay import (
    Allocator,
    AllocatorFull,
    MemoryBlock,
    rounded,
    segment_bytes,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "taken"), [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)]
)
def test_requests_are_rounded_to_512_bytes(nbytes: int, taken: int) -> None:
    assert rounded(nbytes) == taken


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_are_of_three_sizes(nbytes: int, segment: int) -> None:
    assert segment_bytes(nbytes) == segment


def test_small_blocks_share_a_segment() -> None:
    allocator = Allocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB, 2 * MIB)
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_a_rest_that_is_too_small_stays_with_its_block() -> None:
    allocator = Allocator()
    first = allocator.allocate(30 * MIB)
    allocator.release(first)
    allocator.allocate(29 * MIB)  # a rest of 1 MiB is not split off
    assert allocator.allocated_bytes == 30 * MIB
    other = Allocator()
    other.release(other.allocate(30 * MIB))
    other.allocate(28 * MIB)
    assert other.allocated_bytes == 28 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(12 * MIB)
    allocator.release(large)
    allocator.release(small)
    allocator.allocate(12 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 52 * MIB


def test_under_a_limit_unused_segments_are_given_back_first() -> None:
    allocator = Allocator(limit_bytes=64 * MIB)
    first = allocator.allocate(40 * MIB)
    allocator.release(first)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    with pytest.raises(AllocatorFull):
        allocator.allocate(10 * MIB)


def test_an_expandable_segment_grows_where_it_ended() -> None:
    plain, growing = Allocator(), Allocator(expandable=True)
    for allocator in (plain, growing):
        first = allocator.allocate(40 * MIB)
        allocator.release(first)
        allocator.allocate(60 * MIB)
    assert plain.reserved_bytes == 100 * MIB
    assert growing.reserved_bytes == 60 * MIB


@given(
    st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60),
    st.booleans(),
)
def test_books_are_kept(requests: list[tuple[int, bool]], expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    held: list[MemoryBlock] = []
    for nbytes, give in requests:
        block = allocator.allocate(nbytes)
        assert block is not None
        assert block.nbytes >= nbytes
        held.append(block)
        if give:
            allocator.release(held.pop(len(held) // 2))
        spans = sorted((b.address, b.address + b.nbytes) for b in held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), "no overlap"
        assert allocator.allocated_bytes == sum(b.nbytes for b in held)
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    for block in held:
        allocator.release(block)
    assert allocator.allocated_bytes == 0
