"""Loads a model and measures cells in turns, so that what comes over the machine comes over all of them.

Leaves to others: which cells (``run``), one of them (``cell_meter``) and the judgement (``verdict``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, cast

from treadle.engine.batching import Batching
from treadle.engine.choose import NATIVE
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS, kv_block_bytes
from treadle.engine.open_runner import open_runner
from treadle.engine.profile.cell_meter import MOST_STEPS, CellMeter
from treadle.engine.profile.facts import describe_machine, describe_model, describe_settings
from treadle.engine.profile.limits import LimitWatch, fits_in_cache
from treadle.engine.profile.operators import float_operators
from treadle.engine.profile.record import SCHEMA, ProfileRecord
from treadle.engine.profile.verdict import judge
from treadle.engine.runner import NativeRunner
from treadle.engine.step_bench import StepBench
from treadle.engine.tuning import treadle_version
from treadle.errors import CapacityError
from treadle.hardware.machine import read_machine
from treadle.hardware.memory import set_huge_pages, swapped_bytes

if TYPE_CHECKING:
    from treadle.engine.execution_plan import ExecutionPlan
    from treadle.engine.profile.cell_meter import Work
    from treadle.hardware.counters import CounterSet, Counts
    from treadle.models.gguf import ModelFile

__all__ = ["Profiler"]

_SHARE_OF_TIME = 0.9  # for turns; the rest is for limits and for turns that end late
_LEAST_TURNS = 2
_WARM_UP_TOKENS = 32
_SECONDS_BETWEEN_LOOKS = 2.0


class Profiler:
    """Profiles a model as it is planned."""

    def __init__(
        self, file: ModelFile, plan: ExecutionPlan, works: Sequence[Work], progress: Callable[[str], None]
    ) -> None:
        self._file, self._plan, self._works, self._progress = file, plan, works, progress
        self._started = time.perf_counter()
        room = min((file.hyperparameters.context_length - work.num_tokens for work in works), default=MOST_STEPS)
        self._most_steps = max(1, min(MOST_STEPS, room))

    def run(self, seconds: float, isa: str, open_counters: Callable[[], CounterSet]) -> ProfileRecord:
        """Measure until ``seconds`` from the start are over, but every cell twice at least.

        Raises:
            CapacityError: What the streams hold does not fit in memory.
        """
        machine = read_machine()
        runner = self._load(isa)
        bench = StepBench(runner)
        bench.touch_blocks()
        bench.prompt(_WARM_UP_TOKENS)
        cached = runner.decode_bytes if fits_in_cache(runner.decode_bytes, machine.caches) else None
        watch = LimitWatch(self._started, runner.kernels, cached)
        with open_counters() as counters:
            meters = [self._meter(work, runner, bench, machine.topology.usable, counters) for work in self._works]
            self._measure(meters, watch, self._started + seconds)
            uncounted, notes = _reasons(counters.read()), counters.notes
        swapped = swapped_bytes()
        facts, settings = describe_machine(machine), describe_settings(self._plan, runner)
        cells = []
        for meter in meters:
            cell = meter.cell(watch.limits(len(self._cpus(meter.work))), self._started, swapped)
            cells.append(replace(cell, verdict=judge(cell, facts, settings)))
        return ProfileRecord(
            schema=SCHEMA,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            treadle=treadle_version(),
            seconds=time.perf_counter() - self._started,
            model=describe_model(self._file, runner),
            machine=facts,
            settings=settings,
            speeds=tuple(watch.samples),
            cells=tuple(cells),
            uncounted=uncounted,
            notes=notes,
        )

    def _meter(
        self, work: Work, runner: NativeRunner, bench: StepBench, cpus: Collection[int], counters: CounterSet
    ) -> CellMeter:
        floats = float_operators(self._file)
        return CellMeter(
            work, runner, bench, most_steps=self._most_steps, float_names=floats, cpus=cpus, counters=counters
        )

    def _measure(self, meters: Sequence[CellMeter], watch: LimitWatch, deadline: float) -> None:
        share = _SHARE_OF_TIME * (deadline - time.perf_counter()) / len(meters)
        is_on, looked_at = True, float("-inf")
        while is_on:
            is_on = False
            for meter in meters:
                now = time.perf_counter()
                fits = meter.spent_seconds + meter.turn_seconds <= share and now + meter.turn_seconds <= deadline
                if meter.num_turns >= _LEAST_TURNS and (meter.is_full or not fits):
                    continue
                if now - looked_at > _SECONDS_BETWEEN_LOOKS:
                    self._progress("what the machine gives")
                    for cpus in {tuple(self._plan.threads.cpus), tuple(self._plan.prompt_threads.cpus)}:
                        watch.measure(cpus)
                    looked_at = time.perf_counter()
                self._progress(f"{meter.work.name}, turn {meter.num_turns + 1}")
                meter.turn()
                is_on = True

    def _cpus(self, work: Work) -> Sequence[int]:
        return self._plan.prompt_threads.cpus if work.kind == "prompt" else self._plan.threads.cpus

    def _load(self, isa: str) -> NativeRunner:
        num_blocks = max(_num_blocks(work, self._most_steps) for work in self._works)
        memory, block_bytes = self._plan.memory, kv_block_bytes(self._file.hyperparameters, self._plan.memory.kv_type)
        needed = memory.weight_bytes + memory.scratch_bytes + num_blocks * block_bytes
        if needed > memory.available_bytes:
            raise CapacityError(
                f"{self._file.name}: needs {needed / 1e6:,.0f} MB with {num_blocks * KV_BLOCK_TOKENS} tokens in its "
                f"streams, available are {memory.available_bytes / 1e6:,.0f} MB",
                hint="measure fewer streams or shorter prompts: --streams 1,2,4 --prompts 128",
            )
        self._progress("loading")
        set_huge_pages(self._plan.huge_pages)
        plan = replace(self._plan, memory=memory.with_blocks(num_blocks))
        runner = open_runner(self._file, NATIVE, isa=isa, plan=plan, batching=Batching(), progress=lambda *_: None)
        if self._plan.locks_memory:
            runner.lock_memory()
        return cast(NativeRunner, runner)


def _num_blocks(work: Work, most_steps: int) -> int:
    if work.kind == "prompt":
        return -(-work.num_tokens // KV_BLOCK_TOKENS)
    return work.num_streams * -(-(work.num_tokens + most_steps) // KV_BLOCK_TOKENS)


def _reasons(counts: Counts) -> dict[str, str]:
    return {name: count.why_not for name, count in counts.items() if count.value is None and count.why_not}
