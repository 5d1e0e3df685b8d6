"""OpenVINO GenAI, whose own reader turns the GGUF file into its graph when it loads; one stream at a time."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import openvino
import openvino_genai
from numpy.typing import NDArray


class Engine:
    def __init__(self, path: str, threads: int) -> None:
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = openvino_genai.LLMPipeline(path, "CPU", **settings)

    def facts(self) -> dict[str, Any]:
        release = importlib.metadata.version("openvino-genai")
        return {"version": f"openvino-genai {release}", "build": "wheel"}

    def prompt(self, tokens: list[int]) -> float:
        # The pipeline keeps its last cache and computes only what differs: another first token leaves nothing to keep.
        self._generate([tokens[0] ^ 1], 1)
        return self._generate(tokens, 1).get_ttft().mean / 1000

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        if len(prompts) > 1:
            raise NotImplementedError("its GGUF reader feeds a pipeline of one stream")
        return self._generate(prompts[0], num_steps + 1).get_tpot().mean / 1000 * num_steps

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        raise NotImplementedError("its pipeline returns tokens only")

    def _generate(self, tokens: list[int], num_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = openvino.Tensor(np.array([tokens], np.int64))
        return self.pipeline.generate(ids, config).perf_metrics
