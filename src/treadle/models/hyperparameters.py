"""The numbers that shape a model, checked against each other and against the tensors of the file.

What a tensor's bytes hold, and whether the core can compute with their format, is for the native loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, NoReturn

from treadle.errors import ModelFileError
from treadle.models.families import ENCODERS, OUTPUT_NORMS, REQUIRED_TENSORS, WINDOW_PERIODS

__all__ = ["Hyperparameters", "read_hyperparameters", "reads_both_ways"]

_MAX_LAYERS = 512
_MAX_SIZE = 2**31 - 1
_F16_BYTES = 2
_F32_BYTES = 4


@dataclass(frozen=True)
class Hyperparameters:
    """The shape of a model; where layers differ, the largest value of any layer."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    feed_forward_size: int
    context_length: int
    vocab_size: int
    kv_bytes_per_token: int
    """What one token of context takes in the KV cache, which holds 16-bit floats; an encoder has none."""
    num_experts_used: int = 0
    """Of each token in a layer, 0 without experts; a shared one not included."""
    expert_feed_forward_size: int = 0
    state_bytes_per_request: int = 0
    """What a sequence takes, however long, in models with recurrent layers."""
    window: int = 0
    """Tokens that one sees in layers with a sliding window or a convolution, itself included; 0 without such layers."""
    windowed_kv_bytes_per_token: int = 0
    """What layers with a sliding window have of ``kv_bytes_per_token``."""
    num_convolutions: int = 0
    """Layers with a short convolution in the stead of attention."""
    is_encoder: bool = False
    """Every token sees those behind it, too, so that texts become vectors and get no answers."""

    @property
    def convolution_bytes(self) -> int:
        """What convolutions need of the tokens before one to go on after them, in 32-bit floats."""
        return self.num_convolutions * max(0, self.window - 1) * self.hidden_size * _F32_BYTES


def reads_both_ways(architecture: str, metadata: Mapping[str, Any]) -> bool:
    """Tell whether in such a file every token sees those behind it, too."""
    return metadata.get(f"{architecture}.attention.causal") is False or architecture in ENCODERS


def read_hyperparameters(
    path: str, architecture: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Hyperparameters:
    """Read and check the hyperparameters of a model.

    Args:
        path: Named in errors.
        architecture: The prefix of the keys.
        metadata: Every key of the file.
        shapes: The shape of every tensor, contiguous dimension first.

    Raises:
        ModelFileError: A key is missing, of the wrong type or contradicts another or a tensor, or a tensor is missing.
    """
    return _Reader(path, architecture, metadata, shapes).read()


class _Reader:
    def __init__(
        self, path: str, architecture: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._path = path
        self._architecture = architecture
        self._metadata = metadata
        self._shapes = shapes

    def read(self) -> Hyperparameters:
        num_blocks = self._number("block_count", at_most=_MAX_LAYERS)
        # Behind the layers there may be some that guess tokens ahead, which nobody asks.
        num_layers = num_blocks - self._number("nextn_predict_layers", default=0, at_least=0, at_most=num_blocks - 1)
        hidden_size = self._number("embedding_length")
        num_heads = self._layers("attention.head_count", num_blocks)
        num_kv_heads = self._layers("attention.head_count_kv", num_blocks, default=num_heads)[:num_layers]
        self._check_groups(num_heads[:num_layers], num_kv_heads)
        head_dim = self._head_dim(hidden_size, max(num_heads))
        value_dim = self._number("attention.value_length", default=head_dim, at_least=min(1, head_dim))
        feed_forward_size = max(self._layers("feed_forward_length", num_blocks))
        is_encoder = reads_both_ways(self._architecture, self._metadata)
        window, is_windowed = (0, []) if is_encoder else self._windows(num_blocks)
        convolution, num_convolutions = self._convolutions(num_kv_heads)
        kv_head_bytes = (head_dim + value_dim) * _F16_BYTES
        found = Hyperparameters(
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=max(num_heads),
            num_kv_heads=max(num_kv_heads),
            head_dim=head_dim,
            feed_forward_size=feed_forward_size,
            context_length=self._number("context_length"),
            vocab_size=self._vocab_size(hidden_size),
            kv_bytes_per_token=0 if is_encoder else sum(num_kv_heads) * kv_head_bytes,
            state_bytes_per_request=self._state_bytes(num_layers),
            is_encoder=is_encoder,
            window=window or convolution,
            windowed_kv_bytes_per_token=sum(compress(num_kv_heads, is_windowed)) * kv_head_bytes,
            num_convolutions=num_convolutions,
            **self._experts(feed_forward_size),
        )
        self._check_layers(num_layers, num_blocks)
        return found

    @property
    def _is_known(self) -> bool:
        return self._architecture in REQUIRED_TENSORS

    def _state_bytes(self, num_layers: int) -> int:
        """Bound what Mamba keeps of a sequence: a state and the last inputs of a convolution in each layer, float32."""
        if f"{self._architecture}.ssm.inner_size" not in self._metadata:
            return 0
        width = self._number("ssm.state_size") + self._number("ssm.conv_kernel")
        return num_layers * self._number("ssm.inner_size") * width * _F32_BYTES

    def _windows(self, num_layers: int) -> tuple[int, list[bool]]:
        """The window, 0 if there is none, and which layers have it."""
        period = WINDOW_PERIODS.get(self._architecture)
        window = 0 if period is None else self._number("attention.sliding_window", default=0, at_least=0)
        if window == 0:
            return 0, [False] * num_layers
        key = f"{self._architecture}.attention.sliding_window_pattern"
        listed = self._metadata.get(key)
        if not isinstance(listed, list):
            period = self._number("attention.sliding_window_pattern", default=period)
            return window, [period == 1 or (layer + 1) % period != 0 for layer in range(num_layers)]
        if len(listed) != num_layers:
            self._refuse(key, f"one number, or {num_layers} values, one per layer", listed)
        return window, [bool(value) for value in listed]

    def _convolutions(self, num_kv_heads: list[int]) -> tuple[int, int]:
        """The tokens that short convolutions read, and how many layers have one: those without KV heads."""
        if f"{self._architecture}.shortconv.l_cache" not in self._metadata:
            return 0, 0
        return self._number("shortconv.l_cache", at_least=2), num_kv_heads.count(0)

    def _number(self, name: str, *, default: int | None = None, at_least: int = 1, at_most: int = _MAX_SIZE) -> int:
        key = f"{self._architecture}.{name}"
        value = self._metadata.get(key, default)
        if not _is_count(value, at_least, at_most):
            self._refuse(key, f"an integer from {at_least} to {at_most}", value)
        return int(value)

    def _layers(self, name: str, num_layers: int, default: list[int] | None = None) -> list[int]:
        """A number per layer; files give one for all, or an array where layers without the part have 0."""
        key = f"{self._architecture}.{name}"
        value = self._metadata.get(key, default)
        if not isinstance(value, list):
            # Layers without attention or feed-forward are all that some models have; our core knows none of those.
            return [self._number(name, at_least=1 if self._is_known else 0)] * num_layers
        if len(value) != num_layers:
            self._refuse(key, f"one number, or {num_layers}, one per layer", value)
        for item in value:
            if not _is_count(item, 0, _MAX_SIZE):
                self._refuse(key, f"integers from 0 to {_MAX_SIZE}", item)
        if self._is_known and not any(value):
            self._refuse(key, "more than 0 in at least one layer", value[0])
        return value

    def _check_groups(self, num_heads: list[int], num_kv_heads: list[int]) -> None:
        key = f"{self._architecture}.attention.head_count_kv"
        for heads, kv_heads in zip(num_heads, num_kv_heads, strict=True):
            if kv_heads > 0 and (kv_heads > heads or heads % kv_heads != 0):
                self._refuse(key, f"a divisor of attention.head_count, which is {heads}", kv_heads)

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        if f"{self._architecture}.attention.key_length" in self._metadata:
            return self._number("attention.key_length")
        if num_heads == 0:
            return 0
        if hidden_size % num_heads != 0:
            expected = f"a multiple of attention.head_count, which is {num_heads}"
            self._refuse(f"{self._architecture}.embedding_length", expected, hidden_size)
        return hidden_size // num_heads

    def _vocab_size(self, hidden_size: int) -> int:
        embedding = self._shapes.get("token_embd.weight")
        if embedding is None:
            self._fail("tensor 'token_embd.weight' is missing")
        if len(embedding) != 2 or embedding[0] != hidden_size:
            self._fail(
                f"tensor 'token_embd.weight': expected rows of {hidden_size} elements "
                f"(key '{self._architecture}.embedding_length'), found the shape {list(embedding)}"
            )
        num_rows = embedding[1]
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and len(tokens) != num_rows:
            expected = f"{num_rows} tokens, the rows of tensor 'token_embd.weight'"
            self._refuse("tokenizer.ggml.tokens", expected, tokens)
        if self._number("vocab_size", default=num_rows) != num_rows:
            key = f"{self._architecture}.vocab_size"
            self._refuse(key, f"{num_rows}, the rows of tensor 'token_embd.weight'", self._metadata[key])
        return num_rows

    def _check_layers(self, num_layers: int, num_blocks: int) -> None:
        for name in self._required_tensors(num_layers):
            if name not in self._shapes:
                self._fail(f"tensor '{name}' is missing")
        if self._is_known and (extra := self._first_tensor_past(num_blocks)):
            key = f"{self._architecture}.block_count"
            self._refuse(key, f"more than the layer of tensor {_brief(extra)}", num_blocks)

    def _required_tensors(self, num_layers: int) -> list[str]:
        of_layer = REQUIRED_TENSORS.get(self._architecture)
        if of_layer is None:
            return []
        if self._has_experts():
            of_layer = tuple(
                name for name in of_layer if name not in ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
            )
        output_norm = OUTPUT_NORMS.get(self._architecture, "output_norm")
        return [f"{output_norm}.weight", *(f"blk.{i}.{name}" for i in range(num_layers) for name in of_layer)]

    def _has_experts(self) -> bool:
        return bool(self._metadata.get(f"{self._architecture}.expert_count"))

    def _experts(self, feed_forward_size: int) -> dict[str, int]:
        if not self._has_experts():
            return {}
        count = self._number("expert_count")
        used = self._number("expert_used_count", at_most=count)
        size = self._number("expert_feed_forward_length", default=feed_forward_size)
        return {"num_experts_used": used, "expert_feed_forward_size": size}

    def _first_tensor_past(self, num_blocks: int) -> str | None:
        for name in self._shapes:
            found = re.match(r"blk\.0*(\d+)\.", name, re.ASCII)
            if found and (len(found[1]) > len(str(_MAX_LAYERS)) or int(found[1]) >= num_blocks):
                return name
        return None

    def _refuse(self, key: str, expected: str, found: object) -> NoReturn:
        if key not in self._metadata:
            self._fail(f"key '{key}' is missing, expected {expected}")
        self._fail(f"key '{key}': expected {expected}, found {_brief(found)}")

    def _fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {problem}")


def _is_count(value: object, at_least: int, at_most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most


def _brief(found: object) -> str:
    """The value as text that can neither fill nor steer a terminal."""
    if isinstance(found, list):
        return f"an array of {len(found)} values"
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:80]}..."
