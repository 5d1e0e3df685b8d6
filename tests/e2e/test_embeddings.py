"""`LLM.embed` on real cores: the vectors of NumPy's forward pass, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from core import Core
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.numpy_forward import NumpyModel
from oracles.tiny_model import TinyModel, vocabulary
from treadle import LLM, SamplingParams
from treadle.engine import memory_plan
from treadle.engine.embedding import Pooling

POOLINGS: list[Pooling] = ["mean", "last"]
TEXTS = [
    "The cat sat on the mat.",
    "A feline rested on the rug.",
    "Quarterly revenue rose by eleven percent.",
    "def add(a, b):\n    return a + b",
]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(architecture="qwen2", format=Format.Q4_1, tied=False)
    return model.write(tmp_path_factory.mktemp("embeddings") / "tiny.gguf")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(8)
    return [rng.integers(0, len(vocabulary()), length).tolist() for length in (1, 3, 20, 31, 32, 33, 40, 60, 100)]


@pytest.fixture(scope="module", params=POOLINGS)
def pooling(request: pytest.FixtureRequest) -> Pooling:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone(tiny_path: Path, prompts: list[list[int]], pooling: Pooling) -> NDArray[np.float32]:
    """What the core gives for each prompt by itself in one step."""
    core = Core(tiny_path)
    sums = []
    for prompt in prompts:
        total = np.zeros(core.model.hidden_size)
        rows = (0, len(prompt)) if pooling == "mean" else (len(prompt) - 1, 1)
        sequence = core.sequence(len(prompt))
        core._run([(sequence, prompt)], np.empty(0, np.int32), [(*rows, total)])
        core.free(sequence)
        vector = total / rows[1]
        sums.append((vector / np.sqrt(np.sum(vector * vector))).astype(np.float32))
    return np.array(sums)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, threads=2) as llm:
        yield llm


def test_a_list_and_each_by_itself(
    llm: LLM, prompts: list[list[int]], alone: NDArray[np.float32], pooling: Pooling
) -> None:
    for _ in range(2):  # the second time, the beginnings are in the cache
        np.testing.assert_array_equal(llm.embed(prompts, pooling=pooling), alone)
    for prompt, expected in zip(prompts, alone, strict=True):
        np.testing.assert_array_equal(llm.embed(prompt, pooling=pooling), expected)


def test_beside_answers_from_many_threads(
    llm: LLM, prompts: list[list[int]], alone: NDArray[np.float32], pooling: Pooling
) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = [llm.generate(prompt, params).token_ids for prompt in prompts]
    with ThreadPoolExecutor(2 * len(prompts)) as executor:
        answers = executor.map(lambda prompt: llm.generate(prompt, params).token_ids, prompts)
        vectors = executor.map(lambda prompt: llm.embed(prompt, pooling=pooling), prompts)
        np.testing.assert_array_equal(list(vectors), alone)
        assert list(answers) == expected


def test_blocks_taken_by_others(
    tiny_path: Path,
    prompts: list[list[int]],
    alone: NDArray[np.float32],
    pooling: Pooling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool of four blocks: answers that grow take those of inputs half read."""
    monkeypatch.setattr(memory_plan, "BATCH_TOKENS", 0)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with LLM(tiny_path, context=128) as llm, ThreadPoolExecutor(4) as executor:
        assert llm.report.memory_plan.num_blocks == 4
        answers = [executor.submit(llm.generate, prompt, params) for prompt in prompts[:4]]
        np.testing.assert_array_equal(llm.embed(prompts, pooling=pooling), alone)
        assert all(len(answer.result().token_ids) == 60 for answer in answers)


def pooled(states: list[NDArray[np.floating]], pooling: Pooling) -> NDArray[np.floating]:
    vectors = np.array([rows.mean(axis=0) if pooling == "mean" else rows[-1] for rows in states])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_float_weights_give_what_numpy_gives(tmp_path: Path, prompts: list[list[int]], pooling: Pooling) -> None:
    path = TinyModel(architecture="llama", format=Format.F32).write(tmp_path / "tiny.gguf")
    expected = pooled(NumpyModel(path).states(prompts, dtype=np.float64), pooling)
    with LLM(path) as llm:
        # Keys and values are kept in float16, eleven bits of which are right.
        np.testing.assert_allclose(llm.embed(prompts, pooling=pooling), expected, atol=2.0**-11)


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    check_texts(smollm2_path)


@pytest.mark.slow
@pytest.mark.model
def test_qwen2(model_path: Callable[[str], Path]) -> None:
    check_texts(model_path("qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf"))


def check_texts(path: Path) -> None:
    with LLM(path) as llm:
        states = NumpyModel(path).states([llm.tokenize(text) for text in TEXTS])
        for pooling in POOLINGS:
            found = llm.embed(TEXTS, pooling=pooling)
            np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
            assert (found * pooled(states, pooling)).sum(axis=1).min() >= 0.999
            short = llm.embed(TEXTS, pooling=pooling, dimensions=64)
            expected = found[:, :64] / np.linalg.norm(found[:, :64], axis=1, keepdims=True)
            np.testing.assert_allclose(short, expected, rtol=1e-4, atol=1e-6)
