"""Sharing, waiting for, keeping and restoring blocks of four tokens: exact ids on a pool of eleven."""

from __future__ import annotations

import queue
import random
import struct
from hashlib import blake2b
from typing import Any

import pytest

from fakes import FakeRunner, FakeStore, answer, make_request
from patience import PATIENCE_SECONDS
from treadle.engine.counters import PoolCounters
from treadle.engine.engine import Engine
from treadle.engine.engine_thread import EngineThread
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.kv.prefix_match import chain_keys
from treadle.engine.plan import StepPlan
from treadle.engine.request import Request, TokenEvent
from treadle.engine.scheduler import Scheduler


class Loop:
    """An engine over fakes, with or without a store."""

    def __init__(
        self, num_blocks: int = 11, *, store: FakeStore | None = None, is_enabled: bool = True, **settings: Any
    ) -> None:
        settings = {"context": 44, "max_batch_tokens": 16, "max_num_requests": 4, "slowdown": None} | settings
        self.pool = BlockPool(num_blocks, 4)
        self.cache = PrefixCache(
            [self.pool], identity=b"model", stores=[] if store is None else [store], is_enabled=is_enabled
        )
        self.scheduler = Scheduler([self.pool], cache=self.cache, clock=lambda: 0.0, **settings)
        self.runner = FakeRunner(self.pool)
        self.engine = Engine(self.scheduler, self.runner)
        if store is not None:
            store.runner = self.runner

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request)

    def run(self, *requests: Request) -> None:
        self.submit(*requests)
        while self.engine.has_work:
            self.engine.step()
        for request in requests:
            assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))

    @property
    def last_shape(self) -> list[tuple[int, int, int]]:
        return shape(self.runner.plans[-1])


def shape(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.request.request_id, chunk.start, chunk.num_tokens) for chunk in plan.chunks]


def test_a_key_stands_for_everything_up_to_the_end_of_its_block() -> None:
    def key(before: bytes, tokens: list[int]) -> bytes:
        return blake2b(before + struct.pack("<4i", *tokens), digest_size=16).digest()

    tokens = [5, 70000, 1, 2, 3, 2**31 - 1, 9, 9, 4]
    first = key(b"model", tokens[:4])
    expected = [first, key(first, tokens[4:8])]
    at_once: list[bytes] = []
    chain_keys(b"model", tokens, 4, at_once)
    assert at_once == expected
    one_by_one: list[bytes] = []
    for end in range(len(tokens) + 1):
        chain_keys(b"model", tokens[:end], 4, one_by_one)
    assert one_by_one == expected
    other: list[bytes] = []
    chain_keys(b"other", tokens, 4, other)
    assert not set(other) & set(expected)


def test_a_known_beginning_is_held_and_only_the_rest_is_computed() -> None:
    loop = Loop()
    loop.run(make_request(0, range(10), 1))
    again = make_request(1, [*range(9), 77, 78], 1)
    loop.submit(again)
    loop.engine.step()
    assert loop.last_shape == [(1, 8, 3)]
    assert (again.num_cached_tokens, again.answer_ids) == (8, answer([*range(9), 77, 78], 1))
    counters = loop.scheduler.counters()
    assert (counters.num_pool_hit_tokens, counters.num_missed_tokens) == (8, 10 + 3)
    assert counters.pools == [PoolCounters(11, 0, 2)]


@pytest.mark.parametrize(("num_tokens", "num_cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_the_last_token_of_a_prompt_is_always_computed(num_tokens: int, num_cached: int) -> None:
    loop = Loop()
    loop.run(make_request(0, range(num_tokens), 1))
    again = make_request(1, range(num_tokens), 1)
    loop.run(again)
    assert again.num_cached_tokens == num_cached
    assert loop.last_shape == [(1, num_cached, num_tokens - num_cached)]


def test_an_answer_is_found_by_the_next_turn() -> None:
    loop = Loop()
    first = make_request(0, range(6), 7)
    loop.run(first)
    second = make_request(1, [*first.token_ids, 500], 1)
    loop.run(second)
    assert second.num_cached_tokens == 12  # of 13 tokens the last was sampled but never computed


def test_a_cache_that_is_off_finds_and_keeps_nothing() -> None:
    loop = Loop(is_enabled=False)
    loop.run(make_request(0, range(10), 1))
    again = make_request(1, range(10), 1)
    loop.run(again)
    assert again.num_cached_tokens == 0
    assert loop.pool.num_cached == 0


def test_who_comes_while_the_same_is_computed_waits_for_it() -> None:
    loop = Loop(max_batch_tokens=4)
    first, second = make_request(0, range(10), 1), make_request(1, [*range(8), 50, 51], 1)
    other = make_request(2, [9, 8], 1)
    loop.submit(first, second, other)
    plans = []
    while loop.engine.has_work:
        loop.engine.step()
        plans.append(loop.last_shape)
    assert plans == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2), (1, 8, 2)], [(2, 0, 2)]]
    assert second.num_cached_tokens == 8
    assert second.answer_ids == answer(second.prompt_ids, 1)


def test_siblings_share_the_prompt_and_compute_its_last_block_each() -> None:
    loop = Loop()
    siblings = [make_request(index, range(10), 3) for index in range(3)]
    loop.submit(*siblings)
    loop.engine.step()
    loop.engine.step()
    assert [shape(plan) for plan in loop.runner.plans] == [[(0, 0, 10)], [(0, 10, 1), (1, 8, 2), (2, 8, 2)]]
    assert [request.tables[0].block_ids for request in siblings] == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    assert [loop.pool.num_holders(block_id) for block_id in (0, 1, 2, 3, 4)] == [3, 3, 1, 1, 1]
    loop.run()
    # All said the same, so their last blocks became one.
    assert (loop.pool.num_used, loop.pool.num_cached) == (0, 3)


@pytest.mark.parametrize("how", ["cancel", "preempt"])
def test_nobody_waits_for_a_request_that_stops_computing(how: str) -> None:
    loop = Loop(max_batch_tokens=4)
    first, second = make_request(0, range(12), 1), make_request(1, range(12), 1)
    loop.submit(first, second)
    loop.engine.step()
    assert loop.scheduler.waiting == (second,)
    if how == "cancel":
        loop.engine.cancel(first)
    else:
        loop.scheduler._line._preempt(first)
        first.turn = (1.0, 9)
        loop.scheduler._line.waiting.sort(key=lambda request: request.turn)
    loop.engine.step()
    assert loop.last_shape == [(1, 4, 4)]
    loop.run()
    assert second.answer_ids == answer(range(12), 1)


def test_who_serves_an_interactive_request_goes_when_that_would() -> None:
    loop = Loop(max_batch_tokens=4)
    batch = make_request(0, range(12), 1, priority="batch")
    loop.submit(batch)
    loop.engine.step()
    loop.submit(make_request(1, range(100, 112), 1), make_request(2, range(12), 1))
    for _ in range(8):
        loop.engine.step()
    assert [shape(plan)[0][0] for plan in loop.runner.plans[1:]] == [1, 1, 1, 0, 0, 2]


def test_the_tail_of_a_chain_goes_before_its_head_and_the_asked_for_stays_longest() -> None:
    loop = Loop(num_blocks=6)
    loop.run(make_request(0, range(9), 1))  # blocks 0 and 1 stay cached, 2 was not full
    loop.run(make_request(1, range(9), 1))  # and are asked for again
    loop.run(make_request(2, range(100, 117), 1))  # needs five blocks, and four were never sealed
    assert [loop.pool.find(key) for key in keys_of(range(8))] == [0, None]


def keys_of(token_ids: Any) -> list[bytes]:
    keys: list[bytes] = []
    chain_keys(b"model", list(token_ids), 4, keys)
    return keys


def test_what_is_asked_for_again_outlives_a_flood_of_new_prompts() -> None:
    loop = Loop()
    loop.run(make_request(0, range(9), 1))
    loop.run(make_request(1, range(9), 1))
    for index in range(20):
        loop.run(make_request(2 + index, range(1000 + 20 * index, 1020 + 20 * index), 1))
    again = make_request(99, range(9), 1)
    loop.run(again)
    assert again.num_cached_tokens == 8


def test_evicted_blocks_go_to_the_store_and_come_back() -> None:
    store = FakeStore()
    loop = Loop(num_blocks=5, store=store)
    first = make_request(0, range(9), 3)
    loop.run(first)
    assert store.saves == [[0, 1]]  # the prompt's full blocks
    for index in range(4):
        loop.run(make_request(1 + index, range(100 * index + 100, 100 * index + 117), 1))
    assert loop.pool.find(keys_of(range(4))[0]) is None
    again = make_request(9, range(9), 1)
    loop.run(again)
    assert loop.last_shape == [(9, 8, 1)]
    assert (again.num_cached_tokens, loop.scheduler.counters().num_store_hit_tokens) == (8, 8)


def stored(loop: Loop, store: FakeStore, prompt: range) -> None:
    """Have the store hold a prompt that the pool has forgotten."""
    loop.run(make_request(100, prompt, 1))
    loop.cache.reset()
    assert all(key in store for key in keys_of(prompt))


def test_a_request_that_loads_holds_nobody_back() -> None:
    store = FakeStore(ends_at_once=False)
    loop = Loop(store=store)
    stored(loop, store, range(9))
    woken: list[bool] = []
    loop.cache.wake = lambda: woken.append(True)
    loading, other = make_request(0, range(9), 1), make_request(1, [50], 3)
    loop.submit(loading, other)
    loop.engine.step()
    assert loop.last_shape == [(1, 0, 1)]
    loop.engine.step()
    loop.engine.step()
    assert other.finish_reason == "length"
    num_plans = len(loop.runner.plans)
    loop.engine.step()
    assert len(loop.runner.plans) == num_plans
    assert loop.scheduler.idle_seconds() is None  # sleeps until the load wakes it
    store.end_load(2)
    assert woken == [True]
    loop.run()
    assert loop.last_shape == [(0, 8, 1)]
    assert loading.answer_ids == answer(range(9), 1)


@pytest.mark.parametrize("num_loaded", [None, 0, 1])
def test_what_does_not_come_back_is_computed(num_loaded: int | None) -> None:
    store = FakeStore(ends_at_once=False)
    loop = Loop(store=store)
    stored(loop, store, range(9))
    request, waiter = make_request(0, range(9), 1), make_request(1, range(9), 1)
    loop.submit(request, waiter)
    loop.engine.step()
    if num_loaded is None:
        store.loads[0][2].set_exception(OSError("the disk is gone"))
    else:
        store.end_load(num_loaded)
    loop.engine.step()
    assert loop.last_shape == [(0, 4 * (num_loaded or 0), 9 - 4 * (num_loaded or 0))]
    loop.run()
    assert request.answer_ids == waiter.answer_ids == answer(range(9), 1)


def test_nobody_gets_blocks_that_a_cancelled_load_may_still_write() -> None:
    store = FakeStore(ends_at_once=False)
    loop = Loop(num_blocks=5, store=store)
    stored(loop, store, range(9))
    request, large = make_request(0, range(9), 1), make_request(1, range(100, 117), 1)
    loop.submit(request)
    loop.engine.step()
    loop.engine.cancel(request)
    loop.submit(large)
    loop.engine.step()
    assert (loop.pool.num_used, loop.scheduler.waiting) == (2, (large,))
    store.end_load(2)
    loop.run()
    assert large.answer_ids == answer(range(100, 117), 1)


def test_a_failed_step_leaves_loading_blocks_alone() -> None:
    store = FakeStore(ends_at_once=False)
    loop = Loop(store=store)
    stored(loop, store, range(9))
    loop.submit(make_request(0, range(9), 1))
    loop.engine.step()
    loop.engine.abort(KeyboardInterrupt())
    assert loop.pool.num_used == 2
    store.end_load(2)
    loop.run(make_request(1, range(200, 240), 1))
    assert loop.pool.num_used == 0


def test_the_thread_sleeps_through_a_load_and_wakes_at_its_end() -> None:
    store = FakeStore(ends_at_once=False)
    loop = Loop(store=store)
    stored(loop, store, range(9))
    events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
    request = make_request(0, range(9), 1)
    request.deliver = events.put
    num_schedules = 0
    schedule = loop.scheduler.schedule

    def counted() -> StepPlan:
        nonlocal num_schedules
        num_schedules += 1
        return schedule()

    loop.scheduler.schedule = counted  # type: ignore[method-assign]
    thread = EngineThread(loop.engine)
    thread.submit(request)
    other = make_request(1, [5], 1)
    other.deliver = events.put
    thread.submit(other)
    assert events.get(timeout=PATIENCE_SECONDS).request is other
    store.end_load(2)
    assert events.get(timeout=PATIENCE_SECONDS).request is request
    thread.close()
    assert num_schedules < 10


@pytest.mark.parametrize("seed", range(30))
def test_random_walks_with_a_store_give_right_answers_and_lose_no_block(seed: int) -> None:
    chance = random.Random(seed)
    store = FakeStore(ends_at_once=False)
    loop = Loop(chance.choice([4, 6, 11]), store=store, context=16, max_batch_tokens=chance.choice([4, 7, 16]))
    live: list[Request] = []
    num_finished = num_ended_loads = 0
    for request_id in range(80):
        prompt = [chance.randrange(6)] * chance.choice([4, 8, 12]) + [chance.randrange(3)] * chance.randint(0, 2)
        live.append(make_request(request_id, prompt, chance.randint(1, 16 - len(prompt))))
        loop.submit(live[-1])
        if chance.random() < 0.2:
            loop.engine.cancel(live.pop(chance.randrange(len(live))))
        for _ in range(chance.randint(0, 4) if request_id < 79 else 5000):
            loop.engine.step()
            if num_ended_loads < len(store.loads) and chance.random() < 0.3:
                store.end_load(chance.randint(0, len(store.loads[num_ended_loads][0])), num_ended_loads)
                num_ended_loads += 1
            if not loop.engine.has_work and num_ended_loads == len(store.loads):
                break
        for request in [request for request in live if request.finish_reason]:
            assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))
            live.remove(request)
            num_finished += 1
    loop.cache.finish_loads()
    assert not live
    assert num_finished > 40
    assert num_ended_loads > 3
    assert loop.pool.num_used == 0
