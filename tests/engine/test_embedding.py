"""Requests for embeddings among others: which states are wanted when, blocks, the cache; blocks of four tokens."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fakes import FakeRunner, FakeStore, answer, make_embedding_request, make_request, mean_state, state
from treadle.engine.embedding import EmbeddingOptions, EmbeddingRequest, default_pooling
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.load import LoadReport
from treadle.engine.plan import StepPlan
from treadle.engine.request import AnswerRequest, Request, TokenEvent
from treadle.engine.scheduler import Scheduler
from treadle.errors import CapacityError, ContextError, DeadlineError, ModelFileError, UsageError

PLAIN = EmbeddingOptions(normalize=False)


class Loop:
    """An engine over fakes."""

    def __init__(self, num_blocks: int = 11, *, store: FakeStore | None = None, **settings: Any) -> None:
        settings = {"context": 44, "max_batch_tokens": 16, "max_num_requests": 4, "slowdown": None} | settings
        self.now = 0.0
        self.pool = BlockPool(num_blocks, 4)
        cache = PrefixCache([self.pool], stores=[] if store is None else [store])
        self.scheduler = Scheduler([self.pool], cache=cache, clock=lambda: self.now, **settings)
        self.runner = FakeRunner(self.pool)
        if store is not None:
            store.runner = self.runner
        self.engine = Engine(self.scheduler, self.runner)

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request)
        while self.engine.has_work:
            self.engine.step()
        assert self.pool.num_used == 0


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool, int]]:
    return [(c.request.request_id, c.start, c.num_tokens, c.samples, c.num_states) for c in plan.chunks]


def vector(request: EmbeddingRequest, options: EmbeddingOptions = PLAIN) -> list[float]:
    return request.result(options).vector.tolist()  # type: ignore[no-any-return]


def rounded(numbers: np.ndarray[Any, Any]) -> list[float]:
    return numbers.astype(np.float32).tolist()  # type: ignore[no-any-return]


def test_a_mean_wants_every_state_and_the_last_only_one() -> None:
    loop = Loop()
    events: list[TokenEvent] = []
    mean = make_embedding_request(0, range(20), events=events)
    last = make_embedding_request(1, range(40, 60), "last", events=events)
    loop.run(mean, last)
    assert [shape(plan) for plan in loop.runner.plans] == [
        [(0, 0, 16, False, 16)],
        [(0, 16, 4, False, 4), (1, 0, 12, False, 0)],
        [(1, 12, 8, False, 1)],
    ]
    assert vector(mean) == rounded(mean_state(range(20)))
    assert vector(last) == rounded(state(range(40, 60)))
    assert [(event.request, event.finish_reason, event.text) for event in events] == [
        (mean, "stop", ""),
        (last, "stop", ""),
    ]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_one_token_is_no_answer(pooling: Any) -> None:
    loop = Loop()
    request = make_embedding_request(0, [7], pooling)
    loop.run(request, make_request(1, [5], 2))
    assert shape(loop.runner.plans[0]) == [(1, 0, 1, True, 0), (0, 0, 1, False, 1)]
    assert loop.runner.plans[0].num_decodes == 1
    assert vector(request) == rounded(state([7]))


def test_stands_in_line_like_any_prompt() -> None:
    loop = Loop(max_num_requests=1)
    slow = make_embedding_request(0, range(8), priority="batch")
    quick = make_embedding_request(1, range(8), priority="interactive")
    loop.run(slow, quick)
    assert [chunk.request for plan in loop.runner.plans for chunk in plan.chunks] == [quick, slow]


def test_a_mean_neither_finds_blocks_nor_leaves_any() -> None:
    loop = Loop()
    loop.run(make_request(0, range(20), 1))
    num_cached = loop.pool.num_cached
    before = loop.scheduler.counters()
    request = make_embedding_request(1, range(20))
    loop.run(request)
    loop.run(make_embedding_request(2, range(100, 120)))
    assert loop.pool.num_cached == num_cached
    assert vector(request) == rounded(mean_state(range(20)))
    assert request.result(PLAIN).cached_tokens == 0
    after = loop.scheduler.counters()
    assert (after.num_pool_hit_tokens, after.num_missed_tokens) == (0, before.num_missed_tokens)


def test_the_last_finds_what_answers_left_and_leaves_what_they_find() -> None:
    loop = Loop()
    loop.run(make_request(0, range(20), 1))
    request = make_embedding_request(1, [*range(16), 30, 31, 32, 33, 34], "last")
    loop.run(request)
    assert shape(loop.runner.plans[-1]) == [(1, 16, 5, False, 1)]
    assert vector(request) == rounded(state([*range(16), 30, 31, 32, 33, 34]))
    assert request.result(PLAIN).cached_tokens == 16
    follower = make_request(2, [*range(16), 30, 31, 32, 33, 34], 1)
    loop.run(follower)
    assert follower.num_cached_tokens == 20
    assert loop.scheduler.counters().num_pool_hit_tokens == 36


def test_texts_to_embed_do_not_go_to_the_store() -> None:
    store = FakeStore()
    loop = Loop(store=store)
    loop.run(make_embedding_request(0, range(20), "last"), make_embedding_request(1, range(20, 40)))
    assert store.saves == []
    loop.run(make_request(2, range(60, 80), 1))
    assert len(store.held) == 5


def test_a_mean_that_had_to_give_its_blocks_back_counts_no_state_twice() -> None:
    loop = Loop(num_blocks=6, context=24, max_batch_tokens=4)
    request = make_embedding_request(0, range(16), priority="batch")
    loop.engine.submit(request)
    loop.engine.step()
    loop.engine.step()
    urgent = make_request(1, range(100, 112), 1)
    loop.engine.submit(urgent)
    loop.run()
    assert loop.scheduler.counters().num_preemptions == 1
    assert [chunk[1:] for plan in loop.runner.plans for chunk in shape(plan) if chunk[0] == 0] == [
        (0, 4, False, 4),
        (4, 4, False, 4),
        (0, 4, False, 0),
        (4, 4, False, 0),
        (8, 4, False, 4),
        (12, 4, False, 4),
    ]
    assert vector(request) == rounded(mean_state(range(16)))
    assert urgent.answer_ids == answer(range(100, 112), 1)


@pytest.mark.parametrize("seed", range(8))
def test_any_company_gives_the_same_vectors(seed: int) -> None:
    chance = random.Random(seed)
    loop = Loop(num_blocks=9, context=32, max_batch_tokens=8)
    live: list[Request] = []
    for request_id in range(60):
        prompt = [chance.randrange(3) for _ in range(chance.randrange(1, 25))]
        priority: Any = chance.choice(["interactive", "batch"])
        if chance.random() < 0.7:
            pooling: Any = chance.choice(["mean", "last"])
            live.append(make_embedding_request(request_id, prompt, pooling, priority=priority))
        else:
            live.append(make_request(request_id, prompt, chance.randrange(1, 7), priority=priority))
        loop.engine.submit(live[-1])
        for _ in range(chance.randrange(3)):
            loop.engine.step()
        if chance.random() < 0.2:
            loop.engine.cancel(live.pop(chance.randrange(len(live))))
    loop.run()
    assert loop.scheduler.counters().num_preemptions > 0
    for request in live:
        if isinstance(request, EmbeddingRequest):
            right = mean_state(request.prompt_ids) if request.pooling == "mean" else state(request.prompt_ids)
            assert vector(request) == rounded(right)
        else:
            assert isinstance(request, AnswerRequest)
            assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks", "error", "text"),
    [
        (0, 11, UsageError, "the prompt is empty"),
        (45, 20, ContextError, "the prompt has 45 tokens; a context of 44 has room for 44\n"),
        (44, 10, CapacityError, "needs 11 KV blocks of 4 tokens and the pool has 10"),
    ],
)
def test_refuses_at_once_what_can_never_fit(
    num_tokens: int, num_blocks: int, error: type[Exception], text: str
) -> None:
    events: list[TokenEvent] = []
    loop = Loop(num_blocks)
    loop.run(make_embedding_request(0, [1] * num_tokens, events=events))
    assert isinstance(events[0].error, error)
    with pytest.raises(error, match=text):
        loop.scheduler.check(num_tokens, None)


def test_a_text_may_fill_the_context() -> None:
    request = make_embedding_request(0, range(44))
    Loop().run(request)
    assert vector(request) == rounded(mean_state(range(44)))


def test_a_deadline_ends_it_and_frees_its_blocks() -> None:
    loop = Loop(max_batch_tokens=4)
    events: list[TokenEvent] = []
    loop.engine.submit(make_embedding_request(0, range(20), events=events, deadline=5.0))
    loop.engine.step()
    loop.now = 6.0
    loop.run()
    assert isinstance(events[-1].error, DeadlineError)
    assert len(loop.runner.plans) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_an_error(bad: float) -> None:
    events: list[TokenEvent] = []
    request = make_embedding_request(0, range(5), events=events)
    request.state_sum[1] = bad
    Loop().run(request)
    [event] = events
    assert isinstance(event.error, ModelFileError)
    assert event.finish_reason == "error"


def test_a_vector_is_cut_before_it_is_normalised() -> None:
    request = make_embedding_request(0, [3], "last")
    request.state_sum[:] = [3.0, 4.0, 12.0]
    assert vector(request) == [3.0, 4.0, 12.0]
    assert vector(request, EmbeddingOptions()) == rounded(np.array([3, 4, 12]) / 13)
    assert vector(request, EmbeddingOptions(dimensions=2)) == rounded(np.array([0.6, 0.8]))
    assert vector(request, EmbeddingOptions(dimensions=1, normalize=False)) == [3.0]
    request.state_sum[:] = 0
    assert vector(request, EmbeddingOptions()) == [0.0, 0.0, 0.0]
    assert request.result(EmbeddingOptions()).vector.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pooling": "max"}, "pooling: expected mean, cls or last, found 'max'"),
        ({"normalize": 1}, "normalize: expected True or False, found 1"),
        ({"dimensions": 0}, "dimensions: expected 1 to 3, the size of this model, found 0"),
        ({"pooling": "cls"}, "pooling: 'cls' is for models that read in both directions"),
        ({"dimensions": 4}, "dimensions: .* found 4"),
        ({"dimensions": True}, "dimensions: .* found True"),
        ({"dimensions": 1.5}, "dimensions: .* found 1.5"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        EmbeddingOptions(**options).check(3, cast(LoadReport, SimpleNamespace(ranks=False, embeds_only=False)))


@pytest.mark.parametrize(("value", "pooling"), [(None, "mean"), (0, "mean"), (1, "mean"), (3, "last")])
def test_the_file_chooses_the_pooling(value: int | None, pooling: str) -> None:
    assert default_pooling({} if value is None else {"qwen2.pooling_type": value}, "qwen2") == pooling
    assert default_pooling({"other.pooling_type": 3}, "qwen2") == "mean"
    # The first token of a model that does not look ahead knows nothing of the text.
    assert default_pooling({"qwen2.pooling_type": 2}, "qwen2") == "mean"
    assert default_pooling({"bert.pooling_type": 2}, "bert", is_encoder=True) == "cls"
