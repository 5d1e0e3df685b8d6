"""The native core's logits and greedy tokens against the NumPy forward pass.

Two kinds of comparison. Where products take float activations, the core and NumPy differ by float rounding alone, and the
bound is what float rounding does to NumPy itself. Where products take int8 activations, a last-bit difference can move an
activation to the next level, and that spreads; no order of summation is then the right one. There the core has to be
as far from the exact pass as NumPy with the same int8 rounding is, and no further.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core import Core
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.architectures import ARCHITECTURES
from oracles.float_copy import write_float_copy
from oracles.numpy_forward import NumpyModel
from oracles.tiny_model import TinyModel, vocabulary
from treadle import _native
from treadle.models.gguf import ModelFile
from treadle.models.tokenizer import Tokenizer

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees Celsius because",
    "Dear Sir or Madam,\n\nI am writing to",
]
NUM_TOKENS = 64
FLOAT_FORMATS = [Format.F32, Format.F16, Format.BF16]
BLOCK_FORMATS = [Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q5_1, Format.Q8_0, Format.IQ4_NL, Format.MXFP4]
K_FORMATS = [
    *(Format.Q2_K, Format.Q3_K, Format.Q4_K, Format.Q5_K, Format.Q6_K),
    *(Format.IQ4_XS, Format.TQ1_0, Format.TQ2_0),
]


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_divergence(exact: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Mean Kullback-Leibler divergence of the next-token distributions, in nats."""
    p, q = log_softmax(exact), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def splits(ours: NDArray[np.floating], oracle: NDArray[np.floating]) -> list[tuple[float, str]]:
    """Positions where the two choose different tokens: the oracle's gap between them, and both pairs of logits in words."""
    found = []
    for row in np.flatnonzero(ours.argmax(axis=-1) != oracle.argmax(axis=-1)):
        pair = [int(ours[row].argmax()), int(oracle[row].argmax())]
        gap = float(oracle[row, pair[1]] - oracle[row, pair[0]])
        found.append((gap, f"row {row}: tokens {pair}, ours {ours[row, pair]}, oracle {oracle[row, pair]}"))
    return found


def random_tokens(count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, len(vocabulary()), count).tolist()


def check_float_model(path: Path, prompts: list[list[int]], num_tokens: int, isa: str = "") -> None:
    """Greedy tokens equal NumPy's; only a tie within what float rounding moves may split them."""
    core, numpy_model = Core(path, isa=isa), NumpyModel(path)
    runs = [(prompt, *core.continue_greedily(prompt, num_tokens)) for prompt in prompts]
    sequences = [prompt + output[:-1] for prompt, output, _ in runs]
    exact = numpy_model.forward(sequences, activation_rounding=True, dtype=np.float64)
    single = numpy_model.forward(sequences, activation_rounding=True)
    unrounded = numpy_model.forward(sequences, dtype=np.float64)
    # Keys and values are rounded to float16 in every pass but the last, and a last-bit difference moves single ones of them
    # to the neighbouring float16: less than all of that rounding together, more than float32 alone.
    bound = largest_difference(exact, single) + largest_difference(exact, unrounded)
    worst = largest_difference(exact, [logits for *_, logits in runs])
    assert worst <= bound, f"logits differ by {worst}, rounding explains {bound}"
    for (prompt, _, logits), oracle in zip(runs, exact, strict=True):
        chosen = slice(len(prompt) - 1, None)
        for gap, words in splits(logits[chosen], oracle[chosen]):
            assert gap <= 2 * bound, words


def largest_difference(some: list[NDArray[np.floating]], others: list[NDArray[np.floating]]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))


def check_quantised_model(path: Path, prompts: list[list[int]], num_tokens: int, isa: str = "") -> None:
    """As far from the exact pass as NumPy with int8 activations is; greedy tokens split only inside that noise."""
    core, numpy_model = Core(path, isa=isa), NumpyModel(path)
    runs = [(prompt, *core.continue_greedily(prompt, num_tokens)) for prompt in prompts]
    sequences = [prompt + output[:-1] for prompt, output, _ in runs]
    exact = np.concatenate(numpy_model.forward(sequences))
    rounded = np.concatenate(numpy_model.forward(sequences, activation_rounding=True))
    ours = np.concatenate([logits for *_, logits in runs])
    noise, expected_noise = ours - exact, rounded - exact
    assert np.sqrt(np.mean(noise**2)) <= 1.25 * np.sqrt(np.mean(expected_noise**2))
    assert mean_divergence(exact, ours) <= 1.5 * mean_divergence(exact, rounded)
    # What rounding does to the difference of two leading logits, measured on NumPy alone.
    leaders = np.argsort(exact, axis=-1)[:, -5:]
    spread = np.take_along_axis(expected_noise, leaders, axis=-1)
    allowed_gap = float((spread.max(axis=-1) - spread.min(axis=-1)).max())
    found = splits(ours, exact)
    for gap, words in found:
        assert gap <= allowed_gap, f"{words}: rounding explains a gap of {allowed_gap}"
    num_expected = len(splits(rounded, exact))
    assert len(found) <= 2 * num_expected + 3, "\n".join(words for _, words in found)


@pytest.mark.parametrize("format", FLOAT_FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2"])
@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_tiny_float_models(tmp_path: Path, isa: str, architecture: str, format: Format) -> None:
    path = TinyModel(architecture=architecture, format=format).write(tmp_path / "tiny.gguf")
    check_float_model(path, [random_tokens(40), random_tokens(1)], 24, isa)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"tied": False, "rope_factors": True}, id="untied-rope-factors"),
        pytest.param({"head_dim": 64, "num_heads": 5, "num_kv_heads": 1}, id="wide-heads"),
        pytest.param({"num_kv_heads": 9}, id="no-grouping"),
        pytest.param({"num_experts": 5, "num_experts_used": 2}, id="mixtral"),
        pytest.param({"num_experts": 70, "num_experts_used": 1}, id="one-of-many-experts"),
        pytest.param({"rope_scaling": {"type": "linear", "factor": 4.0}}, id="rope-linear"),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 128}, "architecture": "qwen2"},
            id="rope-yarn",
        ),
    ],
)
def test_tiny_model_variants(tmp_path: Path, shape: dict[str, object]) -> None:
    path = TinyModel(format=Format.F32, **shape).write(tmp_path / "tiny.gguf")  # type: ignore[arg-type]
    check_float_model(path, [random_tokens(150)], 16)


# Seven layers, so that each pattern of layers comes round.
SMALL = {"hidden_size": 96, "num_heads": 3, "num_kv_heads": 1, "feed_forward_size": 160, "num_layers": 7}


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_architectures(tmp_path: Path, architecture: str) -> None:
    """Prompts longer than the windows of 24 tokens, one of them longer than a range of attention."""
    model = TinyModel(architecture=architecture, format=Format.F32, context_length=1024, **SMALL)
    check_float_model(model.write(tmp_path / "tiny.gguf"), [random_tokens(70), random_tokens(540)], 8)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_quantised_architectures(tmp_path: Path, architecture: str) -> None:
    model = TinyModel(architecture=architecture, format=Format.Q8_0, **SMALL)
    check_quantised_model(model.write(tmp_path / "tiny.gguf"), [random_tokens(60), random_tokens(9)], 64)


@pytest.mark.parametrize("format", BLOCK_FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_tiny_quantised_models(tmp_path: Path, isa: str, architecture: str, format: Format) -> None:
    path = TinyModel(architecture=architecture, format=format, tied=False).write(tmp_path / "tiny.gguf")
    check_quantised_model(path, [random_tokens(60), random_tokens(9)], 64, isa)


@pytest.mark.parametrize("format", K_FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_tiny_k_quant_models(tmp_path: Path, isa: str, format: Format) -> None:
    model = TinyModel.for_k_quants(architecture="qwen2", format=format)
    check_quantised_model(model.write(tmp_path / "tiny.gguf"), [random_tokens(60), random_tokens(9)], 64, isa)


def test_tiny_mixed_formats(tmp_path: Path) -> None:
    """As Q4_K_M files are: each tensor may have its own format, so one input is rounded in more than one way."""
    formats = {"attn_v": Format.Q6_K, "ffn_down": Format.Q5_0, "attn_k": Format.Q8_0, "token_embd": Format.Q6_K}
    model = TinyModel.for_k_quants(architecture="llama", format=Format.Q4_K, formats=formats)
    check_quantised_model(model.write(tmp_path / "tiny.gguf"), [random_tokens(60)], 64)


@pytest.fixture(scope="module")
def smollm2_prompts(smollm2_path: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_metadata(ModelFile.open(smollm2_path).metadata)
    return [tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.mark.model
def test_smollm2(smollm2_path: Path, smollm2_prompts: list[list[int]]) -> None:
    check_quantised_model(smollm2_path, smollm2_prompts, NUM_TOKENS)


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_with_float_weights(smollm2_path: Path, smollm2_prompts: list[list[int]], tmp_path: Path) -> None:
    """The same weights written as floats: no int8 activations, so 64 greedy tokens equal NumPy's to float rounding."""
    expanded = write_float_copy(smollm2_path, tmp_path / "smollm2-f32.gguf")
    check_float_model(expanded, smollm2_prompts, NUM_TOKENS)
    expanded.unlink()
