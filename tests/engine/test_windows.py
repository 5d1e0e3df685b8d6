"""Two pools: blocks of layers with a window are given back when nobody sees them, and what is found stays right.

Blocks have four tokens, windows seven: to go on from the end of a block takes the two blocks before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_checks import check_invariants

from fakes import FakeRunner, FakeStore, answer, make_request
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.block_table import NO_BLOCK
from treadle.engine.kv.block_window import BlockWindow
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.kv.prefix_match import chain_keys
from treadle.engine.request import Request
from treadle.engine.scheduler import Scheduler
from treadle.errors import CapacityError

WINDOW = 7
BLOCK = 4


class Loop:
    """An engine over fakes, with a pool for whole contexts, if any, and one for a window."""

    def __init__(
        self,
        num_blocks: int = 30,
        num_window_blocks: int = 12,
        *,
        stores: Sequence[FakeStore] = (),
        step_tokens: int = 8,
        window: int = WINDOW,
        **more: Any,
    ) -> None:
        block_window = BlockWindow(window, BLOCK, step_tokens)
        self.pools = [BlockPool(num_blocks, BLOCK)] if num_blocks else []
        self.pools.append(BlockPool(num_window_blocks, BLOCK, window=block_window))
        self.cache = PrefixCache(self.pools, identity=b"model", stores=stores)
        options = {"context": 100, "max_num_requests": 4, "slowdown": None} | more
        self.scheduler = Scheduler(
            self.pools, cache=self.cache, max_batch_tokens=step_tokens, clock=lambda: 0.0, **options
        )
        self.runner = FakeRunner(*self.pools)
        self.engine = Engine(self.scheduler, self.runner)
        for store in stores:
            store.runner = self.runner

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request)
        while self.engine.has_work:
            self.engine.step()
            check_invariants(self.scheduler)
        for request in requests:
            check_answer(request)

    def places(self, token_ids: Sequence[int]) -> list[int]:
        """Which blocks of a text are found in the pool with a window."""
        keys: list[bytes] = []
        chain_keys(b"model", token_ids, BLOCK, keys)
        return [place for place, key in enumerate(keys) if self.pools[-1].find(key) is not None]


def check_answer(request: Any) -> None:
    assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))


def stores_for_two() -> list[FakeStore]:
    return [FakeStore(pool_index=0), FakeStore(pool_index=1)]


def test_a_request_holds_what_is_in_sight_and_what_the_next_step_writes() -> None:
    loop = Loop()
    request = make_request(0, range(60), 20)
    loop.engine.submit(request)
    most = [0, 0]
    while loop.engine.has_work:
        loop.engine.step()
        check_invariants(loop.scheduler)
        most = [max(old, pool.num_used) for old, pool in zip(most, loop.pools, strict=True)]
        if request.num_computed == 71:
            # When token 70 was computed, 70 - 7 - 4 + 1 = 60 was the first to keep, so blocks 0 .. 14 are gone.
            assert request.tables[1].block_ids[:15] == [NO_BLOCK] * 15
            assert request.tables[1].num_held == 3
            assert request.tables[0].num_held == 18
    check_answer(request)
    assert most == [20, 6]  # 6 - 1 + 4 + 8 tokens in any position touch 6 blocks
    assert [pool.num_used for pool in loop.pools] == [0, 0]


def test_a_pool_with_a_window_is_no_limit_to_the_length_of_a_request() -> None:
    loop = Loop(num_window_blocks=6)
    loop.run(make_request(0, range(70), 20))
    with pytest.raises(CapacityError, match="needs 6 KV blocks of 4 tokens and the pool has 5"):
        Loop(num_window_blocks=5).scheduler.add(make_request(0, range(70), 20))


def test_the_end_of_a_prompt_and_of_an_answer_is_found_again() -> None:
    loop = Loop(num_blocks=60, num_window_blocks=14)
    first = make_request(0, range(40), 21)
    loop.run(first)
    # The next one goes through the pool with a window, and leaves the ends of the first one alone.
    loop.run(make_request(1, range(200, 290), 1))
    assert loop.places(first.token_ids) == [7, 8, 9, 12, 13, 14]
    again = make_request(2, range(40), 1)
    later = make_request(3, first.token_ids, 3)
    loop.run(later)
    loop.run(again)
    assert (again.num_cached_tokens, later.num_cached_tokens) == (36, 60)


@pytest.mark.parametrize("num_tokens", range(37, 42))
def test_a_prompt_of_any_length_comes_back(num_tokens: int) -> None:
    loop = Loop(num_window_blocks=8)
    loop.run(make_request(0, range(num_tokens), 30))
    again = make_request(1, range(num_tokens), 1)
    loop.run(again)
    assert again.num_cached_tokens == (num_tokens - 1) // BLOCK * BLOCK


def test_a_beginning_in_common_is_found_while_its_window_is_there() -> None:
    loop = Loop(num_window_blocks=12)
    loop.run(make_request(0, range(24), 1))
    branch = make_request(1, [*range(16), 90, 91, 92], 1)
    loop.run(branch)
    assert branch.num_cached_tokens == 16
    loop.run(make_request(2, range(200, 290), 1))
    assert {2, 3} <= set(loop.places(range(16)))  # where one has gone on, others will
    other = make_request(3, [*range(12), 80], 1)
    loop.run(other)
    assert other.num_cached_tokens == 0  # block 1 is gone, though all blocks of whole contexts are there
    assert loop.pools[0].find(other.block_keys[2]) is not None


def test_who_comes_while_the_same_is_computed_waits_for_it() -> None:
    loop = Loop(step_tokens=8)
    first, second = make_request(0, range(40), 1), make_request(1, [*range(36), 50, 51], 1)
    loop.run(first, second)
    assert second.num_cached_tokens == 36


def test_a_window_of_all_layers_needs_no_other_pool() -> None:
    loop = Loop(num_blocks=0, num_window_blocks=10)
    first = make_request(0, range(50), 30)
    loop.run(first)
    again = make_request(1, first.token_ids, 1)
    loop.run(again)
    assert again.num_cached_tokens == 76
    assert loop.pools[0].num_used == 0


def test_the_ends_of_prompts_and_where_they_part_are_stored() -> None:
    stores = stores_for_two()
    loop = Loop(stores=stores)
    prompt = list(range(42))
    loop.run(make_request(0, prompt, 1))
    keys: list[bytes] = []
    chain_keys(b"model", prompt, BLOCK, keys)
    assert [place for place, key in enumerate(keys) if key in stores[0]] == list(range(10))
    # Token 42 sees from 36 on, and one block more is kept.
    assert [place for place, key in enumerate(keys) if key in stores[1]] == [8, 9]
    loop.run(make_request(1, [*range(20), 90], 1))
    assert [place for place, key in enumerate(keys) if key in stores[1]] == [3, 4, 8, 9]


def test_what_is_stored_comes_back_into_both_pools() -> None:
    stores = stores_for_two()
    loop = Loop(stores=stores)
    prompt = list(range(42))
    loop.run(make_request(0, prompt, 1))
    loop.cache.reset()
    again = make_request(1, prompt, 5)
    loop.run(again)
    assert again.num_cached_tokens == 40
    assert [len(store.loads[-1][0]) for store in stores] == [10, 2]
    assert loop.scheduler.counters().num_store_hit_tokens == 40


@pytest.mark.parametrize("num_loaded", [0, 1])
def test_a_window_that_does_not_come_back_is_computed(num_loaded: int) -> None:
    stores = [FakeStore(pool_index=0), FakeStore(pool_index=1, ends_at_once=False)]
    loop = Loop(stores=stores)
    prompt = list(range(42))
    loop.run(make_request(0, prompt, 1))
    loop.cache.reset()
    again, waiter = make_request(1, prompt, 1), make_request(2, prompt, 2)
    loop.engine.submit(again)
    loop.engine.submit(waiter)
    loop.engine.step()
    stores[1].end_load(num_loaded)
    loop.run()
    check_answer(again)
    check_answer(waiter)
    assert (again.num_cached_tokens, again.uses_store) == (0, False)
    assert waiter.num_cached_tokens == 40
    assert [pool.num_used for pool in loop.pools] == [0, 0]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """A few beginnings in common, so that blocks are shared, awaited and found again."""
    length = draw(st.sampled_from([0, 8, 20, 30]))
    return [draw(st.integers(1, 2))] * length + draw(st.lists(st.integers(3, 5), min_size=1, max_size=12))


@settings(max_examples=60)
@given(data=st.data())
def test_storms_give_right_answers_and_lose_no_block(data: st.DataObject) -> None:
    """Requests come, are cancelled, take blocks from each other and load; blocks are those of the running ones only."""
    step_tokens = data.draw(st.sampled_from([4, 8, 30]))
    window = data.draw(st.sampled_from([1, 2, 7, 16]))
    most_held = BlockWindow(window, BLOCK, step_tokens).most_held
    stores = [FakeStore(pool_index=0, ends_at_once=False), FakeStore(pool_index=1, ends_at_once=False)]
    loop = Loop(
        data.draw(st.integers(16, 30)),
        most_held + data.draw(st.integers(0, 12)),
        stores=stores if data.draw(st.booleans()) else (),
        step_tokens=step_tokens,
        window=window,
        context=64,
    )
    live: list[Any] = []
    num_ended = [0, 0]

    def end_loads() -> None:
        for index, store in enumerate(stores):
            while num_ended[index] < len(store.loads):
                num_blocks = len(store.loads[num_ended[index]][0])
                num_valid = num_blocks if data.draw(st.integers(0, 3)) else data.draw(st.integers(0, num_blocks))
                store.end_load(num_valid, num_ended[index])
                num_ended[index] += 1

    for request_id in range(data.draw(st.integers(1, 12))):
        prompt = data.draw(prompts())
        live.append(make_request(request_id, prompt, data.draw(st.integers(1, 20))))
        loop.engine.submit(live[-1])
        if data.draw(st.integers(0, 4)) == 0:
            loop.engine.cancel(live.pop(data.draw(st.integers(0, len(live) - 1))))
        for _ in range(data.draw(st.integers(0, 3))):
            loop.engine.step()
            check_invariants(loop.scheduler)
            end_loads()
    for _ in range(2000):
        end_loads()
        if not loop.engine.has_work:
            break
        loop.engine.step()
        check_invariants(loop.scheduler)
    for request in live:
        check_answer(request)
    loop.cache.finish_loads()
    assert [pool.num_used for pool in loop.pools] == [0, 0]
