"""What kept this process from its CPUs and memory, as counters to compare: quotas, the host, other programs, swap.

Leaves to others: what that means for a model (``engine.profile.verdict``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import parse_integer, read_fields, read_text
from treadle.hardware.throttling import read_throttling

if sys.platform != "win32":
    import resource

__all__ = ["Interference", "read_interference"]

_TICKS_PER_SECOND = 100  # in /proc/stat, on x86-64 and AArch64
_PAGE_BYTES = 4096 if sys.platform == "win32" else resource.getpagesize()


@dataclass(frozen=True)
class Interference:
    """Counters at a moment, that only grow; None where the system does not tell.

    Seconds are CPU seconds, but for ``now``, a clock's. ``throttled_seconds`` threads of the process's control groups
    waited for the next period of a quota. Of the CPUs that were asked about, programs used ``busy_seconds`` and the
    host took ``stolen_seconds``. ``queued_seconds`` the threads of this process were ready and did not run.
    ``swapped_in_bytes`` is what the whole machine brought back from swap.
    """

    now: float
    own_seconds: float
    throttled_seconds: float | None
    num_periods: int | None
    num_throttled: int | None
    busy_seconds: float | None
    stolen_seconds: float | None
    queued_seconds: float | None
    swapped_in_bytes: int | None


def read_interference(cpus: Collection[int], root: Path = Path("/")) -> Interference:
    """Read the counters; takes about a millisecond.

    Args:
        cpus: The CPUs whose other programs count.
        root: The folder that holds ``proc`` and ``sys``.
    """
    throttling = read_throttling(root)
    busy, stolen = _cpu_seconds(cpus, root)
    pages = parse_integer(read_fields(root / "proc/vmstat").get("pswpin", ""))
    return Interference(
        now=time.perf_counter(),
        own_seconds=time.process_time(),
        throttled_seconds=throttling.throttled_seconds,
        num_periods=throttling.num_periods,
        num_throttled=throttling.num_throttled,
        busy_seconds=busy,
        stolen_seconds=stolen,
        queued_seconds=_queued_seconds(root),
        swapped_in_bytes=None if pages is None else pages * _PAGE_BYTES,
    )


def _cpu_seconds(cpus: Collection[int], root: Path) -> tuple[float | None, float | None]:
    """What programs used of the CPUs, and what the host took of them."""
    fields = read_fields(root / "proc/stat")
    lines = [[parse_integer(word) or 0 for word in fields.get(f"cpu{cpu}", "").split()] for cpu in cpus]
    if not lines or any(len(line) < 8 for line in lines):  # user, nice, system, idle, iowait, irq, softirq, steal
        return None, None
    busy = sum(sum(line[:3]) + line[5] + line[6] for line in lines)
    return busy / _TICKS_PER_SECOND, sum(line[7] for line in lines) / _TICKS_PER_SECOND


def _queued_seconds(root: Path) -> float | None:
    """How long the threads of this process waited for a CPU, as far as the kernel keeps such statistics."""
    waits = []
    try:
        threads = os.listdir(root / "proc/self/task")  # noqa: PTH208  names, of which there may be a thousand
    except OSError:
        return None
    for thread in threads:
        words = (read_text(root / "proc/self/task" / thread / "schedstat") or "").split()
        nanoseconds = parse_integer(words[1]) if len(words) == 3 else None
        if nanoseconds is not None:
            waits.append(nanoseconds)
    return sum(waits) / 1e9 if waits else None
