"""The outline of a model of the catalog, made from its shape, for what is asked before it is downloaded.

Leaves to others: the shapes (``catalog``) and quantising them (``outline``).
"""

from __future__ import annotations

import math
from types import MappingProxyType

from treadle.models.catalog import CatalogEntry, CatalogShape
from treadle.models.gguf import TensorEntry
from treadle.models.hyperparameters import Hyperparameters
from treadle.models.outline import ModelOutline

__all__ = ["catalog_outline"]

_F16_BYTES, _F32_BYTES = 2, 4


def catalog_outline(entry: CatalogEntry, shape: CatalogShape) -> ModelOutline:
    """Return the outline of a dense ``llama`` or ``qwen2`` model, its matrices in 16-bit floats."""
    head_dim = shape.hidden // shape.heads
    kv_size = shape.kv_heads * head_dim
    tensors = [_tensor("token_embd.weight", shape.hidden, shape.vocab), _tensor("output_norm.weight", shape.hidden)]
    if not shape.tied:
        tensors.append(_tensor("output.weight", shape.hidden, shape.vocab))
    for layer in range(shape.layers):
        tensors += [_tensor(f"blk.{layer}.{name}", *sizes) for name, sizes in _layer(shape, kv_size)]
        if entry.architecture == "qwen2":
            sizes = {"q": shape.hidden, "k": kv_size, "v": kv_size}
            tensors += [_tensor(f"blk.{layer}.attn_{name}.bias", size) for name, size in sizes.items()]
    hyperparameters = Hyperparameters(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=head_dim,
        feed_forward_size=shape.feed_forward,
        context_length=shape.context,
        vocab_size=shape.vocab,
        kv_bytes_per_token=2 * kv_size * shape.layers * _F16_BYTES,
    )
    return ModelOutline(entry.name, entry.architecture, MappingProxyType({}), tuple(tensors), hyperparameters)


def _layer(shape: CatalogShape, kv_size: int) -> list[tuple[str, tuple[int, ...]]]:
    hidden, feed_forward = shape.hidden, shape.feed_forward
    return [
        ("attn_norm.weight", (hidden,)),
        ("attn_q.weight", (hidden, hidden)),
        ("attn_k.weight", (hidden, kv_size)),
        ("attn_v.weight", (hidden, kv_size)),
        ("attn_output.weight", (hidden, hidden)),
        ("ffn_norm.weight", (hidden,)),
        ("ffn_gate.weight", (hidden, feed_forward)),
        ("ffn_up.weight", (hidden, feed_forward)),
        ("ffn_down.weight", (feed_forward, hidden)),
    ]


def _tensor(name: str, *shape: int) -> TensorEntry:
    if len(shape) == 1:
        return TensorEntry(name, "F32", shape, shape[0] * _F32_BYTES)
    return TensorEntry(name, "F16", shape, math.prod(shape) * _F16_BYTES)
