"""llama.cpp through the low-level interface of `llama-cpp-python`, so that several streams share one batch.

Its own defaults hold where they are its best: repacked weights, flash attention where it pays, f16 cache, a cache for
each stream.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from peers.llama_family import LlamaFamily

# Of one call. The library computes 512 tokens at a time by default, and texts for an encoder all at once.
MAX_TEXTS = 64
MAX_TOKENS = 512


class Engine(LlamaFamily):
    def __init__(self, path: str, threads: int) -> None:
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        super().__init__(llama_cpp, path, threads)

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "build": llama_cpp.llama_print_system_info().decode(),
            "vocab_size": self.vocab_size,
        }

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def forget_from(self, stream: int, position: int) -> bool:
        return bool(llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), stream, position, -1))

    def fill(self, prompts: list[list[int]]) -> None:
        self.read(0, prompts[0])
        memory = llama_cpp.llama_get_memory(self.context)
        for stream in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, stream, -1, -1)

    def embed(self, texts: list[list[int]]) -> float:
        return self._embed(texts)[1]

    def vectors(self, texts: list[list[int]]) -> list[list[float]]:
        return self._embed(texts)[0]

    def _embed(self, texts: list[list[int]]) -> tuple[list[list[float]], float]:
        """The vectors, pooled as the file says, and the seconds inside the calls that compute them."""
        context = self._embedding_context()
        vectors: list[list[float]] = []
        seconds = 0.0
        while len(vectors) < len(texts):
            part = self._place(texts[len(vectors) :])
            start = time.perf_counter()
            status = llama_cpp.llama_decode(context, self.batch)
            found = [self._vector(context, index) for index in range(part)]
            seconds += time.perf_counter() - start
            if status:
                raise RuntimeError(f"llama_decode returned {status}")
            vectors += [vector.tolist() for vector in found]
        return vectors, seconds

    def _embedding_context(self) -> Any:
        if (0, 0) not in self.contexts:
            params = self.context_params()
            params.embeddings = True
            params.n_ctx = MAX_TEXTS * MAX_TOKENS
            params.n_seq_max = MAX_TEXTS
            params.n_batch = params.n_ubatch = MAX_TOKENS
            params.n_threads = params.n_threads_batch = self.threads
            self.contexts[0, 0] = llama_cpp.llama_init_from_model(self.model, params)
        return self.contexts[0, 0]

    def _place(self, texts: list[list[int]]) -> int:
        """Fill the batch with the first texts, and return how many of them have room."""
        batch, num_tokens, num_texts = self.batch, 0, 0
        for index, text in enumerate(texts[:MAX_TEXTS]):
            if num_tokens + len(text) > MAX_TOKENS:
                break
            for position, token in enumerate(text):
                batch.token[num_tokens] = token
                batch.pos[num_tokens] = position
                batch.n_seq_id[num_tokens] = 1
                batch.seq_id[num_tokens][0] = index
                batch.logits[num_tokens] = True
                num_tokens += 1
            num_texts = index + 1
        batch.n_tokens = num_tokens
        return num_texts

    def _vector(self, context: Any, index: int) -> NDArray[np.float32]:
        size = llama_cpp.llama_model_n_embd(self.model)
        pointer = llama_cpp.llama_get_embeddings_seq(context, index)
        vector = np.ctypeslib.as_array(pointer, shape=(size,))
        return vector / np.linalg.norm(vector)
