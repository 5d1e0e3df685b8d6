"""What stands between the products of a feed-forward in NumPy: activations, gates, and the choice of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.architectures import Architecture

Array = NDArray[np.floating[Any]]


def tanh_gelu(x: Array) -> Array:
    """GELU as Hendrycks and Gimpel (2016) approximate it."""
    out: Array = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return out


def gated(kind: Architecture, gate: Array, up: Array) -> Array:
    """SwiGLU, GeGLU (Shazeer 2020), or gpt-oss's own gate."""
    if kind.clamped_gate:
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
        active = gate / (1 + np.exp(-1.702 * gate))
    elif kind.gelu:
        active = tanh_gelu(gate)
    else:
        active = gate / (1 + np.exp(-gate))
    return (active * up).astype(up.dtype)


def ungated(kind: Architecture, up: Array, metadata: Mapping[str, Any], layer: int) -> Array:
    """GELU, a squared ReLU (So et al. 2021) or xIELU (Huang and Schlag 2024), whose numbers the layer has learnt."""
    if kind.ungated == "gelu":
        return tanh_gelu(up).astype(up.dtype)
    if kind.ungated == "squared_relu":
        return np.maximum(up, 0) ** 2
    learnt = (metadata[f"xielu.{name}"] for name in ("alpha_p", "alpha_n", "beta", "eps"))
    positive, negative, beta, epsilon = (value[layer] if isinstance(value, list) else value for value in learnt)
    above = np.log1p(np.exp(positive)) * up**2
    below = (np.expm1(np.minimum(up, epsilon)) - up) * (beta + np.log1p(np.exp(negative)))
    return (np.where(up > 0, above, below) + beta * up).astype(up.dtype)


def choose_experts(
    kind: Architecture, get: Callable[..., Any], scores: Array, bias: Array | None
) -> tuple[Array, NDArray[np.intp]]:
    """The weight of each expert for each token, and which ones a token goes through.

    `get` gives a hyperparameter or what it is by default; `bias` is added for the choice alone.
    """
    if kind.sigmoid_experts:
        weights = 1 / (1 + np.exp(-scores))
    else:
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
    ranks = weights if bias is None else weights + bias.astype(weights.dtype)
    num_groups = get("expert_group_count", 1)
    if num_groups > 1:
        ranks = without_groups(ranks, num_groups, get("expert_group_used_count"))
    chosen = np.argsort(-ranks, axis=-1, kind="stable")[:, : get("expert_used_count")]
    if get("expert_weights_norm", not kind.shares_of_all):
        weights = weights / np.take_along_axis(weights, chosen, axis=-1).sum(axis=-1, keepdims=True)
    return weights * weights.dtype.type(get("expert_weights_scale", 1.0)), chosen


def without_groups(ranks: Array, num_groups: int, num_used: int) -> Array:
    """The ranks, but for those outside the groups whose best two add up to most (DeepSeek-AI 2024)."""
    groups = ranks.reshape(len(ranks), num_groups, -1)
    best = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    dropped = np.argsort(-best, axis=-1, kind="stable")[:, num_used:]
    out = groups.copy()
    np.put_along_axis(out, dropped[..., None], -np.inf, axis=1)
    return out.reshape(ranks.shape)
