"""ik_llama.cpp through the low-level interface of `ik-llama-cpp-python`, and its C library where that has no entry.

Its wheel has AVX2 code only; docs/guides/benchmarks.md says how to build it for the processor at hand.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ik_llama_cpp
from ik_llama_cpp import _ctypes_api

from peers.llama_family import LlamaFamily

NO_FLAGS = 0
FUNCTIONS = {
    "llama_print_system_info": (ctypes.c_char_p, []),
    "llama_kv_cache_seq_rm": (ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
    "llama_state_seq_get_size": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32]),
    "llama_state_seq_get_data": (
        ctypes.c_size_t,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_uint32],
    ),
    "llama_state_seq_set_data": (
        ctypes.c_size_t,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_uint32],
    ),
}


class Engine(LlamaFamily):
    def __init__(self, path: str, threads: int) -> None:
        self.c = _ctypes_api.load_shared_library()
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.saved: dict[int, ctypes.Array[ctypes.c_uint8]] = {}  # a stream's cache by length of the prompt
        super().__init__(_ctypes_api, path, threads)

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"ik-llama-cpp-python {ik_llama_cpp.__version__}",
            "build": self.c.llama_print_system_info().decode(),
            "vocab_size": self.vocab_size,
        }

    def context_params(self) -> Any:
        params = super().context_params()
        params.flash_attn = True
        return params

    def clear(self) -> None:
        _ctypes_api.llama_kv_cache_clear(self.context)

    def forget_from(self, stream: int, position: int) -> bool:
        return bool(self.c.llama_kv_cache_seq_rm(self.context, stream, position, -1))

    def fill(self, prompts: list[list[int]]) -> None:
        length = len(prompts[0])
        if length not in self.saved:
            self.read(0, prompts[0])
            self.saved[length] = self._save()
            self.clear()
        # Its own function to copy a stream would let both share the memory.
        for stream in range(len(prompts)):
            saved = self.saved[length]
            if not self.c.llama_state_seq_set_data(self.context, saved, len(saved), stream, NO_FLAGS):
                raise RuntimeError("the library cannot copy a stream's cache")

    def _save(self) -> ctypes.Array[ctypes.c_uint8]:
        saved = (ctypes.c_uint8 * self.c.llama_state_seq_get_size(self.context, 0, NO_FLAGS))()
        self.c.llama_state_seq_get_data(self.context, saved, len(saved), 0, NO_FLAGS)
        return saved
