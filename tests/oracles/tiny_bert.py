"""A small seeded BERT with a WordPiece vocabulary: as a GGUF file, and its states computed in NumPy from the paper."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np
from gguf import PoolingType
from numpy.typing import NDArray

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "inn", "cat", "sat", "river", ",", "."]
VOCABULARY = [*CONTROL, *(f"▁{word}" for word in (*WORDS, *ascii_lowercase)), "ing", *ascii_lowercase]
EPSILON = 1e-12


@dataclass(frozen=True)
class TinyBert:
    """The model; ``pooling`` None leaves it out of the file."""

    pooling: PoolingType | None = PoolingType.MEAN
    context_length: int = 64
    hidden_size: int = 32
    num_heads: int = 4
    num_layers: int = 2
    seed: int = 0

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Every tensor, rows first."""
        rng = np.random.default_rng(self.seed)
        hidden, inner = self.hidden_size, 4 * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (len(VOCABULARY), hidden),
            "position_embd.weight": (self.context_length, hidden),
            "token_types.weight": (2, hidden),
        }
        norms, products = ["token_embd_norm"], {}
        for layer in range(self.num_layers):
            norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
            products |= {f"blk.{layer}.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
            products |= {f"blk.{layer}.ffn_up": (inner, hidden), f"blk.{layer}.ffn_down": (hidden, inner)}
        for name, shape in products.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        found = {name: rng.normal(0, 2 / shape[-1] ** 0.5, shape) for name, shape in shapes.items()}
        for name in norms:
            found |= {f"{name}.weight": rng.normal(1, 0.1, hidden), f"{name}.bias": rng.normal(0, 0.1, hidden)}
        return {name: values.astype(np.float32) for name, values in found.items()}

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "bert")
        writer.add_name("tiny bert")
        writer.add_context_length(self.context_length)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(4 * self.hidden_size)
        writer.add_head_count(self.num_heads)
        writer.add_layer_norm_eps(EPSILON)
        writer.add_causal_attention(False)
        if self.pooling is not None:
            writer.add_pooling_type(self.pooling)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(VOCABULARY)
        writer.add_token_types([3] * len(CONTROL) + [1] * (len(VOCABULARY) - len(CONTROL)))
        writer.add_token_type_count(2)
        for add, text in (
            (writer.add_pad_token_id, "[PAD]"),
            (writer.add_unk_token_id, "[UNK]"),
            (writer.add_bos_token_id, "[CLS]"),
            (writer.add_eos_token_id, "[SEP]"),
            (writer.add_sep_token_id, "[SEP]"),
            (writer.add_mask_token_id, "[MASK]"),
        ):
            add(VOCABULARY.index(text))
        for name, values in self.weights().items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def states(self, token_ids: list[int]) -> NDArray[np.float64]:
        """The states of the last layer, [tokens, hidden_size]."""
        weights = {name: values.astype(np.float64) for name, values in self.weights().items()}
        num_tokens = len(token_ids)

        def norm(name: str, states: Any) -> Any:
            centred = states - states.mean(axis=-1, keepdims=True)
            scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
            return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

        def product(name: str, states: Any) -> Any:
            return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

        def heads(name: str, states: Any) -> Any:
            return product(name, states).reshape(num_tokens, self.num_heads, -1).swapaxes(0, 1)

        states = weights["token_embd.weight"][token_ids] + weights["token_types.weight"][0]
        states = norm("token_embd_norm", states + weights["position_embd.weight"][:num_tokens])
        for layer in range(self.num_layers):
            query, key, value = (heads(f"blk.{layer}.attn_{name}", states) for name in "qkv")
            scores = query @ key.swapaxes(1, 2) / np.sqrt(self.hidden_size / self.num_heads)
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            found = (shares @ value).swapaxes(0, 1).reshape(num_tokens, -1)
            states = norm(f"blk.{layer}.attn_output_norm", states + product(f"blk.{layer}.attn_output", found))
            inner = product(f"blk.{layer}.ffn_up", states)
            inner = inner * (1 + np.vectorize(erf)(inner / np.sqrt(2))) / 2
            states = norm(f"blk.{layer}.layer_output_norm", states + product(f"blk.{layer}.ffn_down", inner))
        return np.asarray(states)
