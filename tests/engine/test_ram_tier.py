"""The memory tier: a limit, and who goes first."""

from __future__ import annotations

import numpy as np

from stored_blocks import keys
from treadle.engine.kv.ram_tier import RamTier

A, B, C, D = keys(1, 2, 3, 4)
BLOCKS = {key: np.full(10, index, np.uint8) for index, key in enumerate((A, B, C, D))}


def put(tier: RamTier, key: bytes) -> list[bytes]:
    return [evicted for evicted, _ in tier.put(key, BLOCKS[key])]


def test_the_least_recently_used_goes_first() -> None:
    tier = RamTier(39, 10)
    assert tier.capacity == 3
    assert put(tier, A) == put(tier, B) == put(tier, C) == []
    assert tier.get(A) is BLOCKS[A]
    assert put(tier, D) == [B]
    assert put(tier, C) == []
    assert put(tier, B) == [A]
    assert len(tier) == 3
    assert A not in tier
    assert tier.get(A) is None


def test_without_room_nothing_stays() -> None:
    tier = RamTier(9, 10)
    assert put(tier, A) == [A]
    assert len(tier) == 0
