"""What the scheduler has done and what it holds, in numbers.

Leaves to others: adding them up over several engines and showing them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerCounters"]


@dataclass(frozen=True)
class SchedulerCounters:
    """One look at a scheduler. The first group says how it stands, the second counts since the start.

    ``num_used_blocks`` are held by requests; ``num_cached_blocks`` by nobody, but found again if their beginning of a
    prompt comes back. Each prompt token is counted once, as found in the pool, found in the store or missed, and those
    of a request that had to give its blocks back as computed again.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int
    num_cached_blocks: int

    num_pool_hit_tokens: int
    num_store_hit_tokens: int
    num_missed_tokens: int
    num_prompt_tokens_computed: int
    num_answer_tokens_computed: int
    num_preemptions: int
    num_evicted_blocks: int
    num_steps: int
