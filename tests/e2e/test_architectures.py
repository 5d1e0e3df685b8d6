"""Every architecture against the NumPy forward pass, and what their files may ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_numpy import check_float_model, check_quantised_model, random_tokens
from core import Core
from gguf import GGMLQuantizationType as Format

from oracles.architectures import ARCHITECTURES
from oracles.numpy_encoder import ENCODERS
from oracles.tiny_model import TinyModel
from treadle.errors import ModelFileError, UnsupportedModelError
from treadle.models.gguf import ModelFile

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
# Their products are those of another one, quantised or not.
ALIKE = {"bailingmoe", "command-r", "dots1", "ernie4_5-moe", "hunyuan-moe", "mellum", "nemotron"}
ALIKE |= {"qwen2vl", "qwen3vl", "qwen3vlmoe", "stablelm"}
# Seven layers, so that each pattern of layers comes round.
SMALL = {"hidden_size": 96, "num_heads": 3, "num_kv_heads": 1, "feed_forward_size": 160, "num_layers": 7}


def small(architecture: str, format: Format = Format.F32, **changes: Any) -> TinyModel:
    return TinyModel(**{"architecture": architecture, "format": format, "context_length": 1024, **SMALL, **changes})


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_architectures(tmp_path: Path, architecture: str) -> None:
    """Prompts longer than the windows of 24 tokens and than a KV block."""
    path = small(architecture).write(tmp_path / "tiny.gguf")
    check_float_model(path, [random_tokens(70), random_tokens(7)], 8)


def test_the_oracle_and_the_guide_know_what_the_core_runs(tmp_path: Path) -> None:
    path = small("llama").write(tmp_path / "tiny.gguf")
    # All occurrences are of one length, so the file stays valid.
    path.write_bytes(path.read_bytes().replace(b"llama", b"lemma"))
    with pytest.raises(UnsupportedModelError) as caught:
        Core(path)
    found = re.search(r"'lemma' is not one this core runs \((.*)\)", str(caught.value))
    assert found, caught.value
    known = set(found[1].split(", "))
    assert known == ARCHITECTURES.keys() | ENCODERS.keys()
    section = GUIDE.read_text().split("## What runs")[1].split("## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert known == {name for row in rows for name in re.findall("`(.*?)`", row)}


def test_windows_across_ranges_of_attention(tmp_path: Path) -> None:
    """A range has 512 positions: windows end in one and begin in the one before, or leave it behind."""
    path = small("gemma2", num_layers=3, keys={"attention.sliding_window": 40}).write(tmp_path / "tiny.gguf")
    check_float_model(path, [random_tokens(570)], 8)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - ALIKE))
def test_quantised_architectures(tmp_path: Path, architecture: str) -> None:
    path = small(architecture, Format.Q8_0).write(tmp_path / "tiny.gguf")
    check_quantised_model(path, [random_tokens(60), random_tokens(9)], 24)


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        pytest.param("llama", {"attention.sliding_window": 20}, id="mistral-window"),
        pytest.param("exaone4", {"attention.sliding_window": 20}, id="positions-only-in-windows"),
        pytest.param(
            "gemma3", {"attention.sliding_window_pattern": [True, False, False, True, True, False, True]}, id="listed"
        ),
        pytest.param("gemma3", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, id="only-global-scaled"),
        pytest.param("llama", {"rope.scale_linear": 4.0, "attention.scale": 0.1}, id="older-keys"),
        pytest.param("command-r", {"attention.layer_norm_epsilon": 0.1}, id="epsilon-of-layer-norms"),
        pytest.param(
            "apertus",
            {
                "xielu.alpha_n": [0.1, 0.5, 0.2, -0.3, 0.4, 0.8, 1.5],
                "xielu.alpha_p": [0.9, 0.7, 0.1, -0.5, 0.3, 0.2, 0.6],
                "xielu.beta": [0.5, 0.4, 0.6, 0.5, 0.7, 0.3, 0.5],
                "xielu.eps": [-1e-6, -0.1, -1e-6, -0.2, -1e-6, -0.5, -1e-6],
            },
            id="xielu-of-each-layer",
        ),
        pytest.param("lfm2", {"shortconv.l_cache": 2}, id="short-convolutions"),
        pytest.param("lfm2", {"shortconv.l_cache": 32}, id="convolutions-as-long-as-a-block"),
        pytest.param("phi3", {"rope.scaling.original_context_length": 1024}, id="short-factors"),
    ],
)
def test_variants(tmp_path: Path, architecture: str, keys: dict[str, Any]) -> None:
    path = small(architecture, keys=keys).write(tmp_path / "tiny.gguf")
    check_float_model(path, [random_tokens(100)], 8)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"shortconv.l_cache": 33}, ModelFileError, r"lfm2.shortconv.l_cache is 33, expected 2 to 32"),
        ({"shortconv.l_cache": 1}, ModelFileError, r"lfm2.shortconv.l_cache is 1, expected 2 to 32"),
        ({"attention.sliding_window": 50}, UnsupportedModelError, r"sliding_window: this core runs no windows beside"),
        ({"attention.causal": False}, UnsupportedModelError, r"attention.causal is false"),
        ({"attention.head_count_kv": [0, 1, 0]}, ModelFileError, r"head_count_kv has 3 integers, expected 7"),
        ({"attention.head_count_kv": [0, 1, 0, 0, 3, 0, 0]}, UnsupportedModelError, r"from layer to layer: 1 and 3"),
        ({"attention.head_count_kv": [0] * 7}, UnsupportedModelError, r"head_count_kv is 0 in every layer"),
        ({"attention.head_count_kv": [1] * 7}, ModelFileError, r"layer 0 has KV heads and the tensor shortconv.in_"),
        ({"attention.head_count_kv": 1}, ModelFileError, r"layer 0 has KV heads and the tensor shortconv.in_proj"),
        ({"attention.head_count_kv": [0, 1, 0, 0, 0, 0, 0]}, ModelFileError, r"layer 4 has no KV heads and no tensor"),
    ],
    ids=str,
)
def test_what_convolutions_do_not_come_with(
    tmp_path: Path, keys: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Core(small("lfm2", keys=keys).write(tmp_path / "tiny.gguf"))


def test_a_convolution_keeps_two_rows_per_block_as_floats(tmp_path: Path) -> None:
    path = small("lfm2", head_dim=32).write(tmp_path / "tiny.gguf")
    _, plain = Core(path).runtime.kv_blocks
    _, rounded = Core(path, kv_type="q8_0").runtime.kv_blocks
    assert (plain.window, plain.kv_block_bytes) == (3, 5 * 2 * SMALL["hidden_size"] * 4)
    assert plain.kv_layout == rounded.kv_layout


def test_the_wanted_context_chooses_the_factors_of_positions(tmp_path: Path) -> None:
    long = small("phi3").write(tmp_path / "long.gguf")
    short = small("phi3", keys={"rope.scaling.original_context_length": 1024}).write(tmp_path / "short.gguf")

    def logits(core: Core) -> Any:
        return core.read(core.sequence(40), random_tokens(40), 40)

    asked, native = Core(long, context_length=64), Core(short)
    np.testing.assert_array_equal(logits(asked), logits(native))
    assert asked.blocks.kv_layout == native.blocks.kv_layout
    # Blocks of the one kind are of no use to the other.
    assert asked.blocks.kv_layout != Core(long, context_length=65).blocks.kv_layout
    assert Core(long).blocks.kv_layout == Core(long, context_length=65).blocks.kv_layout


def test_layers_that_guess_ahead_are_not_read(tmp_path: Path) -> None:
    guessing = small("glm4moe", num_layers=4, keys={"nextn_predict_layers": 1}).write(tmp_path / "guessing.gguf")
    check_float_model(guessing, [random_tokens(20)], 4)
    file = ModelFile.open(guessing)
    plain = ModelFile.open(small("glm4moe", num_layers=3).write(tmp_path / "plain.gguf"))
    assert file.hyperparameters == plain.hyperparameters
