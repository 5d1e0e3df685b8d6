"""Says what bounds a cell, and why, from its measurements alone.

Leaves to others: the numbers (``evidence``) and what would help (``advice``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from treadle.engine.profile.advice import Case, advise
from treadle.engine.profile.evidence import Evidence, gather
from treadle.engine.profile.record import Verdict

if TYPE_CHECKING:
    from treadle.engine.profile.record import Cell, VerdictKind
    from treadle.engine.profile.setup import MachineFacts, ProfileSettings

__all__ = ["judge"]

Found: TypeAlias = "tuple[VerdictKind, str]"

# From these shares of the time on, something holds the threads up more than it belongs to any machine.
_LEAST_THROTTLED, _LEAST_THROTTLED_PERIODS = 0.05, 0.1
_LEAST_STOLEN, _LEAST_QUEUED, _LEAST_ABSENT = 0.05, 0.08, 0.2
_CLEARLY_STOLEN = 0.03  # seconds; the clock of such time has hundredths
_LEAST_FAULTS = 20  # and as many per second, each of which waits for a disk; code that runs first causes some, too
_LEAST_WALKS = 0.2
_LEAST_WAITING = 0.3
# Where neither reading nor computing explains the time, less is enough: what each barrier costs is in the work, too.
_LEAST_WAITING_WHEN_IDLE = 0.05
# Without the rate of int8 operations, memory that is used less than this is not what bounds a cell.
_LEAST_READING = 0.6
# A cell that is further from its limit has something else to show.
_NEAR_LIMIT = 0.4
_NOTABLE = 0.15


def judge(cell: Cell, machine: MachineFacts, settings: ProfileSettings) -> Verdict | None:
    """Return what bounds a cell; None if nothing holds it up and the machine's limits were not measured."""
    evidence = gather(cell)
    found = next((found for rule in _RULES if (found := rule(cell, evidence, machine)) is not None), None)
    if found is None:
        return None
    kind, because = found
    return Verdict(kind, because, evidence.numbers(), advise(Case(kind, cell, evidence, machine, settings)))


def _swapped(cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    if min(cell.counts.get("major_faults") or 0, evidence.faults_per_second or 0.0) < _LEAST_FAULTS:
        return None
    swapped = cell.conditions.swapped_bytes
    held = "" if not swapped else f", and {swapped / 1e6:,.0f} MB of the process are in swap"
    return "swapped", f"{evidence.faults_per_second:,.0f} pages a second had to come from disk{held}"


def _throttled(_cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    share, periods = evidence.throttled_share or 0.0, evidence.throttled_periods or 0.0
    if share < _LEAST_THROTTLED and periods < _LEAST_THROTTLED_PERIODS:
        return None
    return "throttled", (
        f"the CPU quota was used up early in {periods:.0%} of its periods, and the threads stood still for {share:.0%} "
        "of their time"
    )


def _stolen(cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    is_clear = (cell.conditions.stolen_seconds or 0.0) >= _CLEARLY_STOLEN
    if not is_clear or (evidence.stolen_share or 0.0) < _LEAST_STOLEN:
        return None
    return "robbed", f"the host took {evidence.stolen_share:.0%} of the CPU time for others"


def _crowded(cell: Cell, evidence: Evidence, machine: MachineFacts) -> Found | None:
    """Threads that are ready and do not run: other programs are in their way, or they are in each other's."""
    queued, other, absent = evidence.queued_share or 0.0, evidence.other_share or 0.0, evidence.absent_share
    if queued < _LEAST_QUEUED and absent < _LEAST_ABSENT:
        return None
    parts = [f"some sat out in {absent:.0%} of the steps"] if absent >= _LEAST_ABSENT else []
    if queued >= _LEAST_QUEUED:
        parts.insert(0, f"they were ready and did not run for {queued:.0%} of their time")
    found = ", and ".join(parts)
    if cell.limits.num_threads > machine.num_cores:
        return "barrier-bound", f"{cell.limits.num_threads} threads share {machine.num_cores} cores: {found}"
    return "robbed", f"other programs took {other:.0%} of the CPUs from the threads: {found}"


def _walking(_cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    if (evidence.walk_share or 0.0) < _LEAST_WALKS:
        return None
    return "TLB-bound", f"finding pages takes about {evidence.walk_share:.0%} of the cycles"


def _waiting(cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    reading, computing = evidence.reading_time or 0.0, evidence.computing_time or 0.0
    needed, is_idle = max(reading, computing), cell.limits.num_threads > 1 and reading + computing < _NEAR_LIMIT
    if evidence.barrier_share < (_LEAST_WAITING_WHEN_IDLE if is_idle else max(_LEAST_WAITING, needed)):
        return None
    num_calls = sum(operator.num_calls for operator in cell.operators)
    return "barrier-bound", (
        f"threads wait for each other for {evidence.wait_share:.0%} of the time, steps start and end for "
        f"{evidence.barrier_share - evidence.wait_share:.0%}, and {num_calls:,.0f} pieces of "
        f"{cell.timed_seconds / max(1.0, num_calls) * 1e6:,.0f} us make a pass{_limits_in_words(cell, evidence)}"
    )


def _computing(cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    share = evidence.ops_share
    if evidence.reading_time is None or evidence.read_share is None:
        return None
    is_reading = evidence.reading_operators >= evidence.computing_operators
    if is_reading if share is not None else evidence.reading_time >= _LEAST_READING:
        return None
    rate = f"{cell.num_ops / cell.pass_seconds / 1e9:,.0f} G operations/s"
    if share is None:
        return "compute-bound", f"{rate}, while memory is at {evidence.read_share:.0%} of its limit"
    peak = f"of the arithmetic's peak ({cell.limits.int8_ops / 1e9:,.0f} G/s in int8)"
    return (
        "compute-bound",
        f"{rate} are {share:.0%} {peak}, memory is at {evidence.read_share:.0%}{_rest(cell, evidence)}",
    )


def _reading(cell: Cell, evidence: Evidence, _machine: MachineFacts) -> Found | None:
    if evidence.read_share is None:
        return None
    arithmetic = "" if evidence.ops_share is None else f", arithmetic is at {evidence.ops_share:.0%} of its peak"
    limits, rate = cell.limits, f"{cell.num_bytes / cell.pass_seconds / 1e9:.1f} GB/s are {evidence.read_share:.0%}"
    rest = arithmetic + _rest(cell, evidence)
    if limits.cache_bytes is not None:
        return "cache-bound", f"{rate} of what the caches give ({limits.cache_bytes / 1e9:.1f} GB/s){rest}"
    return "DRAM-bound", f"{rate} of what memory gives ({limits.memory_bytes / 1e9:.1f} GB/s){rest}"


# First what comes from elsewhere, for it hides what the model itself needs.
_RULES = (_swapped, _throttled, _stolen, _crowded, _walking, _waiting, _computing, _reading)


def _rest(cell: Cell, evidence: Evidence) -> str:
    """Where the time goes in a cell that has two limits, or is far from both."""
    if min(evidence.reading_operators, evidence.computing_operators) >= _NOTABLE:
        return (
            f"; {evidence.computing_operators:.0%} of the time operators compute for longer than they read, for "
            f"{evidence.reading_operators:.0%} it is the other way round"
        )
    if max(evidence.reading_time or 0.0, evidence.computing_time or 0.0) >= _NEAR_LIMIT:
        return ""
    slowest = max(cell.operators, key=lambda operator: operator.seconds)
    if slowest.seconds < cell.python_seconds:
        return f"; {cell.python_seconds / cell.timed_seconds:.0%} of the time is Python around the core"
    return f"; {slowest.name} takes {slowest.seconds / cell.timed_seconds:.0%} of the time"


def _limits_in_words(cell: Cell, evidence: Evidence) -> str:
    parts = []
    if evidence.read_share is not None:
        place = "memory is" if cell.limits.cache_bytes is None else "caches are"
        parts.append(f"{place} at {evidence.read_share:.0%}")
    if evidence.ops_share is not None:
        parts.append(f"arithmetic at {evidence.ops_share:.0%}")
    return f"; {' and '.join(parts)} of the limit" if parts else ""
