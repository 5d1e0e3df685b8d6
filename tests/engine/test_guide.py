"""Constraints and shortest lengths: which tokens may come, which are taken without sampling, who pays for errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fakes import END_ID, VOCAB_SIZE, FakeRunner, FakeSampler, FakeStream, answer, next_token
from fakes import make_request as make_plain_request
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.output import TextOutput
from treadle.engine.plan import Sample
from treadle.engine.request import AnswerRequest, TokenEvent
from treadle.engine.scheduler import Scheduler
from treadle.engine.structured.guide import Guide
from treadle.errors import InternalError, UsageError


class Script:
    """Allows the alternatives of each place in turn; where there is one alone it is forced."""

    def __init__(self, *places: Sequence[int]) -> None:
        self._places = list(places)
        self.accepted: list[int] = []

    def accept(self, token_id: int) -> None:
        assert token_id in self._places[len(self.accepted)]
        self.accepted.append(token_id)

    def forced_tokens(self) -> list[int]:
        forced = []
        for place in self._places[len(self.accepted) :]:
            if len(place) != 1:
                break
            forced.append(place[0])
        return forced

    def allowed_tokens(self) -> NDArray[np.uint32] | None:
        if len(self.accepted) == len(self._places):
            return None
        return mask_of(self._places[len(self.accepted)])


def mask_of(tokens: Sequence[int]) -> NDArray[np.uint32]:
    mask = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def make_request(
    script: Script | None,
    *,
    max_tokens: int = 20,
    min_tokens: int = 0,
    takes_forced: bool = True,
    stop: Sequence[str] = (),
    deliver: Callable[[TokenEvent], None] = lambda _: None,
) -> tuple[AnswerRequest, FakeSampler]:
    sampler = FakeSampler()
    guide = Guide(
        sampler,
        vocab_size=VOCAB_SIZE,
        constraint=script,
        end_ids=frozenset({END_ID}),
        min_tokens=min_tokens,
        takes_forced=takes_forced,
    )
    request = AnswerRequest(
        request_id=0,
        prompt_ids=[1, 2],
        max_length=2 + max_tokens,
        end_ids=frozenset({END_ID}),
        sampler=sampler,
        output=TextOutput(FakeStream(), stop),
        deliver=deliver,
        guide=guide,
    )
    request.begin()
    return request, sampler


def facts(event: TokenEvent) -> tuple[str, list[int], str | None]:
    return event.text, [sample.token_id for sample in event.samples], event.finish_reason


def test_forced_tokens_are_taken_before_and_after_a_choice() -> None:
    script = Script([5], [6], [7, 8], [9], [10], [11, 12])
    request, sampler = make_request(script)
    assert (request.answer_ids, request.num_wanted) == ([5, 6], 4)
    assert sampler.masks == [[7, 8]]
    assert facts(request.accept(Sample(8))) == ("<5><6><8><9><10>", [5, 6, 8, 9, 10], None)
    assert facts(request.accept(Sample(11))) == ("<11>", [11], None)
    assert sampler.masks == [[7, 8], [11, 12], None]
    assert sampler.accepted == script.accepted == [5, 6, 8, 9, 10, 11]


def test_without_forcing_every_token_is_sampled() -> None:
    request, sampler = make_request(Script([5], [6, 7]), takes_forced=False)
    assert request.answer_ids == []
    request.accept(Sample(5))
    assert sampler.masks == [[5], [6, 7]]


def test_a_forced_end_ends_the_answer() -> None:
    request, _ = make_request(Script([5, 6], [7], [END_ID]))
    assert facts(request.accept(Sample(5))) == ("<5><7>", [5, 7, END_ID], "stop")


def test_forced_tokens_stop_at_the_longest_length() -> None:
    request, _ = make_request(Script([5, 6], [7], [8], [9], [10]), max_tokens=3)
    assert facts(request.accept(Sample(5))) == ("<5><7><8>", [5, 7, 8], "length")


def test_a_stop_text_inside_forced_tokens_ends_the_answer() -> None:
    request, _ = make_request(Script([5, 6], [7], [8], [9]), stop=["<8>"])
    assert facts(request.accept(Sample(5))) == ("<5><7>", [5, 7, 8], "stop")


def test_an_answer_that_ends_before_it_ran_is_told_at_once() -> None:
    events: list[TokenEvent] = []
    request, _ = make_request(Script([5], [6], [7], [8, 9]), stop=["<6>"], deliver=events.append)
    pool = BlockPool(4, 4)
    engine = Engine(Scheduler([pool], context=16), FakeRunner(pool))
    engine.submit(request)
    assert [facts(event) for event in events] == [("<5>", [5, 6], "stop")]
    assert not engine.has_work


def test_forced_tokens_get_blocks_beside_other_requests() -> None:
    events: list[TokenEvent] = []
    request, _ = make_request(Script([5, 6], *([token] for token in range(20, 36)), [7, 8]), deliver=events.append)
    other = make_plain_request(1, [1, 2, 3], 12)
    pool = BlockPool(10, 4)
    runner = FakeRunner(pool, sample=lambda seen: 5 if seen == [1, 2] else 7 if seen[-1] == 35 else next_token(seen))
    engine = Engine(Scheduler([pool], context=24), runner)
    engine.submit(other)
    engine.submit(request)
    while engine.has_work and len(events) < 2:
        engine.step()
    assert [token for event in events for token in facts(event)[1]] == [5, *range(20, 36), 7]
    engine.cancel(request)
    while engine.has_work:
        engine.step()
    assert other.answer_ids == answer([1, 2, 3], 12)
    assert pool.num_used == 0


def test_forced_tokens_that_were_known_are_no_part_of_the_prompt() -> None:
    pool = BlockPool(10, 4)
    engine = Engine(Scheduler([pool], context=24), FakeRunner(pool, sample=lambda _: 7))
    for _ in range(2):
        request, _ = make_request(Script(*([token] for token in range(20, 30)), [7, 8]), max_tokens=12)
        engine.submit(request)
        while engine.has_work:
            engine.step()
    assert request.num_cached_tokens == 2
    counters = engine.scheduler.counters()
    assert (counters.num_pool_hit_tokens, counters.num_missed_tokens) == (2, 2)


def test_one_token_is_left_to_sample_when_the_whole_answer_is_forced() -> None:
    request, sampler = make_request(Script([5], [6], [7], [8]), max_tokens=3)
    assert request.answer_ids == [5, 6]
    assert sampler.masks == [[7]]
    assert facts(request.accept(Sample(7))) == ("<5><6><7>", [5, 6, 7], "length")


def test_no_end_before_the_shortest_length() -> None:
    request, sampler = make_request(None, min_tokens=2)
    everything = list(range((VOCAB_SIZE + 31) // 32 * 32))
    everything.remove(END_ID)
    assert sampler.masks == [everything]
    request.accept(Sample(5))
    request.accept(Sample(6))
    assert sampler.masks == [everything, everything, None]


def test_a_shortest_length_narrows_a_constraint_but_leaves_it_something() -> None:
    request, sampler = make_request(Script([5, END_ID], [END_ID], [6, 7]), min_tokens=9, takes_forced=False)
    assert sampler.masks == [[5]]
    request.accept(Sample(5))
    assert sampler.masks[-1] == [END_ID]


def test_a_constraint_that_allows_nothing_ends_its_answer() -> None:
    request, _ = make_request(Script([5, 6], []))
    event = request.accept(Sample(5))
    assert (event.finish_reason, event.text) == ("error", "<5>")
    assert isinstance(event.error, UsageError)
    assert "allows no token after 1 tokens" in str(event.error)


def test_a_constraint_that_breaks_is_our_error_and_ends_its_answer() -> None:
    request, _ = make_request(Script([5, 6], [7, 8]))
    event = request.accept(Sample(99))
    assert isinstance(event.error, InternalError)
    assert "the constraint of an answer failed: AssertionError" in str(event.error)


def test_a_constraint_that_allows_nothing_from_the_start_is_refused() -> None:
    with pytest.raises(UsageError, match="allows no token after 0 tokens"):
        make_request(Script([]))
