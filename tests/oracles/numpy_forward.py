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
        # Only scalars: the token lists are long and no business of the forward pass.
        self.metadata = {
            field.name: field.contents()
            for field in reader.fields.values()
            if field.types and field.types[0] != gguf.GGUFValueType.ARRAY
        }
        self.architecture: str = self.metadata["general.architecture"]
        self.kind = ARCHITECTURES[self.architecture]
        self.num_layers: int = self.hyperparameter("block_count")
        self.num_heads: int = self.hyperparameter("attention.head_count")
        self.num_kv_heads: int = self.hyperparameter("attention.head_count_kv", self.num_heads)
        hidden_size = self.hyperparameter("embedding_length")
        self.head_dim: int = self.hyperparameter("attention.key_length", hidden_size // self.num_heads)
        self.norm_epsilon: float = self.hyperparameter("attention.layer_norm_rms_epsilon")

    def hyperparameter(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        assert value is not None, f"the file has no {key}"
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
        base = model.kind.window_rope_base
        self.rope = rope_tables(model, positions, dtype)
        self.window_rope = self.rope if base is None else plain_rope_tables(model, base, positions, dtype)

    def states(self, sequences: list[list[int]]) -> Array:
        hidden = self.model.weights["token_embd.weight"].values[np.concatenate(sequences)].astype(self.dtype)
        if self.model.kind.scaled_embedding:
            hidden = hidden * self.dtype(hidden.shape[1] ** 0.5)
        for layer in range(self.model.num_layers):
            block = f"blk.{layer}"
            added = self.attention(layer, self.norm(hidden, f"{block}.attn_norm.weight"))
            hidden = hidden + self.norm(added, f"{block}.post_attention_norm.weight")
            added = self.feed_forward(layer, self.norm(hidden, f"{block}.ffn_norm.weight"))
            hidden = hidden + self.norm(added, f"{block}.post_ffw_norm.weight")
        return self.norm(hidden, "output_norm.weight")

    def split(self, rows: Array) -> list[Array]:
        """Rows of all sequences by sequence."""
        return [rows[span] for span in self.spans]

    def norm(self, x: Array, name: str) -> Array:
        """RMSNorm (Zhang and Sennrich 2019), or x as it is if the model has no such norm."""
        if name not in self.model.weights:
            return x
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        weight = self.model.weights[name].values.astype(self.dtype)
        return x / np.sqrt(mean_square + self.dtype(self.model.norm_epsilon)) * weight

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
        heads = [
            self.product(x, f"blk.{layer}.attn_{part}.weight").reshape(len(x), -1, model.head_dim) for part in "qkv"
        ]
        query, key = (
            self.rotate(self.norm(heads[index], f"blk.{layer}.attn_{part}_norm.weight"), layer)
            for index, part in enumerate("qk")
        )
        value = heads[2]
        if self.rounding:
            key, value = (part.astype(np.float16).astype(self.dtype) for part in (key, value))
        group = model.num_heads // model.num_kv_heads
        key, value = (np.repeat(part, group, axis=1) for part in (key, value))
        mixed = [self.attend(layer, query[span], key[span], value[span]) for span in self.spans]
        return self.product(np.concatenate(mixed).reshape(len(x), -1), f"blk.{layer}.attn_output.weight")

    def attend(self, layer: int, query: Array, key: Array, value: Array) -> Array:
        """Arrays are [position, head, head_dim], one sequence."""
        scores = np.einsum("qhd,khd->hqk", query, key) / self.dtype(self.model.head_dim**0.5)
        scores = soft_cap(scores, self.model.hyperparameter("attn_logit_softcapping", 0.0))
        everywhere = np.ones(scores.shape[1:], bool)
        unseen = np.triu(everywhere, k=1)
        if self.model.kind.has_window(layer):
            unseen |= np.tril(everywhere, k=-self.model.hyperparameter("attention.sliding_window"))
        scores[:, unseen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value)

    def rotate(self, heads: Array, layer: int) -> Array:
        """Rotary embedding (Su et al. 2021) of adjacent pairs, or of pairs from the two halves."""
        cos, sin = (
            table[:, None, :] for table in (self.window_rope if self.model.kind.has_window(layer) else self.rope)
        )
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
        """SwiGLU or, with the tanh approximation of GELU, GeGLU (Shazeer 2020)."""
        if f"blk.{layer}.ffn_gate_inp.weight" in self.model.weights:
            return self.mixture(layer, x)
        gate = self.product(x, f"blk.{layer}.ffn_gate.weight")
        up = self.product(x, f"blk.{layer}.ffn_up.weight")
        if self.model.kind.gelu:
            active = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        else:
            active = gate / (1 + np.exp(-gate))
        return self.product((active * up).astype(self.dtype), f"blk.{layer}.ffn_down.weight")

    def mixture(self, layer: int, x: Array) -> Array:
        """A mixture of experts (Shazeer et al. 2017) over all tokens, one token and expert after the other."""
        block = f"blk.{layer}"
        scores = self.product(x, f"{block}.ffn_gate_inp.weight")
        used = self.model.hyperparameter("expert_used_count")
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :used]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        total = weights if self.model.kind.shares_of_all else np.take_along_axis(weights, chosen, axis=-1)
        weights /= total.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for token, experts in enumerate(chosen):
            row = x[token : token + 1]
            for expert in experts:
                gate, up = (self.product(row, f"{block}.ffn_{part}_exps.weight", expert) for part in ("gate", "up"))
                active = gate / (1 + np.exp(-gate)) * up
                down = self.product(active, f"{block}.ffn_down_exps.weight", expert)
                out[token] += weights[token, expert] * down[0]
        if self.model.kind.shared_expert:
            gate, up = (self.product(x, f"{block}.ffn_{part}_shexp.weight") for part in ("gate", "up"))
            down = self.product(gate / (1 + np.exp(-gate)) * up, f"{block}.ffn_down_shexp.weight")
            weight = x @ self.model.weights[f"{block}.ffn_gate_inp_shexp.weight"].values.astype(self.dtype)
            out += down / (1 + np.exp(-weight))[:, None]
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


def plain_rope_tables(model: NumpyModel, base: float, positions: NDArray[np.int64], dtype: type) -> tuple[Array, Array]:
    dims = model.hyperparameter("rope.dimension_count", model.head_dim)
    angles = positions[:, None] * base ** (-2.0 * np.arange(dims // 2) / dims)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rope_tables(model: NumpyModel, positions: NDArray[np.int64], dtype: type) -> tuple[Array, Array]:
    """cos and sin of every position and pair, with the file's frequency factors and position scaling."""
    dims = model.hyperparameter("rope.dimension_count", model.head_dim)
    base = model.hyperparameter("rope.freq_base", 10000.0)
    pairs = np.arange(dims // 2)
    frequencies = base ** (-2.0 * pairs / dims)
    if "rope_freqs.weight" in model.weights:  # Llama 3.1's long-context factors, one per pair
        frequencies = frequencies / model.weights["rope_freqs.weight"].values
    scaling = model.metadata.get(f"{model.architecture}.rope.scaling.type", "none")
    magnitude = 1.0
    if scaling != "none":
        factor = model.hyperparameter("rope.scaling.factor")
        stretched = frequencies / factor
        if scaling == "linear":
            frequencies = stretched
        else:
            assert scaling == "yarn", scaling
            keep = yarn_keep(dims, base, model.hyperparameter("rope.scaling.original_context_length"))
            frequencies = stretched * (1 - keep) + frequencies * keep
            magnitude = 1 + 0.1 * np.log(factor)
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * magnitude).astype(dtype), (np.sin(angles) * magnitude).astype(dtype)


def yarn_keep(dims: int, base: float, original_context: int) -> Array:
    """How much of each pair's own frequency YaRN (Peng et al. 2023) keeps: 1 for pairs that turn 32 times, 0 for less than one."""

    def pair_with_turns(turns: float) -> float:
        return float(dims * np.log(original_context / (turns * 2 * np.pi)) / (2 * np.log(base)))

    low = max(np.floor(pair_with_turns(32)), 0)
    high = min(np.ceil(pair_with_turns(1)), dims - 1)
    ramp = (np.arange(dims // 2) - low) / max(high - low, 0.001)
    return 1 - np.clip(ramp, 0, 1)
