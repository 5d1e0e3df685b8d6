"""The numbers that a verdict on a cell rests on: shares of its time, 0 to 1, from what was measured.

Leaves to others: what they mean (``verdict``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from treadle.engine.profile.operators import END, START
from treadle.hardware.roofline import READ_REACH, float_reach, int8_reach

if TYPE_CHECKING:
    from treadle.engine.profile.record import Cell, Conditions, Limits, Operator

__all__ = ["Evidence", "gather", "operator_bound"]

Bound: TypeAlias = Literal["reading", "computing"]

# A walk through the page tables whose entries are in a cache, in cycles; from memory it takes several times as long.
_WALK_CYCLES = 30
_LINE_BYTES = 64


@dataclass(frozen=True)
class Evidence:
    """What is known of a cell; None where the system, or the processor, does not tell.

    ``read_share`` and ``ops_share`` are of the machine's limits; ``reading_time`` and ``computing_time`` which share of
    a pass the kernels, who do not reach those limits, are known to need for it. ``reading_operators`` take so much of
    it of which reading takes longer than computing, and ``computing_operators`` the other way round. ``barrier_share``
    is waiting for other threads, and starting and ending steps. Of the time that threads could have had they were
    ``throttled`` by a quota, in so many of its periods, and ``queued`` while others ran; ``stolen`` by the host is what
    it took of all that was wanted, and used by ``other`` programs of all CPUs. In ``absent_share`` of the steps fewer
    threads than planned took part.
    """

    read_share: float | None
    ops_share: float | None
    reading_time: float | None
    computing_time: float | None
    reading_operators: float
    computing_operators: float
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
        reading_operators=_time_in(cell, "reading"),
        computing_operators=_time_in(cell, "computing"),
        kv_share=_kv_bytes(cell) / cell.num_bytes if cell.num_bytes else 0.0,
        wait_share=waits / total,
        barrier_share=(waits + edges) / total,
        throttled_share=_over(met.throttled_seconds, cpu_seconds),
        throttled_periods=_over(met.num_throttled, met.num_periods),
        stolen_share=_over(met.stolen_seconds, _wanted(met)),
        other_share=_over(met.other_seconds, met.seconds * met.num_cpus),
        queued_share=_over(met.queued_seconds, cpu_seconds),
        absent_share=sum(step.num_threads < limits.num_threads for step in cell.steps) / max(1, len(cell.steps)),
        faults_per_second=_over(cell.counts.get("major_faults"), met.seconds),
        walk_share=_over(_times(cell.counts.get("dtlb_load_misses"), _WALK_CYCLES), cycles),
        instructions_per_cycle=_over(cell.counts.get("instructions"), cycles),
        memory_miss_share=_over(_times(misses, _LINE_BYTES / met.seconds), limits.memory_bytes)
        if met.seconds
        else None,
    )


def operator_bound(operator: Operator, limits: Limits) -> Bound | None:
    """Return what of an operator takes longer as far as kernels get; None for what is neither."""
    reading, computing = operator.read_seconds(limits) / READ_REACH, _kernel_seconds(operator, limits)
    if not reading and not computing:
        return None
    return "computing" if computing > reading else "reading"


def _time_in(cell: Cell, bound: Bound) -> float:
    found = (operator for operator in cell.operators if operator_bound(operator, cell.limits) == bound)
    return sum(operator.seconds for operator in found) / cell.timed_seconds


def _computing(cell: Cell) -> float:
    """Which share of a pass its operations take, at the rate that the kernels reach."""
    return sum(_kernel_seconds(operator, cell.limits) for operator in cell.operators) / cell.pass_seconds


def _kernel_seconds(operator: Operator, limits: Limits) -> float:
    reach = int8_reach if operator.computes == "int8" else float_reach
    return operator.ops_seconds(limits) / reach(limits.isa)


def _wanted(met: Conditions) -> float:
    return met.own_seconds + (met.other_seconds or 0.0) + (met.stolen_seconds or 0.0)


def _kv_bytes(cell: Cell) -> float:
    return sum(operator.num_bytes for operator in cell.operators if operator.name == "attention")


def _times(count: int | None, factor: float) -> float | None:
    return None if count is None else count * factor


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
