"""llama.cpp as a C library inside the wheel ``xllamacpp``: its structures, its functions, what it says on its log.

Leaves to others: when to call what (``model`` and ``runner`` beside this file).
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treadle.errors import UsageError

__all__ = [
    "INSTALL_HINT",
    "KNOWN_VERSION",
    "Batch",
    "ContextParams",
    "ModelParams",
    "ProgressCallback",
    "captured_log",
    "find_library",
    "open_library",
]

KNOWN_VERSION = "2026.10.11549"
INSTALL_HINT = "`pip install 'treadle[llamacpp]'` lets llama.cpp run it"

ProgressCallback = CFUNCTYPE(c_bool, c_float, c_void_p)
_LogCallback = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
_WARNING, _ERROR = 3, 4


# Fields as in include/llama.h of the llama.cpp that is in this version of the wheel, whose Python part does not expose
# them. Pointers that stay null are declared as addresses.
class ModelParams(ctypes.Structure):
    """How to load a model."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", ProgressCallback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """How to compute with a model."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("callbacks", c_void_p * 3),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class Batch(ctypes.Structure):
    """The tokens of one step; every field but the first is the address of an array."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


# What the library must say of itself, or its structures are others than those above. Fields not named are 0.
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "use_extra_bufts": True}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    **dict.fromkeys(("rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type"), -1),
    **dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "defrag_thold"), -1.0),
    **dict.fromkeys(("type_k", "type_v"), 1),
    **dict.fromkeys(("offload_kqv", "no_perf", "op_offload", "swa_full"), True),
}

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_free": (None, (c_void_p,)),
    "llama_get_embeddings": (c_void_p, (c_void_p,)),
    "llama_get_logits": (c_void_p, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_log_set": (None, (_LogCallback, c_void_p)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_decoder": (c_bool, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_n_embd_out": (c_int32, (c_void_p,)),
    "llama_model_size": (ctypes.c_uint64, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_n_threads": (c_int32, (c_void_p,)),
    "llama_n_ubatch": (c_uint32, (c_void_p,)),
    "llama_print_system_info": (c_char_p, ()),
    "llama_set_embeddings": (None, (c_void_p, c_bool)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
}

_logs: dict[int, deque[str]] = {}


def find_library() -> Path | None:
    """Return the file of the library, None where the wheel is not installed."""
    try:
        spec = find_spec("xllamacpp")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"xllamacpp{suffix}"
            if path.is_file():
                return path
    return None


@cache
def open_library() -> Any:
    """Return the library, opened and checked once.

    Raises:
        UsageError: It is not installed, or is another version than the one whose structures are known here.
    """
    path = find_library()
    if path is None:
        raise UsageError("engine llamacpp: the package xllamacpp is not installed", hint=INSTALL_HINT)
    _check_version()
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise _strange(f"has no function {name}")
        function.restype, function.argtypes = result, arguments
    _check_defaults("model parameters", library.llama_model_default_params(), _MODEL_DEFAULTS)
    _check_defaults("context parameters", library.llama_context_default_params(), _CONTEXT_DEFAULTS)
    library.llama_log_set(_log_callback, None)
    library.llama_backend_init()
    return library


@contextmanager
def captured_log() -> Iterator[deque[str]]:
    """Collect the warnings and errors that llama.cpp writes in this thread, the last ones if they are many."""
    thread = threading.get_ident()
    lines = _logs[thread] = deque[str](maxlen=16)
    try:
        yield lines
    finally:
        del _logs[thread]


def _take_log(level: int, text: bytes, _: object) -> None:
    lines = _logs.get(threading.get_ident())
    if lines is not None and level in (_WARNING, _ERROR):
        lines.append(text.decode(errors="replace").strip())


_log_callback = _LogCallback(_take_log)  # for as long as the library may call it


def _check_version() -> None:
    try:
        found = version("xllamacpp")
    except PackageNotFoundError:
        found = "unknown"
    if found != KNOWN_VERSION:
        raise _strange(f"is version {found}")


def _check_defaults(what: str, found: ctypes.Structure, expected: dict[str, Any]) -> None:
    for name, *_ in type(found)._fields_:
        value = getattr(found, name)
        if isinstance(value, ctypes.Array):
            value = any(value)
        elif isinstance(value, ProgressCallback):
            value = bool(value)
        if (value or 0) != expected.get(name, 0):
            raise _strange(f"has other {what} ({name} is {value}, expected {expected.get(name, 0)})")


def _strange(problem: str) -> UsageError:
    return UsageError(
        f"engine llamacpp: the installed xllamacpp {problem}; Treadle calls version {KNOWN_VERSION}",
        hint=f"`pip install 'xllamacpp=={KNOWN_VERSION}'`",
    )
