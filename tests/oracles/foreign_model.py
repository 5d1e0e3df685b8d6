"""Writes small seeded GGUF models of an architecture that our core does not know, with or without a tokenizer it knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.tiny_model import add_vocabulary, random_weights, vocabulary


@dataclass(frozen=True)
class ForeignModel:
    """A GPT-NeoX: layer norms with biases, one matrix for query, key and value, no gate in the feed-forward."""

    pretokenizer: str = "qwen2"
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    context_length: int = 2048
    seed: int = 0

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "gptneox")
        writer.add_name("tiny gptneox")
        writer.add_context_length(self.context_length)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(4 * self.hidden_size)
        writer.add_head_count(self.num_heads)
        writer.add_rope_dimension_count(self.hidden_size // self.num_heads)
        writer.add_layer_norm_eps(1e-5)
        writer.add_parallel_residual(True)
        add_vocabulary(writer, pretokenizer=self.pretokenizer)
        rng = np.random.default_rng(self.seed)
        for name, shape in self.tensor_shapes().items():
            if len(shape) == 1:
                centre = 1.0 if name.endswith("norm.weight") else 0.0
                writer.add_tensor(name, rng.normal(centre, 0.1, shape).astype(np.float32))
            else:
                # Logits three wide, so that the distribution over tokens is neither flat nor a single peak.
                gain = 3.0 if name in ("token_embd.weight", "output.weight") else 1.0
                weights = random_weights(shape, Format.Q8_0, gain / shape[1] ** 0.5, rng)
                writer.add_tensor(name, weights, raw_dtype=Format.Q8_0)
        _finish(writer)
        return path

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor with its shape, rows first."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(vocabulary()), hidden)}
        matrices = {
            "attn_qkv": (3 * hidden, hidden),
            "attn_output": (hidden, hidden),
            "ffn_up": (4 * hidden, hidden),
            "ffn_down": (hidden, 4 * hidden),
        }
        for layer in range(self.num_layers):
            for name in ("attn_norm", "ffn_norm"):
                shapes |= {f"blk.{layer}.{name}.{part}": (hidden,) for part in ("weight", "bias")}
            for name, shape in matrices.items():
                shapes |= {f"blk.{layer}.{name}.weight": shape, f"blk.{layer}.{name}.bias": shape[:1]}
        shapes |= {"output_norm.weight": (hidden,), "output_norm.bias": (hidden,)}
        shapes["output.weight"] = (len(vocabulary()), hidden)
        return shapes


@dataclass(frozen=True)
class RecurrentModel:
    """A Mamba: no attention, no feed-forward; every layer keeps a state."""

    hidden_size: int = 64
    inner_size: int = 128
    state_size: int = 16
    num_layers: int = 2
    seed: int = 0

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "mamba")
        writer.add_name("tiny mamba")
        writer.add_context_length(2048)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(self.inner_size)
        writer.add_ssm_state_size(self.state_size)
        writer.add_ssm_time_step_rank(8)
        add_vocabulary(writer)
        rng = np.random.default_rng(self.seed)
        for name, shape in self.tensor_shapes().items():
            writer.add_tensor(name, self._weights(name, shape, rng).astype(np.float32))
        _finish(writer)
        return path

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor with its shape, rows first."""
        hidden, inner, state = self.hidden_size, self.inner_size, self.state_size
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(vocabulary()), hidden)}
        block = {
            "attn_norm.weight": (hidden,),
            "ssm_in.weight": (2 * inner, hidden),
            "ssm_conv1d.weight": (inner, 4),
            "ssm_conv1d.bias": (inner,),
            "ssm_x.weight": (8 + 2 * state, inner),
            "ssm_dt.weight": (inner, 8),
            "ssm_dt.bias": (inner,),
            "ssm_a": (inner, state),
            "ssm_d": (inner,),
            "ssm_out.weight": (hidden, inner),
        }
        for layer in range(self.num_layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
        return {**shapes, "output_norm.weight": (hidden,)}

    def _weights(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
        if name.endswith("ssm_a"):  # how fast states fade: below zero
            return -np.exp(rng.uniform(0, 1.5, shape))
        if len(shape) == 1:
            return rng.normal(0.0 if name.endswith("bias") else 1.0, 0.1, shape)
        gain = 3.0 if name == "token_embd.weight" else 1.0
        return rng.normal(0, gain / shape[1] ** 0.5, shape)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
