"""How much CPU time this process gets, and how much of what it wanted others got instead, as counters to compare.

Leaves to others: what to do about it (``engine.thread_watch``).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import parse_integer, read_fields, read_integer
from treadle.hardware.limits import cpu_quota
from treadle.hardware.throttling import read_throttling

__all__ = ["CpuTime", "read_cpu_time"]

_TICKS_PER_SECOND = 100  # in /proc/stat, on x86-64 and AArch64


@dataclass(frozen=True)
class CpuTime:
    """Counters at a moment; seconds are CPU seconds, None where the system does not tell.

    ``quota_cpus`` is the tightest quota and ``group_seconds`` what all processes under it used; ``throttled_seconds``
    are those that its threads were ready to run and had to wait for the next period. Of the ``wanted_seconds`` of this
    whole virtual machine its host took ``stolen_seconds``. ``cpus`` are those the process may run on.
    """

    now: float
    own_seconds: float
    throttled_seconds: float
    wanted_seconds: float
    stolen_seconds: float
    quota_cpus: float | None
    group_seconds: float | None
    cpus: frozenset[int]


def read_cpu_time(root: Path = Path("/")) -> CpuTime:
    """Read the counters; takes well under a millisecond."""
    quota = cpu_quota(root)
    wanted, stolen = _machine_seconds(root)
    is_known = hasattr(os, "sched_getaffinity")
    return CpuTime(
        now=time.monotonic(),
        own_seconds=time.process_time(),
        throttled_seconds=(read_throttling(root).throttled_seconds or 0.0) if quota is not None else 0.0,
        wanted_seconds=wanted,
        stolen_seconds=stolen,
        quota_cpus=None if quota is None else quota.num_cpus,
        group_seconds=None if quota is None else _group_seconds(root / quota.source.lstrip("/")),
        # Of the main thread: those that compute are moved about.
        cpus=frozenset(os.sched_getaffinity(os.getpid())) if is_known else frozenset(),
    )


def _machine_seconds(root: Path) -> tuple[float, float]:
    """The time that was wanted, and the part of it that the host took, on all CPUs together."""
    ticks = [parse_integer(word) or 0 for word in read_fields(root / "proc/stat").get("cpu", "").split()]
    if len(ticks) < 8:  # user, nice, system, idle, iowait, irq, softirq, steal
        return 0.0, 0.0
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / _TICKS_PER_SECOND, ticks[7] / _TICKS_PER_SECOND


def _group_seconds(quota_file: Path) -> float | None:
    """What the group of a quota used: version 2 says it beside the quota, version 1 if both share a hierarchy."""
    microseconds = parse_integer(read_fields(quota_file.with_name("cpu.stat")).get("usage_usec", ""))
    if microseconds is not None:
        return microseconds / 1e6
    nanoseconds = read_integer(quota_file.with_name("cpuacct.usage"))
    return None if nanoseconds is None else nanoseconds / 1e9
