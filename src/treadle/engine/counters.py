"""What the scheduler has done and what it holds, in numbers.

Leaves to others: adding them up over several engines and showing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PoolCounters", "SchedulerCounters"]


@dataclass(frozen=True)
class PoolCounters:
    """KV blocks of layers that see equally far back.

    ``num_used`` are held by requests; ``num_cached`` by nobody, but found again if their beginning of a prompt comes
    back.
    """

    num_blocks: int
    num_used: int
    num_cached: int

    @property
    def used_share(self) -> float:
        """Return the share of the blocks that requests hold, 0 to 1."""
        return self.num_used / self.num_blocks


@dataclass(frozen=True)
class SchedulerCounters:
    """One look at a scheduler. The first group says how it stands, the second counts since the start.

    Of ``pools``, one for layers that see everything before a token comes before one for those with a window. Each
    prompt token is counted once, as found in the pools, found in the stores or missed, and those of a request that had
    to give its blocks back as computed again.
    """

    num_running: int
    num_waiting: int
    pools: Sequence[PoolCounters]

    num_pool_hit_tokens: int
    num_store_hit_tokens: int
    num_missed_tokens: int
    num_prompt_tokens_computed: int
    num_answer_tokens_computed: int
    num_preemptions: int
    num_evicted_blocks: int
    num_steps: int
