"""The numbers that a verdict on a cell rests on: shares of its time, 0 to 1, from what was measured.

Leaves to others: what they mean (``verdict``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.engine.profile.operators import END, START
from treadle.hardware.roofline import FLOAT_REACH, INT8_REACH, READ_REACH

if TYPE_CHECKING:
    from treadle.engine.profile.record import Cell

__all__ = ["Evidence", "gather"]

# A walk through the page tables whose entries are in a cache, in cycles; from memory it takes several times as long.
_WALK_CYCLES = 30
_LINE_BYTES = 64


@dataclass(frozen=True)
class Evidence:
    """What is known of a cell; None where the system, or the processor, does not tell.

    ``read_share`` and ``ops_share`` are of the machine's limits; ``reading_time`` and ``computing_time`` which share of
    a pass the kernels, who do not reach those limits, are known to need for it. ``barrier_share`` is waiting for other
    threads, and starting and ending steps. CPU time is relative to what the threads could have had: ``throttled`` by a
    quota in so many of its periods, ``stolen`` by the host, used by ``other`` programs, ``queued`` while others ran.
    In ``absent_share`` of the steps fewer threads than planned took part.
    """

    read_share: float | None
    ops_share: float | None
    reading_time: float | None
    computing_time: float | None
    kv_share: float
    wait_share: float
    barrier_share: float
    throttled_share: float | None
    throttled_periods: float | None
    stolen_share: float | None
    other_share: float | None
    queued_share: float | None
    absent_share: float
    faults_per_second: float | None
    walk_share: float | None
    instructions_per_cycle: float | None
    memory_miss_share: float | None

    def numbers(self) -> dict[str, float]:
        """Return what is known, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


def gather(cell: Cell) -> Evidence:
    """Compute the numbers of a cell."""
    met, limits, total = cell.conditions, cell.limits, cell.timed_seconds
    cpu_seconds = met.seconds * limits.num_threads
    edges = sum(operator.seconds for operator in cell.operators if operator.name in (START, END))
    waits = sum(operator.wait_seconds for operator in cell.operators)
    cycles = cell.counts.get("cycles")
    misses = cell.counts.get("llc_load_misses")
    return Evidence(
        read_share=cell.read_share,
        ops_share=cell.ops_share,
        reading_time=None if cell.read_share is None else cell.read_share / READ_REACH,
        computing_time=None if cell.ops_share is None else _computing(cell),
        kv_share=_kv_bytes(cell) / cell.num_bytes if cell.num_bytes else 0.0,
        wait_share=waits / total,
        barrier_share=(waits + edges) / total,
        throttled_share=_over(met.throttled_seconds, cpu_seconds),
        throttled_periods=_over(met.num_throttled, met.num_periods),
        stolen_share=_over(met.stolen_seconds, cpu_seconds),
        other_share=_over(met.other_seconds, cpu_seconds),
        queued_share=_over(met.queued_seconds, cpu_seconds),
        absent_share=sum(step.num_threads < limits.num_threads for step in cell.steps) / max(1, len(cell.steps)),
        faults_per_second=_over(cell.counts.get("major_faults"), met.seconds),
        walk_share=_over(_times(cell.counts.get("dtlb_load_misses"), _WALK_CYCLES), cycles),
        instructions_per_cycle=_over(cell.counts.get("instructions"), cycles),
        memory_miss_share=_over(_times(misses, _LINE_BYTES / met.seconds), limits.memory_bytes)
        if met.seconds
        else None,
    )


def _computing(cell: Cell) -> float:
    """Which share of a pass its operations take, at the rate that the kernels reach."""
    reach = {"int8": INT8_REACH, "float": FLOAT_REACH}
    seconds = sum(operator.ops_seconds(cell.limits) / reach[operator.computes] for operator in cell.operators)
    return seconds / cell.pass_seconds


def _kv_bytes(cell: Cell) -> float:
    return sum(operator.num_bytes for operator in cell.operators if operator.name == "attention")


def _times(count: int | None, factor: float) -> float | None:
    return None if count is None else count * factor


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
