"""What the architectures differ in, for the NumPy forward pass and the writer of tiny models.

What a model's tensors say by being there, such as a norm, is said here only to the writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Architecture:
    rope_halves: bool = True
    """Rotary pairs are the two halves of a head, not neighbours."""
    qkv_bias: bool = False
    head_norms: bool = False
    """Norms of each query and key head."""
    post_norms: bool = False
    """Norms of what attention and feed-forward add to the residual."""
    gelu: bool = False
    scaled_embedding: bool = False
    """By the root of the hidden size."""
    window_period: int = 0
    """All layers but the last one of so many have a sliding window, if the file has one; 1 for all layers."""
    window_rope_base: float | None = None
    """What positions turn by in layers with a window."""
    num_experts: int = 0
    shares_of_all: bool = False
    """The weights of a token's experts are shares of all experts, not of those chosen."""
    shared_expert: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Of a tiny model, beside those that all models have."""

    def has_window(self, layer: int) -> bool:
        return self.window_period == 1 or (self.window_period > 1 and (layer + 1) % self.window_period != 0)


ARCHITECTURES = {
    "llama": Architecture(rope_halves=False),
    "qwen2": Architecture(qkv_bias=True),
    "qwen2moe": Architecture(qkv_bias=True, num_experts=8, shares_of_all=True, shared_expert=True),
    "qwen3": Architecture(head_norms=True),
    "qwen3moe": Architecture(head_norms=True, num_experts=8),
    "gemma": Architecture(gelu=True, scaled_embedding=True),
    "gemma2": Architecture(
        gelu=True,
        scaled_embedding=True,
        post_norms=True,
        window_period=2,
        keys={"attention.sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0},
    ),
    "gemma3": Architecture(
        gelu=True,
        scaled_embedding=True,
        head_norms=True,
        post_norms=True,
        window_period=6,
        window_rope_base=10000.0,
        keys={"attention.sliding_window": 24, "rope.freq_base": 1000000.0},
    ),
}
