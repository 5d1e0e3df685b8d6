"""Measures one cell, turn by turn: its rate without timers, its operators with them, and what it met meanwhile.

Leaves to others: how many turns there are and when (``run``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from treadle.engine.profile.conditions import add_conditions, conditions_between
from treadle.engine.profile.operators import OperatorSums
from treadle.engine.profile.record import Cell, Limits, Step, cell_name
from treadle.hardware.interference import read_interference

if TYPE_CHECKING:
    from treadle.engine.profile.record import Conditions
    from treadle.engine.runner import NativeRunner, StepTimings
    from treadle.engine.step_bench import StepBench, StepTime
    from treadle.hardware.counters import CounterSet, Counts

__all__ = ["MOST_STEPS", "CellMeter", "Work"]

_TURN_SECONDS = 0.2
MOST_STEPS = 32  # of decoding in a turn
_MOST_TURNS = 12
# A turn that took so many times as long as the typical one says more of the machine than of the operators.
_HELD_UP = 1.25


class _TimedTurn(NamedTuple):
    """What the core timed in so many passes, and how long they took."""

    timings: StepTimings
    num_passes: int
    seconds: float


@dataclass(frozen=True)
class Work:
    """What a cell computes; the arguments are those of ``Cell``."""

    kind: Literal["prompt", "decode"]
    num_tokens: int
    num_streams: int = 1

    @property
    def name(self) -> str:
        """Return what it is in words."""
        return cell_name(self.kind, self.num_tokens, self.num_streams)

    @property
    def tokens_per_pass(self) -> int:
        """Return how many tokens a pass computes."""
        return self.num_tokens if self.kind == "prompt" else self.num_streams


class CellMeter:
    """Measures some work; the KV blocks of ``runner`` must hold it with ``most_steps`` more tokens for each stream."""

    def __init__(
        self,
        work: Work,
        runner: NativeRunner,
        bench: StepBench,
        *,
        most_steps: int,
        float_names: frozenset[str],
        cpus: Collection[int],
        counters: CounterSet,
    ) -> None:
        self.work = work
        self.turn_seconds = 0.0  # of the latest turn
        self.spent_seconds = 0.0
        self.num_turns = 0
        self._runner, self._bench = runner, bench
        self._most_steps = min(MOST_STEPS, most_steps)
        self._cpus = cpus
        self._counters = counters
        self._float_names = float_names
        self._passes: dict[bool, list[float]] = {False: [], True: []}  # seconds of each turn's pass, by whether timed
        self._timed: list[_TimedTurn] = []
        self._steps: list[tuple[StepTime, bool]] = []
        self._conditions: Conditions | None = None
        self._counts: dict[str, int | None] = {}

    @property
    def is_full(self) -> bool:
        """Tell whether more turns would say nothing new."""
        return self.num_turns >= _MOST_TURNS

    def turn(self) -> None:
        """Measure once: a prompt with the operators timed; decoding without and with timers, in changing order."""
        before = read_interference(self._cpus)
        counted = self._counters.read()
        if self.work.kind == "prompt":
            self._run(True, 1)
        else:
            num_steps = self._num_steps()
            for is_timed in (False, True) if self.num_turns % 2 else (True, False):
                self._run(is_timed, num_steps)
        self._add_counts(self._counters.read().minus(counted))
        met = conditions_between(before, read_interference(self._cpus), len(self._cpus))
        self._conditions = met if self._conditions is None else add_conditions(self._conditions, met)
        self.num_turns += 1
        self.turn_seconds = met.seconds
        self.spent_seconds += met.seconds

    def cell(self, limits: Limits, started: float, swapped_bytes: int | None) -> Cell:
        """Return what was measured; ``started`` is when the profile did, by ``time.perf_counter``."""
        assert self._conditions is not None
        untimed = self._passes[False] or self._passes[True]
        sums, num_passes, seconds = self._typical_timings()
        cost = None if not self._passes[False] else median(self._passes[True]) / median(untimed) - 1
        return Cell(
            kind=self.work.kind,
            num_tokens=self.work.num_tokens,
            num_streams=self.work.num_streams,
            limits=limits,
            rates=tuple(self.work.tokens_per_pass / seconds for seconds in untimed),
            python_seconds=max(0.0, seconds - sums.core_seconds) / num_passes,
            timer_cost=cost,
            operators=sums.per_pass(num_passes),
            steps=tuple(
                Step(step.began - started, step.seconds, step.num_tokens, step.num_threads, is_timed)
                for step, is_timed in self._steps
            ),
            conditions=replace(self._conditions, swapped_bytes=swapped_bytes),
            counts=self._counts,
        )

    def _num_steps(self) -> int:
        """Return how many steps of decoding make a turn; the first time, a step is taken to find out."""
        if not self._steps:
            first = self._decode(1)[0]
            return max(1, min(self._most_steps, int(_TURN_SECONDS / first.seconds)))
        return max(1, min(self._most_steps, int(_TURN_SECONDS / median(self._passes[False]))))

    def _decode(self, num_steps: int) -> list[StepTime]:
        return self._bench.decode(context=self.work.num_tokens, num_steps=num_steps, num_streams=self.work.num_streams)

    def _run(self, is_timed: bool, num_steps: int) -> None:
        self._runner.set_timing(is_timed)
        is_prompt = self.work.kind == "prompt"
        steps = self._bench.prompt(self.work.num_tokens) if is_prompt else self._decode(num_steps)
        seconds = _elapsed(steps)
        self._passes[is_timed].append(seconds / num_steps)
        self._steps += [(step, is_timed) for step in steps]
        if is_timed:
            self._timed.append(_TimedTurn(self._runner.timings(), num_steps, seconds))
            self._runner.set_timing(False)

    def _typical_timings(self) -> tuple[OperatorSums, int, float]:
        """Return the sums of the turns that nothing held up, how many passes they had, and their seconds."""
        sums, num_passes, seconds = OperatorSums(self._float_names), 0, 0.0
        most = _HELD_UP * median(self._passes[True])
        for turn in self._timed:
            if turn.seconds / turn.num_passes <= most:
                sums.add(turn.timings)
                num_passes += turn.num_passes
                seconds += turn.seconds
        return sums, num_passes, seconds

    def _add_counts(self, counts: Counts) -> None:
        for name, count in counts.items():
            earlier = self._counts.get(name, 0)
            self._counts[name] = None if count.value is None or earlier is None else earlier + count.value


def _elapsed(steps: Sequence[StepTime]) -> float:
    return steps[-1].began + steps[-1].seconds - steps[0].began
