"""What a step of a model reads from memory and computes in int8, from the shape of the model.

Leaves to others: taking the time (``engine.statistics``) and what the machine could do (``hardware.machine_speed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS, kv_block_bytes, windowed_block_bytes

if TYPE_CHECKING:
    from treadle.engine.plan import StepPlan
    from treadle.models.gguf import ModelFile, TensorEntry
    from treadle.models.outline import ModelOutline

__all__ = ["StepWork", "decode_bytes_of", "work_of"]

_FLOAT_FORMATS = frozenset({"F16", "BF16", "F32", "F64"})
_OPS_PER_WEIGHT = 2  # a multiplication and an addition


@dataclass(frozen=True)
class StepWork:
    """What each part of a step costs; operations are multiplications and additions of int8 products.

    Args:
        weight_bytes: Read in every step, whatever it computes.
        kv_token_bytes: Read for each token of context before and with one that is computed.
        windowed_token_bytes: What of it is read in layers with a sliding window, and so for tokens within it only.
        window: Tokens that one sees there, itself included.
        token_ops: Of the layers, for each token.
        logit_ops: Of the output matrix, for each token that is sampled.
    """

    weight_bytes: int = 0
    kv_token_bytes: int = 0
    windowed_token_bytes: int = 0
    window: int = 0
    token_ops: int = 0
    logit_ops: int = 0

    def kv_bytes(self, plan: StepPlan) -> int:
        """Return what a step reads of the KV blocks if each is read once."""
        return sum([self.kv_bytes_of(chunk.start, chunk.num_tokens) for chunk in plan.chunks])

    def kv_bytes_of(self, start: int, num_tokens: int) -> int:
        """Return what tokens ``start .. start + num_tokens - 1`` of one request read of its KV blocks."""
        num_unseen = max(0, start + 1 - self.window)  # by any of them, in layers with a window
        return self.kv_token_bytes * (start + num_tokens) - self.windowed_token_bytes * num_unseen

    def int8_ops(self, plan: StepPlan) -> int:
        """Return what a step multiplies and adds for its weights; attention computes with floats."""
        num_sampled = sum([chunk.samples for chunk in plan.chunks])
        return self.token_ops * plan.num_tokens + self.logit_ops * num_sampled


def decode_bytes_of(file: ModelFile | ModelOutline) -> int:
    """Return what one token of one sequence reads of the weights, as a loaded model tells it exactly."""
    expert_share = _expert_share(file)
    sizes = {tensor.name: tensor.num_bytes for tensor in file.tensors}
    total = 0 if file.hyperparameters.is_encoder else sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    for tensor in file.tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            total += int(tensor.num_bytes * (expert_share if len(tensor.shape) == 3 else 1))
    return total


def work_of(
    file: ModelFile | ModelOutline,
    *,
    weight_bytes: int,
    kv_type: str,
    cost_of: Callable[[str], float] = lambda _: 1.0,
) -> StepWork:
    """Return what steps of the model in ``file`` cost.

    Args:
        file: The model.
        weight_bytes: What a step reads of the weights.
        kv_type: Of the KV blocks.
        cost_of: As what an operation with weights of a format counts.
    """
    expert_share = _expert_share(file)
    token_ops = 0
    logit_ops = embedding_ops = 0
    for tensor in file.tensors:
        ops = int(_product_ops(tensor) * cost_of(tensor.format))
        if tensor.name.startswith("blk."):
            token_ops += int(ops * expert_share) if len(tensor.shape) == 3 else ops
        elif tensor.name == "output.weight":
            logit_ops = ops
        elif tensor.name == "token_embd.weight":
            embedding_ops = ops
    return StepWork(
        weight_bytes=weight_bytes,
        kv_token_bytes=kv_block_bytes(file.hyperparameters, kv_type) // KV_BLOCK_TOKENS,
        windowed_token_bytes=windowed_block_bytes(file.hyperparameters, kv_type) // KV_BLOCK_TOKENS,
        window=file.hyperparameters.window,
        token_ops=token_ops,
        logit_ops=logit_ops or embedding_ops,  # models without an output matrix use that of the embedding
    )


def _product_ops(tensor: TensorEntry) -> int:
    is_matrix = len(tensor.shape) > 1 and tensor.format not in _FLOAT_FORMATS
    return _OPS_PER_WEIGHT * math.prod(tensor.shape) if is_matrix else 0


def _expert_share(file: ModelFile | ModelOutline) -> float:
    """Return which share of the experts of a layer computes a token, 1 for a model without."""
    used, count = (file.metadata.get(f"{file.architecture}.expert_{name}") for name in ("used_count", "count"))
    return used / count if isinstance(used, int) and isinstance(count, int) and 0 < used <= count else 1.0
