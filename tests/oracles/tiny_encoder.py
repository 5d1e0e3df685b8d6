"""Writes small seeded encoders with a WordPiece or Unigram vocabulary; what they give is for numpy_encoder to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from gguf import PoolingType
from numpy.typing import NDArray

from oracles.numpy_encoder import ENCODERS
from oracles.tiny_model import random_weights
from oracles.unigram import pack_char_map

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "inn", "cat", "sat", "river", ",", "."]
VOCABULARY = [*CONTROL, *(f"▁{word}" for word in (*WORDS, *ascii_lowercase)), "ing", *ascii_lowercase]
EPSILON = 1e-6
# As XLM-RoBERTa has it.
UNIGRAM_CONTROL = ["<s>", "<pad>", "</s>", "<unk>"]
UNIGRAM_PIECES = {
    text: -2.0 - 0.37 * index - 0.0113 * index * index
    for index, text in enumerate(["▁", *(f"▁{word}" for word in WORDS), "ing", "北京", "é", *ascii_lowercase])
}
UNIGRAM_VOCABULARY = [*UNIGRAM_CONTROL, *UNIGRAM_PIECES]
UNIGRAM_TABLE = {"\t": " ", "\n": " ", "\u3000": " ", "Ａ": "a", "ﬁ": "fi", "e\u0301": "é", "\u00ad": ""}


@dataclass(frozen=True)
class TinyEncoder:
    """The model; ``pooling`` None leaves it out of the file, ``fused`` puts query, key and value into one tensor."""

    architecture: str = "bert"
    format: Format = Format.F32
    pooling: PoolingType | None = PoolingType.MEAN
    context_length: int = 64
    hidden_size: int = 32
    num_heads: int = 4
    num_layers: int = 2
    window: int = 12
    fused: bool = False
    dense: bool = True  # products behind the states, where the architecture may have them
    ranks: bool = False  # a head that scores a text
    num_scores: int = 1
    vocabulary: list[str] = field(default_factory=lambda: VOCABULARY)  # of word pieces, or else UNIGRAM_VOCABULARY
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the architecture, beside its own
    file_keys: Mapping[str, Any] = field(default_factory=dict)  # of the file
    seed: int = 0

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        self._add_metadata(writer)
        (add_unigram if self.vocabulary == UNIGRAM_VOCABULARY else add_word_pieces)(writer, self.vocabulary)
        rng = np.random.default_rng(self.seed)
        for name, shape in self.tensor_shapes().items():
            self._add_tensor(writer, name, shape, rng)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor with its shape, rows first."""
        kind, hidden = ENCODERS[self.architecture], self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(self.vocabulary), hidden)}
        if kind.positions:
            shapes["position_embd.weight"] = (self.context_length, hidden)
        if kind.token_types:
            shapes["token_types.weight"] = (2, hidden)
        for layer in range(self.num_layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in self._layer_shapes(layer).items()}
        norms = {"token_embd_norm"} if kind.layer_norms else set()
        norms |= {"output_norm"} if not kind.post_norms else set()
        shapes |= self._norm_shapes(norms)
        if self.ranks:
            shapes |= {"cls.weight": (hidden, hidden), "cls.output.weight": (self.num_scores, hidden)}
            shapes |= {"cls.norm.weight": (hidden,)} if kind.mean_head else {"cls.bias": (hidden,)}
            shapes["cls.output.bias"] = (self.num_scores,)
        if kind.dense and self.dense:
            shapes |= {"dense_2.weight": (3 * hidden, hidden), "dense_3.weight": (hidden, 3 * hidden)}
        return shapes

    def _layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        kind, hidden, inner = ENCODERS[self.architecture], self.hidden_size, 4 * self.hidden_size
        products = {f"attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
        if self.fused:
            products = {"attn_qkv": (3 * hidden, hidden), "attn_output": (hidden, hidden)}
        products |= {"ffn_up": (inner * (2 if kind.fused_gate else 1), hidden), "ffn_down": (hidden, inner)}
        if kind.gate and not kind.fused_gate:
            products["ffn_gate"] = (inner, hidden)
        shapes = {f"{name}.weight": shape for name, shape in products.items()}
        if kind.biases:
            shapes |= {f"{name}.bias": shape[:1] for name, shape in products.items()}
        if kind.post_norms:
            return shapes | self._norm_shapes({"attn_output_norm", "layer_output_norm"})
        norms = {"ffn_norm", *({"attn_norm"} if layer > 0 or not kind.layer_norms else ())}
        if not kind.layer_norms:
            norms |= {"post_attention_norm", "post_ffw_norm"}
            shapes |= {f"attn_{part}_norm.weight": (hidden // self.num_heads,) for part in "qk"}
        return shapes | self._norm_shapes(norms)

    def _norm_shapes(self, names: set[str]) -> dict[str, tuple[int, ...]]:
        parts = ("weight", "bias") if ENCODERS[self.architecture].post_norms else ("weight",)
        return {f"{name}.{part}": (self.hidden_size,) for name in sorted(names) for part in parts}

    def _add_metadata(self, writer: gguf.GGUFWriter) -> None:
        kind = ENCODERS[self.architecture]
        writer.add_name(f"tiny {self.architecture}")
        writer.add_context_length(self.context_length)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(4 * self.hidden_size)
        writer.add_head_count(self.num_heads)
        (writer.add_layer_norm_eps if kind.layer_norms else writer.add_layer_norm_rms_eps)(EPSILON)
        writer.add_causal_attention(False)
        writer.add_token_type_count(2)
        if kind.windows:
            writer.add_sliding_window(self.window)
            writer.add_rope_freq_base(80000.0)
        if kind.dense and self.dense:
            for index, sizes in ((2, (1, 3)), (3, (3, 1))):
                for side, factor in zip(("in", "out"), sizes, strict=True):
                    writer.add_uint32(f"{self.architecture}.dense_{index}_feat_{side}", factor * self.hidden_size)
        if self.pooling is not None:
            writer.add_pooling_type(self.pooling)
        for name, value in self.keys.items():
            _add_key(writer, f"{self.architecture}.{name}", value)
        for name, value in self.file_keys.items():
            _add_key(writer, name, value)

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        if len(shape) == 1 or name.startswith(("position", "token_types")):
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            writer.add_tensor(name, rng.normal(centre, 0.2, shape).astype(np.float32))
            return
        rows: NDArray[Any] = random_weights(shape, self.format, 1.5 / shape[-1] ** 0.5, rng)
        writer.add_tensor(name, rows, raw_dtype=self.format)


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}
    adders[type(value)](key, value)


def add_word_pieces(writer: gguf.GGUFWriter, vocabulary: list[str]) -> None:
    """Write a vocabulary that begins with the control tokens, as converters do."""
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(vocabulary) - len(CONTROL)))
    for add, text in (
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_eos_token_id, "[SEP]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(vocabulary.index(text))


def add_unigram(writer: gguf.GGUFWriter, vocabulary: list[str]) -> None:
    """Write ``UNIGRAM_VOCABULARY``, as converters of XLM-RoBERTa do."""
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3, 3, 3, 2] + [1] * len(UNIGRAM_PIECES))
    writer.add_token_scores([0.0] * len(UNIGRAM_CONTROL) + list(UNIGRAM_PIECES.values()))
    writer.add_precompiled_charsmap(bytes(pack_char_map(UNIGRAM_TABLE)))
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    for add, text in (
        (writer.add_bos_token_id, "<s>"),
        (writer.add_pad_token_id, "<pad>"),
        (writer.add_eos_token_id, "</s>"),
        (writer.add_sep_token_id, "</s>"),
        (writer.add_unk_token_id, "<unk>"),
    ):
        add(vocabulary.index(text))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
