"""Logits and greedy tokens of every weight format and of real models against the NumPy forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from against_numpy import check_float_model, check_quantised_model, random_tokens
from gguf import GGMLQuantizationType as Format

from oracles.float_copy import write_float_copy
from oracles.tiny_model import TinyModel
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
