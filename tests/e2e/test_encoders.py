"""Encoders on the core: the states of the papers, and the same bits whatever the company, the threads and the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import int32
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.numpy_encoder import ENCODERS, NumpyEncoder
from oracles.tiny_encoder import VOCABULARY, TinyEncoder
from treadle import _native
from treadle.errors import ModelFileError, UnsupportedModelError, UsageError

LENGTHS = (5, 40, 1, 33, 32, 64, 7, 31)  # shorter and longer than a window and than a block of keys
Sums = list[NDArray[np.float64]]


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, len(VOCABULARY), length).tolist() for length in lengths]


class Encoder:
    """The core with one encoder, of which tests ask the sums of the states of texts."""

    def __init__(self, path: Path, *, isa: str = "", threads: int = 1, max_batch_tokens: int = 1024) -> None:
        cpus = [-1] * threads
        self.model = _native.Model.load(_native.GgufFile.open(str(path)), isa=isa, cpus=cpus)
        self.runtime = _native.Runtime(self.model, cpus=cpus, num_blocks=64, max_batch_tokens=max_batch_tokens)

    def sums(
        self, batch: list[list[int]], *, starts: list[int] | None = None, logit_rows: tuple[int, ...] = ()
    ) -> Sums:
        sums = [np.zeros(self.model.state_size) for _ in batch]
        firsts = np.cumsum([0, *map(len, batch)]).tolist()
        self.runtime.step(
            int32(token for text in batch for token in text),
            int32(map(len, batch)),
            int32(starts or [0] * len(batch)),
            np.zeros((len(batch), 0), np.int32),
            int32(logit_rows),
            [_native.Sampler(self.model.vocab_size)] * len(logit_rows),
            state_sums=[(first, len(text), total) for first, text, total in zip(firsts, batch, sums, strict=False)],
        )
        return sums


def write(tmp_path: Path, architecture: str, **changes: Any) -> Path:
    # Seven layers, so that each pattern of layers comes round.
    return TinyEncoder(**{"architecture": architecture, "num_layers": 7, **changes}).write(tmp_path / "tiny.gguf")


def spread(found: Sums, exact: Sums) -> float:
    """How far the means of states are off, as a share of their size."""
    errors = [np.linalg.norm(one - other) / np.linalg.norm(other) for one, other in zip(found, exact, strict=True)]
    return float(np.sqrt(np.mean(np.square(errors))))


def check_float_model(path: Path, batch: list[list[int]]) -> None:
    """The last bits of floats move single keys and values to the float16 beside: far less than rounding all of them."""
    rounded = NumpyEncoder(path, rounding=True).sums(batch)
    rounding = spread(NumpyEncoder(path).sums(batch), rounded)
    assert spread(Encoder(path, max_batch_tokens=1200).sums(batch), rounded) < 0.5 * rounding


@pytest.mark.parametrize("architecture", sorted(ENCODERS))
def test_float_weights_give_what_numpy_gives(tmp_path: Path, architecture: str) -> None:
    path = write(tmp_path, architecture)
    check_float_model(path, texts())


@pytest.mark.parametrize("architecture", sorted(ENCODERS))
def test_quantised_weights_are_as_far_off_as_their_rounding(tmp_path: Path, architecture: str) -> None:
    path = write(tmp_path, architecture, format=Format.Q8_0)
    exact = NumpyEncoder(path).sums(texts())
    expected = spread(NumpyEncoder(path, rounding=True).sums(texts()), exact)
    assert spread(Encoder(path).sums(texts()), exact) <= 1.25 * expected


@pytest.mark.parametrize("architecture", ["bert", "modern-bert"])
def test_texts_longer_than_a_range_of_attention(tmp_path: Path, architecture: str) -> None:
    path = write(tmp_path, architecture, context_length=600, window=40, num_layers=3)
    check_float_model(path, texts((3, 530)))


@pytest.mark.parametrize("architecture", sorted(ENCODERS))
def test_company_threads_and_kernels_change_no_bit(tmp_path: Path, architecture: str) -> None:
    path = write(tmp_path, architecture, format=Format.Q8_0, num_layers=3)
    reference = Encoder(path, isa="ref")
    alone = [reference.sums([text])[0] for text in texts()]
    for isa in _native.kernels.runnable_isas():
        for threads in (1, 2, 3):
            encoder = Encoder(path, isa=isa, threads=threads)
            np.testing.assert_array_equal(encoder.sums(texts()), alone, err_msg=f"{isa}, {threads} threads")
            np.testing.assert_array_equal(encoder.sums(texts()[:2]), alone[:2], err_msg=f"{isa}, {threads} threads")


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert"])
def test_one_tensor_of_query_key_and_value(tmp_path: Path, architecture: str) -> None:
    check_float_model(write(tmp_path, architecture, fused=True), texts())


def test_steps_that_no_encoder_can_compute_are_refused(tmp_path: Path) -> None:
    encoder = Encoder(write(tmp_path, "bert", num_layers=1))
    with pytest.raises(UsageError, match="start_positions entry 0 is 1, expected 0 to 0"):
        encoder.sums([[5]], starts=[1])
    with pytest.raises(UsageError, match="an encoder has no logits"):
        encoder.sums([[5]], logit_rows=(0,))
    with pytest.raises(UsageError, match="reaches position 65, the model's context has 64"):
        encoder.sums([[5] * 65])
    with pytest.raises(UsageError, match="the texts need 65 KV blocks, there are 64"):
        encoder.sums([[5]] * 65)
    assert np.isfinite(encoder.sums([[5]])).all()


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "bert", keys={"context_length": 65}, num_layers=1)
    with pytest.raises(ModelFileError, match=r"position_embd\.weight' has shape \[32, 64\], expected \[32, 65\]"):
        Encoder(path)
    path = write(tmp_path, "modern-bert", keys={"hidden_activation": "relu"}, num_layers=1)
    with pytest.raises(UnsupportedModelError, match="hidden_activation is 'relu', expected gelu or silu"):
        Encoder(path)
