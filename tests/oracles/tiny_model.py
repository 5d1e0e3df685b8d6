"""Writes small seeded GGUF models of any weight format, for tests that need a whole model in a second.

The weights are random but scaled like a trained model's; what a forward pass over them gives is for numpy_forward to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.architectures import ARCHITECTURES

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("a", "n"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RANKING_TEMPLATE = (
    "<|im_start|>system\nSay yes or no.<|im_end|>\n<|im_start|>user\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class TinyModel:
    """What to write. The default sizes are odd on purpose: 9 heads, rows that fill no whole panel."""

    architecture: str = "llama"
    format: Format = Format.Q4_0
    formats: Mapping[str, Format] = field(
        default_factory=dict
    )  # tensor name, or its last part but one, to its own format
    hidden_size: int = 288
    num_layers: int = 2
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 32
    feed_forward_size: int = 416
    num_experts: int | None = None  # None: as the architecture has them
    num_experts_used: int = 3
    expert_feed_forward_size: int = 160
    context_length: int = 512
    rope_base: float = 10000.0
    rope_factors: bool = False
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # type, factor, original_context_length
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the architecture, beside or in the stead of its own
    tied: bool = True
    ranks: bool = False  # as converters write rerankers that continue text
    seed: int = 0

    @staticmethod
    def for_k_quants(**changes: Any) -> TinyModel:
        """The smallest shape whose every product has a multiple of 256 columns."""
        shape = {"hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "feed_forward_size": 512}
        shape["expert_feed_forward_size"] = 256
        return TinyModel(**{**shape, **changes})

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        self._add_metadata(writer)
        add_vocabulary(writer)
        rng = np.random.default_rng(self.seed)
        for name, shape in self.tensor_shapes().items():
            _add_tensor(writer, name, shape, self._format_of(name), rng)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor with its shape, rows first."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(vocabulary()), hidden)}
        if self.rope_factors:
            shapes["rope_freqs.weight"] = (self.head_dim // 2,)
        if ARCHITECTURES[self.architecture].long_rope:
            pairs = self._keys()["rope.dimension_count"] // 2
            shapes |= {"rope_factors_long.weight": (pairs,), "rope_factors_short.weight": (pairs,)}
        for layer in range(self.num_layers):
            convolves = ARCHITECTURES[self.architecture].has_convolution(layer)
            of_layer = self._convolution_shapes(layer) if convolves else self.layer_shapes(layer)
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
        shapes[f"{ARCHITECTURES[self.architecture].output_norm}.weight"] = (hidden,)
        if ARCHITECTURES[self.architecture].norm_biases:
            shapes["output_norm.bias"] = (hidden,)
        if not self.tied:
            shapes["output.weight"] = (len(vocabulary()), hidden)
        if self.ranks:
            shapes["cls.output.weight"] = (2, hidden)
        return shapes

    @property
    def _num_experts(self) -> int:
        return ARCHITECTURES[self.architecture].num_experts if self.num_experts is None else self.num_experts

    @property
    def _expert_size(self) -> int:
        as_dense = ARCHITECTURES[self.architecture].experts_as_dense
        return self.feed_forward_size if as_dense else self.expert_feed_forward_size

    def _feed_forward_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        kind, hidden, size = ARCHITECTURES[self.architecture], self.hidden_size, self.feed_forward_size
        dense = {"gate": (size, hidden), "up": (size, hidden), "down": (hidden, size)}
        if self._num_experts == 0 or layer < kind.dense_layers:
            if kind.fused_gate_up:
                dense = {"up": (2 * size, hidden), "down": (hidden, size)}
            if kind.ungated:
                del dense["gate"]
            found: dict[str, tuple[int, ...]] = {f"ffn_{part}.weight": shape for part, shape in dense.items()}
            if kind.feed_forward_biases:
                found |= {"ffn_up.bias": (size,), "ffn_down.bias": (hidden,)}
            return found
        experts, size = self._num_experts, self._expert_size
        shapes: dict[str, tuple[int, ...]] = {
            "ffn_gate_inp.weight": (experts, hidden),
            "ffn_gate_exps.weight": (experts, size, hidden),
            "ffn_up_exps.weight": (experts, size, hidden),
            "ffn_down_exps.weight": (experts, hidden, size),
        }
        if kind.biased_experts:
            shapes |= {name.replace("weight", "bias"): (*shape[:-2], shape[-2]) for name, shape in shapes.items()}
        if kind.choice_bias:
            shapes["exp_probs_b.bias"] = (experts,)
        if kind.shared_expert:
            size = kind.shared_count * size or self.feed_forward_size
            shared = {"gate": (size, hidden), "up": (size, hidden), "down": (hidden, size)}
            shapes |= {f"ffn_{part}_shexp.weight": shape for part, shape in shared.items()}
        if kind.shared_expert == "gated":
            shapes["ffn_gate_inp_shexp.weight"] = (hidden,)
        return shapes

    def _convolution_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {
            "attn_norm.weight": (hidden,),
            "shortconv.in_proj.weight": (3 * hidden, hidden),
            "shortconv.conv.weight": (hidden, self._keys()["shortconv.l_cache"]),
            "shortconv.out_proj.weight": (hidden, hidden),
            "ffn_norm.weight": (hidden,),
            **self._feed_forward_shapes(layer),
        }

    def layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        kind, hidden = ARCHITECTURES[self.architecture], self.hidden_size
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,)} if kind.pre_norms else {}
        if kind.fused_qkv:
            block["attn_qkv.weight"] = (query + 2 * kv, hidden)
            if kind.qkv_bias:
                block["attn_qkv.bias"] = (query + 2 * kv,)
        else:
            block |= {f"attn_{part}.weight": (rows, hidden) for part, rows in zip("qkv", (query, kv, kv), strict=True)}
        if kind.qkv_bias and not kind.fused_qkv:
            block |= {"attn_q.bias": (query,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if kind.head_norms:
            block |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if kind.projection_norms:
            block |= {"attn_q_norm.weight": (query,), "attn_k_norm.weight": (kv,)}
        block["attn_output.weight"] = (hidden, query)
        if kind.output_bias:
            block["attn_output.bias"] = (hidden,)
        if kind.sinks:
            block["attn_sinks.weight"] = (self.num_heads,)
        if kind.post_norms or kind.post_norm_is_next:
            block["post_attention_norm.weight"] = (hidden,)
        if kind.pre_norms and not kind.post_norm_is_next and not kind.parallel:
            block["ffn_norm.weight"] = (hidden,)
        block |= self._feed_forward_shapes(layer)
        if kind.post_norms:
            block["post_ffw_norm.weight"] = (hidden,)
        if kind.norm_biases:
            block |= {"attn_norm.bias": (hidden,), "ffn_norm.bias": (hidden,)}
        return block

    def _format_of(self, name: str) -> Format:
        if name.endswith(("ffn_gate_inp.weight", "shortconv.conv.weight")):
            return Format.F32
        return self.formats.get(name) or self.formats.get(name.split(".")[-2], self.format)

    def _kv_heads(self) -> int | list[int]:
        kind = ARCHITECTURES[self.architecture]
        if kind.convolution_period == 0:
            return self.num_kv_heads
        return [0 if kind.has_convolution(layer) else self.num_kv_heads for layer in range(self.num_layers)]

    def _keys(self) -> dict[str, Any]:
        """What an architecture may have its own value of, or only a part of the architectures has."""
        common = {"rope.freq_base": self.rope_base, "rope.dimension_count": self.head_dim}
        return {**common, **ARCHITECTURES[self.architecture].keys, **self.keys}

    def _add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_name("tiny")
        writer.add_context_length(self.context_length)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(self.feed_forward_size)
        writer.add_head_count(self.num_heads)
        if "attention.head_count_kv" not in self.keys:
            writer.add_head_count_kv(self._kv_heads())
        if self._num_experts > 0:
            writer.add_expert_count(self._num_experts)
            writer.add_expert_used_count(self.num_experts_used)
            writer.add_expert_feed_forward_length(self._expert_size)
            if shared_count := ARCHITECTURES[self.architecture].shared_count:
                writer.add_expert_shared_count(shared_count)
            elif ARCHITECTURES[self.architecture].shared_expert:
                writer.add_expert_shared_feed_forward_length(self.feed_forward_size)
        has_layer_norms = ARCHITECTURES[self.architecture].layer_norms
        (writer.add_layer_norm_eps if has_layer_norms else writer.add_layer_norm_rms_eps)(1e-5)
        if self.ranks:
            writer.add_pooling_type(gguf.PoolingType.RANK)
            writer.add_string("tokenizer.chat_template.rerank", RANKING_TEMPLATE)
        for name, value in self._keys().items():
            adders = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
            adders[bool] = writer.add_bool
            key = name if name.startswith("xielu.") else f"{self.architecture}.{name}"
            adders[type(value)](key, value)
        if self.head_dim * self.num_heads != self.hidden_size:
            writer.add_key_length(self.head_dim)
            writer.add_value_length(self.head_dim)
        if self.rope_scaling:
            writer.add_rope_scaling_type(gguf.RopeScalingType(self.rope_scaling["type"]))
            writer.add_rope_scaling_factor(self.rope_scaling["factor"])
            if "original_context_length" in self.rope_scaling:
                writer.add_rope_scaling_orig_ctx_len(self.rope_scaling["original_context_length"])


def vocabulary() -> list[str]:
    """256 byte tokens in GPT-2's spelling, the merged ones, the control tokens."""
    return [*byte_spellings(), *(left + right for left, right in MERGES), *CONTROL_TOKENS]


def byte_spellings() -> list[str]:
    """GPT-2's printable character for each byte: itself when printable in Latin-1, else 256 and up in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def add_vocabulary(writer: gguf.GGUFWriter, *, pretokenizer: str = "qwen2") -> None:
    """Write the tokenizer, the template and the special tokens of every tiny model."""
    tokens = vocabulary()
    num_text = len(tokens) - len(CONTROL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pretokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * num_text + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS))
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(num_text)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], format: Format, rng: np.random.Generator
) -> None:
    if name.startswith("rope_f"):
        writer.add_tensor(name, np.geomspace(1.0, 2.0 if "short" in name else 8.0, shape[0]).astype(np.float32))
    elif len(shape) == 1 or name.endswith("bias"):
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        # Some gates go past where they are clamped.
        spread = 4.0 if name.endswith(("gate_exps.bias", "up_exps.bias")) else 0.1
        writer.add_tensor(name, rng.normal(centre, spread, shape).astype(np.float32))
    else:
        # Logits three wide, so that the distribution over tokens is neither flat nor a single peak.
        # Those of experts, too, so that rounding seldom changes the choice.
        wide = ("token_embd", "output", "ffn_gate_inp")
        gain = 3.0 if name.split(".")[-2] in wide else 1.0
        rows = random_weights((math.prod(shape[:-1]), shape[-1]), format, gain / shape[-1] ** 0.5, rng)
        writer.add_tensor(name, rows.reshape(*shape[:-1], -1), raw_dtype=format)


def random_weights(
    shape: tuple[int, ...], format: Format, deviation: float, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Rows of `format` with the given standard deviation, as the bytes or floats a GGUF file holds."""
    if format in FACTORS:
        return _random_blocks(shape, format, deviation, rng)
    if format in (Format.TQ1_0, Format.TQ2_0):
        values = rng.integers(-1, 2, shape) * (deviation * 1.5**0.5)
    else:
        values = rng.normal(0, deviation, shape)
    weights: NDArray[np.generic] = gguf.quants.quantize(values.astype(np.float32), format)
    return weights


# Formats that the `gguf` package reads but does not write: the offsets of d and dmin in a block, and how many times d the
# second has to be for weights around zero.
FACTORS: Mapping[Format, tuple[tuple[int, float], ...]] = {
    Format.Q2_K: ((80, 1.0), (82, 1.5)),
    Format.Q3_K: ((108, 1.0),),
    Format.Q4_K: ((0, 1.0), (2, 7.5)),
    Format.Q5_K: ((0, 1.0), (2, 15.5)),
    Format.Q6_K: ((208, 1.0),),
    Format.IQ4_NL: ((0, 1.0),),
    Format.IQ4_XS: ((0, 1.0),),
}


def _random_blocks(
    shape: tuple[int, ...], format: Format, deviation: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Blocks with every packed bit random."""
    block_columns, block_bytes = gguf.GGML_QUANT_SIZES[format]
    num_blocks = shape[0] * shape[1] // block_columns
    blocks = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)

    def set_factors(d: NDArray[np.float64]) -> None:
        for offset, times_d in FACTORS[format]:
            blocks[:, offset : offset + 2] = (d * times_d).astype(np.float16)[:, None].view(np.uint8)

    set_factors(np.ones(num_blocks))
    spread = gguf.quants.dequantize(blocks, format).std()
    set_factors(rng.uniform(0.75, 1.25, num_blocks) * deviation / spread)
    return blocks.reshape(shape[0], -1)
