"""The files that benchmarks write for engines: bf16 folders and synthetic models."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray
from peers.bf16_folder import bf16_bits, halves_apart, write_folder
from synthetic import MIXES, random_rows

from oracles.tiny_model import TinyModel


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    assert (8 + length) % 8 == 0
    del header["__metadata__"]
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(content[begin:end], np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    assert end == len(content)
    return tensors


def rotated(vectors: NDArray[Any], first: NDArray[np.intp], second: NDArray[np.intp]) -> NDArray[Any]:
    """Each head's pairs of entries turned by an angle of their own, as rotary positions do."""
    angles = np.linspace(0.1, 3.0, len(first))
    result = np.empty_like(vectors)
    result[:, first] = vectors[:, first] * np.cos(angles) - vectors[:, second] * np.sin(angles)
    result[:, second] = vectors[:, first] * np.sin(angles) + vectors[:, second] * np.cos(angles)
    return result


def test_reordered_rows_give_the_same_attention() -> None:
    num_heads, head_dim, hidden = 3, 8, 12
    source = np.random.default_rng(0)
    query, key = source.standard_normal((2, num_heads * head_dim, hidden)).astype(np.float32)
    x, y = source.standard_normal((2, hidden))
    even, half = np.arange(0, head_dim, 2), np.arange(head_dim // 2)

    def scores(q: NDArray[Any], k: NDArray[Any], first: NDArray[np.intp], second: NDArray[np.intp]) -> NDArray[Any]:
        turned = rotated((q @ x).reshape(num_heads, -1), first, second)
        return (turned * (k @ y).reshape(num_heads, -1)).sum(axis=1)

    side_by_side = scores(query, key, even, even + 1)
    apart = scores(halves_apart(query, num_heads), halves_apart(key, num_heads), half, half + head_dim // 2)
    assert apart == pytest.approx(side_by_side, rel=1e-12)
    assert scores(query, key, half, half + head_dim // 2) != pytest.approx(side_by_side, rel=1e-3)


def test_bf16_takes_the_nearest_value_and_even_ones_in_the_middle() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    rounded = (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)
    below = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    above = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    nearest = np.minimum(abs(values - below), abs(values - above))
    assert np.array_equal(abs(values - rounded), nearest)
    middles = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    assert bf16_bits(middles).tolist() == [0x3F80, 0x3F82]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_folder_has_every_weight_of_the_file(tmp_path: Path, family: str) -> None:
    model = TinyModel(architecture=family, tied=False).write(tmp_path / "tiny.gguf")
    write_folder(model, tmp_path / "folder")
    tensors = read_safetensors(tmp_path / "folder/model.safetensors")
    reader = gguf.GGUFReader(model)
    assert len(tensors) == len(reader.tensors)
    config = json.loads((tmp_path / "folder/config.json").read_text())
    assert (config["model_type"], config["num_key_value_heads"], config["tie_word_embeddings"]) == (family, 3, False)
    values = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    for name, source in (
        ("lm_head.weight", "output.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ):
        np.testing.assert_allclose(tensors[name], values[source], rtol=2**-8)
    query, source_query = tensors["model.layers.0.self_attn.q_proj.weight"], values["blk.0.attn_q.weight"]
    if family == "llama":
        np.testing.assert_allclose(query[1], source_query[2], rtol=2**-8)
    else:
        np.testing.assert_allclose(query, source_query, rtol=2**-8)
        assert "model.layers.1.self_attn.k_proj.bias" in tensors


def test_a_family_without_such_a_folder_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="family mamba; only llama and qwen2"):
        write_folder(tmp_path / "other.gguf", tmp_path / "folder")


@pytest.mark.parametrize("weight_format", sorted({each for mix in MIXES.values() for each in mix}, key=str))
def test_synthetic_weights_have_the_size_of_real_ones(weight_format: Format) -> None:
    rows = random_rows(np.random.default_rng(0), 8, 2048, weight_format)
    values = gguf.quants.dequantize(rows, weight_format)
    assert values.shape == (8, 2048)
    assert np.isfinite(values).all()
    assert 0.3 < values.std() * 2048**0.5 < 3
