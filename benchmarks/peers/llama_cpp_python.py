"""llama.cpp through the low-level interface of `llama-cpp-python`, so that several streams share one batch.

Its own defaults hold where they are its best: repacked weights, flash attention where it pays, f16 cache, a cache for
each stream.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

from peers.llama_family import LlamaFamily


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

    def forget_from(self, stream: int, position: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), stream, position, -1)

    def fill(self, prompts: list[list[int]]) -> None:
        self.read(0, prompts[0])
        memory = llama_cpp.llama_get_memory(self.context)
        for stream in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, stream, -1, -1)
