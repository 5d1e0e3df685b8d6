"""What one answer cost: the closing line of a command and its JSON form.

Leaves to others: measuring (the engine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.config import Settings
from treadle.hardware.memory import peak_memory_bytes

if TYPE_CHECKING:
    from treadle.engine.completion import Completion
    from treadle.engine.llm import LLM
    from treadle.engine.load import LoadReport
    from treadle.engine.remote.llm import RemoteLLM
    from treadle.engine.statistics import EngineStats

__all__ = ["closing_line", "completion_facts", "engine_line"]

# Beside an answer that took so long, measuring the machine, a quarter of a second and once in its life, is nothing.
_LONG_SECONDS = 2.0


def closing_line(completion: Completion, llm: LLM | RemoteLLM) -> str:
    """Return one line of rates: prompt and decode apart, and where this process computed them, bytes and memory."""
    parts = [f"prompt {completion.prompt_tokens} tokens{_rate(completion.prompt_rate)}"]
    parts.append(f"answer {completion.answer_tokens} tokens{_rate(completion.decode_rate)}")
    if llm.report is None:
        return ", ".join(parts)
    if completion.decode_rate is not None:
        rate = llm.report.decode_bytes * completion.decode_rate
        parts.append(f"{rate / 1e9:.1f} GB/s{_share_of_limit(completion, llm.report, rate)}")
    if peak_bytes := peak_memory_bytes():
        parts.append(f"peak memory {peak_bytes / 1e6:.0f} MB")
    return ", ".join(parts)


def engine_line(stats: EngineStats) -> str:
    """Return one line on where the engine's time went and what it knew already."""
    steps, num_cached = stats.steps, stats.num_prompt_tokens - stats.scheduler.num_missed_tokens
    return (
        f"engine: {steps.num_steps} steps in {steps.step_seconds:.2f} s, {100 * steps.overhead_share:.1f} % of it "
        f"outside the core; {num_cached} of {stats.num_prompt_tokens} prompt tokens were known"
    )


def completion_facts(completion: Completion, llm: LLM | RemoteLLM) -> dict[str, Any]:
    """Return an answer and what it cost as JSON takes it; what could not be measured is null."""
    report = llm.report
    return {
        "model": llm.name,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "completion_tokens": completion.answer_tokens,
        "load_seconds": None if report is None else report.load_seconds,
        "prefill_seconds": completion.timings.prefill_seconds,
        "decode_seconds": completion.timings.decode_seconds,
        "prompt_tokens_per_second": completion.prompt_rate,
        "decode_tokens_per_second": completion.decode_rate,
        "decode_bytes_per_token": None if report is None else report.decode_bytes,
        "peak_memory_bytes": peak_memory_bytes() or None,
    }


def _share_of_limit(completion: Completion, report: LoadReport, rate: float) -> str:
    """Return which share of the machine's bandwidth a rate is, if that is known, or soon measured after a long answer.

    Nothing for weights that come from the caches, which have no part in it.
    """
    from treadle.engine.bandwidth_record import keep_bandwidth, known_bandwidth  # noqa: PLC0415  nobody waits by now
    from treadle.engine.outset import view_machine  # noqa: PLC0415
    from treadle.hardware.machine_speed import measure_speed  # noqa: PLC0415

    home, machine, cpus = Settings.from_environment().home, view_machine(), report.thread_plan.cpus
    limit = known_bandwidth(home, machine, len(cpus))
    if limit is None and completion.timings.decode_seconds >= _LONG_SECONDS:
        speed = measure_speed(cpus)
        if speed is not None:
            limit = speed.read_bytes_per_second
            keep_bandwidth(home, machine, {len(cpus): [speed]})
    return "" if limit is None or rate > limit else f" ({rate / limit:.0%} of the machine's)"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f" at {rate:.1f} tok/s"
