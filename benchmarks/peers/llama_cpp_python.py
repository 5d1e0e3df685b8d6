"""llama.cpp through the low-level interface of `llama-cpp-python`, so that several streams share one batch."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

BATCH_TOKENS = 2048


class Engine:
    def __init__(self, path: str, threads: int, max_tokens: int, streams: int) -> None:
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = -(-max_tokens // 256) * 256 * streams
        params.n_seq_max = streams
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "system": llama_cpp.llama_print_system_info().decode(),
            "vocab_size": self.vocab_size,
        }

    def prompt(self, tokens: list[int]) -> float:
        self._clear()
        start = time.perf_counter()
        self._step([(0, token, pos) for pos, token in enumerate(tokens)], {len(tokens) - 1})
        self._row(len(tokens) - 1).argmax()
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        self._clear()
        last = []
        for stream, tokens in enumerate(prompts):
            self._step([(stream, token, pos) for pos, token in enumerate(tokens)], {len(tokens) - 1})
            last.append(int(self._row(len(tokens) - 1).argmax()))
        rows = set(range(len(prompts)))
        start = time.perf_counter()
        for step in range(num_steps):
            self._step([(stream, token, len(prompts[stream]) + step) for stream, token in enumerate(last)], rows)
            last = [int(self._row(stream).argmax()) for stream in range(len(prompts))]
        return time.perf_counter() - start

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        self._clear()
        self._step([(0, token, pos) for pos, token in enumerate(tokens)], set(range(len(tokens))))
        return np.stack([self._row(row) for row in range(len(tokens))])

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def _step(self, work: list[tuple[int, int, int]], rows: set[int]) -> None:
        """One batch of (stream, token, position), logits wanted for `rows`."""
        batch = self.batch
        batch.n_tokens = len(work)
        for index, (stream, token, pos) in enumerate(work):
            batch.token[index] = token
            batch.pos[index] = pos
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = index in rows
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _row(self, index: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,))
