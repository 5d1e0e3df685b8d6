"""OpenVINO GenAI, whose own reader turns the GGUF file into its graph when it loads."""

from __future__ import annotations

import importlib.metadata
import itertools
from typing import Any

import numpy as np
import openvino
import openvino_genai

from peers.request_engine import RequestEngine

CACHE_GIGABYTES = 2
STEP_TOKENS = 512  # twice its default: prompts are no slower with it, and more streams start at once


class Engine(RequestEngine):
    def __init__(self, path: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIGABYTES
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.enable_prefix_caching = True
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        )
        self.keys = itertools.count()
        self.handles: dict[int, Any] = {}

    def facts(self) -> dict[str, Any]:
        release = importlib.metadata.version("openvino-genai")
        return {"version": f"openvino-genai {release}", "build": "wheel, its own GGUF reader"}

    def add(self, prompt: list[int], num_tokens: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        key = next(self.keys)
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self.handles[key] = self.pipeline.add_request(key, ids, config)
        return key

    def step(self) -> dict[int, int]:
        self.pipeline.step()
        return {
            key: sum(len(output.generated_ids) for output in handle.read().values())
            for key, handle in self.handles.items()
            if handle.can_read()
        }

    def is_busy(self) -> bool:
        if busy := self.pipeline.has_non_finished_requests():
            return bool(busy)
        self.handles.clear()
        return False

    def drop(self, key: int) -> None:
        self.handles.pop(key).cancel()
