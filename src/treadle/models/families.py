"""What architectures differ in as far as it shows in a file: the tensors of their layers, windows, sight.

What their layers compute is for the native core, which has a file for each family.
"""

from __future__ import annotations

__all__ = ["ENCODERS", "OUTPUT_NORMS", "REQUIRED_TENSORS", "WINDOW_PERIODS"]

# Architectures whose files need not say that every token sees those behind it, too.
ENCODERS = frozenset(
    {"bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert"}
    | {"nomic-bert", "nomic-bert-moe"}
)

_PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output")
_PRODUCTS = ("ffn_gate", "ffn_up", "ffn_down")
_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
_POST_NORMS = ("post_attention_norm", "post_ffw_norm")


def _weights(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.weight" for name in names)


_EXPERTS = _weights("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED_EXPERT = _weights(*(f"ffn_{name}_shexp" for name in ("gate", "up", "down", "gate_inp")))
_ATTENTION = _weights("attn_norm", *_PROJECTIONS, "ffn_norm")
_LLAMA = (*_ATTENTION, *_weights(*_PRODUCTS))
_POST_NORMS_ONLY = _weights(*_PROJECTIONS, *_HEAD_NORMS, *_PRODUCTS, *_POST_NORMS)
# What each layer has, by architecture; of others only metadata and the embedding are checked.
REQUIRED_TENSORS = {
    **dict.fromkeys(
        ("llama", "ernie4_5", "exaone", "gemma", "granite", "internlm2", "minicpm", "mistral3", "smollm3", "stablelm"),
        _LLAMA,
    ),
    **dict.fromkeys(("qwen2", "qwen2vl"), (*_LLAMA, *_BIASES)),
    **dict.fromkeys(("bailingmoe", "deepseek", "ernie4_5-moe"), _ATTENTION),  # some layers are dense
    "bailingmoe2": _weights("attn_norm", "attn_qkv", "attn_output", *_HEAD_NORMS, "ffn_norm"),
    "dots1": (*_ATTENTION, *_weights(*_HEAD_NORMS)),
    "glm4moe": _weights("attn_norm", *_PROJECTIONS, "post_attention_norm"),
    "hunyuan-moe": (*_ATTENTION, *_weights(*_HEAD_NORMS), *_EXPERTS),
    "chatglm": _weights("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"),
    **dict.fromkeys(("cohere2", "command-r"), _weights("attn_norm", *_PROJECTIONS, *_PRODUCTS)),
    **dict.fromkeys(("arcee", "nemotron", "starcoder2"), (*_ATTENTION, *_weights("ffn_up", "ffn_down"))),
    "apertus": (*_ATTENTION, *_weights(*_HEAD_NORMS, "ffn_up", "ffn_down")),
    "qwen2moe": (*_ATTENTION, *_BIASES, *_EXPERTS, *_SHARED_EXPERT),
    **dict.fromkeys(("hunyuan-dense", "qwen3", "qwen3vl"), (*_LLAMA, *_weights(*_HEAD_NORMS))),
    **dict.fromkeys(("mellum", "qwen3moe", "qwen3vlmoe"), (*_ATTENTION, *_weights(*_HEAD_NORMS), *_EXPERTS)),
    "gemma2": (*_LLAMA, *_weights(*_POST_NORMS)),
    "gemma3": (*_LLAMA, *_weights(*_HEAD_NORMS, *_POST_NORMS)),
    "gpt-oss": (
        *_weights("attn_norm", *_PROJECTIONS, "attn_sinks", "post_attention_norm"),
        *(*_BIASES, "attn_output.bias"),
        *(*_EXPERTS, *(name.replace("weight", "bias") for name in _EXPERTS)),
    ),
    "granitemoe": (*_ATTENTION, *_EXPERTS),
    "lfm2moe": _weights("attn_norm", "ffn_norm"),
    "lfm2": _weights("attn_norm", "ffn_norm", *_PRODUCTS),  # what is between differs from layer to layer
    "olmoe": (*_ATTENTION, *_weights(*_HEAD_NORMS), *_EXPERTS),
    "glm4": _weights("attn_norm", *_PROJECTIONS, "ffn_norm", "ffn_up", "ffn_down", *_POST_NORMS),
    "phi3": _weights("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"),
    "seed_oss": _weights("attn_norm", *_PROJECTIONS, "post_attention_norm", *_PRODUCTS),
    **dict.fromkeys(("exaone4", "olmo2"), _POST_NORMS_ONLY),
}
# The norm behind the layers, where it is not called output_norm.
OUTPUT_NORMS = dict.fromkeys(("lfm2", "lfm2moe"), "token_embd_norm")
# Where a file gives a window: all layers have it but the last one of so many, unless the file lists them; 1 for all.
WINDOW_PERIODS = {"exaone4": 4, "gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4}
WINDOW_PERIODS |= {"cohere2": 4, "mellum": 4}
WINDOW_PERIODS |= dict.fromkeys(("ernie4_5", "internlm2", "llama", "phi3"), 1)
