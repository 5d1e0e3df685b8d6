"""How an engine is doing: how much it holds and has done, how fast, and how much of its time is not computing.

Leaves to others: counting what is scheduled (``SchedulerCounters``) and stored (``StoreStats``), and showing it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.engine.counters import SchedulerCounters
    from treadle.engine.kv.block_store import StoreStats
    from treadle.engine.plan import Runner, StepPlan, StepResult
    from treadle.engine.step_work import StepWork

__all__ = ["EngineStats", "MeteredRunner", "StepMeter", "StepStats"]

_WINDOW_SECONDS = 10.0


@dataclass(frozen=True)
class StepStats:
    """What the steps of an engine took; the rates are those of the last ten seconds, in tokens per second.

    ``step_seconds`` are all of the time from the beginning of a step until everybody was told about it, and
    ``native_seconds`` what of it the core computed. ``kv_bytes_read`` are those of all steps.

    ``decode_read_rate`` is how many bytes of weights and KV blocks steps of answers alone read per second of computing,
    and ``prompt_int8_rate`` how many int8 multiplications and additions steps with prompts did, both over the last ten
    seconds and 0 if there were no such steps: what the memory and the cores were worked with.
    """

    num_steps: int = 0
    step_seconds: float = 0.0
    native_seconds: float = 0.0
    prompt_rate: float = 0.0
    answer_rate: float = 0.0
    kv_bytes_read: int = 0
    decode_read_rate: float = 0.0
    prompt_int8_rate: float = 0.0

    @property
    def overhead_share(self) -> float:
        """Return which share of the steps' time, 0 to 1, was not computing."""
        return 1 - self.native_seconds / self.step_seconds if self.step_seconds > 0 else 0.0


@dataclass(frozen=True)
class EngineStats:
    """One look at an engine.

    ``store`` is about KV blocks kept in RAM or on disk beyond the pool, None if none are. ``resident_bytes`` is the
    memory of the whole process, 0 where the system does not tell. ``num_threads`` computed the latest step: fewer than
    planned while others need their CPUs.
    """

    scheduler: SchedulerCounters
    store: StoreStats | None
    steps: StepStats
    resident_bytes: int
    num_threads: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Return how many tokens the prompts had that were read."""
        counters = self.scheduler
        return counters.num_pool_hit_tokens + counters.num_store_hit_tokens + counters.num_missed_tokens

    @property
    def hit_rate(self) -> float:
        """Return which share of these tokens, 0 to 1, was known and not computed again."""
        return 1 - self.scheduler.num_missed_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0


@dataclass
class _Step:
    began: float
    ended: float = 0.0
    native_seconds: float = 0.0
    num_prompt_tokens: int = 0
    num_answer_tokens: int = 0
    kv_bytes: int = 0
    int8_ops: int = 0


class StepMeter:
    """Takes the time of steps in the engine's thread, and tells any thread about it."""

    def __init__(self, work: StepWork, clock: Callable[[], float] = time.perf_counter) -> None:
        self._work = work
        self._clock = clock
        self._step: _Step | None = None
        self._recent: deque[_Step] = deque()
        self._lock = threading.Lock()
        self._num_steps = 0
        self._step_seconds = 0.0
        self._native_seconds = 0.0
        self._kv_bytes = 0

    def begin(self) -> None:
        """Take note that a step begins."""
        self._step = _Step(began=self._clock())

    def computed(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """Take note of what the core did in the step."""
        if self._step is not None:
            self._step.native_seconds = seconds
            self._step.num_prompt_tokens = plan.num_tokens - plan.num_decodes
            self._step.num_answer_tokens = len(result.samples)
            self._step.kv_bytes = self._work.kv_bytes(plan)
            self._step.int8_ops = self._work.int8_ops(plan)

    def end(self) -> None:
        """Take note that everybody was told about the step; one that computed nothing does not count."""
        step, self._step = self._step, None
        if step is None or not step.native_seconds:
            return
        step.ended = self._clock()
        with self._lock:
            self._num_steps += 1
            self._step_seconds += step.ended - step.began
            self._native_seconds += step.native_seconds
            self._kv_bytes += step.kv_bytes
            self._recent.append(step)
            self._forget(step.ended)

    def stats(self) -> StepStats:
        """Return what was noted so far; may be called from any thread."""
        now = self._clock()
        with self._lock:
            self._forget(now)
            seconds = min(_WINDOW_SECONDS, now - self._recent[0].began) if self._recent else 1.0
            return StepStats(
                num_steps=self._num_steps,
                step_seconds=self._step_seconds,
                native_seconds=self._native_seconds,
                prompt_rate=sum(step.num_prompt_tokens for step in self._recent) / seconds,
                answer_rate=sum(step.num_answer_tokens for step in self._recent) / seconds,
                kv_bytes_read=self._kv_bytes,
                decode_read_rate=self._decode_read_rate(),
                prompt_int8_rate=self._prompt_int8_rate(),
            )

    def _decode_read_rate(self) -> float:
        steps = [step for step in self._recent if not step.num_prompt_tokens]
        num_bytes = sum(self._work.weight_bytes + step.kv_bytes for step in steps)
        return num_bytes / sum(step.native_seconds for step in steps) if steps else 0.0

    def _prompt_int8_rate(self) -> float:
        steps = [step for step in self._recent if step.num_prompt_tokens]
        num_ops = sum(step.int8_ops for step in steps)
        return num_ops / sum(step.native_seconds for step in steps) if steps else 0.0

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0].ended < now - _WINDOW_SECONDS:
            self._recent.popleft()


class MeteredRunner:
    """Runs plans as another runner does and takes the time."""

    def __init__(self, runner: Runner, meter: StepMeter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner = runner
        self._meter = meter
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan``, as ``Runner.run`` does."""
        began = self._clock()
        result = self._runner.run(plan)
        self._meter.computed(plan, result, self._clock() - began)
        return result
