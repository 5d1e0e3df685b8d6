"""What must hold of a scheduler between any two steps."""

from __future__ import annotations

from collections import Counter

from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.block_table import NO_BLOCK
from treadle.engine.request import Request
from treadle.engine.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    for index, pool in enumerate(scheduler.pools):
        check_holders(scheduler, pool, index)
        for request in scheduler.running:
            check_table(request, pool, index)
    assert all(not request.tables and request.num_computed == 0 for request in scheduler.waiting)
    for line in (scheduler.running, scheduler.waiting):
        assert list(line) == sorted(line, key=lambda request: request.turn)
    assert len(scheduler.running) <= scheduler.max_num_requests


def check_holders(scheduler: Scheduler, pool: BlockPool, index: int) -> None:
    holders = Counter(block_id for request in scheduler.running for block_id in request.tables[index].held)
    for load in scheduler.cache._loads:
        holders.update(block_id for part in load.parts if part.pool_index == index for block_id in part.block_ids)
    assert len(holders) == pool.num_used
    assert pool.num_free + pool.num_used == pool.num_blocks
    for block_id in range(pool.num_blocks):
        assert pool.num_holders(block_id) == holders[block_id]


def check_table(request: Request, pool: BlockPool, index: int) -> None:
    table = request.tables[index]
    assert len(set(table.held)) == table.num_held
    assert table.row[: len(table.block_ids)].tolist() == table.block_ids
    assert table.block_ids[: table.first] == [NO_BLOCK] * table.first
    if request.load is not None:
        return
    assert request.num_sealed == request.num_computed // pool.block_tokens
    for place in range(table.first, request.num_sealed):
        assert pool.find(request.block_keys[place]) == table.block_ids[place]
    for block_id in table.block_ids[request.num_sealed :]:
        assert pool.num_holders(block_id) == 1
