"""What one step of the engine computes, and what came out of it.

Leaves to others: making a plan (the scheduler) and carrying it out (the runner).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from treadle.engine.adapters import AdapterWeights
    from treadle.engine.kv.open_store import KvRuntime
    from treadle.engine.request import Request, Sampler
    from treadle.engine.sampling import SamplingParams
    from treadle.models.text_encoder import TextEncoder

__all__ = ["Chunk", "ModelRunner", "Runner", "Sample", "StepPlan", "StepResult"]


class Chunk(NamedTuple):
    """Tokens ``start .. start + num_tokens - 1`` of one request, computed in one step.

    ``samples`` says that the chunk reaches the last known token of an answer, so that a new one follows. The states of
    its last ``num_states`` tokens, what logits are made of, are added to the ``state_sum`` of its ``EmbeddingRequest``;
    where that pools by "cls", they are those of its first tokens.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    num_states: int = 0


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
        """Compute every chunk of ``plan``, sample where a chunk asks for it and add up the states it asks for."""


class ModelRunner(Runner, Protocol):
    """A runner and its model, as loading one gives."""

    @property
    def kernels(self) -> str:
        """Return what computes, for people."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""

    @property
    def decode_bytes(self) -> int:
        """Return what one token of one sequence reads of the weights."""

    @property
    def block_memories(self) -> Sequence[KvRuntime]:
        """Return the KV blocks of each pool, none where those of the scheduler hold nothing that could be shared."""

    @property
    def hidden_size(self) -> int:
        """Return how many numbers a state has; raises UsageError if this runner gives no states."""

    @property
    def num_threads(self) -> int:
        """Return how many threads computed the latest step."""

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None:
        """Give the next steps other threads: of each the CPU it stays on, or -1."""

    def limit_threads(self, most: int | None) -> None:
        """Let the next steps use at most so many threads; None lifts the limit."""

    def create_encoder(self) -> TextEncoder | None:
        """Return what reads text if our own tokenizers do not know the model's, None if there is no such thing."""

    def create_sampler(self, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> Sampler:
        """Return the sampling state of a new request."""

    def load_adapter(self, path: Path, scale: float) -> AdapterWeights:
        """Return an adapter for requests of this model; may be called during a step.

        Raises:
            UsageError: This runner takes none.
            ModelFileError: The file is broken, or no adapter of this model.
            CapacityError: There is not enough memory.
        """

    def lock_memory(self) -> int:
        """Keep the model out of swap; return 0, or the system's error number."""
