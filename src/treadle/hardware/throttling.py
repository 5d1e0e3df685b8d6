"""How much CPU time this process was denied: by the quotas of its control groups and by the host of its machine.

Leaves to others: what the quotas are (limits.py) and what to do about it (the engine).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from treadle.hardware.kernel_files import parse_integer, read_fields
from treadle.hardware.limits import control_group_directories

__all__ = ["Throttling", "read_throttling"]

_Number = TypeVar("_Number", int, float)
_TICKS_PER_SECOND = 100  # in /proc/stat, whatever the kernel's own clock: USER_HZ of x86-64 and AArch64
_STEAL_FIELD = 7  # after user, nice, system, idle, iowait, irq and softirq
# The name of the time in cpu.stat and its units per second, in version 2 and version 1.
_THROTTLED_TIMES = (("throttled_usec", 1e6), ("throttled_time", 1e9))


@dataclass(frozen=True)
class Throttling:
    """Counters that only grow; None where the system does not tell.

    ``num_periods`` counts the quota's periods in which the process, or another of a group with it, wanted to run, and
    ``num_throttled`` those in which the quota was used up before the end. ``throttled_seconds`` is what runnable CPUs
    stood still for it: it may grow by several seconds per second. Each is the sum over all groups that bind this
    process. ``steal_seconds`` is what the host ran something else on the CPUs of this whole virtual machine.
    """

    num_periods: int | None
    num_throttled: int | None
    throttled_seconds: float | None
    steal_seconds: float | None


def read_throttling(root: Path = Path("/")) -> Throttling:
    """Read the counters as they stand; takes well under a millisecond."""
    groups = [read_fields(directory / "cpu.stat") for directory in control_group_directories(root, "cpu")]
    return Throttling(
        num_periods=_sum(_count(group.get("nr_periods")) for group in groups),
        num_throttled=_sum(_count(group.get("nr_throttled")) for group in groups),
        throttled_seconds=_sum(_throttled_seconds(group) for group in groups),
        steal_seconds=_steal_seconds(root),
    )


def _throttled_seconds(group: dict[str, str]) -> float | None:
    for name, units_per_second in _THROTTLED_TIMES:
        count = _count(group.get(name))
        if count is not None:
            return count / units_per_second
    return None


def _steal_seconds(root: Path) -> float | None:
    ticks = read_fields(root / "proc/stat").get("cpu", "").split()
    count = _count(ticks[_STEAL_FIELD]) if len(ticks) > _STEAL_FIELD else None
    return None if count is None else count / _TICKS_PER_SECOND


def _count(text: str | None) -> int | None:
    number = parse_integer(text or "")
    return None if number is None or number < 0 else number


def _sum(numbers: Iterable[_Number | None]) -> _Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
