"""Carries step plans into the native runtime: the only file of the engine that imports it.

Leaves to others: which tokens a step computes (the scheduler) and what samples mean (the request).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from treadle import _native
from treadle.engine.kv_type import DEFAULT_KV_TYPE
from treadle.engine.plan import Sample, StepPlan, StepResult

if TYPE_CHECKING:
    from treadle.engine.sampling import SamplingParams
    from treadle.models.gguf import ModelFile

__all__ = ["CORE_PATH", "NativeRunner"]

CORE_PATH = Path(_native.__file__)


class NativeRunner:
    """A model in memory, the threads that compute it and the KV blocks it writes."""

    def __init__(
        self, model: _native.Model, *, cpus: list[int], num_blocks: int, max_batch_tokens: int, kv_type: str
    ) -> None:
        self.model = model
        self._runtime = _native.Runtime(
            model, cpus=cpus, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens, kv_type=kv_type
        )

    @classmethod
    def load(
        cls,
        file: ModelFile,
        *,
        isa: str,
        cpus: list[int],
        num_blocks: int,
        max_batch_tokens: int,
        kv_type: str = DEFAULT_KV_TYPE,
        progress: Callable[[int, int], None] | None = None,
    ) -> NativeRunner:
        """Read the weights into the layout of the chosen kernels; ``progress`` hears bytes done and bytes in all."""
        model = _native.Model.load(file.native, isa=isa, cpus=cpus, progress=progress)
        return cls(model, cpus=cpus, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens, kv_type=kv_type)

    @property
    def block_memory(self) -> _native.Runtime:
        """The KV blocks as bytes: ``kv_block_bytes``, ``kv_layout``, ``read_kv_block``, ``write_kv_block``."""
        return self._runtime

    @staticmethod
    def trim_heap() -> None:
        """Give memory that was freed, by Python too, back to the system."""
        _native.trim_heap()

    def create_sampler(self, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> _native.Sampler:
        """Return the sampling state of a new request."""
        sampler = _native.Sampler(
            self.model.vocab_size,
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

    def lock_memory(self) -> int:
        """Keep weights and KV blocks out of swap; return 0, or the system's error number."""
        return self.model.lock_memory() or self._runtime.lock_memory()

    def set_timing(self, on: bool) -> None:
        """Start timing the operators of steps from zero, or stop; costs nothing while off."""
        self._runtime.set_timing(on)

    def timings(self) -> _native.StepTimings:
        """Return where the steps since ``set_timing(True)`` spent their time."""
        return self._runtime.timings()

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan`` in one native call, without the interpreter's lock."""
        chunks = plan.chunks
        query_lens = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int32)
        samples = np.array([chunk.samples for chunk in chunks], dtype=bool)
        output = self._runtime.step(
            token_ids=_token_ids(plan),
            query_lens=query_lens,
            start_positions=np.array([chunk.start for chunk in chunks], dtype=np.int32),
            block_tables=_block_tables(plan),
            logit_rows=(np.cumsum(query_lens, dtype=np.int32) - 1)[samples],
            samplers=[cast(_native.Sampler, chunk.request.sampler) for chunk in chunks if chunk.samples],
        )
        return StepResult([Sample(s.token, s.bad_logits, s.logprob, tuple(s.top_logprobs)) for s in output.samples])


def _token_ids(plan: StepPlan) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    pieces = (chunk.request.token_ids[chunk.start : chunk.start + chunk.num_tokens] for chunk in plan.chunks)
    return np.fromiter(chain.from_iterable(pieces), dtype=np.int32, count=plan.num_tokens)


def _block_tables(plan: StepPlan) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    width = max(len(chunk.request.block_ids) for chunk in plan.chunks)
    tables = np.full((len(plan.chunks), width), -1, dtype=np.int32)
    for row, chunk in zip(tables, plan.chunks, strict=True):
        num_blocks = len(chunk.request.block_ids)
        row[:num_blocks] = chunk.request.block_row[:num_blocks]
    return tables
