"""Whole requests through `LLM` on tiny models: the tokens of the native core, whoever else is being served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from core import Core
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel, vocabulary
from treadle import LLM, ModelFileError, SamplingParams
from treadle.engine import memory_plan

NUM_TOKENS = 30
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(architecture="qwen2", format=Format.Q4_1, tied=False)
    return model.write(tmp_path_factory.mktemp("requests") / "tiny.gguf")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(8)
    return [rng.integers(0, len(vocabulary()), length).tolist() for length in (1, 3, 20, 31, 32, 33, 40, 60)]


@pytest.fixture(scope="module")
def expected(tiny_path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What the core answers to each prompt alone."""
    core = Core(tiny_path)
    return [core.continue_greedily(prompt, NUM_TOKENS)[0] for prompt in prompts]


@pytest.fixture
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, threads=2) as llm:
        yield llm


def test_a_list_of_prompts(llm: LLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert [completion.token_ids for completion in llm.generate(prompts, GREEDY)] == expected


def test_prompts_from_many_threads(llm: LLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    with ThreadPoolExecutor(len(prompts)) as executor:
        completions = executor.map(lambda prompt: llm.generate(prompt, GREEDY), prompts)
        assert [completion.token_ids for completion in completions] == expected


def test_prompts_that_take_blocks_from_each_other(
    tiny_path: Path, prompts: list[list[int]], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of four blocks for eight requests: the younger ones are preempted and computed again."""
    monkeypatch.setattr(memory_plan, "BATCH_TOKENS", 0)
    with LLM(tiny_path, context=128) as llm:
        assert llm.report.memory_plan.num_blocks == 4
        assert [completion.token_ids for completion in llm.generate(prompts, GREEDY)] == expected


def test_seeded_samples_do_not_depend_on_neighbours(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=1.5, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True)
    alone = [llm.generate(prompt, params).token_ids for prompt in prompts]
    assert [completion.token_ids for completion in llm.generate(prompts, params)] == alone


def test_streamed_tokens_are_those_of_the_whole_answer(
    llm: LLM, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert [token for chunk in llm.stream(prompt, GREEDY) for token in chunk.token_ids] == tokens


def test_a_model_that_computes_nan_fails_the_request(tmp_path: Path) -> None:
    path = TinyModel(format=Format.F32).write(tmp_path / "nan.gguf")
    poison(path)
    with LLM(path) as llm:
        with pytest.raises(ModelFileError, match="NaN"):
            llm.generate("hello", GREEDY)
        (completion,) = llm.generate(["hello"], GREEDY)
        assert completion.finish_reason == "error"
        assert completion.token_ids == []


def poison(path: Path) -> None:
    """Overwrites the last weights of the file, which are the embedding's or the output norm's, with NaN."""
    with path.open("r+b") as file:
        file.seek(-64, 2)
        file.write(np.full(16, np.nan, np.float32).tobytes())
