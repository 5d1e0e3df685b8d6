"""Times steps of a loaded model as requests would cause them, without scheduler, tokenizer and prefix cache.

Leaves to others: what to compare (``engine.tune``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS
from treadle.engine.plan import Chunk, StepPlan
from treadle.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from treadle.engine.request import Sampler
    from treadle.engine.runner import NativeRunner

__all__ = ["StepBench"]

_GREEDY = SamplingParams(temperature=0)
# Token ids that every vocabulary has, scattered over it.
_ID_STEP, _NUM_IDS = 7919, 250


@dataclass
class _Stream:
    """What of a request a runner reads."""

    token_ids: list[int]
    sampler: Sampler
    block_ids: list[int]
    block_row: NDArray[np.int32] = field(init=False)
    adapter: None = None

    def __post_init__(self) -> None:
        self.block_row = np.array(self.block_ids, dtype=np.int32)


class StepBench:
    """Times a runner; its KV blocks must hold ``num_streams`` times the tokens that a call asks for."""

    def __init__(self, runner: NativeRunner) -> None:
        self._runner = runner

    def prompt_seconds(self, num_tokens: int) -> float:
        """Return how long a prompt takes to read, up to its first token."""
        stream = self._stream(0, num_tokens)
        started = time.perf_counter()
        for start in range(0, num_tokens, MAX_BATCH_TOKENS):
            count = min(MAX_BATCH_TOKENS, num_tokens - start)
            self._runner.run(StepPlan([_chunk(stream, start, count, start + count == num_tokens)]))
        return time.perf_counter() - started

    def decode_seconds(self, *, context: int, num_steps: int, num_streams: int = 1) -> list[float]:
        """Return how long each of so many steps takes that add a token to each stream, from ``context`` tokens on.

        The values in the KV blocks do not matter to the time, so no prompt is read for it.
        """
        streams = [self._stream(index, context + num_steps) for index in range(num_streams)]
        seconds = []
        for position in range(context, context + num_steps):
            plan = StepPlan([_chunk(stream, position, 1, True) for stream in streams], num_decodes=num_streams)
            started = time.perf_counter()
            self._runner.run(plan)
            seconds.append(time.perf_counter() - started)
        return seconds

    def _stream(self, index: int, num_tokens: int) -> _Stream:
        num_blocks = -(-num_tokens // KV_BLOCK_TOKENS)
        token_ids = [(index + position * _ID_STEP) % _NUM_IDS for position in range(num_tokens)]
        sampler = self._runner.create_sampler(_GREEDY, 0, [])
        return _Stream(token_ids, sampler, list(range(index * num_blocks, (index + 1) * num_blocks)))


def _chunk(stream: _Stream, start: int, num_tokens: int, samples: bool) -> Chunk:
    request: Any = stream
    return Chunk(request, start, num_tokens, samples)
