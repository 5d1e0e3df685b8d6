"""Metadata that contradicts itself or the tensors: the error names the key or the tensor, before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from treadle.errors import ModelFileError
from treadle.models.gguf import ModelFile
from treadle.models.hyperparameters import Hyperparameters, read_hyperparameters

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCAB, LAYERS = 64, 4, 2, 96, 10, 2


def metadata(architecture: str = "llama", **changes: object) -> dict[str, Any]:
    """The keys of a small model; a change of None drops the key, `__` stands for a dot."""
    keys: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": VOCAB,
    }
    tokens = changes.pop("tokens", [str(i) for i in range(VOCAB)])
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    found = {f"{architecture}.{name}": value for name, value in keys.items() if value is not None}
    return found | ({"tokenizer.ggml.tokens": tokens} if tokens is not None else {})


def shapes(architecture: str = "llama") -> dict[str, tuple[int, ...]]:
    kv_size = HIDDEN // HEADS * KV_HEADS
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HIDDEN, HIDDEN),
        "attn_k.weight": (HIDDEN, kv_size),
        "attn_v.weight": (HIDDEN, kv_size),
        "attn_output.weight": (HIDDEN, HIDDEN),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (HIDDEN, FEED_FORWARD),
        "ffn_up.weight": (HIDDEN, FEED_FORWARD),
        "ffn_down.weight": (FEED_FORWARD, HIDDEN),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (HIDDEN,), "attn_k.bias": (kv_size,), "attn_v.bias": (kv_size,)}
    whole: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, VOCAB), "output_norm.weight": (HIDDEN,)}
    return whole | {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}


def read(keys: dict[str, Any], tensors: dict[str, tuple[int, ...]], architecture: str = "llama") -> Hyperparameters:
    return read_hyperparameters("m.gguf", architecture, keys, tensors)


def refused(
    keys: dict[str, Any], tensors: dict[str, tuple[int, ...]], *fragments: str, architecture: str = "llama"
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(keys, tensors, architecture)
    for fragment in ("m.gguf: ", *fragments):
        assert fragment in str(caught.value)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_an_honest_model(architecture: str) -> None:
    assert read(metadata(architecture), shapes(architecture), architecture) == Hyperparameters(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=16,
        feed_forward_size=FEED_FORWARD,
        context_length=128,
        vocab_size=VOCAB,
        kv_bytes_per_token=LAYERS * 2 * KV_HEADS * 16 * 2,
    )


def test_what_may_be_left_out_or_given_per_layer() -> None:
    assert read(metadata(attention__head_count_kv=None), shapes()).num_kv_heads == HEADS
    assert read(metadata(vocab_size=None, tokens=None), shapes()).vocab_size == VOCAB
    wide = read(metadata(attention__key_length=24, attention__value_length=8), shapes())
    assert (wide.head_dim, wide.kv_bytes_per_token) == (24, LAYERS * KV_HEADS * (24 + 8) * 2)
    mixed = read(metadata(attention__head_count_kv=[2, 1], feed_forward_length=[8, 96]), shapes())
    assert (mixed.num_kv_heads, mixed.feed_forward_size, mixed.kv_bytes_per_token) == (2, 96, 3 * 32 * 2)
    assert read(metadata(attention__head_count_kv=[0, 2]), shapes()).kv_bytes_per_token == 2 * 32 * 2


def test_layers_without_kv_heads_have_a_convolution() -> None:
    names = {"output_norm.weight": "token_embd_norm.weight"}
    tensors = {names.get(name, name): shape for name, shape in shapes().items() if ".attn_q" not in name}
    keys = metadata("lfm2", attention__head_count_kv=[0, 2], shortconv__l_cache=3)
    found = read(keys, tensors, "lfm2")
    assert (found.window, found.num_convolutions, found.num_kv_heads) == (3, 1, 2)
    assert found.convolution_bytes == 2 * HIDDEN * 4
    assert found.kv_bytes_per_token == 2 * 32 * 2
    refused(keys, shapes(), "tensor 'token_embd_norm.weight' is missing", architecture="lfm2")
    keys["lfm2.shortconv.l_cache"] = 1
    refused(keys, tensors, "key 'lfm2.shortconv.l_cache'", "found 1", architecture="lfm2")


def test_an_architecture_the_core_does_not_know_is_described_all_the_same() -> None:
    only_embedding = {"token_embd.weight": (HIDDEN, VOCAB), "blk.7.odd": (1,)}
    assert read(metadata("other"), only_embedding, "other").num_layers == LAYERS


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**64 - 1, 1.5, "12", True])
@pytest.mark.parametrize(
    "name", ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"]
)
def test_numbers_out_of_range_or_of_the_wrong_type(name: str, value: object) -> None:
    keys = metadata(**{name.replace(".", "__"): value})
    refused(keys, shapes(), f"key 'llama.{name}': expected an integer from 1 to ", f"found {value!r}")
    del keys[f"llama.{name}"]
    refused(keys, shapes(), f"key 'llama.{name}' is missing")


@pytest.mark.parametrize("name", ["block_count", "context_length", "embedding_length"])
def test_arrays_where_there_is_one_number(name: str) -> None:
    refused(metadata(**{name: [2, 2]}), shapes(), f"key 'llama.{name}'", "found an array of 2 values")


CONTRADICTIONS: dict[str, tuple[dict[str, object], list[str]]] = {
    "too many layers": ({"block_count": 513}, ["llama.block_count", "from 1 to 512", "found 513"]),
    "no key-value heads": ({"attention__head_count_kv": 0}, ["llama.attention.head_count_kv", "from 1", "found 0"]),
    "more key-value heads than heads": ({"attention__head_count_kv": 8}, ["head_count_kv", "which is 4", "found 8"]),
    "key-value heads that do not divide": ({"attention__head_count_kv": 3}, ["head_count_kv", "divisor", "found 3"]),
    "key-value heads of no layer": ({"attention__head_count_kv": [0, 0]}, ["head_count_kv", "more than 0"]),
    "key-value heads of too few layers": (
        {"attention__head_count_kv": [2]},
        ["head_count_kv", "or 2, one per layer", "array of 1 values"],
    ),
    "bad key-value heads of one layer": ({"attention__head_count_kv": [2, 3]}, ["head_count_kv", "found 3"]),
    "text for key-value heads of one layer": ({"attention__head_count_kv": [2, "x"]}, ["head_count_kv", "found 'x'"]),
    "hidden size the heads do not divide": ({"embedding_length": 7}, ["llama.embedding_length", "multiple", "found 7"]),
    "hidden size unlike the embedding": ({"embedding_length": 128}, ["token_embd.weight", "128", "[64, 10]"]),
    "head size 0": ({"attention__key_length": 0}, ["llama.attention.key_length", "found 0"]),
    "value size 0": ({"attention__value_length": 0}, ["llama.attention.value_length", "found 0"]),
    "one token more than rows": ({"tokens": ["t"] * 11}, ["tokenizer.ggml.tokens", "10 tokens", "array of 11"]),
    "one token less than rows": ({"tokens": ["t"] * 9}, ["tokenizer.ggml.tokens", "10 tokens", "array of 9"]),
    "vocabulary size unlike the rows": ({"vocab_size": 11}, ["llama.vocab_size", "expected 10", "found 11"]),
    "a layer more than there are": ({"block_count": 3}, ["tensor 'blk.2.attn_norm.weight' is missing"]),
    "a layer less than there are": ({"block_count": 1}, ["llama.block_count", "blk.1.", "found 1"]),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions(case: str) -> None:
    changes, fragments = CONTRADICTIONS[case]
    refused(metadata(**changes), shapes(), *fragments)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_missing_tensor_is_named(architecture: str) -> None:
    for name in shapes(architecture):
        rest = {other: shape for other, shape in shapes(architecture).items() if other != name}
        refused(metadata(architecture), rest, f"tensor '{name}' is missing", architecture=architecture)


@pytest.mark.parametrize("number", ["2", "002", "512", "9" * 5000])
def test_a_layer_past_the_last(number: str) -> None:
    refused(metadata(), shapes() | {f"blk.{number}.attn_q.weight": (1,)}, "llama.block_count", f"blk.{number}"[:70])


def test_experts_stand_in_for_the_feed_forward_tensors() -> None:
    dense = {name: shape for name, shape in shapes().items() if "ffn_" not in name or "ffn_norm" in name}
    assert read(metadata(expert_count=8, expert_used_count=2), dense).num_layers == LAYERS
    refused(metadata(expert_count=0), dense, "blk.0.ffn_gate.weight")


def test_the_numbers_of_experts() -> None:
    dense = {name: shape for name, shape in shapes().items() if "ffn_" not in name or "ffn_norm" in name}
    found = read(metadata(expert_count=8, expert_used_count=2, expert_feed_forward_length=32), dense)
    assert (found.num_experts_used, found.expert_feed_forward_size) == (2, 32)
    refused(metadata(expert_count=8, expert_used_count=9), dense, "llama.expert_used_count", "from 1 to 8", "found 9")


def test_an_embedding_of_the_wrong_rank() -> None:
    refused(metadata(), shapes() | {"token_embd.weight": (HIDDEN * VOCAB,)}, "token_embd.weight", "[640]")


def test_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    for name, shape in shapes().items():
        if name != "blk.0.attn_q.weight":
            writer.add_tensor(name, np.zeros(tuple(reversed(shape)), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: tensor 'blk\.0\.attn_q\.weight' is missing"):
        _ = ModelFile.open(path).hyperparameters


@pytest.mark.model
def test_a_real_model(smollm2_path: Path) -> None:
    assert ModelFile.open(smollm2_path).hyperparameters == Hyperparameters(
        num_layers=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        feed_forward_size=1536,
        context_length=8192,
        vocab_size=49152,
        kv_bytes_per_token=30 * 3 * 64 * 2 * 2,
    )
