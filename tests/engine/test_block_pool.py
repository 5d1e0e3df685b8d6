"""The block pool by itself: exact ids on eleven blocks."""

from __future__ import annotations

import pytest

from treadle.engine.block_pool import BlockPool
from treadle.errors import InternalError


def test_hands_out_low_numbers_first_and_the_freed_ones_before_fresh_ones() -> None:
    pool = BlockPool(11, 4)
    first = pool.try_allocate(3)
    second = pool.try_allocate(2)
    assert (first, second) == ([0, 1, 2], [3, 4])
    pool.free([0, 1, 2])
    assert pool.try_allocate(4) == [0, 1, 2, 5]
    assert (pool.num_free, pool.num_used) == (5, 6)


def test_gives_all_or_nothing() -> None:
    pool = BlockPool(11, 4)
    assert pool.try_allocate(12) is None
    assert pool.num_free == 11
    assert pool.try_allocate(11) == list(range(11))
    assert pool.try_allocate(1) is None
    assert pool.try_allocate(0) == []


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (44, 11), (45, 12)])
def test_counts_blocks_for_tokens(num_tokens: int, num_blocks: int) -> None:
    assert BlockPool(11, 4).blocks_for(num_tokens) == num_blocks


def test_refuses_to_free_what_is_free() -> None:
    pool = BlockPool(11, 4)
    pool.try_allocate(2)
    pool.free([1])
    with pytest.raises(InternalError, match="KV block 1 was freed twice"):
        pool.free([1])
    with pytest.raises(InternalError, match="KV block 0 was freed twice"):
        pool.free([0, 0])


def test_reset_takes_everything_back() -> None:
    pool = BlockPool(11, 4)
    pool.try_allocate(7)
    pool.reset()
    assert pool.num_free == 11
    assert pool.try_allocate(1) == [0]
