"""Times steps of a loaded model as requests would cause them, without scheduler, tokenizer and prefix cache.

Leaves to others: what to compare (``engine.tune``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.engine.kv.block_table import BlockTable
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS
from treadle.engine.plan import Chunk, StepPlan
from treadle.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from treadle.engine.request import Sampler
    from treadle.engine.runner import NativeRunner

__all__ = ["StepBench", "StepTime"]

_GREEDY = SamplingParams(temperature=0)
# Token ids that every vocabulary has, scattered over it.
_ID_STEP, _NUM_IDS = 7919, 250


class StepTime(NamedTuple):
    """When a step began, by ``time.perf_counter``, how long it took, and with how many threads."""

    began: float
    seconds: float
    num_tokens: int
    num_threads: int


@dataclass
class _Stream:
    """What of a request a runner reads."""

    token_ids: list[int]
    sampler: Sampler
    tables: list[BlockTable]
    adapter: None = None


class StepBench:
    """Times a runner; its KV blocks must hold ``num_streams`` times the tokens that a call asks for."""

    def __init__(self, runner: NativeRunner) -> None:
        self._runner = runner

    def touch_blocks(self) -> None:
        """Write to all KV blocks: memory that nobody wrote to is one page of zeros, which the caches hold."""
        for memory in self._runner.block_memories:
            for block_id in range(memory.num_blocks):
                memory.write_kv_block(block_id, np.zeros(memory.kv_block_bytes, dtype=np.uint8))

    def prompt_seconds(self, num_tokens: int) -> float:
        """Return how long a prompt takes to read, up to its first token."""
        steps = self.prompt(num_tokens)
        return steps[-1].began + steps[-1].seconds - steps[0].began

    def decode_seconds(self, *, context: int, num_steps: int, num_streams: int = 1) -> list[float]:
        """Return how long each step of ``decode`` takes."""
        steps = self.decode(context=context, num_steps=num_steps, num_streams=num_streams)
        return [step.seconds for step in steps]

    def prompt(self, num_tokens: int) -> list[StepTime]:
        """Read a prompt up to its first token, in steps of at most ``MAX_BATCH_TOKENS``."""
        stream = self._stream(0, num_tokens)
        steps = []
        for start in range(0, num_tokens, MAX_BATCH_TOKENS):
            count = min(MAX_BATCH_TOKENS, num_tokens - start)
            steps.append(self._run(StepPlan([_chunk(stream, start, count, start + count == num_tokens)])))
        return steps

    def decode(self, *, context: int, num_steps: int, num_streams: int = 1) -> list[StepTime]:
        """Add a token to each stream in each of so many steps, from ``context`` tokens on.

        The values in the KV blocks do not matter to the time, so no prompt is read for it.
        """
        streams = [self._stream(index, context + num_steps) for index in range(num_streams)]
        steps = []
        for position in range(context, context + num_steps):
            chunks = [_chunk(stream, position, 1, True) for stream in streams]
            steps.append(self._run(StepPlan(chunks, num_decodes=num_streams)))
        return steps

    def _run(self, plan: StepPlan) -> StepTime:
        began = time.perf_counter()
        self._runner.run(plan)
        return StepTime(began, time.perf_counter() - began, plan.num_tokens, self._runner.num_threads)

    def _stream(self, index: int, num_tokens: int) -> _Stream:
        num_blocks = -(-num_tokens // KV_BLOCK_TOKENS)
        token_ids = [(index + position * _ID_STEP) % _NUM_IDS for position in range(num_tokens)]
        sampler = self._runner.create_sampler(_GREEDY, 0, [])
        block_ids = range(index * num_blocks, (index + 1) * num_blocks)
        return _Stream(token_ids, sampler, [BlockTable(block_ids) for _ in self._runner.block_memories])


def _chunk(stream: _Stream, start: int, num_tokens: int, samples: bool) -> Chunk:
    request: Any = stream
    return Chunk(request, start, num_tokens, samples)
