"""Keeps the number of threads to what the machine gives while an engine runs: quotas that bite, hosts that steal.

A single busy core is not seen here: the native workers notice that within a step and leave the core alone. Leaves to
others: reading the counters (``hardware.cpu_time``) and running the threads (the runner).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from treadle.engine.plan import Runner, StepPlan, StepResult
from treadle.hardware.cpu_time import CpuTime, read_cpu_time
from treadle.hardware.plan import ThreadPlan

__all__ = ["ThreadGovernor", "ThreadWatch"]

_log = logging.getLogger("treadle.engine")

_SECONDS_BETWEEN_LOOKS = 0.5
# Longer than this between two looks, and the engine was idle; then the counters say nothing.
_LONGEST_WINDOW = 4 * _SECONDS_BETWEEN_LOOKS
# With so much of their time denied, threads that wait for each other get less done than fewer that run all the time.
_MOST_DENIED = 0.2
# A little less than a whole CPU is enough for a thread that also waits.
_ROUNDING = 0.1
# Fewer threads that are robbed of more than this part of what more of them were have not helped.
_NO_BETTER = 0.7
# More threads are tried after so long, and twice as long whenever that was wrong.
_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 1.4, 16.0


class ThreadGovernor:
    """Decides from counters how many of at most ``most`` threads should run."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = most
        self._last: CpuTime | None = None
        self._patience = _SHORTEST_PATIENCE
        self._raised_at = self._lowered_at = float("-inf")
        self._robbed: tuple[float, int] | None = None  # share stolen from so many threads, before there were fewer

    def update(self, sample: CpuTime) -> int:
        """Return how many threads should run from now on."""
        last, self._last = self._last, sample
        if last is None or not 0 < sample.now - last.now <= _LONGEST_WINDOW:
            return self.limit
        throttled = (sample.throttled_seconds - last.throttled_seconds) / (sample.now - last.now) / self.limit
        stolen = _stolen_share(last, sample)
        robbed, self._robbed = self._robbed, None
        is_patient = sample.now - self._lowered_at >= self._patience
        if robbed is not None and stolen > _NO_BETTER * robbed[0]:
            self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
            self.limit = robbed[1]
        elif throttled > _MOST_DENIED:
            self._lower(sample, _entitled(last, sample, self.limit * (1 - throttled)))
        elif stolen > _MOST_DENIED and (is_patient or sample.now - self._raised_at < _LONGEST_WINDOW):
            self._robbed = stolen, self.limit
            self._lower(sample, self.limit * (1 - stolen))
        elif self.limit < self.most and is_patient:
            self._raise(sample, _entitled(last, sample, 2 * self.limit))
        elif self.limit == self.most and sample.now - self._lowered_at > 2 * self._patience:
            self._patience = _SHORTEST_PATIENCE  # all has been well for long
        return self.limit

    def _lower(self, sample: CpuTime, num_cpus: float) -> None:
        number = max(1, min(self.limit - 1, int(num_cpus + _ROUNDING)))
        if number < self.limit:
            if sample.now - self._raised_at < _LONGEST_WINDOW:  # that was wrong
                self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
            self._lowered_at = sample.now
            self.limit = number

    def _raise(self, sample: CpuTime, num_cpus: float) -> None:
        number = min(self.most, int(num_cpus + _ROUNDING))
        if number > self.limit:
            self._raised_at = sample.now
            self.limit = number


def _stolen_share(last: CpuTime, sample: CpuTime) -> float:
    wanted = sample.wanted_seconds - last.wanted_seconds
    return (sample.stolen_seconds - last.stolen_seconds) / wanted if wanted > 0 else 0.0


def _entitled(last: CpuTime, sample: CpuTime, otherwise: float) -> float:
    """Return the CPUs that the quota leaves this process beside others in the group, ``otherwise`` if unknown."""
    if sample.quota_cpus is None or sample.group_seconds is None or last.group_seconds is None:
        return otherwise
    used = sample.group_seconds - last.group_seconds
    own = sample.own_seconds - last.own_seconds
    return sample.quota_cpus - max(0.0, used - own) / (sample.now - last.now)


class _Threads(Runner, Protocol):
    """A runner whose threads can be changed between steps."""

    @property
    def num_threads(self) -> int: ...

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None: ...

    def limit_threads(self, most: int | None) -> None: ...


class ThreadWatch:
    """Runs plans as another runner does, and looks at the counters before a step, at most twice a second.

    Args:
        runner: Computes the steps.
        plans: The threads of answers and of prompts.
        replan: Makes these plans anew when the quota has changed, or the CPUs this process may use, which it is given.
        read: Reads the counters.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        runner: _Threads,
        plans: tuple[ThreadPlan, ThreadPlan],
        *,
        replan: Callable[[frozenset[int]], tuple[ThreadPlan, ThreadPlan]],
        read: Callable[[], CpuTime] = read_cpu_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._replan = replan
        self._read = read
        self._clock = clock
        self._next_look = 0.0
        self._governor = ThreadGovernor(_most(plans))
        self._allowance = _allowance(read())

    @property
    def num_threads(self) -> int:
        """Return how many threads computed the latest step."""
        return self._runner.num_threads

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan``, as ``Runner.run`` does."""
        self._look()
        return self._runner.run(plan)

    def _look(self) -> None:
        """Adapt the number of threads if it is time to."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        sample = self._read()
        if _allowance(sample) != self._allowance:
            self._allowance = _allowance(sample)
            self._follow()
            return
        before = self._governor.limit
        limit = self._governor.update(sample)
        if limit != before:
            _log.info("%d of %d threads run, as the CPU time allows", limit, self._governor.most)
            self._runner.limit_threads(None if limit == self._governor.most else limit)

    def _follow(self) -> None:
        plans = self._replan(self._allowance[1])
        _log.info("the CPUs this process may use have changed: %s", plans[0].reason)
        self._governor = ThreadGovernor(_most(plans))
        self._runner.limit_threads(None)
        self._runner.set_threads(plans[0].cpus, plans[1].cpus)


def _most(plans: tuple[ThreadPlan, ThreadPlan]) -> int:
    return max(plan.num_threads for plan in plans)


def _allowance(sample: CpuTime) -> tuple[float | None, frozenset[int]]:
    return sample.quota_cpus, sample.cpus
