"""The scheduler and the native runtime together: an answer never depends on how its work was cut, mixed or repeated."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_loop import Loop

from oracles.tiny_model import TinyModel
from treadle import _native
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.engine.request import AnswerRequest, TokenEvent
from treadle.engine.sampling import SamplingParams
from treadle.models.gguf import ModelFile
from treadle.models.tokenizer import Tokenizer

SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.5, repetition_penalty=1.1, frequency_penalty=0.2),
}
PROMPT_LENGTHS = [1, 2, 31, 32, 33, 64, 90, 7]
QUESTIONS = [
    "What is the capital of France?",
    "Name a prime number.",
    "def add(a, b):",
    "Why is the sky blue?",
]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return ModelFile.open(TinyModel().write(tmp_path_factory.mktemp("runner") / "tiny.gguf"))


@pytest.fixture(scope="module")
def prompts(model_file: ModelFile) -> list[list[int]]:
    rng = np.random.default_rng(5)
    vocab_size = model_file.hyperparameters.vocab_size
    return [rng.integers(0, vocab_size, length).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def alone(model_file: ModelFile, prompts: list[list[int]]) -> dict[str, list[list[int]]]:
    loop = Loop(model_file)
    return {name: [loop.answer([prompt], params)[0] for prompt in prompts] for name, params in SAMPLING.items()}


def test_python_and_native_agree_on_the_block() -> None:
    assert KV_BLOCK_TOKENS == _native.KV_BLOCK_TOKENS


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 2},
        {"max_batch_tokens": 8},
        {"max_batch_tokens": 23, "threads": 2},
        {"max_num_requests": 3},
        {"is_cached": False},
        {"num_blocks": 6},
        {"num_blocks": 6, "is_cached": False},
        {"num_blocks": 6, "is_stored": True},
    ],
    ids=str,
)
def test_an_answer_is_the_same_in_any_company(
    model_file: ModelFile,
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    settings: dict[str, Any],
    sampling: str,
) -> None:
    loop = Loop(model_file, **settings)
    for _ in range(2):  # the second time from what the first left behind
        assert loop.answer(prompts, SAMPLING[sampling]) == alone[sampling]
    counters = loop.scheduler.counters()
    assert (counters.num_preemptions > 0) == ("num_blocks" in settings)
    if not settings.get("is_cached", True):
        assert counters.num_pool_hit_tokens == 0
    elif "num_blocks" not in settings:
        assert counters.num_pool_hit_tokens > 100
    assert (counters.num_store_hit_tokens > 0) == ("is_stored" in settings)


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 14}, {"num_blocks": 14, "is_stored": True}], ids=str)
def test_a_storm_of_cancelled_requests_disturbs_nobody(
    model_file: ModelFile, prompts: list[list[int]], alone: dict[str, list[list[int]]], settings: dict[str, Any]
) -> None:
    loop = Loop(model_file, max_batch_tokens=40, **settings)
    chance = random.Random(11)
    kept: list[tuple[AnswerRequest, list[int]]] = []
    doomed: list[AnswerRequest] = []
    for _ in range(60):
        index = chance.randrange(len(prompts))
        if chance.random() < 0.4:
            kept.append((loop.request(prompts[index], SAMPLING["sampled"]), alone["sampled"][index]))
        else:
            doomed.append(loop.request(prompts[index], SAMPLING["sampled"], seed=chance.randrange(99)))
        for _ in range(chance.randrange(4)):
            loop.engine.step()
        if len(doomed) > 4:
            loop.engine.cancel(doomed.pop(chance.randrange(len(doomed))))
    for request in doomed:
        loop.engine.cancel(request)
    loop.run()
    assert [request.answer_ids for request, _ in kept] == [expected for _, expected in kept]


@pytest.mark.model
def test_a_real_model_says_the_same_in_any_company(smollm2_path: Path) -> None:
    file = ModelFile.open(smollm2_path)
    tokenizer = Tokenizer.from_metadata(file.metadata)
    system = "You are a careful assistant who answers in one sentence. " * 6
    prompts = [tokenizer.encode(system + question) for question in QUESTIONS]
    settings = SamplingParams(temperature=0.9)

    def ask(loop: Loop) -> list[list[int]]:
        requests = [loop.request(prompt, SAMPLING["greedy"], 8) for prompt in prompts]
        requests += [loop.request(prompt, settings, 8, seed=4) for prompt in prompts]
        loop.run()
        return [request.answer_ids for request in requests]

    plain = ask(Loop(file, max_num_requests=1, is_cached=False))
    together = Loop(file, max_num_requests=16)
    assert ask(together) == plain
    # Eight requests share all full blocks of the system prompt, computed once.
    counters = together.scheduler.counters()
    assert counters.num_missed_tokens < sum(map(len, prompts)) * 2 - 7 * (len(tokenizer.encode(system)) // 32 - 1) * 32
    assert ask(together) == plain
    crowded = Loop(file, num_blocks=6, max_batch_tokens=48, max_num_requests=16, is_stored=True)
    assert ask(crowded) == plain


def test_logprobs_are_those_of_the_model(model_file: ModelFile, prompts: list[list[int]]) -> None:
    loop = Loop(model_file)
    events: list[TokenEvent] = []
    request = loop.request(prompts[2], SamplingParams(temperature=0, logprobs=3), 4)
    request.deliver = events.append
    loop.run()
    for event in events:
        [sample] = event.samples
        assert len(sample.top_logprobs) == 3
        assert sample.top_logprobs[0] == (sample.token_id, sample.logprob)
        assert sample.logprob < 0
