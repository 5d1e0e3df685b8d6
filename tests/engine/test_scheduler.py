"""The scheduler on eleven blocks of four tokens: exact plans and ids, then seeded random walks with invariants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from scheduler_checks import check_invariants

from fakes import END_ID, FakeRunner, answer, make_embedding_request, make_request
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.engine.request import Priority, Request, TokenEvent
from treadle.engine.scheduler import Scheduler
from treadle.errors import CapacityError, DeadlineError, InternalError, ModelFileError, UsageError


def make_scheduler(num_blocks: int = 11, **settings: Any) -> Scheduler:
    settings = {"context": 44, "max_batch_tokens": 8, "max_num_requests": 4, "slowdown": None} | settings
    return Scheduler([BlockPool(num_blocks, 4)], **({"clock": lambda: 0.0} | settings))


def make_engine(scheduler: Scheduler) -> tuple[Engine, FakeRunner]:
    runner = FakeRunner(scheduler.pools[0])
    return Engine(scheduler, runner), runner


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(chunk.request.request_id, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks]


def test_a_long_prompt_goes_in_chunks_and_a_decode_goes_first() -> None:
    scheduler = make_scheduler()
    engine, runner = make_engine(scheduler)
    short, long = make_request(0, range(3), 5), make_request(1, range(100, 119), 3)
    engine.submit(short)
    engine.submit(long)
    for _ in range(4):
        engine.step()
    assert [shape(plan) for plan in runner.plans] == [
        [(0, 0, 3, True), (1, 0, 5, False)],
        [(0, 3, 1, True), (1, 5, 7, False)],
        [(0, 4, 1, True), (1, 12, 7, True)],
        [(0, 5, 1, True), (1, 19, 1, True)],
    ]
    assert short.tables[0].block_ids == [0, 6]
    assert long.tables[0].block_ids == [1, 2, 3, 4, 5]


def test_prompts_that_are_not_cut_go_whole_and_one_beyond_a_step_alone() -> None:
    scheduler = make_scheduler(30, cuts_prompts=False)
    engine, runner = make_engine(scheduler)
    for request_id, num_tokens in enumerate((5, 19, 4, 3)):
        engine.submit(make_embedding_request(request_id, range(num_tokens)))
    while scheduler.has_work:
        engine.step()
    assert [[(chunk.request.request_id, chunk.num_tokens) for chunk in plan.chunks] for plan in runner.plans] == [
        [(0, 5), (3, 3)],
        [(1, 19)],
        [(2, 4)],
    ]


def test_a_prompt_waits_for_blocks_and_nobody_overtakes_it() -> None:
    scheduler = make_scheduler(max_batch_tokens=44)
    engine, runner = make_engine(scheduler)
    first, large = make_request(0, range(20), 2), make_request(1, range(100, 128), 1)
    small = make_request(2, range(200, 204), 1)
    for request in (first, large, small):
        engine.submit(request)
    engine.step()
    assert scheduler.running == (first,)
    assert scheduler.waiting == (large, small)
    assert first.tables[0].block_ids == [0, 1, 2, 3, 4]
    engine.step()
    assert first.finish_reason == "length"
    engine.step()
    assert shape(runner.plans[-1]) == [(1, 0, 28, True), (2, 0, 4, True)]


def test_the_youngest_gives_its_blocks_back_and_is_computed_again() -> None:
    scheduler = make_scheduler(num_blocks=3, context=12)
    engine, runner = make_engine(scheduler)
    old, young = make_request(0, [1, 2, 3], 6), make_request(1, [5], 6)
    engine.submit(old)
    engine.submit(young)
    while engine.has_work:
        engine.step()
    assert [shape(plan) for plan in runner.plans] == [
        [(1, 0, 1, True), (0, 0, 3, True)],
        [(0, 3, 1, True), (1, 1, 1, True)],
        [(0, 4, 1, True), (1, 2, 1, True)],
        [(0, 5, 1, True), (1, 3, 1, True)],
        [(0, 6, 1, True)],  # the young one wanted a second block and none was left
        [(0, 7, 1, True)],
        [(1, 4, 1, True)],  # its first block was still there
        [(1, 5, 1, True)],
    ]
    assert old.answer_ids == answer([1, 2, 3], 6)
    assert young.answer_ids == answer([5], 6)
    assert scheduler.pools[0].num_free == 3


def test_an_old_decode_takes_the_block_of_a_younger_prompt_half_read() -> None:
    scheduler = make_scheduler(num_blocks=5, context=20, max_batch_tokens=4)
    engine, _ = make_engine(scheduler)
    old, young = make_request(0, [1, 2, 3], 9), make_request(1, range(8), 2)
    engine.submit(old)
    engine.submit(young)
    while engine.has_work:
        engine.step()
    assert old.answer_ids == answer([1, 2, 3], 9)
    assert young.answer_ids == answer(range(8), 2)


def test_no_more_than_the_allowed_number_run_at_once() -> None:
    scheduler = make_scheduler(max_num_requests=2)
    engine, _ = make_engine(scheduler)
    for request_id in range(3):
        engine.submit(make_request(request_id, [request_id + 1], 1))
    engine.step()
    assert [request.request_id for request in scheduler.waiting] == [2]


def test_refuses_a_step_shorter_than_its_decodes() -> None:
    with pytest.raises(UsageError, match=r"at least max_num_requests \(4\).*found 3"):
        make_scheduler(max_batch_tokens=3)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "error", "text"),
    [
        (0, 5, UsageError, "the prompt is empty"),
        (44, 1, UsageError, "the prompt has 44 tokens; a context of 44 has room for 43"),
        (200, 1, UsageError, "the prompt has 200 tokens"),
        (20, 40, CapacityError, "needs 15 KV blocks of 4 tokens and the pool has 11"),
    ],
)
def test_refuses_at_once_what_can_never_fit(
    num_prompt_tokens: int, max_tokens: int, error: type[Exception], text: str
) -> None:
    scheduler = make_scheduler()
    with pytest.raises(error, match=text):
        scheduler.add(make_request(0, range(num_prompt_tokens), max_tokens))
    assert scheduler.waiting == ()


def test_a_full_context_is_served_to_its_last_token() -> None:
    scheduler = make_scheduler()
    engine, _ = make_engine(scheduler)
    request = make_request(0, range(40), 4)
    engine.submit(request)
    while engine.has_work:
        engine.step()
    assert (request.finish_reason, len(request.token_ids)) == ("length", 44)
    assert request.answer_ids == answer(range(40), 4)


def test_an_end_token_and_a_stop_string_both_end_with_stop() -> None:
    scheduler = make_scheduler()
    prompt = [1, 2]
    text = "".join(f"<{token_id}>" for token_id in answer(prompt, 3))
    stopped_events: list[TokenEvent] = []
    ended_events: list[TokenEvent] = []
    stopped = make_request(0, prompt, 9, stop=[text[-5:]], events=stopped_events)
    ended = make_request(1, [5], 9, events=ended_events)

    def sample(token_ids: list[int]) -> int:
        return END_ID if token_ids[0] == 5 and len(token_ids) == 3 else answer(token_ids, 1)[0]

    engine = Engine(scheduler, FakeRunner(scheduler.pools[0], sample=sample))  # type: ignore[arg-type]
    engine.submit(stopped)
    engine.submit(ended)
    while engine.has_work:
        engine.step()
    assert stopped.finish_reason == ended.finish_reason == "stop"
    assert "".join(event.text for event in stopped_events) == text[:-5]
    assert ended.answer_ids[-1] == END_ID
    assert f"<{END_ID}>" not in "".join(event.text for event in ended_events)


def test_bad_logits_end_one_request_and_no_other() -> None:
    class Runner(FakeRunner):
        def run(self, plan: StepPlan) -> StepResult:
            samples = super().run(plan).samples
            return StepResult([Sample(-1, bad_logits=True), *samples[1:]] if len(self.plans) == 2 else samples)

    scheduler = make_scheduler()
    engine = Engine(scheduler, Runner(scheduler.pools[0]))
    events: list[TokenEvent] = []
    bad, good = make_request(0, [1, 2], 4, events=events), make_request(1, [3], 4)
    engine.submit(bad)
    engine.submit(good)
    while engine.has_work:
        engine.step()
    error = events[-1].error
    assert isinstance(error, ModelFileError)
    assert "NaN or infinite logits for the token at position 3" in str(error)
    assert bad.finish_reason == "error"
    assert good.answer_ids == answer([3], 4)
    assert scheduler.pools[0].num_free == 11


def test_a_failed_step_ends_everything_and_leaves_no_block_behind() -> None:
    scheduler = make_scheduler(max_num_requests=2)
    engine, _ = make_engine(scheduler)
    events: list[TokenEvent] = []
    requests = [make_request(request_id, [request_id + 1], 5, events=events) for request_id in range(3)]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.abort(KeyboardInterrupt())
    assert not engine.has_work
    assert scheduler.pools[0].num_free == 11
    assert [type(event.error) for event in events[-3:]] == [InternalError] * 3
    assert {event.request for event in events[-3:]} == set(requests)


@pytest.mark.parametrize("seed", range(40))
def test_random_walks_lose_nothing_and_always_move(seed: int) -> None:
    chance = random.Random(seed)
    scheduler = make_scheduler(
        num_blocks=chance.choice([3, 5, 11]),
        context=12,
        max_batch_tokens=chance.choice([4, 5, 16]),
        max_num_requests=chance.choice([1, 2, 4]),
    )
    engine, runner = make_engine(scheduler)
    live: list[Request] = []
    finished = 0
    for request_id in range(60):
        # A few beginnings in common, so that blocks are shared, awaited and found again.
        prompt = [chance.choice([1, 2])] * chance.choice([0, 4, 8]) + [chance.randrange(900)] * chance.randint(1, 3)
        priority: Priority = chance.choice(["interactive", "interactive", "batch"])
        live.append(make_request(request_id, prompt, chance.randint(1, 12 - len(prompt)), priority=priority))
        engine.submit(live[-1])
        if chance.random() < 0.2:
            engine.cancel(live.pop(chance.randrange(len(live))))
        while engine.has_work and (chance.random() < 0.6 or request_id == 59):
            engine.step()
            plan = runner.plans[-1]
            assert 0 < plan.num_tokens <= scheduler.max_batch_tokens
            assert len({chunk.request.request_id for chunk in plan.chunks}) == len(plan.chunks)
            check_invariants(scheduler)
        for request in [request for request in live if request.finish_reason]:
            assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))
            live.remove(request)
            finished += 1
        check_invariants(scheduler)
    assert not live
    assert finished > 30
    assert scheduler.pools[0].num_free == scheduler.pools[0].num_blocks


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PricedRunner(FakeRunner):
    """A runner on which a step costs 20 ms, and 2 ms for each token."""

    def __init__(self, pool: BlockPool, clock: Clock) -> None:
        super().__init__(pool)
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        self._clock.now += 0.020 + 0.002 * plan.num_tokens
        return super().run(plan)


def make_priced(slowdown: float | None) -> tuple[Scheduler, Engine, PricedRunner, Clock]:
    clock = Clock()
    scheduler = make_scheduler(1000, context=1200, max_batch_tokens=128, slowdown=slowdown, clock=clock)
    runner = PricedRunner(scheduler.pools[0], clock)
    engine = Engine(scheduler, runner)
    engine.submit(make_request(-1, range(800, 928), 1))
    engine.step()
    return scheduler, engine, runner, clock


@pytest.mark.parametrize("slowdown", [1.5, 2.4, None])
def test_a_prompt_slows_answers_by_no_more_than_the_factor(slowdown: float | None) -> None:
    _, engine, runner, clock = make_priced(slowdown)
    answering = [make_request(index, [index], 900) for index in range(2)]
    for request in answering:
        engine.submit(request)
    for _ in range(5):
        engine.step()
    prompt = make_request(9, range(1000), 1)
    engine.submit(prompt)
    began, steps = clock.now, []
    while not prompt.finish_reason:
        before = clock.now
        engine.step()
        steps.append(clock.now - before)
    if slowdown is None:
        assert runner.plans[7].num_tokens == 128
        return
    alone = 0.020 + 0.002 * 2
    assert max(steps) <= alone * slowdown + 0.002
    assert 1000 / (clock.now - began) >= 0.75 * (slowdown * alone - alone) / 0.002 / (slowdown * alone)


def test_answers_of_batch_requests_do_not_slow_prompts_down() -> None:
    _, engine, runner, _ = make_priced(1.5)
    engine.submit(make_request(0, [1], 300, priority="batch"))
    for _ in range(5):
        engine.step()
    engine.submit(make_request(1, range(1000), 1))
    engine.step()
    assert runner.plans[-1].num_tokens == 128


def test_a_short_prompt_passes_a_long_one_but_not_for_ever() -> None:
    scheduler, engine, _, clock = make_priced(2.4)
    engine.submit(make_request(0, [1], 900))
    for _ in range(5):
        engine.step()
    book = make_request(1, range(1000), 1)
    engine.submit(book)
    engine.step()
    question = make_request(2, range(500, 520), 1)
    began = clock.now
    engine.submit(question)
    while not question.finish_reason:
        engine.step()
    assert clock.now - began < 0.3
    assert not book.finish_reason
    request_id = 3
    while not book.finish_reason:  # there is always another question
        if len(scheduler.running) < 4:
            engine.submit(make_request(request_id, range(40 * request_id, 40 * request_id + 60), 1))
            request_id += 1
        engine.step()
    assert clock.now - began < 10


def test_interactive_requests_go_before_batch_requests_until_those_have_waited_long() -> None:
    clock = Clock()
    scheduler = make_scheduler(max_num_requests=1, clock=clock)
    engine, runner = make_engine(scheduler)
    order: list[int] = []
    for request_id, (now, priority) in enumerate(
        [(0, "batch"), (1, "batch"), (2, "interactive"), (31.5, "interactive")]
    ):
        clock.now = now
        request = make_request(request_id, [request_id + 1], 1, priority=priority)  # type: ignore[arg-type]
        engine.submit(request)
    while engine.has_work:
        engine.step()
        order.append(runner.plans[-1].chunks[0].request.request_id)
    assert order == [2, 0, 1, 3]


def test_an_interactive_request_takes_the_place_of_a_batch_request() -> None:
    scheduler = make_scheduler(num_blocks=5, context=20)
    engine, _ = make_engine(scheduler)
    batch = make_request(0, range(8), 8, priority="batch")
    engine.submit(batch)
    engine.step()
    urgent = make_request(1, range(100, 112), 2)
    engine.submit(urgent)
    engine.step()
    assert (scheduler.running, scheduler.waiting) == ((urgent,), (batch,))
    while engine.has_work:
        engine.step()
    assert batch.answer_ids == answer(range(8), 8)
    assert scheduler.counters().num_preemptions == 1


def test_nobody_is_preempted_in_vain() -> None:
    scheduler = make_scheduler(num_blocks=5, context=20)
    engine, _ = make_engine(scheduler)
    first, batch = make_request(0, range(8), 8), make_request(1, [7], 3, priority="batch")
    engine.submit(first)
    engine.submit(batch)
    engine.step()
    engine.submit(make_request(2, range(100, 116), 1))  # needs four blocks of five, and the first keeps two
    engine.step()
    assert scheduler.running == (first, batch)


def test_a_deadline_ends_what_waits_and_what_runs() -> None:
    clock = Clock()
    scheduler = make_scheduler(max_num_requests=1, clock=clock)
    engine, _ = make_engine(scheduler)
    events: list[TokenEvent] = []
    running = make_request(0, [1], 30, events=events, deadline=5.0)
    waiting = make_request(1, [2], 30, events=events, deadline=3.0)
    patient = make_request(2, [3], 2, deadline=100.0)
    for request in (running, waiting, patient):
        engine.submit(request)
    engine.step()
    assert scheduler.idle_seconds() == 0
    clock.now = 3.0
    engine.step()
    late = [event for event in events if event.error]
    assert [event.request for event in late] == [waiting]
    assert isinstance(late[0].error, DeadlineError)
    assert "up after 3.0 s, with 0 tokens answered, before it could start" in str(late[0].error)
    clock.now = 5.0
    engine.step()
    assert "up after 5.0 s, with 2 tokens answered" in str(events[-1].error)
    assert scheduler.running == (patient,)
    while engine.has_work:
        engine.step()
    assert patient.answer_ids == answer([3], 2)
    assert scheduler.pools[0].num_used == 0


def test_refuses_more_than_a_thousand_in_the_queue_and_serves_the_rest() -> None:
    scheduler = make_scheduler()
    engine, _ = make_engine(scheduler)
    events: list[TokenEvent] = []
    for request_id in range(1025):
        engine.submit(make_request(request_id, [1 + request_id % 900], 1, events=events))
    assert isinstance(events[0].error, CapacityError)
    assert "1024 requests wait already" in str(events[0].error)
    while engine.has_work:
        engine.step()
    assert sum(event.finish_reason == "length" for event in events) == 1024


def test_five_hundred_requests_pass_through_a_pool_too_small_for_them() -> None:
    chance = random.Random(8)
    scheduler = make_scheduler(11, max_num_requests=8, max_batch_tokens=16)
    engine, _ = make_engine(scheduler)
    requests = []
    for request_id in range(500):
        prompt = [chance.randrange(3)] * chance.choice([0, 8, 16]) + chance.choices(range(900), k=chance.randint(1, 20))
        requests.append(make_request(request_id, prompt, chance.randint(1, 44 - len(prompt))))
        engine.submit(requests[-1])
    while engine.has_work:
        engine.step()
        check_invariants(scheduler)
    for request in requests:
        assert request.answer_ids == answer(request.prompt_ids, request.max_length - len(request.prompt_ids))
    assert scheduler.pools[0].num_used == 0
    assert scheduler.counters().num_preemptions > 20


def test_refuses_a_factor_that_leaves_prompts_no_time() -> None:
    with pytest.raises(UsageError, match=r"slowdown: expected above 1.*found 1\.0"):
        make_scheduler(slowdown=1.0)


class Dictated:
    """A guide that forces five tokens after each sampled one."""

    def advance(self, token_ids: Sequence[int], most_forced: int) -> list[int]:
        return list(range(300, 305))[:most_forced] if token_ids else []


def test_forced_tokens_get_their_blocks_and_are_computed_together() -> None:
    scheduler = make_scheduler(num_blocks=9, context=36)
    engine, runner = make_engine(scheduler)
    guided, prompt = make_request(0, [1, 2], 24), make_request(1, range(100, 116), 4)
    guided.guide = Dictated()  # type: ignore[assignment]
    engine.submit(prompt)
    engine.submit(guided)
    while engine.has_work:
        engine.step()
        check_invariants(scheduler)
    assert (0, 2, 6, True) in [chunk for plan in runner.plans for chunk in shape(plan)]
    expected = [1, 2]
    while len(expected) < 26:
        expected += [*answer(expected, 1), *range(300, 305)]
    assert guided.token_ids == expected[:26]
    assert prompt.answer_ids == answer(range(100, 116), 4)


def test_forced_tokens_of_an_answer_go_before_an_older_prompt() -> None:
    _, engine, runner, _ = make_priced(None)
    prompt, guided = make_request(0, range(1000), 1), make_request(1, range(700, 710), 60)
    guided.guide = Dictated()  # type: ignore[assignment]
    engine.submit(prompt)
    engine.submit(guided)
    engine.step()
    engine.step()
    assert shape(runner.plans[-2]) == [(1, 0, 10, True), (0, 0, 118, False)]
    assert shape(runner.plans[-1]) == [(1, 10, 6, True), (0, 118, 122, False)]
