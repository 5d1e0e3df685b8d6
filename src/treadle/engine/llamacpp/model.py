"""A model that llama.cpp holds, and the context that computes with it.

Leaves to others: what to compute (``runner`` beside this file).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.engine.llamacpp.library import ContextParams, ProgressCallback, captured_log, open_library
from treadle.errors import CapacityError, InternalError, ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile

__all__ = ["LlamaCppModel"]

_MMAP_AND_LOCK = 3
_NUM_MORE_SEQUENCES = 16
_NO_POOLING, _RANKS = 0, 4  # values of llama_pooling_type and of the key `<architecture>.pooling_type`
# Most states that a step of a model with answers gives: llama.cpp computes the logits of each, too.
_MAX_STATES = 64
_KV_TYPES = {"f16": 1, "q8_0": 8}


class LlamaCppModel:
    """Weights, KV cells and scratch memory; all are given back when the object goes.

    A step gives states of at most ``max_states`` tokens. Where the model ``is_encoder`` there are no KV cells.

    Args:
        file: The model.
        context: Tokens that all sequences have room for together.
        max_batch_tokens: Most tokens of one step.
        max_num_requests: Most requests at a time. There are more sequences, ``num_sequences`` in all, unless
            those of this model can only be continued.
        num_threads: Threads that compute answers.
        num_prompt_threads: Threads that read prompts.
        kv_type: How keys and values are kept.
        mlock: Keep the weights out of swap; see ``is_locked``.
        progress: Called with the bytes done and the bytes in all; what it raises ends the load.

    Raises:
        ModelFileError: llama.cpp does not take the file; says why.
        UnsupportedModelError: It does, but the model neither writes a text token after token nor turns it into vectors.
        CapacityError: There is not enough memory.
    """

    def __init__(
        self,
        file: ModelFile,
        *,
        context: int,
        max_batch_tokens: int,
        max_num_requests: int,
        num_threads: int,
        num_prompt_threads: int,
        kv_type: str,
        mlock: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.library = open_library()
        self.is_locked = mlock
        self.num_threads = num_threads, num_prompt_threads
        self.model = self._load(file, mlock, progress)
        free = weakref.finalize(self, self.library.llama_model_free, self.model)
        self._check_kind(file)
        self.is_encoder = file.is_encoder
        self.num_sequences = max_num_requests + (_NUM_MORE_SEQUENCES if self._can_branch() else 0)
        params = self.library.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = max_batch_tokens
        self.max_states = max_batch_tokens if self.is_encoder else min(_MAX_STATES, max_batch_tokens)
        params.n_seq_max = self.num_sequences
        params.n_outputs_max = max(self.num_sequences, self.max_states)
        params.pooling_type = _NO_POOLING
        params.n_threads, params.n_threads_batch = num_threads, num_prompt_threads
        params.type_k = params.type_v = _KV_TYPES[kv_type]
        params.kv_unified = True
        self.context = self._create_context(file, params)
        free.detach()
        weakref.finalize(self, _free, self.library, self.context, self.model)
        self.memory: int | None = self.library.llama_get_memory(self.context)
        if self.memory is None and not self.is_encoder:
            raise UnsupportedModelError(f"{file.path}: {file.architecture} models read texts in both directions")
        self.vocabulary = self.library.llama_model_get_vocab(self.model)
        self.vocab_size: int = self.library.llama_vocab_n_tokens(self.vocabulary)
        self.state_size: int = self.library.llama_model_n_embd_out(self.model)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Let a sequence begin with the first tokens of another one; they stay in the same cells."""
        self.library.llama_memory_seq_cp(self.memory, source, target, 0, num_tokens)

    def remove(self, sequence: int) -> None:
        """Forget all tokens of a sequence; cells that no other one holds are free again."""
        self.library.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def _can_branch(self) -> bool:
        """Tell whether a part of a sequence can be taken over: not where a state stands for all of it."""
        library = self.library
        is_whole = library.llama_model_is_recurrent(self.model) or library.llama_model_is_hybrid(self.model)
        return not (is_whole or self.is_encoder)

    def _load(self, file: ModelFile, mlock: bool, progress: Callable[[int, int], None] | None) -> int:
        failures: list[BaseException] = []

        def report(share: float, _: object) -> bool:
            try:
                if progress is not None:
                    progress(int(share * file.file_bytes), file.file_bytes)
            except BaseException as error:  # it cannot cross C
                failures.append(error)
            return not failures

        params = self.library.llama_model_default_params()
        params.progress_callback = ProgressCallback(report)
        if mlock:
            params.load_mode = _MMAP_AND_LOCK
        with captured_log() as log:
            model: int | None = self.library.llama_model_load_from_file(str(file.path).encode(), params)
        if failures:
            if model:
                self.library.llama_model_free(model)
            raise failures[0]
        if not model:
            raise ModelFileError(f"{file.path}: llama.cpp does not load it: {_last(log)}")
        self.is_locked = mlock and not any("mlock" in line for line in log)
        return model

    def _check_kind(self, file: ModelFile) -> None:
        has_decoder = self.library.llama_model_has_decoder(self.model)
        if not has_decoder or self.library.llama_model_has_encoder(self.model):
            raise UnsupportedModelError(f"{file.path}: {file.architecture} models have an encoder, which is not run")
        if self.library.llama_model_is_diffusion(self.model):
            raise UnsupportedModelError(f"{file.path}: {file.architecture} models do not write token after token")
        if any(tensor.name == "dense_2.weight" for tensor in file.tensors):
            raise UnsupportedModelError(
                f"{file.path}: the products behind the states of {file.architecture} are not run through llama.cpp",
                hint="leave the engine open, and the core runs it",
            )
        if file.ranks or file.metadata.get(f"{file.architecture}.pooling_type") == _RANKS:
            raise UnsupportedModelError(
                f"{file.path}: the model ranks documents, which is not run through llama.cpp",
                hint="leave the engine open, and the core runs it if it knows the architecture",
            )

    def _create_context(self, file: ModelFile, params: ContextParams) -> int:
        library = self.library
        with captured_log() as log:
            context: int | None = library.llama_init_from_model(self.model, params)
        if not context:
            error = CapacityError if any("alloc" in line for line in log) else ModelFileError
            raise error(f"{file.path}: llama.cpp cannot compute with it: {_last(log)}")
        found = [
            getattr(library, f"llama_{name}")(context) for name in ("n_batch", "n_ubatch", "n_seq_max", "n_threads")
        ]
        if found != [params.n_batch, params.n_ubatch, params.n_seq_max, params.n_threads] or (
            library.llama_n_ctx(context) < params.n_ctx
        ):
            library.llama_free(context)
            raise InternalError(f"llama.cpp took the settings of {file.path} for others: {found}")
        return context


def _free(library: Any, context: int, model: int) -> None:
    library.llama_free(context)
    library.llama_model_free(model)


def _last(log: Sequence[str]) -> str:
    """Return the line that says most: the first error of several, of which the later ones repeat that it failed."""
    return next(iter(log), "it does not say why")
