"""Outlines of models: quantisations not at hand, and models of the catalog that are not downloaded."""

from __future__ import annotations

import math

import pytest

from treadle.errors import UsageError
from treadle.models.catalog import CatalogEntry, load_catalog
from treadle.models.catalog_shapes import catalog_outline
from treadle.models.outline import QUANTS, ModelOutline, requantised


def outline(name: str) -> ModelOutline:
    entry = load_catalog()[name]
    assert entry.shape is not None
    return catalog_outline(entry, entry.shape)


@pytest.mark.parametrize("entry", load_catalog().values(), ids=lambda entry: entry.name)
def test_shapes_of_the_catalog_have_as_many_parameters_as_it_says(entry: CatalogEntry) -> None:
    assert entry.shape is not None
    tensors = catalog_outline(entry, entry.shape).tensors
    assert sum(math.prod(tensor.shape) for tensor in tensors) == entry.parameters


def test_formats_of_each_tensor() -> None:
    model = requantised(outline("qwen2.5:1.5b"), "q4_k_m")
    formats = {tensor.name: tensor.format for tensor in model.tensors}
    assert formats["token_embd.weight"] == "Q6_K"  # it is the output matrix, too
    assert formats["blk.0.attn_q.weight"] == "Q4_K" and formats["blk.0.attn_v.weight"] == "Q6_K"
    assert formats["blk.0.attn_norm.weight"] == "F32" and formats["blk.0.attn_q.bias"] == "F32"
    assert [i for i in range(28) if formats[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [
        *(0, 1, 2, 5, 8, 11, 14, 17, 20, 23),
        *(24, 25, 26, 27),
    ]


def test_rows_that_are_no_multiple_of_256_get_smaller_blocks() -> None:
    model = requantised(outline("qwen2.5:0.5b"), "Q5_K_M")
    formats = {tensor.name: tensor.format for tensor in model.tensors}
    assert formats["blk.0.attn_q.weight"] == "Q5_1" and formats["blk.0.attn_v.weight"] == "Q8_0"
    assert formats["blk.4.ffn_down.weight"] == "Q5_K"


def test_sizes_grow_with_the_bits() -> None:
    sizes = [requantised(outline("llama3.1:8b"), quant).file_bytes for quant in QUANTS]
    assert sizes == sorted(sizes)
    # What the files of this model take that are spread on the net, in bytes.
    assert requantised(outline("llama3.1:8b"), "Q4_K_M").file_bytes == pytest.approx(4.92e9, rel=0.005)
    assert requantised(outline("llama3.1:8b"), "Q8_0").file_bytes == pytest.approx(8.54e9, rel=0.005)


def test_an_unknown_quantisation_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"expected one of Q4_0, .*, found 'Q4'"):
        requantised(outline("qwen2.5:0.5b"), "Q4")
