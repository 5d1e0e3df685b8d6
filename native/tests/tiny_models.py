"""Writes the models that `model_test` runs into a folder: python3 native/tests/tiny_models.py FOLDER.

One for each way a product reads its weights; what the numbers should be is for the Python tests to say.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from oracles.tiny_model import Format, TinyModel  # noqa: E402

MODELS = {
    "f16": TinyModel(format=Format.F16),
    "q4_0": TinyModel(format=Format.Q4_0),
    "q8_0": TinyModel(format=Format.Q8_0, architecture="qwen2"),
    "iq4_nl": TinyModel(format=Format.IQ4_NL),
    "mxfp4": TinyModel(format=Format.MXFP4, architecture="qwen2"),
    "q2_k": TinyModel.for_k_quants(format=Format.Q2_K),
    "q3_k": TinyModel.for_k_quants(format=Format.Q3_K),
    "q4_k": TinyModel.for_k_quants(format=Format.Q4_K),
    "q5_k": TinyModel.for_k_quants(format=Format.Q5_K),
    "gemma2": TinyModel(architecture="gemma2", format=Format.Q5_0, keys={"attention.sliding_window": 20}),
    "apertus": TinyModel(architecture="apertus", format=Format.Q5_1),
    "bailingmoe2": TinyModel(architecture="bailingmoe2", format=Format.Q8_0, num_layers=3),
    "lfm2": TinyModel(architecture="lfm2", format=Format.Q4_1),
    "q6_k": TinyModel.for_k_quants(format=Format.Q6_K),
    "iq4_xs": TinyModel.for_k_quants(format=Format.IQ4_XS),
    "tq1_0": TinyModel.for_k_quants(format=Format.TQ1_0),
    "tq2_0": TinyModel.for_k_quants(format=Format.TQ2_0),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        model.write(folder / f"{name}.gguf")
