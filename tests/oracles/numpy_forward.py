"""The forward pass of the architectures in NumPy, over weights that the `gguf` package dequantises.

Written from the papers and the GGUF specification, sharing no code with the native core. It recomputes every position from the
start and leaves caching, batching and sampling out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.architectures import ARCHITECTURES
from oracles.numpy_feed_forward import choose_experts, gated, ungated
from oracles.numpy_rope import plain_rope_tables, rope_tables

Array = NDArray[np.floating[Any]]

# Columns that share one activation scale in the native core's products.
ACTIVATION_BLOCK = 32
# Products with these multiply unrounded activations.
FLOAT_FORMATS = (Format.F32, Format.F16, Format.BF16)


@dataclass(frozen=True)
class Weight:
    values: NDArray[np.float32]  # [rows, columns], one row, or [experts, rows, columns]
    format: Format


class NumpyModel:
    """A model file held as float32 arrays."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.weights = {
            tensor.name: Weight(gguf.quants.dequantize(tensor.data, tensor.tensor_type), tensor.tensor_type)
            for tensor in reader.tensors
        }
        # Without the lists of tokens: they are long and no business of the forward pass.
        self.metadata = {
            field.name: field.contents()
            for field in reader.fields.values()
            if field.types and not field.name.startswith("tokenizer.")
        }
        self.architecture: str = self.metadata["general.architecture"]
        self.kind = ARCHITECTURES[self.architecture]
        self.num_layers: int = self.hyperparameter("block_count") - self.hyperparameter("nextn_predict_layers", 0)
        self.num_heads: int = self.hyperparameter("attention.head_count")
        self.num_kv_heads = int(np.max(self.hyperparameter("attention.head_count_kv", self.num_heads)))
        hidden_size = self.hyperparameter("embedding_length")
        self.head_dim: int = self.hyperparameter("attention.key_length", hidden_size // self.num_heads)
        kind = "layer_norm" if self.kind.layer_norms else "layer_norm_rms"
        self.norm_epsilon: float = self.hyperparameter(f"attention.{kind}_epsilon")

    def hyperparameter(self, key: str, default: Any = None, *, required: bool = True) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        assert value is not None or not required, f"the file has no {key}"
        return value

    def forward(
        self, sequences: list[list[int]], *, activation_rounding: bool = False, dtype: type = np.float32
    ) -> list[Array]:
        """Logits of every position of every sequence; each sequence sees only itself.

        The options are those of `states`.
        """
        run = _Pass(self, sequences, activation_rounding, dtype)
        head = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        logits = run.product(run.states(sequences), head)
        logits = logits * run.scale("logit_scale") if self.kind.multiplied_logits else logits / run.scale("logit_scale")
        return run.split(soft_cap(logits, self.hyperparameter("final_logit_softcapping", 0.0)))

    def states(
        self, sequences: list[list[int]], *, activation_rounding: bool = False, dtype: type = np.float32
    ) -> list[Array]:
        """What the logits are made of, the last layer's output after its norm: [positions, hidden_size] per sequence.

        With `activation_rounding` the input of each quantised product is rounded to int8, and keys and values to float16, as
        the native core does; `dtype` is the precision of everything else.
        """
        run = _Pass(self, sequences, activation_rounding, dtype)
        return run.split(run.states(sequences))


class _Pass:
    """One forward call: its precision, its rounding, its sequences."""

    def __init__(self, model: NumpyModel, sequences: list[list[int]], activation_rounding: bool, dtype: type) -> None:
        self.model = model
        self.rounding = activation_rounding
        self.dtype = dtype
        ends = np.cumsum([len(sequence) for sequence in sequences])
        self.spans = [slice(end - len(sequence), end) for end, sequence in zip(ends, sequences, strict=True)]
        positions = np.concatenate([np.arange(len(sequence)) for sequence in sequences])
        self.positions = positions
        dims = model.hyperparameter("rope.dimension_count", model.head_dim)
        factors = {name: weight.values for name, weight in model.weights.items() if name.startswith("rope_f")}
        self.rope = self.window_rope = rope_tables(dims, model.hyperparameter, factors, positions, dtype)
        if model.kind.window_rope is not None:
            base = 10000.0 if model.kind.window_rope == "local" else model.hyperparameter("rope.freq_base")
            self.window_rope = plain_rope_tables(dims, base, positions, dtype)

    def states(self, sequences: list[list[int]]) -> Array:
        hidden = self.model.weights["token_embd.weight"].values[np.concatenate(sequences)].astype(self.dtype)
        scaled = self.model.kind.scaled_embedding
        hidden = hidden * self.dtype(hidden.shape[1] ** 0.5 if scaled else self.scale("embedding_scale"))
        residual_scale = self.scale("residual_scale")
        for layer in range(self.model.num_layers):
            block = f"blk.{layer}"
            normed = self.norm(hidden, f"{block}.attn_norm.weight")
            mix = self.convolution if f"{block}.shortconv.conv.weight" in self.model.weights else self.attention
            added = mix(layer, normed)
            post_norm, norm = (f"{block}.{name}.weight" for name in ("post_attention_norm", "ffn_norm"))
            if self.model.kind.post_norm_is_next:
                post_norm, norm = "", post_norm
            hidden = hidden + self.norm(added, post_norm) * residual_scale
            added = self.feed_forward(layer, normed if self.model.kind.parallel else self.norm(hidden, norm))
            hidden = hidden + self.norm(added, f"{block}.post_ffw_norm.weight") * residual_scale
        return self.norm(hidden, f"{self.model.kind.output_norm}.weight")

    def scale(self, key: str) -> Any:
        return self.dtype(self.model.hyperparameter(key, 1.0))

    def split(self, rows: Array) -> list[Array]:
        """Rows of all sequences by sequence."""
        return [rows[span] for span in self.spans]

    def norm(self, x: Array, name: str) -> Array:
        """RMSNorm (Zhang and Sennrich 2019), or LayerNorm (Ba et al. 2016), or x as it is if the model has no such norm."""
        if name not in self.model.weights:
            return x
        if self.model.kind.layer_norms:
            x = x - np.mean(x, axis=-1, keepdims=True)
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        weight = self.model.weights[name].values.astype(self.dtype)
        out: Array = x / np.sqrt(mean_square + self.dtype(self.model.norm_epsilon)) * weight
        bias = self.model.weights.get(name.removesuffix("weight") + "bias")
        return out if bias is None else out + bias.values.astype(self.dtype)

    def product(self, x: Array, name: str, expert: int | None = None) -> Array:
        """x times a matrix, or times one of those stacked in a tensor, plus the bias that goes with it."""
        weight = self.model.weights[name]
        values = weight.values if expert is None else weight.values[expert]
        rounded = self.rounding and weight.format not in FLOAT_FORMATS
        out: Array = (round_to_int8(x, ACTIVATION_BLOCK) if rounded else x) @ values.astype(self.dtype).T
        bias = self.model.weights.get(name.removesuffix("weight") + "bias")
        if bias is None:
            return out
        return out + (bias.values if expert is None else bias.values[expert]).astype(self.dtype)

    def attention(self, layer: int, x: Array) -> Array:
        """Causal grouped-query attention (Ainslie et al. 2023) with rotary positions."""
        model = self.model
        projected = self.projections(layer, x)
        for index, part in enumerate("qk"):
            if model.kind.projection_norms:
                projected[index] = self.norm(projected[index], f"blk.{layer}.attn_{part}_norm.weight")
        heads = [part.reshape(len(x), -1, model.head_dim) for part in projected]
        for index, part in enumerate("qk"):
            norm = "" if model.kind.projection_norms else f"blk.{layer}.attn_{part}_norm.weight"
            if not model.kind.norms_rotated:
                heads[index] = self.norm(heads[index], norm)
            if self.has_rope(layer):
                heads[index] = self.rotate(heads[index], layer)
            if model.kind.norms_rotated:
                heads[index] = self.norm(heads[index], norm)
        query, key, value = heads
        query = query * self.temperature()[:, None, None]
        if self.rounding:
            key, value = (part.astype(np.float16).astype(self.dtype) for part in (key, value))
        group = model.num_heads // model.num_kv_heads
        key, value = (np.repeat(part, group, axis=1) for part in (key, value))
        mixed = [self.attend(layer, query[span], key[span], value[span]) for span in self.spans]
        return self.product(np.concatenate(mixed).reshape(len(x), -1), f"blk.{layer}.attn_output.weight")

    def convolution(self, layer: int, x: Array) -> Array:
        """The gated short convolution of LFM2: over the tokens of each sequence, columns apart."""
        block = f"blk.{layer}.shortconv"
        in_gate, out_gate, value = np.split(self.product(x, f"{block}.in_proj.weight"), 3, axis=1)
        kernel = self.model.weights[f"{block}.conv.weight"].values.astype(self.dtype)  # [columns, positions]
        gated = in_gate * value
        convolved = np.zeros_like(gated)
        for span in self.spans:
            rows = gated[span]
            for back in range(min(kernel.shape[1], len(rows))):
                convolved[span][back:] += kernel[:, -1 - back] * rows[: len(rows) - back]
        return self.product(out_gate * convolved, f"{block}.out_proj.weight")

    def projections(self, layer: int, x: Array) -> list[Array]:
        """Query, key and value."""
        model, fused = self.model, f"blk.{layer}.attn_qkv.weight"
        if fused not in model.weights:
            return [self.product(x, f"blk.{layer}.attn_{part}.weight") for part in "qkv"]
        return np.split(
            self.product(x, fused),
            np.cumsum([model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim]),
            axis=1,
        )

    def temperature(self) -> Array:
        """What queries are multiplied with, by position: they grow where `attention.temperature_scale` says so."""
        get = self.model.hyperparameter
        length = get("attention.temperature_length", get("rope.scaling.original_context_length", get("context_length")))
        periods = np.floor(self.positions / length)
        return (1 + get("attention.temperature_scale", 0.0) * np.log(1 + periods)).astype(self.dtype)

    def has_window(self, layer: int) -> bool:
        """Whether the file gives the layer a sliding window."""
        get = self.model.hyperparameter
        if get("attention.sliding_window", 0) == 0:
            return False
        pattern = get("attention.sliding_window_pattern", None, required=False)
        return self.model.kind.has_window(layer) if pattern is None else bool(pattern[layer])

    def has_rope(self, layer: int) -> bool:
        model = self.model
        if model.kind.no_rope_without_window and model.hyperparameter("attention.sliding_window", 0) > 0:
            return self.has_window(layer)
        return model.kind.has_rope(layer)

    def attend(self, layer: int, query: Array, key: Array, value: Array) -> Array:
        """Arrays are [position, head, head_dim], one sequence."""
        scale = self.model.hyperparameter("attention.scale", self.model.head_dim**-0.5)
        scores = np.einsum("qhd,khd->hqk", query, key) * self.dtype(scale)
        scores = soft_cap(scores, self.model.hyperparameter("attn_logit_softcapping", 0.0))
        everywhere = np.ones(scores.shape[1:], bool)
        unseen = np.triu(everywhere, k=1)
        if self.has_window(layer):
            unseen |= np.tril(everywhere, k=-self.model.hyperparameter("attention.sliding_window"))
        scores[:, unseen] = -np.inf
        if self.model.kind.sinks:
            sinks = self.model.weights[f"blk.{layer}.attn_sinks.weight"].values.astype(self.dtype)
            sinks = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
            scores = np.concatenate([scores, sinks], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights[..., : len(key)], value)

    def rotate(self, heads: Array, layer: int) -> Array:
        """Rotary embedding (Su et al. 2021) of adjacent pairs, or of pairs from the two halves."""
        cos, sin = (table[:, None, :] for table in (self.window_rope if self.has_window(layer) else self.rope))
        half = cos.shape[-1]
        out = heads.copy()
        if self.model.kind.rope_halves:
            first, second = slice(0, half), slice(half, 2 * half)
        else:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        out[..., first] = heads[..., first] * cos - heads[..., second] * sin
        out[..., second] = heads[..., first] * sin + heads[..., second] * cos
        return out

    def feed_forward(self, layer: int, x: Array) -> Array:
        """SwiGLU or, with the tanh approximation of GELU, GeGLU (Shazeer 2020); or what there is without a gate."""
        block = f"blk.{layer}"
        if self.model.kind.ungated:
            up = self.product(x, f"{block}.ffn_up.weight")
            return self.product(ungated(self.model.kind, up, self.model.metadata, layer), f"{block}.ffn_down.weight")
        if f"{block}.ffn_gate_inp.weight" in self.model.weights:
            return self.mixture(layer, x)
        if f"{block}.ffn_gate.weight" in self.model.weights:
            gate, up = (self.product(x, f"{block}.ffn_{part}.weight") for part in ("gate", "up"))
        else:
            gate, up = np.split(self.product(x, f"{block}.ffn_up.weight"), 2, axis=1)
        return self.product(gated(self.model.kind, gate, up), f"{block}.ffn_down.weight")

    def mixture(self, layer: int, x: Array) -> Array:
        """A mixture of experts (Shazeer et al. 2017) over all tokens, one token and expert after the other."""
        block = f"blk.{layer}"
        scores = self.product(x, f"{block}.ffn_gate_inp.weight")
        bias = self.model.weights.get(f"{block}.exp_probs_b.bias")
        weights, chosen = choose_experts(
            self.model.kind, self.model.hyperparameter, scores, None if bias is None else bias.values
        )
        out = np.zeros_like(x)
        for token, experts in enumerate(chosen):
            row = x[token : token + 1]
            for expert in experts:
                gate, up = (self.product(row, f"{block}.ffn_{part}_exps.weight", expert) for part in ("gate", "up"))
                down = self.product(gated(self.model.kind, gate, up), f"{block}.ffn_down_exps.weight", expert)
                out[token] += weights[token, expert] * down[0]
        if self.model.kind.shared_expert:
            gate, up = (self.product(x, f"{block}.ffn_{part}_shexp.weight") for part in ("gate", "up"))
            down = self.product(gated(self.model.kind, gate, up), f"{block}.ffn_down_shexp.weight")
            if self.model.kind.shared_expert == "gated":
                weight = x @ self.model.weights[f"{block}.ffn_gate_inp_shexp.weight"].values.astype(self.dtype)
                down /= (1 + np.exp(-weight))[:, None]
            out += down
        return out


def round_to_int8(x: Array, block: int) -> Array:
    """x with each `block` columns rounded to 255 levels between minus and plus their largest magnitude.

    In float32 whatever the dtype of x, because the levels are part of what the native core computes.
    """
    blocks = x.astype(np.float32).reshape(len(x), -1, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    levels = np.rint(blocks * inverse)
    return (levels.astype(x.dtype) * (largest / np.float32(127)).astype(x.dtype)).reshape(x.shape)


def soft_cap(x: Array, cap: float) -> Array:
    """x, smoothly kept between -cap and cap unless cap is 0."""
    return x if cap == 0 else (cap * np.tanh(x / cap)).astype(x.dtype)
