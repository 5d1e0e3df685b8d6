"""What one step of the engine computes, and what came out of it.

Leaves to others: making a plan (the scheduler) and carrying it out (the runner).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from treadle.engine.request import Request

__all__ = ["Chunk", "Runner", "Sample", "StepPlan", "StepResult"]


class Chunk(NamedTuple):
    """Tokens ``start .. start + num_tokens - 1`` of one request, computed in one step.

    ``samples`` says that the chunk reaches the request's last known token, so that a new one follows.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True)
class StepPlan:
    """The chunks of one step, each of another request; the first ``num_decodes`` are the newest tokens of answers."""

    chunks: Sequence[Chunk]
    num_decodes: int = 0

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the step computes."""
        return sum(chunk.num_tokens for chunk in self.chunks)


class Sample(NamedTuple):
    """One sampled token; ``bad_logits`` says that there was nothing to sample from.

    ``logprob`` and ``top_logprobs`` are natural logarithms of the model's own distribution.
    """

    token_id: int
    bad_logits: bool = False
    logprob: float = 0.0
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class StepResult:
    """One sample for each chunk of the plan that samples, in the plan's order."""

    samples: Sequence[Sample] = ()


class Runner(Protocol):
    """What carries out plans: the native runtime, or a stand-in that tests drive."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan`` and sample where a chunk asks for it."""
