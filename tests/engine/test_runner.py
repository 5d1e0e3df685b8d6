"""The scheduler and the native runtime together: an answer never depends on how its work was cut, mixed or repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fakes import FakeStream
from oracles.tiny_model import TinyModel
from treadle import _native
from treadle.engine.block_pool import BlockPool
from treadle.engine.engine import Engine
from treadle.engine.kv_type import KV_BLOCK_TOKENS
from treadle.engine.output import TextOutput
from treadle.engine.request import Request, TokenEvent
from treadle.engine.runner import NativeRunner
from treadle.engine.sampling import SamplingParams
from treadle.engine.scheduler import Scheduler
from treadle.models.gguf import ModelFile

SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.5, repetition_penalty=1.1, frequency_penalty=0.2),
}
PROMPT_LENGTHS = [1, 2, 31, 32, 33, 64, 90, 7]
NUM_ANSWER_TOKENS = 40


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return ModelFile.open(TinyModel().write(tmp_path_factory.mktemp("runner") / "tiny.gguf"))


@pytest.fixture(scope="module")
def prompts(model_file: ModelFile) -> list[list[int]]:
    rng = np.random.default_rng(5)
    vocab_size = model_file.hyperparameters.vocab_size
    return [rng.integers(0, vocab_size, length).tolist() for length in PROMPT_LENGTHS]


class Loop:
    """An engine over the native runtime, and how often its scheduler took a request's blocks away."""

    def __init__(self, file: ModelFile, *, num_blocks: int = 64, max_batch_tokens: int = 512, threads: int = 1) -> None:
        self.runner = NativeRunner.load(
            file, isa="", cpus=[-1] * threads, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens
        )
        pool = BlockPool(num_blocks, KV_BLOCK_TOKENS)
        self.engine = Engine(
            Scheduler(pool, context=512, max_batch_tokens=max_batch_tokens, max_num_requests=8), self.runner
        )
        self.num_preempted = 0

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[list[int]]:
        events: list[TokenEvent] = []
        requests = []
        for index, prompt in enumerate(prompts):
            request = Request(
                request_id=index,
                prompt_ids=prompt,
                max_length=len(prompt) + NUM_ANSWER_TOKENS,
                end_ids=frozenset(),
                sampler=self.runner.create_sampler(params, len(prompt), prompt),
                output=TextOutput(FakeStream()),
                deliver=events.append,
            )
            self.engine.submit(request)
            requests.append(request)
        while self.engine.has_work:
            waiting = len(self.engine.scheduler.waiting)
            self.engine.step()
            self.num_preempted += max(0, len(self.engine.scheduler.waiting) - waiting)
        return [request.answer_ids for request in requests]


@pytest.fixture(scope="module")
def alone(model_file: ModelFile, prompts: list[list[int]]) -> dict[str, list[list[int]]]:
    loop = Loop(model_file)
    return {name: [loop.answer([prompt], params)[0] for prompt in prompts] for name, params in SAMPLING.items()}


def test_python_and_native_agree_on_the_block() -> None:
    assert KV_BLOCK_TOKENS == _native.KV_BLOCK_TOKENS


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    "settings",
    [{}, {"threads": 2}, {"max_batch_tokens": 8}, {"max_batch_tokens": 23, "threads": 2}, {"num_blocks": 6}],
    ids=str,
)
def test_an_answer_is_the_same_in_any_company(
    model_file: ModelFile,
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    settings: dict[str, int],
    sampling: str,
) -> None:
    loop = Loop(model_file, **settings)
    assert loop.answer(prompts, SAMPLING[sampling]) == alone[sampling]
    assert (loop.num_preempted > 0) == ("num_blocks" in settings)
    assert loop.engine.scheduler.pool.num_used == 0


def test_logprobs_are_those_of_the_model(model_file: ModelFile, prompts: list[list[int]]) -> None:
    loop = Loop(model_file)
    events: list[TokenEvent] = []
    params = SamplingParams(temperature=0, logprobs=3)
    request = Request(
        request_id=0,
        prompt_ids=prompts[2],
        max_length=len(prompts[2]) + 4,
        end_ids=frozenset(),
        sampler=loop.runner.create_sampler(params, 0, prompts[2]),
        output=TextOutput(FakeStream()),
        deliver=events.append,
    )
    loop.engine.submit(request)
    while loop.engine.has_work:
        loop.engine.step()
    for event in events:
        [sample] = event.samples
        assert len(sample.top_logprobs) == 3
        assert sample.top_logprobs[0] == (sample.token_id, sample.logprob)
        assert sample.logprob < 0
