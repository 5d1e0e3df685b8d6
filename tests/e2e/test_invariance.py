"""A request's logits do not depend, to the last bit, on how its work is cut, spread over threads or mixed with others,
nor on the instruction set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core import Core, Logits
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel, vocabulary
from treadle import _native

PROMPT_LENGTHS = [1, 5, 31, 32, 33, 64, 100, 150]
MIXED = {"attn_v": Format.Q6_K, "ffn_down": Format.Q5_1, "attn_k": Format.Q8_0, "ffn_up": Format.F16}


@pytest.fixture(
    scope="module",
    params=["llama", "qwen2", "qwen2moe", "qwen3moe", "gemma2", "gpt-oss", "apertus", "bailingmoe2", "cohere2", "lfm2"],
)
def tiny_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Of bailingmoe2's layers the first two are dense.
    shape = {"architecture": request.param, "num_layers": 3 if request.param == "bailingmoe2" else 2}
    model = TinyModel.for_k_quants(**shape, format=Format.Q4_K, formats=MIXED)
    return model.write(tmp_path_factory.mktemp("invariance") / f"{request.param}.gguf")


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, len(vocabulary()), length).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def kv_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(tiny_path: Path, kv_type: str) -> list[tuple[list[int], Logits]]:
    """Each prompt by itself, one thread, the whole prompt in one step."""
    core = Core(tiny_path, kv_type=kv_type)
    return [core.continue_greedily(prompt, 20) for prompt in prompts()]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_threads_and_chunks(
    tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]], threads: int, chunk: int
) -> None:
    core = Core(tiny_path, threads=threads, kv_type=kv_type)
    for prompt, (expected_tokens, expected_logits) in zip(prompts(), alone, strict=True):
        tokens, logits = core.continue_greedily(prompt, 20, chunk)
        assert tokens == expected_tokens
        np.testing.assert_array_equal(logits, expected_logits)


def test_changing_threads_between_steps(tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]]) -> None:
    core = Core(tiny_path, threads=1, kv_type=kv_type)
    prompt, (_, expected) = prompts()[-1], alone[-1]
    sequence = core.sequence(len(prompt))
    for at, threads in zip(range(0, len(prompt), 50), (2, 1, 3), strict=True):
        core.runtime.set_cpus([-1] * threads)
        logits = core.step([(sequence, prompt[at : at + 50])])[0]
        np.testing.assert_array_equal(logits, expected[at : at + 50])


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_of_eight_in_scattered_blocks(
    tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]], threads: int
) -> None:
    """Prompts of all lengths and single tokens share steps; blocks come in random order."""
    core = Core(tiny_path, threads=threads, num_blocks=80, max_batch_tokens=64, kv_type=kv_type)
    core.shuffle_blocks(seed=4)
    full = [prompt + tokens[:-1] for prompt, (tokens, _) in zip(prompts(), alone, strict=True)]
    sequences = [core.sequence(len(tokens)) for tokens in full]
    rng = np.random.default_rng(5)
    seen: list[list[Logits]] = [[] for _ in full]
    while any(len(sequence.tokens) < len(tokens) for sequence, tokens in zip(sequences, full, strict=True)):
        work, members = [], []
        for index in rng.permutation(len(full)):
            start = len(sequences[index].tokens)
            piece = full[index][start : start + int(rng.integers(1, 9))]
            if piece:
                work.append((sequences[index], piece))
                members.append(index)
        for index, logits in zip(members, core.step(work), strict=True):
            seen[index].append(logits)
    for parts, (_, expected) in zip(seen, alone, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_instruction_sets(tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]], isa: str) -> None:
    core = Core(tiny_path, isa=isa, kv_type=kv_type)
    assert core.model.isa == isa
    for prompt, (expected_tokens, expected_logits) in zip(prompts(), alone, strict=True):
        tokens, logits = core.continue_greedily(prompt, 20)
        assert tokens == expected_tokens
        np.testing.assert_array_equal(logits, expected_logits)


def test_blocks_used_before_leave_no_trace(
    tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]]
) -> None:
    core = Core(tiny_path, num_blocks=6, kv_type=kv_type)
    core.continue_greedily(prompts()[-1], 20)
    tokens, logits = core.continue_greedily(prompts()[1], 20)
    assert tokens == alone[1][0]
    np.testing.assert_array_equal(logits, alone[1][1])


def test_greedy_sampler_takes_the_largest_logit(
    tiny_path: Path, kv_type: str, alone: list[tuple[list[int], Logits]]
) -> None:
    core = Core(tiny_path, kv_type=kv_type)
    for prompt, (_, logits) in zip(prompts(), alone, strict=True):
        sequence = core.sequence(len(prompt))
        samples = core.samples([(sequence, prompt)])
        assert [sample.token for sample in samples] == logits[: len(prompt)].argmax(axis=-1).tolist()
        core.free(sequence)


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    prompt = np.random.default_rng(6).integers(0, 49152, 70).tolist()
    expected_tokens, expected = Core(smollm2_path).continue_greedily(prompt, 16)
    for threads, chunk in ((1, 7), (2, 64), (2, 1)):
        tokens, logits = Core(smollm2_path, threads=threads).continue_greedily(prompt, 16, chunk)
        assert tokens == expected_tokens
        np.testing.assert_array_equal(logits, expected)
