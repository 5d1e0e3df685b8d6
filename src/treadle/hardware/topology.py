"""Which CPUs there are, which of them this process may run on, and the cores and NUMA nodes behind those.

Leaves to others: caches (``caches``), limits on CPU time (``limits``) and how many cores to use (``plan``).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware import other_systems
from treadle.hardware.cores import Core, usable_cores
from treadle.hardware.kernel_files import parse_cpu_list, read_cpu_list, read_fields
from treadle.hardware.limits import allowed_cpus
from treadle.hardware.numa import NumaNode, read_nodes

__all__ = ["Topology", "lending_order", "read_topology"]


@dataclass(frozen=True)
class Topology:
    """The CPUs of a machine, and the cores and NUMA nodes behind those that this process may use."""

    online: frozenset[int]
    usable: frozenset[int]  # in the affinity mask and in every cpuset
    cores: tuple[Core, ...]  # the usable ones, by their lowest CPU
    nodes: tuple[NumaNode, ...]  # all of the machine; empty where it does not know them

    @property
    def performance_cores(self) -> tuple[Core, ...]:
        """Return the cores of the fast kind; all, if only slow ones are usable."""
        return tuple(core for core in self.cores if not core.is_efficiency) or self.cores

    @property
    def efficiency_cores(self) -> tuple[Core, ...]:
        """Return the cores of the slow kind beside faster ones."""
        fast = self.performance_cores
        return tuple(core for core in self.cores if core not in fast)

    @property
    def packages(self) -> frozenset[int]:
        """Return the numbers of the sockets whose cores are usable; empty where the system does not tell."""
        return frozenset(core.package for core in self.cores if core.package is not None)

    @property
    def knows_siblings(self) -> bool:
        """Tell whether the system says of every usable CPU which others share its core."""
        return all(core.knows_siblings for core in self.cores)


def read_topology(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Topology:
    """Describe the CPUs.

    Args:
        root: The folder that holds ``proc`` and ``sys``.
        affinity: CPUs to use instead of the mask of the calling thread.
    """
    usable = frozenset(affinity) if affinity else _runnable_cpus(root)
    allowed = allowed_cpus(root)
    if allowed is not None and allowed & usable:  # nothing in common: misread, for the mask is the kernel's own word
        usable &= allowed
    nodes = read_nodes(root)
    node_of = {cpu: node.node_id for node in nodes for cpu in node.cpus}
    return Topology(_online_cpus(root) or usable, usable, usable_cores(root, usable, node_of), nodes)


def lending_order(topology: Topology, threads: Collection[int]) -> list[frozenset[int]]:
    """Return the CPUs of each core in the order in which an engine would rather lose them.

    That is the cores without a thread first, slow ones before fast ones, and then that of its last thread.

    Args:
        topology: The CPUs of the machine.
        threads: Of each thread of the engine the CPU it stays on, or -1.
    """
    places = list(threads)

    def worth(core: Core) -> tuple[int, bool, int]:
        ranks = [places.index(cpu) for cpu in core.cpus if cpu in places]
        return (-min(ranks) if ranks else -len(places), not core.is_efficiency, -core.cpus[0])

    return [frozenset(core.cpus) for core in sorted(topology.cores, key=worth)]


def _online_cpus(root: Path) -> frozenset[int]:
    return read_cpu_list(root / "sys/devices/system/cpu/online") or frozenset()


def _runnable_cpus(root: Path) -> frozenset[int]:
    """The CPUs of the affinity mask; where the platform has none, all CPUs."""
    if root == Path("/") and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    if other_systems.is_here(root):
        return other_systems.runnable_cpus() or frozenset(range(os.cpu_count() or 1))
    mask = parse_cpu_list(read_fields(root / "proc/self/status").get("Cpus_allowed_list", "")) or frozenset()
    online = _online_cpus(root)
    return mask & online or mask or online or frozenset(range(os.cpu_count() or 1))
