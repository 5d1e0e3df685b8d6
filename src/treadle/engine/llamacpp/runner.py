"""Carries step plans to llama.cpp: each running request is one of its sequences.

Leaves to others: what a step computes (the scheduler), memory and threads (``model``), drawing tokens (the native
sampler).
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.engine.llamacpp.batch import TokenBatch
from treadle.engine.llamacpp.encoder import LlamaCppEncoder
from treadle.engine.llamacpp.library import captured_log
from treadle.engine.llamacpp.model import LlamaCppModel
from treadle.engine.llamacpp.sequences import Sequences
from treadle.engine.plan import Chunk, Sample, StepPlan, StepResult
from treadle.engine.runner import create_sampler, draw
from treadle.errors import CapacityError, InternalError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from treadle.engine.adapters import AdapterWeights
    from treadle.engine.embedding import EmbeddingRequest
    from treadle.engine.request import AnswerRequest, Sampler
    from treadle.engine.sampling import SamplingParams
    from treadle.models.gguf import ModelFile

__all__ = ["MAX_NUM_REQUESTS", "LlamaCppRunner"]

MAX_NUM_REQUESTS = 240

_NO_ROOM = 1


class _Placed(NamedTuple):
    """A chunk, its sequence, and the first of its positions that is not in the sequence yet."""

    chunk: Chunk
    sequence: int
    first: int


class LlamaCppRunner:
    """A model in llama.cpp and the sequences it computes.

    The KV blocks of the scheduler only count here: they are as many tokens as llama.cpp has cells. What is found of
    earlier prompts is found by sequence, and the scheduler does not know: it plans tokens that need not be computed.
    """

    block_memories = ()

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
        self._batch = TokenBatch(max_batch_tokens, model.num_sequences)

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
        """Return how many numbers a state has."""
        return self._model.state_size

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
        return LlamaCppEncoder(self._model, is_complete=self._model.is_encoder)

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
        """Compute every chunk of ``plan`` without the interpreter's lock: in one call, but for states that are wanted.

        Raises:
            CapacityError: llama.cpp found no cells for the tokens.
            InternalError: It failed.
        """
        self._sequences.end_some()
        placed = [_Placed(chunk, *self._sequences.place(chunk)) for chunk in plan.chunks]
        self._sequences.make_room()
        sampled = self._fill(placed)
        if self._batch.num_tokens:
            self._decode()
        samples = self._draw(sampled)
        self._embed([each for each in placed if each.chunk.num_states])
        self._sequences.computed()
        return StepResult(samples)

    def _decode(self) -> None:
        with captured_log() as log:
            status = self._model.library.llama_decode(self._model.context, self._batch.structure)
        num_tokens = self._batch.num_tokens
        self._batch.clear()
        if status:
            self._sequences.clear()
            said = "; ".join(log) or "it does not say why"
            error = CapacityError if status == _NO_ROOM else InternalError
            raise error(f"llama.cpp computed no step of {num_tokens} tokens (status {status}): {said}")

    def _fill(self, placed: Sequence[_Placed]) -> list[AnswerRequest]:
        """Put the tokens whose states nobody wants into the batch; return the requests to sample for, in its order."""
        self._batch.clear()
        sampled: list[AnswerRequest] = []
        for chunk, sequence, first in placed:
            end = chunk.start + chunk.num_tokens - chunk.num_states
            if end > first and not (chunk.num_states and self._model.is_encoder):
                self._batch.add(chunk.request.token_ids, first, end - first, sequence)
            if chunk.samples:
                self._batch.ask_for_last()
                sampled.append(cast("AnswerRequest", chunk.request))
        return sampled

    def _embed(self, placed: Sequence[_Placed]) -> None:
        """Compute the states that are wanted, so many at a time; an encoder computes whole texts."""
        parts: list[tuple[EmbeddingRequest, int]] = []
        for chunk, sequence, first in placed:
            end = chunk.start + chunk.num_tokens
            start = first if self._model.is_encoder else end - chunk.num_states
            while start < end:
                num_tokens = min(end - start, self._model.max_states - self._batch.num_tokens)
                self._batch.add(chunk.request.token_ids, start, num_tokens, sequence)
                parts.append((cast("EmbeddingRequest", chunk.request), num_tokens))
                start += num_tokens
                if self._batch.num_tokens == self._model.max_states:
                    self._add_states(parts)
        if parts:
            self._add_states(parts)

    def _add_states(self, parts: list[tuple[EmbeddingRequest, int]]) -> None:
        """Compute the batch and add the states of its parts to the sums of their requests."""
        num_tokens = self._batch.num_tokens
        self._batch.ask_for_all()
        self._model.library.llama_set_embeddings(self._model.context, True)
        try:
            self._decode()
        finally:
            self._model.library.llama_set_embeddings(self._model.context, False)
        address = self._model.library.llama_get_embeddings(self._model.context)
        rows = np.ctypeslib.as_array((ctypes.c_float * self._model.state_size * num_tokens).from_address(address))
        begin = 0
        for request, num_rows in parts:
            own = rows[begin : begin + num_rows]
            begin += num_rows
            if self._model.is_encoder and request.pooling != "mean":
                own = own[:1] if request.pooling == "cls" else own[-1:]
            request.state_sum += own.sum(axis=0, dtype=np.float64)
        parts.clear()

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
