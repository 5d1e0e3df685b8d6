"""Counts what the system counts for every process anyway: faults, switches, moves to other CPUs, CPU time.

Leaves to others: counting in the processor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.hardware.counters_events import Event, Reading
from treadle.hardware.kernel_files import parse_integer, read_fields, read_text

if sys.platform != "win32":
    import resource

__all__ = ["process_readings", "thread_readings"]

_MINOR_FAULTS, _MAJOR_FAULTS = 7, 9  # of the words in a thread's stat after its name, see proc(5)


def process_readings() -> dict[Event, int]:
    """Return what all threads of this process did since it started, those that have ended with them."""
    if sys.platform == "win32":
        return {}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "context_switches": usage.ru_nvcsw + usage.ru_nivcsw,
        "task_clock_ns": round(1e9 * (usage.ru_utime + usage.ru_stime)),
    }


def thread_readings(thread_ids: Sequence[int], root: Path) -> dict[Event, dict[int, Reading]]:
    """Return what these threads of this process did since each started, without what the kernel does not tell."""
    found: dict[Event, dict[int, Reading]] = {}
    for thread_id in thread_ids:
        for event, value in _one_thread(root / f"proc/self/task/{thread_id}").items():
            found.setdefault(event, {})[thread_id] = Reading(value)
    return found


def _one_thread(folder: Path) -> dict[Event, int]:
    words = (read_text(folder / "stat") or "").rpartition(")")[2].split()
    status = read_fields(folder / "status")
    voluntary = parse_integer(status.get("voluntary_ctxt_switches", ""))
    involuntary = parse_integer(status.get("nonvoluntary_ctxt_switches", ""))
    known: dict[Event, int | None] = {
        "minor_faults": parse_integer(words[_MINOR_FAULTS]) if len(words) > _MAJOR_FAULTS else None,
        "major_faults": parse_integer(words[_MAJOR_FAULTS]) if len(words) > _MAJOR_FAULTS else None,
        "context_switches": None if voluntary is None or involuntary is None else voluntary + involuntary,
        "cpu_migrations": parse_integer(read_fields(folder / "sched").get("se.nr_migrations", "").lstrip(": ")),
        "task_clock_ns": parse_integer((read_text(folder / "schedstat") or "").partition(" ")[0]),
    }
    return {event: value for event, value in known.items() if value is not None}
