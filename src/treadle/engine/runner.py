"""Carries step plans into the native runtime: the only file of the engine that imports it.

Leaves to others: which tokens a step computes (the scheduler) and what samples mean (the request).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from treadle import _native
from treadle.engine.adapters import base_model_hint
from treadle.engine.kv.kv_type import DEFAULT_KV_TYPE
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.errors import ModelFileError

if TYPE_CHECKING:
    from treadle.engine.embedding import EmbeddingRequest
    from treadle.engine.request import AnswerRequest, Request
    from treadle.engine.sampling import SamplingParams
    from treadle.models.gguf import ModelFile

__all__ = ["CORE_PATH", "NativeRunner", "StepTimings", "create_sampler", "draw"]

StepTimings = _native.StepTimings
CORE_PATH = Path(_native.__file__)

# Up to so many tokens of prompts a step is bound by memory, as one of answers is.
_FEW_TOKENS = 16


class NativeRunner:
    """A model in memory, the threads that compute it and the KV blocks it writes."""

    def __init__(
        self,
        model: _native.Model,
        *,
        cpus: list[int],
        num_blocks: int | Sequence[int],
        max_batch_tokens: int,
        kv_type: str = DEFAULT_KV_TYPE,
        prompt_cpus: list[int] | None = None,
        home_cpus: Collection[int] | None = None,
        adapts: bool = True,
    ) -> None:
        """Start the threads.

        Args:
            model: The weights.
            cpus: Of each thread that computes answers the CPU it stays on, or -1.
            num_blocks: How many KV blocks there are in each pool, or in all.
            max_batch_tokens: Most tokens of a step.
            kv_type: How KV blocks are kept.
            prompt_cpus: The same for steps that read prompts; by default ``cpus``.
            home_cpus: CPUs that threads without a place of their own may use; None leaves it to the system.
            adapts: Whether threads whose CPUs are busy with other programs sit out.
        """
        self.model = model
        self._cpus, self._prompt_cpus = cpus, cpus if prompt_cpus is None else prompt_cpus
        self._used_cpus = cpus
        self._home_cpus = home_cpus
        self._most_threads: int | None = None
        self._num_threads = len(cpus)
        self._runtime = _native.Runtime(
            model, cpus=cpus, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens, kv_type=kv_type
        )
        self._runtime.set_sitting_out(adapts)

    @staticmethod
    def check(file: ModelFile) -> None:
        """Raise UnsupportedModelError if this core does not run such a model, ModelFileError if the file is broken."""
        _native.Model.check(file.native)

    @classmethod
    def load(
        cls,
        file: ModelFile,
        *,
        isa: str,
        cpus: list[int],
        num_blocks: int | Sequence[int],
        max_batch_tokens: int,
        kv_type: str = DEFAULT_KV_TYPE,
        context: int = 0,
        prompt_cpus: list[int] | None = None,
        home_cpus: Collection[int] | None = None,
        adapts: bool = True,
        copies: Sequence[tuple[int, Sequence[int]]] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> NativeRunner:
        """Read the weights into the layout of the chosen kernels; ``progress`` hears bytes done and bytes in all.

        Each memory node of ``copies`` gets one of all weights, for threads on these CPUs; without any there is one.

        Some models read positions in one of two ways, for short or for long sequences: ``context``, the length of the
        longest there will be, chooses; 0 stands for the longest that the model can read.
        """
        with _staying_on(home_cpus):
            return cls(
                _native.Model.load(
                    file.native, isa=isa, cpus=cpus, progress=progress, context_length=context, copies=copies
                ),
                cpus=cpus,
                num_blocks=num_blocks,
                max_batch_tokens=max_batch_tokens,
                kv_type=kv_type,
                prompt_cpus=prompt_cpus,
                home_cpus=home_cpus,
                adapts=adapts,
            )

    @property
    def num_threads(self) -> int:
        """Return how many threads computed the latest step, without those that sat out."""
        return self._num_threads

    @property
    def cpus(self) -> list[int]:
        """Return of each thread that computes answers the CPU it stays on, or -1."""
        return self._cpus

    def set_threads(self, cpus: list[int], prompt_cpus: list[int] | None = None) -> None:
        """Give the next steps other threads: of each the CPU it stays on, or -1. Not during a step."""
        self._cpus, self._prompt_cpus = cpus, cpus if prompt_cpus is None else prompt_cpus

    def limit_threads(self, most: int | None) -> None:
        """Let the next steps use at most so many threads, unpinned if that is fewer; None lifts the limit."""
        self._most_threads = most

    @property
    def kernels(self) -> str:
        """Return the name of the kernels in use."""
        return self.model.isa

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return self.model.weight_bytes

    @property
    def decode_bytes(self) -> int:
        """Return what one token of one sequence reads of the weights."""
        return self.model.decode_bytes

    @property
    def block_memories(self) -> list[_native.KvBlocks]:
        """The KV blocks of each pool as bytes, those of layers with a window last."""
        return self._runtime.kv_blocks

    @staticmethod
    def trim_heap() -> None:
        """Give memory that was freed, by Python too, back to the system."""
        _native.trim_heap()

    def create_encoder(self) -> None:
        """Return None: the core reads no text."""

    def create_sampler(self, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> _native.Sampler:
        """Return the sampling state of a new request."""
        return create_sampler(self.model.vocab_size, params, seed, prompt_ids)

    def load_adapter(self, path: Path, scale: float) -> _native.Adapter:
        """Return an adapter for requests of this model; raises as ``ModelRunner.load_adapter`` does."""
        # One thread, which others are not to wait for: steps go on meanwhile.
        file = _native.GgufFile.open(str(path))
        try:
            return _native.Adapter.load(file, self.model, cpus=[-1], strength=scale)
        except ModelFileError as error:
            raise ModelFileError(str(error), hint=base_model_hint(file.metadata())) from None

    @property
    def hidden_size(self) -> int:
        """Return how many numbers a state has."""
        return self.model.state_size

    def lock_memory(self) -> int:
        """Keep weights and KV blocks out of swap; return 0, or the system's error number."""
        return self.model.lock_memory() or self._runtime.lock_memory()

    def set_timing(self, on: bool) -> None:
        """Start timing the operators of steps from zero, or stop; costs nothing while off."""
        self._runtime.set_timing(on)

    def timings(self) -> StepTimings:
        """Return where the steps since ``set_timing(True)`` spent their time."""
        return self._runtime.timings()

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan`` in one native call, without the interpreter's lock."""
        self._use_threads(self._prompt_cpus if plan.num_tokens - plan.num_decodes > _FEW_TOKENS else self._cpus)
        requests, starts, query_lens, *_ = zip(*plan.chunks, strict=True)
        token_ids: list[int] = []
        logit_rows = []
        samplers = []
        state_sums = []
        for request, start, num_tokens, is_sampled, num_states in plan.chunks:
            token_ids += request.token_ids[start : start + num_tokens]
            if is_sampled:
                logit_rows.append(len(token_ids) - 1)
                samplers.append(cast(_native.Sampler, cast("AnswerRequest", request).sampler))
            if num_states:
                embedding = cast("EmbeddingRequest", request)
                first = num_tokens if embedding.pooling == "cls" else num_states  # from the end of the chunk
                state_sums.append((len(token_ids) - first, num_states, embedding.state_sum))
        output = self._runtime.step(
            token_ids=np.array(token_ids, dtype=np.int32),
            query_lens=np.array(query_lens, dtype=np.int32),
            start_positions=np.array(starts, dtype=np.int32),
            block_tables=_block_tables(requests),
            logit_rows=np.array(logit_rows, dtype=np.int32),
            samplers=samplers,
            state_sums=state_sums,
            adapters=_adapters(requests),
        )
        self._num_threads = self._runtime.num_present
        return StepResult([_sample(each) for each in output.samples])

    def _use_threads(self, cpus: list[int]) -> None:
        if self._most_threads is not None and self._most_threads < len(cpus):
            cpus = [-1] * self._most_threads
        if self._home_cpus is not None:
            _stay_on(self._home_cpus)  # workers are started by the thread that steps, and inherit where it may run
            self._home_cpus = None
        if cpus != self._used_cpus:
            self._runtime.set_cpus(cpus)
            self._used_cpus = cpus


def create_sampler(vocab_size: int, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> _native.Sampler:
    """Return the sampling state of a new request."""
    sampler = _native.Sampler(
        vocab_size,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=seed,
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        logit_bias=list(params.logit_bias.items()),
    )
    sampler.add_prompt(np.asarray(prompt_ids, dtype=np.int32))
    return sampler


def draw(request: AnswerRequest, logits: NDArray[np.float32]) -> Sample:
    """Draw the next token of a request from one row of logits that another engine computed."""
    return _sample(cast(_native.Sampler, request.sampler).sample(logits))


def _sample(drawn: _native.SampleResult) -> Sample:
    return Sample(drawn.token, drawn.bad_logits, drawn.logprob, tuple(drawn.top_logprobs))


def _stay_on(cpus: Collection[int] | None) -> None:
    """Keep the calling thread, and those it starts, on these CPUs as far as the system allows."""
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cpus)


@contextmanager
def _staying_on(cpus: Collection[int] | None) -> Iterator[None]:
    """Do so for a while."""
    if cpus is None or not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    _stay_on(cpus)
    try:
        yield
    finally:
        _stay_on(before)


def _adapters(requests: Sequence[Request]) -> list[_native.Adapter]:
    """Return the adapter of each request, nothing at all if nobody has one."""
    if all(request.adapter is None for request in requests):
        return []
    held = [None if request.adapter is None else request.adapter.weights for request in requests]
    return cast(list[_native.Adapter], held)  # bound as nullable, for which the generated stub has no word


def _block_tables(requests: Sequence[Request]) -> NDArray[np.int32]:
    """Copy what each request keeps in the right form already, pool after pool; entries past its need are not read."""
    rows = [table for of_pool in zip(*[request.tables for request in requests], strict=True) for table in of_pool]
    tables = np.zeros((len(rows), max([len(table.block_ids) for table in rows])), dtype=np.int32)
    for index, table in enumerate(rows):
        num_blocks = len(table.block_ids)
        tables[index, :num_blocks] = table.row[:num_blocks]
    return tables
