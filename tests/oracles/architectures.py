"""What the architectures differ in, for the NumPy forward pass and the writer of tiny models.

Written from the papers and the models' own code. What the tensors of a model say by being there, such as a norm, only the
writer asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Architecture:
    rope_halves: bool = True
    """Rotary pairs are the two halves of a head, not neighbours."""
    qkv_bias: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    head_norms: bool = False
    """Norms of each query and key head."""
    norms_rotated: bool = False
    """They follow the rotation."""
    projection_norms: bool = False
    """Norms of the whole query and key."""
    layer_norms: bool = False
    """Norms take away the mean first."""
    norm_biases: bool = False
    parallel: bool = False
    """Attention and feed-forward read the same, and both are added."""
    pre_norms: bool = True
    """Norms of what attention and feed-forward read."""
    post_norms: bool = False
    """Norms of what they add to the residual."""
    post_norm_is_next: bool = False
    """What the file calls the norm after attention is the one before the feed-forward."""
    ungated: Literal["gelu", "squared_relu", "xielu"] | None = None
    """What the feed-forward has in the stead of a gate."""
    gelu: bool = False
    multiplied_logits: bool = False
    """The file has the scale of logits, not its inverse."""
    scaled_embedding: bool = False
    """By the root of the hidden size."""
    window_period: int = 0
    """All layers but the last one of so many have a sliding window, if the file has one; 1 for all layers."""
    window_rope: Literal["local", "unscaled"] | None = None
    """Positions in layers with a window turn by a base of 10000, or by the file's base and no scaling."""
    long_rope: bool = False
    """The file has factors for short and for long contexts."""
    no_rope_period: int = 0
    """The last layer of so many has no positions."""
    no_rope_without_window: bool = False
    """Where a file has windows, layers without one have no positions."""
    convolution_period: int = 0
    """All layers but the second one of so many have a short convolution in the stead of attention."""
    output_norm: str = "output_norm"
    num_experts: int = 0
    shares_of_all: bool = False
    """The weights of a token's experts are shares of all experts, not of those chosen."""
    sigmoid_experts: bool = False
    """The weights of experts are sigmoids, not shares."""
    choice_bias: bool = False
    """One that is added to the weights of experts for the choice alone."""
    experts_as_dense: bool = False
    """Experts are as large as the file says of the feed-forward."""
    dense_layers: int = 0
    """The first so many layers have a feed-forward in the stead of experts."""
    shared_count: int = 0
    """The expert for all tokens is as large as so many of the others; 0: as the feed-forward."""
    shared_expert: Literal["gated", "plain"] | None = None
    """One that every token goes through, weighed by a gate of its own or not at all."""
    biased_experts: bool = False
    """Biases of router and experts."""
    clamped_gate: bool = False
    """gpt-oss's own gate: sigmoid(1.702 g) g (u + 1), with g at most 7 and u from -7 to 7."""
    output_bias: bool = False
    feed_forward_biases: bool = False
    sinks: bool = False
    """Scores of a position without a value, one for each head."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Of a tiny model, beside those that all models have."""

    def has_window(self, layer: int) -> bool:
        return self.window_period == 1 or (self.window_period > 1 and (layer + 1) % self.window_period != 0)

    def has_convolution(self, layer: int) -> bool:
        return self.convolution_period > 0 and layer % self.convolution_period != 1

    def has_rope(self, layer: int) -> bool:
        return self.no_rope_period == 0 or (layer + 1) % self.no_rope_period != 0


_SCALES = {"embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 4.0}

_WEIGHTED = {"leading_dense_block_count": 2, "expert_weights_scale": 2.5, "expert_weights_norm": True}

_BIASED = {"layer_norms": True, "norm_biases": True, "qkv_bias": True}
_PARALLEL = {"rope_halves": False, "layer_norms": True, "parallel": True, "multiplied_logits": True}

ARCHITECTURES = {
    "apertus": Architecture(
        head_norms=True,
        ungated="xielu",
        keys={"xielu.alpha_n": 0.6, "xielu.alpha_p": 0.9, "xielu.beta": 0.5, "xielu.eps": -1e-6},
    ),
    "arcee": Architecture(rope_halves=False, ungated="squared_relu"),
    "bailingmoe": Architecture(
        rope_halves=False, num_experts=8, shared_expert="plain", shared_count=2, keys={"expert_weights_norm": True}
    ),
    "bailingmoe2": Architecture(
        fused_qkv=True,
        head_norms=True,
        num_experts=8,
        sigmoid_experts=True,
        choice_bias=True,
        dense_layers=2,
        shared_expert="plain",
        shared_count=1,
        keys={**_WEIGHTED, "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2},
    ),
    "chatglm": Architecture(
        rope_halves=False, fused_qkv=True, qkv_bias=True, fused_gate_up=True, keys={"rope.dimension_count": 16}
    ),
    "cohere2": Architecture(
        **_PARALLEL,
        window_period=4,
        no_rope_without_window=True,
        keys={"attention.sliding_window": 24, "logit_scale": 0.25},
    ),
    "command-r": Architecture(**_PARALLEL, keys={"logit_scale": 0.25}),
    "deepseek": Architecture(
        rope_halves=False,
        num_experts=8,
        shares_of_all=True,
        dense_layers=2,
        shared_expert="plain",
        shared_count=2,
        keys={"leading_dense_block_count": 2, "expert_weights_scale": 1.5},
    ),
    "dots1": Architecture(
        head_norms=True,
        num_experts=8,
        sigmoid_experts=True,
        choice_bias=True,
        dense_layers=2,
        shared_expert="plain",
        shared_count=2,
        keys={**_WEIGHTED, "expert_gating_func": 2},
    ),
    "ernie4_5": Architecture(rope_halves=False),
    "ernie4_5-moe": Architecture(
        rope_halves=False,
        num_experts=8,
        choice_bias=True,
        dense_layers=2,
        shared_expert="plain",
        keys={"leading_dense_block_count": 2, "interleave_moe_layer_step": 1},
    ),
    "exaone": Architecture(),
    "exaone4": Architecture(
        head_norms=True, pre_norms=False, post_norms=True, window_period=4, no_rope_without_window=True
    ),
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
        window_rope="local",
        keys={"attention.sliding_window": 24, "rope.freq_base": 1000000.0},
    ),
    "glm4": Architecture(rope_halves=False, fused_gate_up=True, post_norms=True, keys={"rope.dimension_count": 16}),
    "glm4moe": Architecture(
        qkv_bias=True,
        head_norms=True,
        post_norm_is_next=True,
        num_experts=8,
        sigmoid_experts=True,
        choice_bias=True,
        dense_layers=2,
        shared_expert="plain",
        shared_count=1,
        keys={**_WEIGHTED, "rope.dimension_count": 16},
    ),
    "gpt-oss": Architecture(
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        post_norm_is_next=True,
        window_period=2,
        num_experts=6,
        biased_experts=True,
        clamped_gate=True,
        keys={
            "attention.sliding_window": 24,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "granite": Architecture(rope_halves=False, keys={**_SCALES, "attention.scale": 0.1}),
    "granitemoe": Architecture(
        rope_halves=False, num_experts=8, shared_expert="plain", keys={**_SCALES, "attention.scale": 0.1}
    ),
    "hunyuan-dense": Architecture(head_norms=True, norms_rotated=True),
    "hunyuan-moe": Architecture(
        head_norms=True, norms_rotated=True, num_experts=8, experts_as_dense=True, shared_expert="plain"
    ),
    "internlm2": Architecture(rope_halves=False),
    "lfm2": Architecture(
        head_norms=True, convolution_period=3, output_norm="token_embd_norm", keys={"shortconv.l_cache": 3}
    ),
    "lfm2moe": Architecture(
        head_norms=True,
        convolution_period=3,
        output_norm="token_embd_norm",
        num_experts=8,
        sigmoid_experts=True,
        choice_bias=True,
        dense_layers=2,
        keys={"shortconv.l_cache": 3, "expert_gating_func": 2, "leading_dense_block_count": 2},
    ),
    "llama": Architecture(rope_halves=False, window_period=1),
    "mellum": Architecture(
        head_norms=True,
        num_experts=8,
        window_period=4,
        window_rope="unscaled",
        keys={
            "attention.sliding_window": 24,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "minicpm": Architecture(rope_halves=False, keys=_SCALES),
    "mistral3": Architecture(
        rope_halves=False,
        keys={
            "attention.temperature_scale": 0.1,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
    ),
    "nemotron": Architecture(
        layer_norms=True, norm_biases=True, ungated="squared_relu", keys={"rope.dimension_count": 16}
    ),
    "olmo2": Architecture(
        projection_norms=True,
        pre_norms=False,
        post_norms=True,
        window_period=4,
        window_rope="unscaled",
        keys={
            "attention.sliding_window": 24,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "olmoe": Architecture(projection_norms=True, num_experts=8, shares_of_all=True),
    "phi3": Architecture(
        fused_qkv=True,
        fused_gate_up=True,
        window_period=1,
        long_rope=True,
        keys={
            "rope.dimension_count": 24,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.2,
        },
    ),
    "qwen2": Architecture(qkv_bias=True),
    "qwen2moe": Architecture(qkv_bias=True, num_experts=8, shares_of_all=True, shared_expert="gated"),
    "qwen2vl": Architecture(qkv_bias=True, keys={"rope.dimension_sections": [4, 6, 6, 0]}),
    "qwen3": Architecture(head_norms=True),
    "qwen3moe": Architecture(head_norms=True, num_experts=8),
    "qwen3vl": Architecture(head_norms=True, keys={"rope.dimension_sections": [6, 5, 5, 0]}),
    "qwen3vlmoe": Architecture(head_norms=True, num_experts=8, keys={"rope.dimension_sections": [6, 5, 5, 0]}),
    "seed_oss": Architecture(qkv_bias=True, post_norm_is_next=True),
    "stablelm": Architecture(**_BIASED, keys={"rope.dimension_count": 8}),
    "starcoder2": Architecture(**_BIASED, output_bias=True, ungated="gelu", feed_forward_biases=True),
    "smollm3": Architecture(rope_halves=False, no_rope_period=4),
}
