"""Models with sliding windows over the native runtime: blocks that are given back never change a bit of an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_loop import Loop

from oracles.architectures import ARCHITECTURES
from oracles.tiny_model import TinyModel
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS, kv_block_bytes, windowed_block_bytes
from treadle.engine.request import TokenEvent
from treadle.engine.runner import NativeRunner
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError
from treadle.models.gguf import ModelFile

# The models see 24 tokens in their windows, less than a block; with 70 they see parts of three blocks.
MODELS = {
    "gemma2": {},
    "gemma3": {"attention.sliding_window": 70},
    "gpt-oss": {},
    "lfm2": {},  # convolutions see 3
    "phi3": {"attention.sliding_window": 70},  # in all layers
}
PROMPT_LENGTHS = [1, 31, 64, 150, 300, 200]
LOGPROBS = SamplingParams(temperature=0, logprobs=5)
Spoken = list[tuple[int, float, tuple[tuple[int, float], ...]]]


@pytest.fixture(scope="module", params=MODELS)
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    model = TinyModel(request.param, keys={"context_length": 1024, **MODELS[request.param]})
    return ModelFile.open(model.write(tmp_path_factory.mktemp("windows") / "tiny.gguf"))


@pytest.fixture(scope="module")
def prompts(model_file: ModelFile) -> list[list[int]]:
    rng = np.random.default_rng(7)
    all_ids = rng.integers(0, model_file.hyperparameters.vocab_size, 300).tolist()
    *first, last = PROMPT_LENGTHS  # the last one parts from the others in its middle
    return [*(all_ids[:length] for length in first), all_ids[:100] + all_ids[: last - 100]]


def answers(loop: Loop, prompts: list[list[int]], num_tokens: int = 30) -> list[Spoken]:
    """Tokens and logits, as far as log-probabilities show them, of prompts that come at once."""
    events: list[list[TokenEvent]] = [[] for _ in prompts]
    for prompt, heard in zip(prompts, events, strict=True):
        loop.request(prompt, LOGPROBS, num_tokens).deliver = heard.append
    loop.run()
    return [
        [(sample.token_id, sample.logprob, sample.top_logprobs) for event in heard for sample in event.samples]
        for heard in events
    ]


@pytest.fixture(scope="module")
def expected(model_file: ModelFile, prompts: list[list[int]]) -> list[Spoken]:
    """Of each prompt by itself, with nothing given back before the end."""
    loop = Loop(model_file, is_cached=False, frees_windows=False)
    return [answers(loop, [prompt])[0] for prompt in prompts]


def few_blocks(model_file: ModelFile, num_whole: int, num_window: int) -> list[int]:
    shape = model_file.hyperparameters
    has_both = shape.windowed_kv_bytes_per_token < shape.kv_bytes_per_token
    return [num_whole, num_window] if has_both else [num_window]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch_tokens": 8, "threads": 2},
        {"max_batch_tokens": 100},
        {"max_num_requests": 2},
        {"is_cached": False},
        {"few": (40, 12), "max_batch_tokens": 64},
        {"few": (12, 8), "max_batch_tokens": 64},
        {"few": (12, 8), "max_batch_tokens": 64, "is_stored": True},
    ],
    ids=str,
)
def test_no_bit_depends_on_what_is_given_back(
    model_file: ModelFile, prompts: list[list[int]], expected: list[Spoken], settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    if "few" in settings:
        settings["num_blocks"] = few_blocks(model_file, *settings.pop("few"))
    loop = Loop(model_file, **settings)
    for _ in range(2):  # the second time from what the first left behind
        assert answers(loop, prompts) == expected
    if "num_blocks" not in settings:
        assert (loop.scheduler.counters().num_pool_hit_tokens > 300) == settings.get("is_cached", True)


@pytest.mark.parametrize("is_stored", [False, True])
def test_who_loses_its_blocks_to_others_goes_on_alike(
    model_file: ModelFile, prompts: list[list[int]], is_stored: bool
) -> None:
    few = [prompts[4][at : at + 30] for at in (0, 31, 62, 93)]
    plain = Loop(model_file, is_cached=False, frees_windows=False)
    expected = [answers(plain, [prompt], 90)[0] for prompt in few]
    tight = Loop(model_file, num_blocks=few_blocks(model_file, 9, 9), max_batch_tokens=32, is_stored=is_stored)
    assert answers(tight, few, 90) == expected
    assert tight.scheduler.counters().num_preemptions > 0


def test_what_is_read_in_a_window_is_overwritten_by_others(model_file: ModelFile, prompts: list[list[int]]) -> None:
    """Blocks given back are in use again while their request goes on: reading one of them would show."""
    loop = Loop(model_file, max_batch_tokens=32)
    spoken = answers(loop, [prompts[4], *prompts[:4]])
    assert spoken[0] == answers(Loop(model_file, is_cached=False, frees_windows=False), [prompts[4]])[0]
    pool = loop.scheduler.pools[-1]
    assert pool.window is not None
    assert pool.window.most_held < len(prompts[4]) // KV_BLOCK_TOKENS


@pytest.mark.parametrize(("architecture", "kv_type"), [*((name, "f16") for name in ARCHITECTURES), ("gemma2", "q8_0")])
def test_python_and_native_agree_on_windows(architecture: str, kv_type: str, tmp_path: Path) -> None:
    keys = {} if architecture.startswith("lfm2") else {"attention.sliding_window": 50}
    path = TinyModel(architecture, num_layers=7, head_dim=32, keys=keys).write(tmp_path / "tiny.gguf")
    file = ModelFile.open(path)
    runner = NativeRunner.load(file, isa="", cpus=[-1], num_blocks=1, max_batch_tokens=8, kv_type=kv_type)
    found = {blocks.window: blocks.kv_block_bytes for blocks in runner.block_memories}
    shape = file.hyperparameters
    windowed = windowed_block_bytes(shape, kv_type)
    sizes = [(0, kv_block_bytes(shape, kv_type) - windowed), (shape.window, windowed)]
    assert found == {window: size for window, size in sizes if size}


@pytest.mark.parametrize("pattern", [[True, False, False, True, True, False, True], 3, 1], ids=str)
def test_the_layers_that_a_file_lists_have_the_window(pattern: object, tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 50, "attention.sliding_window_pattern": pattern}
    file = ModelFile.open(TinyModel("gemma3", num_layers=7, keys=keys).write(tmp_path / "tiny.gguf"))
    runner = NativeRunner.load(file, isa="", cpus=[-1], num_blocks=1, max_batch_tokens=8)
    windowed = sum(blocks.kv_block_bytes for blocks in runner.block_memories if blocks.window)
    assert windowed == windowed_block_bytes(file.hyperparameters, "f16")


def test_counts_of_blocks_that_do_not_suit_the_layers_are_refused(tmp_path: Path) -> None:
    file = ModelFile.open(TinyModel("gemma2").write(tmp_path / "tiny.gguf"))
    with pytest.raises(UsageError, match="num_blocks has 3 numbers, the layers are in 2 groups"):
        NativeRunner.load(file, isa="", cpus=[-1], num_blocks=[1, 1, 1], max_batch_tokens=8)


@pytest.mark.model
def test_gemma_beyond_its_window(model_path: Callable[[str], Path]) -> None:
    file = ModelFile.open(model_path("gemma-3-270m-Q4_K_M.gguf"))
    rng = np.random.default_rng(3)
    long = rng.integers(1000, 100_000, 1150).tolist()
    prompts = [long, [*long[:700], 7, 8, 9], long[:90]]
    whole = Loop(file, is_cached=False, frees_windows=False, num_blocks=128, context=2048, threads=2)
    expected = [answers(whole, [prompt], 8)[0] for prompt in prompts]
    loop = Loop(file, num_blocks=[128, 60], context=2048, threads=2, is_stored=True)
    assert answers(loop, prompts, 8) == expected
    assert answers(loop, prompts[::-1], 8) == expected[::-1]
    assert loop.scheduler.counters().num_pool_hit_tokens >= 2 * 1100
    loop.scheduler.cache.reset()
    assert answers(loop, prompts, 8) == expected
    assert loop.scheduler.counters().num_store_hit_tokens >= 1100
