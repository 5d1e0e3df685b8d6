"""cos and sin of rotary positions in NumPy, as the keys under `rope.` of a file ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Tables = tuple[Array, Array]


def plain_rope_tables(dims: int, base: float, positions: NDArray[np.int64], dtype: type) -> Tables:
    return _tables(positions, base ** (-2.0 * np.arange(dims // 2) / dims), 1.0, dtype)


def rope_tables(
    dims: int,
    hyperparameter: Callable[[str, Any], Any],
    factors: Mapping[str, Array],
    positions: NDArray[np.int64],
    dtype: type,
) -> Tables:
    """cos and sin of every position and pair, with the file's frequency factors and position scaling."""
    base = hyperparameter("rope.freq_base", 10000.0)
    frequencies = base ** (-2.0 * np.arange(dims // 2) / dims)
    original = hyperparameter("rope.scaling.original_context_length", hyperparameter("context_length", None))
    if "rope_freqs.weight" in factors:  # Llama 3.1's long-context factors, one per pair
        frequencies = frequencies / factors["rope_freqs.weight"]
    if "rope_factors_long.weight" in factors:  # LongRoPE (Ding et al. 2024)
        which = "long" if hyperparameter("context_length", None) > original else "short"
        frequencies = frequencies / factors[f"rope_factors_{which}.weight"]
    magnitude = hyperparameter("rope.scaling.attn_factor", 1.0)
    scaling = hyperparameter("rope.scaling.type", "linear")
    if scaling == "linear":
        frequencies = frequencies / hyperparameter("rope.scaling.factor", hyperparameter("rope.scale_linear", 1.0))
    elif scaling == "yarn":
        factor = hyperparameter("rope.scaling.factor", None)
        keep = _yarn_keep(dims, base, original)
        frequencies = frequencies / factor * (1 - keep) + frequencies * keep
        multiplier = hyperparameter("rope.scaling.yarn_log_multiplier", 0.0)
        magnitude *= (1 + 0.1 * np.log(factor)) / (1 + 0.1 * multiplier * np.log(factor))
    else:
        assert scaling in ("none", "longrope"), scaling
    return _tables(positions, frequencies, magnitude, dtype)


def _tables(positions: NDArray[np.int64], frequencies: Array, magnitude: float, dtype: type) -> Tables:
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * magnitude).astype(dtype), (np.sin(angles) * magnitude).astype(dtype)


def _yarn_keep(dims: int, base: float, original_context: int) -> Array:
    """How much of each pair's own frequency YaRN (Peng et al. 2023) keeps: 1 for pairs that turn 32 times, 0 for less than one."""

    def pair_with_turns(turns: float) -> float:
        return float(dims * np.log(original_context / (turns * 2 * np.pi)) / (2 * np.log(base)))

    low = max(np.floor(pair_with_turns(32)), 0)
    high = min(np.ceil(pair_with_turns(1)), dims - 1)
    ramp = (np.arange(dims // 2) - low) / max(high - low, 0.001)
    return 1 - np.clip(ramp, 0, 1)
