"""Measures the few ways to run a model that may be faster than the plan's own on this machine.

Leaves to others: the time of a step (``StepBench``), the plan (``execution_plan``) and keeping the result (``tuning``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from treadle.engine.embedding import check_answers
from treadle.engine.execution_plan import MachineView, plan_execution, plan_threads_of
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS, kv_type_fits
from treadle.engine.memory_plan import MAX_BATCH_TOKENS
from treadle.engine.runner import NativeRunner
from treadle.engine.step_bench import StepBench
from treadle.engine.tuning import Tuning, describe_setup
from treadle.hardware.memory import set_huge_pages
from treadle.hardware.plan import UNPINNED

if TYPE_CHECKING:
    from treadle.config import Settings
    from treadle.hardware.plan import ThreadPlan
    from treadle.hardware.topology import Topology
    from treadle.models.gguf import ModelFile

__all__ = ["Trial", "tune"]

_PROMPT_TOKENS = 128
_CONTEXT, _LONG_CONTEXT = 256, 4096
_DECODE_SECONDS = 0.3  # of steps in a row, for one figure
_MAX_STEPS = 64
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 9
# What is not faster by this factor, in nearly every round, is not worth being different.
_LEAST_GAIN = 1.02
# Parts of the time for threads, huge pages and KV types; the rest is for loading.
_SHARES = (0.5, 0.2, 0.15)


@dataclass
class Trial:
    """One way to run, and its tokens per second in each round: of prompts, and of one stream that decodes."""

    name: str
    settings: dict[str, Any]
    prompt_rates: list[float] = field(default_factory=list)
    decode_rates: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return medians for people and JSON."""
        return {
            "name": self.name,
            "settings": self.settings,
            "prompt_rate": round(median(self.prompt_rates), 2) if self.prompt_rates else None,
            "decode_rate": round(median(self.decode_rates), 2) if self.decode_rates else None,
        }


def tune(
    file: ModelFile,
    settings: Settings,
    machine: MachineView,
    *,
    seconds: float = 60.0,
    takes_lossy: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Measure the alternatives in about ``seconds`` and return what was faster than the plan's own choice.

    Args:
        file: The model.
        settings: What is set stays as it is; only what is open is tried.
        machine: The machine.
        seconds: For everything, loading included; a large model may need more for two rounds of each.
        takes_lossy: Whether a KV type that is less exact may be chosen; it is measured in any case.
        progress: Hears what is being measured.

    Raises:
        UsageError: The model gives no answers.
    """
    check_answers(file, "tuning")
    tuner = _Tuner(file, settings, machine, time.monotonic() + seconds, progress)
    chosen = tuner.threads(_SHARES[0] * seconds)
    chosen |= tuner.huge_pages(_SHARES[1] * seconds)
    chosen |= tuner.kv_types(_SHARES[2] * seconds, takes_lossy=takes_lossy)
    return Tuning(chosen, describe_setup(machine), [trial.as_dict() for trial in tuner.trials])


class _Tuner:
    def __init__(
        self,
        file: ModelFile,
        settings: Settings,
        machine: MachineView,
        deadline: float,
        progress: Callable[[str], None],
    ) -> None:
        self._file, self._settings, self._machine = file, settings, machine
        self._deadline, self._progress = deadline, progress
        self._plan = plan_execution(file, settings, machine)
        self._num_blocks = -(-(_LONG_CONTEXT + _MAX_STEPS) // KV_BLOCK_TOKENS)
        progress("loading")
        set_huge_pages(self._plan.huge_pages)
        self._runner = self._load()
        self.trials: list[Trial] = []

    def threads(self, seconds: float) -> dict[str, Any]:
        """Compare numbers of threads and pinning."""
        ways = _ways(self._settings, self._machine.topology, self._plan.threads)
        trials = [Trial(_name(given), given) for given in ways]
        bench = StepBench(self._runner)

        def run(trial: Trial) -> None:
            settings = replace(self._settings, **trial.settings)
            threads, _ = plan_threads_of(settings, self._machine, self._plan.placement)
            self._runner.set_threads(threads.cpus)
            bench.decode_seconds(context=_CONTEXT, num_steps=1)
            trial.prompt_rates.append(_PROMPT_TOKENS / bench.prompt_seconds(_PROMPT_TOKENS))
            trial.decode_rates.append(_decode_rate(bench, _CONTEXT))

        self._compare(trials, run, seconds)
        fastest = _fastest(trials, lambda trial: trial.decode_rates)
        chosen = dict(fastest.settings)
        if self._settings.prompt_threads is None and self._settings.threads is None:
            usual = [trial for trial in trials if "pin" not in trial.settings]
            reader = _fastest(usual, lambda trial: trial.prompt_rates, fastest if fastest in usual else None)
            chosen |= _for_prompts(chosen, reader, self._plan.threads.num_threads)
        threads = plan_threads_of(replace(self._settings, **chosen), self._machine, self._plan.placement)
        self._runner.set_threads(threads[0].cpus, threads[1].cpus)
        return chosen

    def huge_pages(self, seconds: float) -> dict[str, Any]:
        """Compare memory with and without huge pages: two copies of the model, if there is room."""
        machine = self._machine
        if self._settings.huge_pages is not None or machine.huge_pages.mode not in ("always", "madvise"):
            return {}
        if 3 * self._file.file_bytes > machine.memory.available_bytes:
            return {}
        trials = [Trial("huge pages", {}), Trial("small pages", {"huge_pages": False})]
        self._progress("loading once more, with small pages")
        set_huge_pages(False)
        try:
            benches = [StepBench(self._runner), StepBench(self._load())]
            benches[1].prompt_seconds(_PROMPT_TOKENS)  # touches its memory
        finally:
            set_huge_pages(True)

        def run(trial: Trial) -> None:
            bench = benches[trials.index(trial)]
            trial.prompt_rates.append(_PROMPT_TOKENS / bench.prompt_seconds(_PROMPT_TOKENS))
            trial.decode_rates.append(_decode_rate(bench, _CONTEXT))

        self._compare(trials, run, seconds)
        return dict(_fastest(trials, lambda trial: trial.decode_rates).settings)

    def kv_types(self, seconds: float, *, takes_lossy: bool) -> dict[str, Any]:
        """Compare the KV types at a long context."""
        shape = self._file.hyperparameters
        context = min(_LONG_CONTEXT, shape.context_length - _MAX_STEPS)
        if self._settings.kv_type or context < _CONTEXT or not kv_type_fits("q8_0", shape):
            return {}
        name = f"at {context} tokens of context"
        trials = [Trial(f"f16 {name}", {}), Trial(f"q8_0 {name}", {"kv_type": "q8_0"})]
        cpus = self._runner.cpus
        other = NativeRunner(
            self._runner.model,
            cpus=cpus,
            num_blocks=self._num_blocks,
            max_batch_tokens=MAX_BATCH_TOKENS,
            kv_type="q8_0",
        )
        benches = [StepBench(self._runner), StepBench(other)]
        for bench in benches:
            bench.touch_blocks()

        def run(trial: Trial) -> None:
            trial.decode_rates.append(_decode_rate(benches[trials.index(trial)], context))

        self._compare(trials, run, seconds)
        fastest = _fastest(trials, lambda trial: trial.decode_rates)
        return dict(fastest.settings) if takes_lossy else {}

    def _load(self) -> NativeRunner:
        with self._plan.placement.applied():
            return NativeRunner.load(
                self._file,
                isa=self._settings.isa,
                cpus=self._plan.threads.cpus,
                home_cpus=self._plan.placement.cpus,
                copies=self._plan.placement.copies,
                num_blocks=self._num_blocks,
                max_batch_tokens=MAX_BATCH_TOKENS,
            )

    def _compare(self, trials: Sequence[Trial], run: Callable[[Trial], None], seconds: float) -> None:
        """Run all in turn, so that what comes over the machine comes over all; the first round warms up."""
        self.trials += trials
        end = min(self._deadline, time.monotonic() + seconds)
        for number in range(_MOST_ROUNDS + 1):
            for trial in trials:
                self._progress(f"{trial.name}, round {number}" if number else f"{trial.name}, warming up")
                run(trial)
            if number == 0:
                for trial in trials:
                    trial.prompt_rates.clear()
                    trial.decode_rates.clear()
            elif number >= _LEAST_ROUNDS and time.monotonic() > end:
                return


def _decode_rate(bench: StepBench, context: int) -> float:
    """Tokens per second of steps in a row that take about as long as one figure should."""
    first = bench.decode_seconds(context=context, num_steps=1)[0]
    num_steps = max(2, min(_MAX_STEPS, int(_DECODE_SECONDS / first)))
    return num_steps / sum(bench.decode_seconds(context=context, num_steps=num_steps))


def _ways(settings: Settings, topology: Topology, usual: ThreadPlan) -> list[dict[str, Any]]:
    """The plan's own way first, then those that some machines are faster with."""
    ways: list[dict[str, Any]] = [{}]
    if settings.threads is None:
        num_fast, num_cores = len(topology.performance_cores), len(topology.cores)
        numbers = {num_fast - 1, num_fast // 2, 3 * num_fast // 4, num_fast, num_cores, len(topology.usable)}
        ways += [{"threads": number} for number in sorted(numbers - {0, usual.num_threads})]
    if settings.pin is None:
        ways.append({"pin": UNPINNED in usual.cpus})
    return ways


def _for_prompts(chosen: dict[str, Any], reader: Trial, planned: int) -> dict[str, Any]:
    """What is to be set so that prompts are read by as many threads as ``reader`` had."""
    number = reader.settings.get("threads", planned)
    return {} if number == chosen.get("threads", planned) else {"prompt_threads": number}


def _name(given: dict[str, Any]) -> str:
    if "threads" in given:
        return f"{given['threads']} thread{'s' if given['threads'] > 1 else ''}"
    return {None: "the plan's own", True: "pinned", False: "not pinned"}[given.get("pin")]


def _fastest(trials: Sequence[Trial], rates: Callable[[Trial], list[float]], usual: Trial | None = None) -> Trial:
    """The trial with the best median, if it beats the usual one, by default the first, clearly and nearly always."""
    usual = trials[0] if usual is None else usual
    best = max(trials, key=lambda trial: median(rates(trial)))
    num_won = sum(one > other for one, other in zip(rates(best), rates(usual), strict=True))
    is_clear = median(rates(best)) > _LEAST_GAIN * median(rates(usual))
    return best if is_clear and num_won >= 0.75 * len(rates(usual)) else usual
