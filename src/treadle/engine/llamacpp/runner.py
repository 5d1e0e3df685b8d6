"""Carries step plans to llama.cpp: each running request is one of its sequences.

Leaves to others: what a step computes (the scheduler), memory and threads (``model``), drawing tokens (the native
sampler).
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from treadle.engine.kv_type import KV_BLOCK_TOKENS
from treadle.engine.llamacpp.encoder import LlamaCppEncoder
from treadle.engine.llamacpp.library import Batch, captured_log
from treadle.engine.llamacpp.model import LlamaCppModel
from treadle.engine.llamacpp.sequences import Sequences
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.engine.runner import create_sampler, draw
from treadle.errors import CapacityError, InternalError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from treadle.engine.adapters import AdapterWeights
    from treadle.engine.request import AnswerRequest, Sampler
    from treadle.engine.sampling import SamplingParams
    from treadle.models.gguf import ModelFile

__all__ = ["MAX_NUM_REQUESTS", "LlamaCppRunner"]

MAX_NUM_REQUESTS = 240

_NO_ROOM = 1


class LlamaCppRunner:
    """A model in llama.cpp and the sequences it computes.

    The KV blocks of the scheduler only count here: they are as many tokens as llama.cpp has cells. What is found of
    earlier prompts is found by sequence, and the scheduler does not know: it plans tokens that need not be computed.
    """

    block_memory = None

    def __init__(
        self, model: LlamaCppModel, *, decode_bytes: int, max_batch_tokens: int, max_num_requests: int, num_cells: int
    ) -> None:
        self.decode_bytes = decode_bytes
        self._num_threads, self._num_prompt_threads = model.num_threads
        self._most_threads: int | None = None
        self._model = model
        self._sequences = Sequences(
            model,
            num_requests=max_num_requests,
            num_ended=model.num_sequences - max_num_requests,
            num_cells=num_cells,
        )
        self._tokens = np.zeros(max_batch_tokens, dtype=np.int32)
        self._positions = np.zeros(max_batch_tokens, dtype=np.int32)
        self._has_logits = np.zeros(max_batch_tokens, dtype=np.int8)
        self._num_ids = np.ones(max_batch_tokens, dtype=np.int32)
        self._ids = np.arange(model.num_sequences, dtype=np.int32)
        self._id_pointers = np.zeros(max_batch_tokens, dtype=np.uintp)
        self._batch = Batch(
            token=self._tokens.ctypes.data,
            pos=self._positions.ctypes.data,
            n_seq_id=self._num_ids.ctypes.data,
            seq_id=self._id_pointers.ctypes.data,
            logits=self._has_logits.ctypes.data,
        )

    @classmethod
    def load(
        cls,
        file: ModelFile,
        *,
        num_threads: int,
        num_prompt_threads: int,
        num_blocks: int,
        max_batch_tokens: int,
        max_num_requests: int,
        kv_type: str,
        mlock: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> LlamaCppRunner:
        """Have llama.cpp load a file; the arguments and errors are those of ``LlamaCppModel``."""
        model = LlamaCppModel(
            file,
            context=num_blocks * KV_BLOCK_TOKENS,
            max_batch_tokens=max_batch_tokens,
            max_num_requests=max_num_requests,
            num_threads=num_threads,
            num_prompt_threads=num_prompt_threads,
            kv_type=kv_type,
            mlock=mlock,
            progress=progress,
        )
        return cls(
            model,
            decode_bytes=_decode_bytes(file),
            max_batch_tokens=max_batch_tokens,
            max_num_requests=max_num_requests,
            num_cells=num_blocks * KV_BLOCK_TOKENS,
        )

    @property
    def kernels(self) -> str:
        """Return which instructions llama.cpp uses on this CPU."""
        info: bytes = self._model.library.llama_print_system_info()
        names = [part.split("=")[0].strip(" :") for part in info.decode().split("|") if "= 1" in part]
        return f"llama.cpp ({', '.join(name.removeprefix('CPU : ') for name in names)})"

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return int(self._model.library.llama_model_size(self._model.model))

    @property
    def hidden_size(self) -> int:
        """Refuse to embed: raises UsageError, always."""
        raise UsageError("this model runs through llama.cpp, which gives no embeddings here")

    @property
    def num_threads(self) -> int:
        """Return how many threads computed the latest step."""
        return int(self._model.library.llama_n_threads(self._model.context))

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None:
        """Give the next steps as many threads, for answers and for prompts; where they run is up to the system."""
        self._num_threads, self._num_prompt_threads = len(cpus), len(prompt_cpus)
        self.limit_threads(self._most_threads)

    def limit_threads(self, most: int | None) -> None:
        """Let the next steps use at most so many threads; None lifts the limit."""
        self._most_threads = most
        numbers = [
            number if most is None else min(number, most) for number in (self._num_threads, self._num_prompt_threads)
        ]
        self._model.library.llama_set_n_threads(self._model.context, *numbers)

    def create_encoder(self) -> LlamaCppEncoder:
        """Return llama.cpp's own reading of text, for tokenizers that are not known here."""
        return LlamaCppEncoder(self._model)

    def load_adapter(self, path: Path, scale: float) -> AdapterWeights:  # noqa: ARG002
        """Refuse: llama.cpp applies adapters to everything that it computes in a step."""
        raise UsageError(
            f"{path}: this model runs through llama.cpp, and adapters need Treadle's own core",
            hint="choose a model that the core runs: `treadle run --engine native` says whether it does",
        )

    def lock_memory(self) -> int:
        """Return 0 if the weights are kept out of swap, or an error number: that was settled when they were loaded."""
        return 0 if self._model.is_locked else errno.ENOMEM

    def create_sampler(self, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> Sampler:
        """Return the sampling state of a new request."""
        return create_sampler(self._model.vocab_size, params, seed, prompt_ids)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan`` in one call, without the interpreter's lock.

        Raises:
            CapacityError: llama.cpp found no cells for the tokens.
            InternalError: It failed.
        """
        self._sequences.end_some()
        sampled = self._fill(plan)
        self._sequences.make_room()
        if self._batch.n_tokens:
            self._decode()
        self._sequences.computed()
        return StepResult(self._draw(sampled))

    def _decode(self) -> None:
        with captured_log() as log:
            status = self._model.library.llama_decode(self._model.context, self._batch)
        if status:
            self._sequences.clear()
            said = "; ".join(log) or "it does not say why"
            error = CapacityError if status == _NO_ROOM else InternalError
            raise error(f"llama.cpp computed no step of {self._batch.n_tokens} tokens (status {status}): {said}")

    def _fill(self, plan: StepPlan) -> list[AnswerRequest]:
        """Write the tokens of ``plan`` into the batch and return the requests that want a sample, in its order."""
        sampled: list[AnswerRequest] = []
        end = 0
        first_id, id_bytes = self._ids.ctypes.data, self._ids.itemsize
        for chunk in plan.chunks:
            sequence, first = self._sequences.place(chunk)
            last = chunk.start + chunk.num_tokens
            begin, end = end, end + max(0, last - first)
            self._tokens[begin:end] = chunk.request.token_ids[first:last]
            self._positions[begin:end] = range(first, last)
            self._id_pointers[begin:end] = first_id + sequence * id_bytes
            self._has_logits[begin:end] = 0
            if chunk.samples:
                self._has_logits[end - 1] = 1
                sampled.append(cast("AnswerRequest", chunk.request))
        self._batch.n_tokens = end
        return sampled

    def _draw(self, requests: Sequence[AnswerRequest]) -> list[Sample]:
        if not requests:
            return []
        vocab_size = self._model.vocab_size
        address = self._model.library.llama_get_logits(self._model.context)
        rows = np.ctypeslib.as_array((ctypes.c_float * vocab_size * len(requests)).from_address(address))
        return [draw(request, row) for request, row in zip(requests, rows, strict=True)]


def _decode_bytes(file: ModelFile) -> int:
    """Return what one token of one sequence reads of the weights: of experts only those in use."""
    num_experts = file.metadata.get(f"{file.architecture}.expert_count", 0)
    num_used = file.metadata.get(f"{file.architecture}.expert_used_count", num_experts)
    is_tied = all(tensor.name != "output.weight" for tensor in file.tensors)
    num_bytes = 0
    for tensor in file.tensors:
        if "_exps." in tensor.name and num_experts:
            num_bytes += tensor.num_bytes * num_used // num_experts
        elif is_tied or tensor.name != "token_embd.weight":
            num_bytes += tensor.num_bytes
    return num_bytes
