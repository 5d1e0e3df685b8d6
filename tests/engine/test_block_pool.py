"""The block pool by itself: exact ids on eleven blocks."""

from __future__ import annotations

import pytest

from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.eviction_order import EvictionOrder
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


def test_a_sealed_block_is_found_held_by_many_and_cached_when_let_go() -> None:
    pool = BlockPool(11, 4)
    pool.try_allocate(3)
    assert [pool.seal(block_id, bytes([block_id])) for block_id in (0, 1)] == [0, 1]
    pool.hold([0, 1], is_hit=True)
    assert (pool.find(b"\1"), pool.num_holders(1), pool.num_used) == (1, 2, 3)
    pool.free([0, 1, 2])
    assert (pool.num_used, pool.num_cached, pool.num_free) == (2, 0, 9)
    pool.free([0, 1])
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 2, 11)
    pool.hold([0])
    assert (pool.num_used, pool.num_cached) == (1, 1)


def test_a_second_block_of_one_key_gives_way_to_the_first() -> None:
    pool = BlockPool(11, 4)
    pool.try_allocate(2)
    pool.seal(0, b"k")
    assert pool.seal(1, b"k") == 0
    assert (pool.num_holders(0), pool.num_holders(1)) == (2, 0)
    assert pool.try_allocate(1) == [1]


def test_blocks_without_a_key_are_handed_out_first_then_tails_before_heads_then_what_was_hit() -> None:
    evicted: list[tuple[list[bytes], list[int]]] = []
    pool = BlockPool(11, 4, on_evict=lambda keys, block_ids: evicted.append((list(keys), list(block_ids))))
    pool.try_allocate(6)
    for block_id in range(6):
        pool.seal(block_id, bytes([block_id]))
    pool.free([0, 1, 2])
    pool.hold([0, 1], is_hit=True)
    pool.free([0, 1])
    pool.free([3, 4, 5])
    assert pool.try_allocate(5) == [6, 7, 8, 9, 10]
    assert not evicted
    assert pool.try_allocate(5) == [2, 5, 4, 3, 1]
    assert evicted == [([b"\2", b"\5", b"\4", b"\3", b"\1"], [2, 5, 4, 3, 1])]
    assert pool.find(b"\0") == 0
    assert [pool.find(bytes([block_id])) for block_id in range(1, 6)] == [None] * 5
    assert pool.num_evicted == 5
    assert pool.try_allocate(2) is None


def test_what_was_hit_long_ago_loses_its_protection_to_what_was_hit_lately() -> None:
    order = EvictionOrder(max_protected=2)
    for block_id in (0, 1, 2):
        order.add(block_id, was_hit=True)
    order.add(3, was_hit=False)
    assert 0 in order
    assert len(order) == 4
    assert [order.pop() for _ in range(4)] == [0, 3, 1, 2]


def test_reset_keeps_what_is_said_to_be_held() -> None:
    pool = BlockPool(11, 4)
    pool.try_allocate(4)
    pool.seal(1, b"k")
    pool.reset(held=[2, 2])
    assert (pool.num_used, pool.num_holders(2), pool.find(b"k")) == (1, 2, None)
    assert pool.try_allocate(10) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
