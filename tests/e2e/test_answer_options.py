"""What shapes an answer, on a tiny model with the native sampler: constraints, lengths, stops, several answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.tiny_model import TinyModel, vocabulary
from treadle import LLM, DeadlineError, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
WARM = SamplingParams(temperature=1.2, top_p=1.0, seed=5, max_tokens=12, ignore_eos=True)
NUM_WORDS = (len(vocabulary()) + 31) // 32


class Choices:
    """Allows even and odd token ids in turn; after the third of four there is no choice but its odd neighbour."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []

    def accept(self, token_id: int) -> None:
        assert token_id % 2 == len(self._token_ids) % 2
        self._token_ids.append(token_id)

    def forced_tokens(self) -> Sequence[int]:
        return [self._token_ids[-1] + 1] if len(self._token_ids) % 4 == 3 else []

    def allowed_tokens(self) -> NDArray[np.uint32] | None:
        if forced := self.forced_tokens():
            mask = np.zeros(NUM_WORDS, dtype=np.uint32)
            mask[forced[0] // 32] = np.uint32(1 << forced[0] % 32)
            return mask
        return np.full(NUM_WORDS, 0xAAAAAAAA if len(self._token_ids) % 2 else 0x55555555, dtype=np.uint32)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = TinyModel(architecture="llama", format=Format.Q8_0).write(tmp_path_factory.mktemp("options") / "tiny.gguf")
    with LLM(path, threads=2) as llm:
        yield llm


def test_forced_tokens_change_the_steps_and_not_the_answer(llm: LLM) -> None:
    taken = llm.generate(PROMPT, WARM, constraint=Choices)
    sampled = llm.generate(PROMPT, SamplingParams(**{**vars(WARM), "logprobs": 0}), constraint=Choices)
    assert taken.token_ids == sampled.token_ids
    assert [token_id % 2 for token_id in taken.token_ids] == [0, 1] * 6
    assert sampled.logprobs is not None
    assert len(sampled.logprobs) == 12


def test_constrained_and_free_requests_run_side_by_side(llm: LLM) -> None:
    alone = llm.generate(PROMPT, WARM).token_ids
    streams = [llm.stream(PROMPT, WARM) for _ in range(3)]
    assert llm.generate(PROMPT, WARM, constraint=Choices).token_ids != alone
    for stream in streams:
        assert [token_id for chunk in stream for token_id in chunk.token_ids] == alone


def test_several_answers_are_those_of_their_seeds_whatever_runs_beside(llm: LLM) -> None:
    params = SamplingParams(**{**vars(WARM), "n": 4})
    first = llm.generate(PROMPT, params)
    answers = [first.token_ids, *(other.token_ids for other in first.alternatives)]
    assert answers[0] == llm.generate(PROMPT, WARM).token_ids
    assert len({tuple(answer) for answer in answers}) == 4
    beside = [llm.stream([7] * length, SamplingParams(max_tokens=30, seed=length)) for length in (3, 40, 90)]
    again = llm.generate(PROMPT, params)
    assert [again.token_ids, *(other.token_ids for other in again.alternatives)] == answers
    for stream in beside:
        stream.close()


def test_several_answers_compute_their_prompt_once(llm: LLM) -> None:
    prompt = np.random.default_rng(11).integers(0, len(vocabulary()), 70).tolist()
    first = llm.generate(prompt, SamplingParams(**{**vars(WARM), "n": 3}))
    assert first.cached_tokens == 0
    assert [other.cached_tokens for other in first.alternatives] == [64, 64]  # all but the block that is not full


def test_an_answer_ends_at_a_stop_token_and_says_so(llm: LLM) -> None:
    free = llm.generate(PROMPT, WARM).token_ids
    end = free[4]
    stopped = llm.generate(PROMPT, SamplingParams(**{**vars(WARM), "stop_token_ids": [end]}))
    assert stopped.token_ids == free[: free.index(end) + 1]
    assert (stopped.finish_reason, stopped.stopped_by) == ("stop", end)
    assert stopped.text == llm.generate(PROMPT, SamplingParams(**{**vars(WARM), "max_tokens": free.index(end)})).text


def test_no_end_before_the_shortest_length(llm: LLM) -> None:
    free = llm.generate(PROMPT, WARM).token_ids
    late = llm.generate(PROMPT, SamplingParams(**{**vars(WARM), "stop_token_ids": [free[1], free[5]], "min_tokens": 5}))
    assert len(late.token_ids) >= 5
    assert free[1] not in late.token_ids[:5]
    assert free[5] not in late.token_ids[:5]


def test_logprobs_are_the_same_streamed_in_a_list_and_alone(llm: LLM) -> None:
    params = SamplingParams(**{**vars(WARM), "logprobs": 2})
    alone = llm.generate(PROMPT, params).logprobs
    assert alone is not None
    assert all(len(each.top) == 2 and each.logprob <= each.top[0].logprob for each in alone)
    streamed = [logprob for chunk in llm.stream(PROMPT, params) for logprob in chunk.logprobs]
    listed = llm.generate([PROMPT, [1, 2, 3]], params)[0].logprobs
    assert streamed == listed == alone


def test_an_answer_whose_time_is_up_ends_with_an_error(llm: LLM) -> None:
    with pytest.raises(DeadlineError, match="time was up"):
        llm.generate(PROMPT, WARM, timeout=1e-9)
    [late] = llm.generate([PROMPT], WARM, timeout=1e-9)
    assert isinstance(late.error, DeadlineError)
    assert llm.generate(PROMPT, WARM, timeout=3600).finish_reason == "length"
