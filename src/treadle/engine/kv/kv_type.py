"""How keys and values are kept in KV blocks: the names, and what a block takes.

Leaves to others: the bytes themselves (the native core) and how many blocks there are (``memory_plan``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.models.hyperparameters import Hyperparameters

__all__ = [
    "DEFAULT_KV_TYPE",
    "KV_BLOCK_TOKENS",
    "KV_TYPES",
    "check_kv_type",
    "kv_block_bytes",
    "kv_type_fits",
    "windowed_block_bytes",
]

KV_BLOCK_TOKENS = 32
DEFAULT_KV_TYPE = "f16"
KV_TYPES = (DEFAULT_KV_TYPE, "q8_0")

# q8_0 keeps 32 values of a head as 32 bytes and a scale of two.
_Q8_0_VALUES, _Q8_0_BYTES = 32, 34


def check_kv_type(kv_type: str, name: str, model: Hyperparameters) -> None:
    """Raise UsageError for a type there is not, or that the heads of this model do not fit."""
    if kv_type not in KV_TYPES:
        raise UsageError(f"kv_type: expected one of {', '.join(KV_TYPES)}, found {kv_type!r:.40}")
    if not kv_type_fits(kv_type, model):
        raise UsageError(
            f"kv_type: q8_0 rounds groups of {_Q8_0_VALUES} values, and the heads of {name} have {model.head_dim}",
            hint=f"use {DEFAULT_KV_TYPE}",
        )


def kv_type_fits(kv_type: str, model: Hyperparameters) -> bool:
    """Tell whether the heads of a model can be kept that way."""
    return kv_type != "q8_0" or model.head_dim % _Q8_0_VALUES == 0


def kv_block_bytes(model: Hyperparameters, kv_type: str) -> int:
    """Return the bytes of one block of 32 tokens over all layers."""
    return _block_bytes(model.kv_bytes_per_token, kv_type) + model.convolution_bytes


def windowed_block_bytes(model: Hyperparameters, kv_type: str) -> int:
    """Return the bytes of one block of 32 tokens over the layers that look back no further than a window.

    Of convolutions a block holds what the next tokens read, whatever the type.
    """
    return _block_bytes(model.windowed_kv_bytes_per_token, kv_type) + model.convolution_bytes


def _block_bytes(f16_token_bytes: int, kv_type: str) -> int:
    f16_bytes = f16_token_bytes * KV_BLOCK_TOKENS
    return f16_bytes if kv_type == "f16" else f16_bytes // 2 * _Q8_0_BYTES // _Q8_0_VALUES
