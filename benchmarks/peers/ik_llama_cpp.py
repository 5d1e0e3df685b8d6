"""ik_llama.cpp through the low-level interface of `ik-llama-cpp-python`.

Build it from its source distribution with `CMAKE_ARGS=-DGGML_NATIVE=ON`: its wheel has AVX2 code only.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import ik_llama_cpp
from ik_llama_cpp import _ctypes_api

from peers.llama_family import LlamaFamily


class Engine(LlamaFamily):
    def __init__(self, path: str, threads: int) -> None:
        mapped = Path("/proc/self/maps").read_text()
        self.shared_object = ctypes.CDLL(re.findall(r"(/\S*libllama\.so\S*)", mapped)[0])
        for function in (self.shared_object.llama_kv_cache_seq_rm, self.shared_object.llama_print_system_info):
            function.restype = ctypes.c_char_p
        self.shared_object.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        super().__init__(_ctypes_api, path, threads)

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"ik-llama-cpp-python {ik_llama_cpp.__version__}",
            "build": self.shared_object.llama_print_system_info().decode(),
            "vocab_size": self.vocab_size,
        }

    def context_params(self) -> Any:
        params = super().context_params()
        params.flash_attn = True
        return params

    def clear(self) -> None:
        _ctypes_api.llama_kv_cache_clear(self.context)

    def forget_from(self, stream: int, position: int) -> None:
        self.shared_object.llama_kv_cache_seq_rm(
            ctypes.c_void_p(self.context), ctypes.c_int32(stream), ctypes.c_int32(position), ctypes.c_int32(-1)
        )
