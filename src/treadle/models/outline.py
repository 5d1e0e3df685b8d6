"""The outline of a model without its weights: tensors, formats and hyperparameters, also of a quantisation not at hand.

Leaves to others: reading files (``gguf``) and what an outline costs to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile, TensorEntry
    from treadle.models.hyperparameters import Hyperparameters

__all__ = ["QUANTS", "ModelOutline", "outline_of", "requantised"]

# Bytes of a block and the weights in it.
_BLOCKS = {
    "Q4_0": (18, 32),
    "Q5_0": (22, 32),
    "Q5_1": (24, 32),
    "Q8_0": (34, 32),
    "Q4_K": (144, 256),
    "Q5_K": (176, 256),
    "Q6_K": (210, 256),
}
# What rows get whose length is no multiple of 256.
_SHORT_ROWS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Of each quantisation by its usual name: most matrices, the more sensitive half, and the output.
_RECIPES = {
    "Q4_0": ("Q4_0", "Q4_0", "Q6_K"),
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"),
    "Q6_K": ("Q6_K", "Q6_K", "Q6_K"),
    "Q8_0": ("Q8_0", "Q8_0", "Q8_0"),
}
QUANTS = tuple(_RECIPES)
_SENSITIVE = ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")


@dataclass(frozen=True)
class ModelOutline:
    """What of a model decides about memory and speed; the names are those of ``ModelFile``."""

    name: str
    architecture: str
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    hyperparameters: Hyperparameters

    @property
    def file_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)


def outline_of(file: ModelFile | ModelOutline) -> ModelOutline:
    """Return the outline of a file; of an outline a copy."""
    return ModelOutline(file.name, file.architecture, file.metadata, file.tensors, file.hyperparameters)


def requantised(model: ModelOutline, quant: str) -> ModelOutline:
    """Return the outline of the same model in another quantisation, as llama.cpp makes it by default.

    Raises:
        UsageError: ``quant`` is none of ``QUANTS``.
    """
    recipe = _RECIPES.get(quant.upper())
    if recipe is None:
        raise UsageError(f"quantisation: expected one of {', '.join(QUANTS)}, found {quant!r:.40}")
    has_output = any(tensor.name == "output.weight" for tensor in model.tensors)
    output_name = "output.weight" if has_output else "token_embd.weight"
    tensors = tuple(
        _requantised(tensor, recipe, output_name, model.hyperparameters.num_layers) for tensor in model.tensors
    )
    return replace(model, tensors=tensors)


def _requantised(tensor: TensorEntry, recipe: tuple[str, str, str], output_name: str, num_layers: int) -> TensorEntry:
    is_router = "ffn_gate_inp" in tensor.name
    if len(tensor.shape) < 2 or is_router or not tensor.name.endswith(".weight"):
        return tensor
    usual, sensitive, output = recipe
    chosen = output if tensor.name == output_name else usual
    if tensor.name.startswith("blk."):
        layer, _, part = tensor.name.removeprefix("blk.").partition(".")
        if part in _SENSITIVE and _is_sensitive(int(layer), num_layers):
            chosen = sensitive
    if tensor.shape[0] % _BLOCKS[chosen][1]:
        chosen = _SHORT_ROWS.get(chosen, chosen)
    block_bytes, block_weights = _BLOCKS[chosen]
    num_rows = math.prod(tensor.shape[1:])
    return tensor._replace(format=chosen, num_bytes=-(-tensor.shape[0] // block_weights) * block_bytes * num_rows)


def _is_sensitive(layer: int, num_layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
