"""Which CPUs this process may run on and which of them share a physical core; how many to use is plan.py's decision."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import parse_cpu_list, read_cpu_list, read_fields

__all__ = ["Core", "runnable_cpus", "usable_cores"]


@dataclass(frozen=True)
class Core:
    """One physical core; ``cpus`` are those of its hardware threads that this process may run on."""

    cpus: tuple[int, ...]
    is_efficiency: bool  # the slow kind of a processor with two kinds
    knows_siblings: bool  # False: the system does not tell which CPUs share a core, so this one counts alone


def runnable_cpus(root: Path) -> frozenset[int]:
    """The CPUs of the affinity mask; where the platform has none, all CPUs."""
    if root == Path("/") and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    mask = parse_cpu_list(read_fields(root / "proc/self/status").get("Cpus_allowed_list", ""))
    online = read_cpu_list(root / "sys/devices/system/cpu/online")
    return mask or online or frozenset(range(os.cpu_count() or 1))


def usable_cores(root: Path, cpus: Collection[int]) -> list[Core]:
    """The physical cores behind ``cpus``, in the order of their lowest CPU."""
    efficiency_cpus = read_cpu_list(root / "sys/devices/cpu_atom/cpus") or frozenset()
    cores: dict[int, Core] = {}
    counted: set[int] = set()
    for cpu in sorted(cpus):
        if cpu in counted:
            continue
        siblings = _siblings(root, cpu)
        threads = tuple(sorted((siblings or frozenset()) & frozenset(cpus) - counted)) or (cpu,)
        counted.update(threads)
        cores[cpu] = Core(threads, cpu in efficiency_cpus, siblings is not None)
    return list(cores.values())


def _siblings(root: Path, cpu: int) -> frozenset[int] | None:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = read_cpu_list(topology / name)
        if siblings is not None and cpu in siblings:
            return siblings
    return None
