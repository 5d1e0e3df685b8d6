"""How many worker threads to run and where, with the reason; starting and pinning them is the native core's job."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import UsageError
from treadle.hardware.cores import Core
from treadle.hardware.limits import CpuQuota, cpu_quota
from treadle.hardware.topology import Topology, read_topology

__all__ = ["MAX_THREADS", "UNPINNED", "ThreadPlan", "assign_threads", "plan_threads", "split_cores"]

MAX_THREADS = 1024
UNPINNED = -1


@dataclass(frozen=True)
class ThreadPlan:
    """One entry of ``cpus`` per worker: the CPU to pin it to, or -1 to leave its place to the kernel."""

    cpus: list[int]
    reason: str

    @property
    def num_threads(self) -> int:
        """How many workers, the calling thread included."""
        return len(self.cpus)


def plan_threads(
    explicit: int | None = None, root: Path = Path("/"), affinity: Collection[int] | None = None
) -> ThreadPlan:
    """Plans the threads of this process from what the system says now; see ``assign_threads``.

    Args:
        explicit: The caller's number of threads.
        root: The folder that holds ``proc`` and ``sys``.
        affinity: CPUs to use instead of the mask of the calling thread.
    """
    return assign_threads(read_topology(root, affinity), cpu_quota(root), explicit)


def assign_threads(
    topology: Topology,
    quota: CpuQuota | None,
    explicit: int | None = None,
    *,
    why: str = "as asked for",
    cpus: Collection[int] | None = None,
    pin: bool | None = None,
    num_reserved: int = 0,
) -> ThreadPlan:
    """Plans one worker per usable physical core, or ``explicit`` workers.

    Usable are the physical cores in the affinity mask, without the efficiency cores of a processor with two kinds,
    and not more than the tightest CPU quota of any control group, rounded down, at least 1.

    Workers are pinned when they fill those cores. Fewer workers than cores stay unpinned: two processes that each
    picked "the first two cores" would fight over them while others idle.

    Args:
        topology: The CPUs of the machine.
        quota: The tightest CPU quota.
        explicit: The caller's number of threads, 1 to 1024; wins over everything measured.
        why: Who set ``explicit``, in words.
        cpus: Leave the cores alone that have none of these CPUs; None uses all.
        pin: Whether to pin the workers; None decides as above.
        num_reserved: How many cores to leave to others, see ``split_cores``; one is used in any case.

    Raises:
        UsageError: ``explicit`` is out of range.
    """
    wanted = _checked(explicit)
    cores = [core for core in topology.cores if cpus is None or not frozenset(cpus).isdisjoint(core.cpus)]
    num_near = len(cores)
    cores, reserved = split_cores(cores, num_reserved)
    performance = [core for core in cores if not core.is_efficiency] or cores
    usable = len(performance) if quota is None else min(len(performance), max(1, int(quota.num_cpus)))
    places = _places(usable if wanted is None else wanted, performance, cores, pin)
    basis = _describe(performance, len(cores) - len(performance), quota)
    if num_near < len(topology.cores):
        basis += f", {_counted(len(topology.cores) - num_near, 'core')} on other memory nodes left out"
    if reserved:
        basis += f", {_counted(len(reserved), 'core')} reserved for others"
    if wanted is not None:
        basis = f"{why}{f', above the {usable} usable' if wanted > usable else ''} ({basis})"
    return ThreadPlan(places, f"{_counted(len(places), 'thread')}: {basis}; {_describe_places(places)}")


def split_cores(cores: Sequence[Core], num_reserved: int) -> tuple[list[Core], list[Core]]:
    """Return the cores to use and those left to others: the last ones, slow ones before fast ones, but never all."""
    ranked = sorted(cores, key=lambda core: core.is_efficiency)
    num_used = max(1, len(ranked) - num_reserved)
    reserved = ranked[num_used:]
    return [core for core in cores if core not in reserved], reserved


def _checked(explicit: int | None) -> int | None:
    if explicit is None:
        return None
    try:
        number = operator.index(explicit)
    except TypeError:
        number = 0
    if not 1 <= number <= MAX_THREADS:
        raise UsageError(f"threads is {explicit!r}, expected a whole number, 1 to {MAX_THREADS}")
    return number


def _places(num_threads: int, performance: list[Core], cores: list[Core], pin: bool | None) -> list[int]:
    if pin is False or (pin is None and num_threads < len(performance)):
        return [UNPINNED] * num_threads
    efficiency = [core for core in cores if core not in performance]
    first_threads = [core.cpus[0] for core in performance + efficiency]
    siblings = [cpu for core in cores for cpu in core.cpus[1:]]
    places = (first_threads + siblings)[:num_threads]
    return places + [UNPINNED] * (num_threads - len(places))


def _describe(performance: list[Core], num_efficiency: int, quota: CpuQuota | None) -> str:
    parts = [f"{_counted(len(performance), 'physical core')} in the affinity mask"]
    if not all(core.knows_siblings for core in performance):
        parts = [f"{_counted(len(performance), 'CPU')} in the affinity mask (which share a core is not known)"]
    if num_efficiency:
        parts.append(f"{_counted(num_efficiency, 'efficiency core')} left out")
    parts.append("no CPU quota" if quota is None else f"CPU quota {quota.num_cpus:g} in {quota.source}")
    return ", ".join(parts)


def _describe_places(cpus: list[int]) -> str:
    pinned = [str(cpu) for cpu in cpus if cpu != UNPINNED]
    if not pinned:
        return "not pinned"
    return f"pinned to CPU {', '.join(pinned)}" + ("" if len(pinned) == len(cpus) else ", the others not pinned")


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
