"""What llama.cpp and its forks have in common: contexts, batches of several streams, greedy steps.

The adapters beside it say which library that is and how its cache is handled.
"""

from __future__ import annotations

import ctypes
import time
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH_TOKENS = 2048  # the library's default; it computes 512 of them at a time, its default too
CONTEXT_STEP = 256


class LlamaFamily:
    """A model and one context for each shape of work, so that none has a larger cache to walk than it needs."""

    def __init__(self, library: ModuleType, path: str, threads: int) -> None:
        self.library = library
        self.threads = threads
        library.llama_backend_init()
        self.model = library.llama_model_load_from_file(path.encode(), self.model_params())
        if not self.model:
            raise RuntimeError(f"the library cannot load {path}")
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        self.batch = library.llama_batch_init(BATCH_TOKENS, 0, 1)
        self.contexts: dict[tuple[int, int], Any] = {}
        self.context: Any = None
        self.filled: dict[tuple[int, int], int] = {}  # tokens of each stream that `fill` gave a context of this shape

    def model_params(self) -> Any:
        return self.library.llama_model_default_params()

    def context_params(self) -> Any:
        return self.library.llama_context_default_params()

    def clear(self) -> None:
        """Forget everything in the current context."""
        raise NotImplementedError

    def forget_from(self, stream: int, position: int) -> bool:
        """Forget what a stream of the current context holds from this position on; false if only all can be."""
        raise NotImplementedError

    def fill(self, prompts: list[list[int]]) -> None:
        """Give each stream of the current, empty context a prompt of this length, in memory of its own.

        The values do not matter, so one is computed and copied: a long one takes seconds.
        """
        raise NotImplementedError

    def prompt(self, tokens: list[int]) -> float:
        self.filled.pop(self._use_context(1, len(tokens)), None)
        self.clear()
        start = time.perf_counter()
        self.read(0, tokens)
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        shape = self._use_context(len(prompts), len(prompts[0]) + num_steps)
        if self.filled.get(shape) != len(prompts[0]):
            self.clear()
            self.fill(prompts)
            self.filled[shape] = len(prompts[0])
        if not all(self.forget_from(stream, len(tokens)) for stream, tokens in enumerate(prompts)):
            self.clear()
            self.fill(prompts)
        rows = set(range(len(prompts)))
        last = [tokens[-1] for tokens in prompts]
        start = time.perf_counter()
        for step in range(num_steps):
            self._step([(stream, token, len(prompts[stream]) + step) for stream, token in enumerate(last)], rows)
            last = [int(self._row(stream).argmax()) for stream in range(len(prompts))]
        return time.perf_counter() - start

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        self.filled.pop(self._use_context(1, len(tokens)), None)
        self.clear()
        parts = []
        for at in range(0, len(tokens), BATCH_TOKENS):
            piece = tokens[at : at + BATCH_TOKENS]
            self._step([(0, token, at + index) for index, token in enumerate(piece)], set(range(len(piece))))
            parts += [self._row(row).copy() for row in range(len(piece))]
        return np.stack(parts)

    def _use_context(self, streams: int, tokens: int) -> tuple[int, int]:
        """Makes the context of this shape the current one and returns the shape."""
        shape = (streams, -(-tokens // CONTEXT_STEP) * CONTEXT_STEP)
        if shape not in self.contexts:
            params = self.context_params()
            params.n_ctx = shape[0] * shape[1]
            params.n_seq_max = streams
            params.n_batch = BATCH_TOKENS
            params.n_threads = params.n_threads_batch = self.threads
            self.contexts[shape] = self.library.llama_init_from_model(self.model, params)
            if not self.contexts[shape]:
                raise RuntimeError(f"no memory for the cache of {streams} streams of {shape[1]} tokens")
        self.context = self.contexts[shape]
        return shape

    def read(self, stream: int, tokens: list[int]) -> None:
        """Computes a prompt up to the token that follows it."""
        for at in range(0, len(tokens), BATCH_TOKENS):
            piece = tokens[at : at + BATCH_TOKENS]
            rows = {len(piece) - 1} if at + len(piece) == len(tokens) else set()
            self._step([(stream, token, at + index) for index, token in enumerate(piece)], rows)
        self._row(len(piece) - 1).argmax()

    def _step(self, work: list[tuple[int, int, int]], rows: set[int]) -> None:
        """One batch of (stream, token, position), logits wanted for `rows`."""
        batch = self.batch
        batch.n_tokens = len(work)
        for index, (stream, token, position) in enumerate(work):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = index in rows
        status = self.library.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _row(self, index: int) -> NDArray[np.float32]:
        pointer = ctypes.cast(self.library.llama_get_logits_ith(self.context, index), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,))
