"""What the architectures differ in, for the NumPy forward pass and the writer of tiny models.

What a model's tensors say by being there, such as a norm, is not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    rope_halves: bool = True
    """Rotary pairs are the two halves of a head, not neighbours."""
    qkv_bias: bool = False
    head_norms: bool = False
    """Norms of each query and key head."""


ARCHITECTURES = {
    "llama": Architecture(rope_halves=False),
    "qwen2": Architecture(qkv_bias=True),
    "qwen3": Architecture(head_norms=True),
}
