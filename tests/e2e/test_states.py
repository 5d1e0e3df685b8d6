"""Sums of hidden states against NumPy, and the same to the last bit however the work is cut, mixed or spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core import Core, States
from gguf import GGMLQuantizationType as Format

from oracles.numpy_forward import NumpyModel
from oracles.tiny_model import TinyModel, vocabulary
from treadle import _native
from treadle.errors import UsageError

LENGTHS = [1, 7, 32, 33, 100]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(8)
    return [rng.integers(0, len(vocabulary()), length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def tiny_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel.for_k_quants(architecture=request.param, format=Format.Q4_K)
    return model.write(tmp_path_factory.mktemp("states") / f"{request.param}.gguf")


def new_sum(core: Core) -> States:
    return np.zeros(core.model.hidden_size)


def sum_of(core: Core, tokens: list[int], chunk: int = 512) -> States:
    sequence, total = core.sequence(len(tokens)), new_sum(core)
    for at in range(0, len(tokens), chunk):
        core.add_states([(sequence, tokens[at : at + chunk])], [total])
    core.free(sequence)
    return total


@pytest.fixture(scope="module")
def alone(tiny_path: Path) -> list[States]:
    """Each prompt by itself, one thread, the whole prompt in one step."""
    core = Core(tiny_path)
    return [sum_of(core, prompt) for prompt in prompts()]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_sums_are_those_of_numpy(tmp_path: Path, architecture: str) -> None:
    path = TinyModel(architecture=architecture, format=Format.F32).write(tmp_path / "tiny.gguf")
    core, numpy_model = Core(path), NumpyModel(path)
    exact = numpy_model.states(prompts(), activation_rounding=True, dtype=np.float64)
    single = numpy_model.states(prompts(), activation_rounding=True)
    unrounded = numpy_model.states(prompts(), dtype=np.float64)
    # Differences in the last bit of float32 move single keys and values to the neighbouring float16, which is less than
    # what rounding all of them does.
    for prompt, *rows in zip(prompts(), exact, single, unrounded, strict=True):
        right, other, plain = (row.sum(axis=0, dtype=np.float64) for row in rows)
        bound = np.abs(right - other).max() + np.abs(right - plain).max()
        assert np.abs(sum_of(core, prompt) - right).max() <= bound


def test_a_sum_adds_rows_in_their_order(tiny_path: Path, alone: list[States]) -> None:
    core = Core(tiny_path)
    sequence, total = core.sequence(LENGTHS[-1]), np.zeros(core.model.hidden_size)
    for token in prompts()[-1]:
        state = new_sum(core)
        core.add_states([(sequence, [token])], [state])
        assert (state == state.astype(np.float32)).all()
        total += state
    np.testing.assert_array_equal(total, alone[-1])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_threads_and_chunks(tiny_path: Path, alone: list[States], threads: int, chunk: int) -> None:
    core = Core(tiny_path, threads=threads)
    for prompt, expected in zip(prompts(), alone, strict=True):
        np.testing.assert_array_equal(sum_of(core, prompt, chunk), expected)


@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_instruction_sets(tiny_path: Path, alone: list[States], isa: str) -> None:
    core = Core(tiny_path, isa=isa)
    for prompt, expected in zip(prompts(), alone, strict=True):
        np.testing.assert_array_equal(sum_of(core, prompt), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_and_logits_in_one_step(tiny_path: Path, alone: list[States], threads: int) -> None:
    """Some sequences want a sum, some logits, one both, one neither."""
    core = Core(tiny_path, threads=threads)
    every_logit = [core.step([(core.sequence(len(prompt)), prompt)])[0] for prompt in prompts()]
    work = [(core.sequence(len(prompt)), prompt) for prompt in prompts()]
    starts = np.cumsum([0, *LENGTHS]).tolist()
    sums = [new_sum(core) for _ in range(3)]
    last_rows = [starts[2] - 1, starts[3] - 1, starts[5] - 1]
    output = core._run(
        work,
        np.array(last_rows, dtype=np.int32),
        [(starts[0], 1, sums[0]), (starts[2], 32, sums[1]), (starts[4], 100, sums[2])],
    )
    for found, expected in zip(sums, (alone[0], alone[2], alone[4]), strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(output.logits, (every_logit[1], every_logit[2], every_logit[4]), strict=True):
        np.testing.assert_array_equal(found, expected[-1])


@pytest.mark.parametrize(
    ("first_row", "num_rows", "message"),
    [
        (-1, 1, "first row of state sum 0 is -1, expected 0 to 4"),
        (5, 1, "first row of state sum 0 is 5, expected 0 to 4"),
        (2, 4, "number of rows of state sum 0 is 4, expected 1 to 3"),
        (2, 0, "number of rows of state sum 0 is 0, expected 1 to 3"),
    ],
)
def test_rows_out_of_range(tiny_path: Path, first_row: int, num_rows: int, message: str) -> None:
    core = Core(tiny_path)
    with pytest.raises(UsageError, match=message):
        core._run([(core.sequence(5), [1, 2, 3, 4, 5])], np.empty(0, np.int32), [(first_row, num_rows, new_sum(core))])


def test_sums_that_overlap_or_have_another_size(tiny_path: Path) -> None:
    core = Core(tiny_path)
    work = [(core.sequence(5), [1, 2, 3, 4, 5])]
    no_logits = np.empty(0, np.int32)
    with pytest.raises(UsageError, match="first row of state sum 1 is 1, expected 2 to 4"):
        core._run(work, no_logits, [(0, 2, new_sum(core)), (1, 2, new_sum(core))])
    with pytest.raises(UsageError, match=f"state sum 0 has 3 values, a state has {core.model.hidden_size}"):
        core._run(work, no_logits, [(0, 2, np.zeros(3))])


def test_states_are_timed(tiny_path: Path) -> None:
    core = Core(tiny_path)
    core.runtime.set_timing(True)
    sum_of(core, prompts()[-1], chunk=50)
    operators = {operator.name: operator for operator in core.runtime.timings().operators}
    assert operators["add_states"].num_calls == 2
    assert operators["logits"].num_calls == 0


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    """Quantised weights take int8 activations, so the direction is what has to agree."""
    prompt = np.random.default_rng(6).integers(0, 49152, 70).tolist()
    expected = sum_of(Core(smollm2_path), prompt)
    np.testing.assert_array_equal(sum_of(Core(smollm2_path, threads=2), prompt, chunk=9), expected)
    right = NumpyModel(smollm2_path).states([prompt])[0].sum(axis=0)
    assert expected @ right >= 0.999 * np.linalg.norm(expected) * np.linalg.norm(right)
