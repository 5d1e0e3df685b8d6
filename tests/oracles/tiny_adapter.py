"""Writes small seeded GGUF adapters (LoRA) for the tiny models, and gives NumPy models the weights they amount to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.numpy_forward import NumpyModel
from oracles.tiny_model import TinyModel

ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

Tensors = dict[str, NDArray[np.floating]]


@dataclass(frozen=True)
class TinyAdapter:
    """What to write; ``extra`` replaces or adds tensors, and removes those that are None."""

    rank: int = 4
    alpha: float | None = 8.0
    targets: tuple[str, ...] = ALL
    format: Format = Format.F16
    architecture: str | None = None  # None: the model's
    keys: Mapping[str, str] = field(default_factory=lambda: {"general.type": "adapter", "adapter.type": "lora"})
    extra: Mapping[str, NDArray[np.floating] | None] = field(default_factory=dict)
    seed: int = 0

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    def tensors(self, model: TinyModel) -> Tensors:
        """Every tensor by its name, A as [rank, columns] and B as [rows, rank]."""
        rng = np.random.default_rng(self.seed)
        found: Tensors = {}
        for name, shape in model.tensor_shapes().items():
            if name.split(".")[-2] in self.targets and name.endswith(".weight"):
                rows, columns = shape
                # About as much as the matrix itself, which is what makes a mistake visible.
                found[f"{name}.lora_a"] = rng.normal(0, columns**-0.5, (self.rank, columns))
                found[f"{name}.lora_b"] = rng.normal(0, 0.7 / (self.rank**0.5 * self.scale), (rows, self.rank))
        found |= {name: array for name, array in self.extra.items() if array is not None}
        return {name: array for name, array in found.items() if self.extra.get(name, array) is not None}

    def write(self, path: Path, model: TinyModel) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture or model.architecture)
        for key, value in self.keys.items():
            writer.add_string(key, value)
        if self.alpha is not None:
            writer.add_float32("adapter.lora.alpha", self.alpha)
        for name, array in self.tensors(model).items():
            writer.add_tensor(name, gguf.quants.quantize(array.astype(np.float32), self.format), raw_dtype=self.format)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def merge(model: NumpyModel, path: Path, strength: float = 1.0) -> NumpyModel:
    """Add what an adapter file says to the weights of a model; returns it."""
    reader = gguf.GGUFReader(path)
    parts = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    alpha = reader.fields.get("adapter.lora.alpha")
    for name, a in parts.items():
        if name.endswith(".lora_a"):
            target = name.removesuffix(".lora_a")
            scale = strength * (1.0 if alpha is None else float(alpha.contents()) / len(a))
            weight = model.weights[target]
            merged = weight.values + scale * parts[f"{target}.lora_b"] @ a
            model.weights[target] = replace(weight, values=merged.astype(np.float32))
    return model
