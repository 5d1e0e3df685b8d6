"""What encoders make of a text in NumPy, in double precision, over weights that the `gguf` package dequantises.

Written from the papers; it shares no code with the native core.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from oracles.numpy_forward import ACTIVATION_BLOCK, FLOAT_FORMATS, round_to_int8
from oracles.numpy_rope import Tables, plain_rope_tables

Array = NDArray[np.float64]


@dataclass(frozen=True)
class EncoderKind:
    positions: bool = False
    """Learnt ones, added to the embedding; otherwise rotary ones."""
    token_types: bool = False
    biases: bool = False
    """Of products."""
    layer_norms: bool = True
    """Norms take away the mean; otherwise they only divide by the size."""
    post_norms: bool = False
    """Norms of the residual, after attention and after the feed-forward, instead of norms before them."""
    gate: bool = True
    fused_gate: bool = False
    gelu: bool = True
    windows: int = 0
    """All layers but one of so many see half a window on each side."""
    global_first: bool = False
    """That one is the first of them."""
    dense: bool = False
    """Two products behind the mean of the states."""
    mean_head: bool = False
    """A head takes the mean of the states and has GELU and a norm, instead of the first state and tanh."""


ENCODERS = {
    "bert": EncoderKind(positions=True, token_types=True, biases=True, post_norms=True, gate=False),
    "gemma-embedding": EncoderKind(layer_norms=False, windows=6, dense=True),
    "modern-bert": EncoderKind(fused_gate=True, windows=3, global_first=True, mean_head=True),
    "nomic-bert": EncoderKind(token_types=True, post_norms=True, gelu=False),
}


class NumpyEncoder:
    """A model file.

    With `rounding` the input of each quantised product is rounded to int8, and keys and values to float16, as the native
    core does.
    """

    def __init__(self, path: Path, *, rounding: bool = False, exact_gelu: bool = False) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self._quantised = {tensor.name for tensor in reader.tensors if tensor.tensor_type not in FLOAT_FORMATS}
        self._rounding = rounding
        self._exact_gelu = exact_gelu
        self._metadata = {
            field.name: field.contents() for field in reader.fields.values() if not field.name.startswith("tokenizer.")
        }
        self._architecture = self._metadata["general.architecture"]
        self._kind = ENCODERS[self._architecture]
        self._num_heads: int = self._key("attention.head_count")
        self._head_dim = self._key("embedding_length") // self._num_heads

    def _key(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._architecture}.{name}", default)

    def states(self, token_ids: list[int]) -> Array:
        """The states of the last layer, [tokens, hidden_size]."""
        x = self._embedded(token_ids)
        for layer in range(self._key("block_count")):
            block = f"blk.{layer}."
            added = self._attention(layer, self._norm(f"{block}attn_norm", x))
            x = self._norm(f"{block}attn_output_norm", x + self._norm(f"{block}post_attention_norm", added))
            added = self._feed_forward(block, self._norm(f"{block}ffn_norm", x))
            x = self._norm(f"{block}layer_output_norm", x + self._norm(f"{block}post_ffw_norm", added))
        return self._norm("output_norm", x)

    def sums(self, texts: list[list[int]]) -> list[Array]:
        """The sum of the states of each text, behind the products that follow them."""
        return [self._projected(self.states(text).sum(axis=0)) for text in texts]

    def embed(self, token_ids: list[int], pooling: str = "mean") -> Array:
        """The vector of a text, of length 1."""
        states = self.states(token_ids)
        pooled = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]
        vector = self._projected(pooled)
        return vector / float(np.linalg.norm(vector))

    def score(self, token_ids: list[int]) -> float:
        """What the head makes of a text."""
        states = self.states(token_ids)
        pooled = states.mean(axis=0) if self._kind.mean_head else states[0]
        inner = self._product("cls", pooled[None])
        inner = self._norm("cls.norm", self._activated(inner)) if self._kind.mean_head else np.tanh(inner)
        return float(self._product("cls.output", inner)[0, 0])

    def _projected(self, pooled: Array) -> Array:
        if not self._kind.dense or "dense_2.weight" not in self._weights:
            return pooled
        found: Array = self._product("dense_3", self._product("dense_2", pooled[None]))[0]
        return found

    def _embedded(self, token_ids: list[int]) -> Array:
        x = self._weights["token_embd.weight"][token_ids]
        if not self._kind.layer_norms:
            x = x * np.sqrt(x.shape[1])
        if self._kind.positions:
            x = x + self._weights["position_embd.weight"][: len(token_ids)]
        if self._kind.token_types:
            x = x + self._weights["token_types.weight"][0]
        return self._norm("token_embd_norm", x)

    def _norm(self, name: str, x: Array) -> Array:
        """The norm of that name, if the file has one."""
        if f"{name}.weight" not in self._weights:
            return x
        if self._kind.layer_norms:
            x = x - x.mean(axis=-1, keepdims=True)
        epsilon = self._key("attention.layer_norm_epsilon", self._key("attention.layer_norm_rms_epsilon"))
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        return x * self._weights[f"{name}.weight"] + self._weights.get(f"{name}.bias", 0.0)

    def _product(self, name: str, x: Array) -> Array:
        if self._rounding and f"{name}.weight" in self._quantised:
            x = round_to_int8(x, ACTIVATION_BLOCK)
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0.0)

    def _attention(self, layer: int, x: Array) -> Array:
        block, num_tokens = f"blk.{layer}.", len(x)
        if f"{block}attn_qkv.weight" in self._weights:
            parts = np.split(self._product(f"{block}attn_qkv", x), 3, axis=1)
        else:
            parts = [self._product(f"{block}attn_{name}", x) for name in "qkv"]
        query, key, value = (part.reshape(num_tokens, self._num_heads, -1).swapaxes(0, 1) for part in parts)
        query, key = self._norm(f"{block}attn_q_norm", query), self._norm(f"{block}attn_k_norm", key)
        if not self._kind.positions:
            query, key = (self._rotated(layer, heads) for heads in (query, key))
        if self._rounding:
            key, value = key.astype(np.float16).astype(np.float64), value.astype(np.float16).astype(np.float64)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(self._head_dim)
        if self._is_windowed(layer):
            places = np.arange(num_tokens)
            half = self._key("attention.sliding_window") // 2
            scores[:, np.abs(places[:, None] - places) > half] = -np.inf
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        found = (shares @ value).swapaxes(0, 1).reshape(num_tokens, -1)
        return self._product(f"{block}attn_output", found)

    def _is_windowed(self, layer: int) -> bool:
        period = self._kind.windows
        if period == 0:
            return False
        return layer % period != 0 if self._kind.global_first else (layer + 1) % period != 0

    def _rotated(self, layer: int, heads: Array) -> Array:
        base = 10000.0 if self._is_windowed(layer) else self._key("rope.freq_base", 10000.0)
        tables: Tables = plain_rope_tables(self._head_dim, base, np.arange(heads.shape[1]), np.float64)
        cos, sin = tables
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    def _feed_forward(self, block: str, x: Array) -> Array:
        up = self._product(f"{block}ffn_up", x)
        if not self._kind.gate:
            return self._product(f"{block}ffn_down", self._activated(up))
        if self._kind.fused_gate:
            gate, up = np.split(up, 2, axis=1)
        else:
            gate = self._product(f"{block}ffn_gate", x)
        return self._product(f"{block}ffn_down", self._activated(gate) * up)

    def _activated(self, x: Array) -> Array:
        if not self._kind.gelu:
            return x / (1 + np.exp(-x))
        if self._exact_gelu:
            exact: Array = x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2
            return exact
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
