"""How a test holds the native core's logits and greedy tokens against the NumPy forward pass.

Two kinds of comparison. Where products take float activations, the core and NumPy differ by float rounding alone, and the
bound is what float rounding does to NumPy itself. Where products take int8 activations, a last-bit difference can move an
activation to the next level, and that spreads; no order of summation is then the right one. There the core has to be
as far from the exact pass as NumPy with the same int8 rounding is, and no further.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from core import Core
from numpy.typing import NDArray

from oracles.numpy_forward import NumpyModel
from oracles.tiny_adapter import merge
from oracles.tiny_model import vocabulary


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


def check_float_model(
    path: Path, prompts: list[list[int]], num_tokens: int, isa: str = "", adapter_path: Path | None = None
) -> None:
    """Greedy tokens equal NumPy's; only a tie within what float rounding moves may split them."""
    core, numpy_model, adapter = Core(path, isa=isa), NumpyModel(path), None
    if adapter_path is not None:
        adapter = core.load_adapter(adapter_path)
        merge(numpy_model, adapter_path)
    runs = [(prompt, *core.continue_greedily(prompt, num_tokens, adapter=adapter)) for prompt in prompts]
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


def check_quantised_model(
    path: Path, prompts: list[list[int]], num_tokens: int, isa: str = "", adapter_path: Path | None = None
) -> None:
    """As far from the exact pass as NumPy with int8 activations is; greedy tokens split only inside that noise."""
    core, numpy_model, adapter = Core(path, isa=isa), NumpyModel(path), None
    if adapter_path is not None:
        adapter = core.load_adapter(adapter_path)
        merge(numpy_model, adapter_path)
    runs = [(prompt, *core.continue_greedily(prompt, num_tokens, adapter=adapter)) for prompt in prompts]
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
