"""Everything known about the machine and what it allows this process, in one description.

Leaves to others: reading each part (the modules beside it), and judging it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.caches import Cache, read_caches
from treadle.hardware.limits import CpuQuota, cpu_quota
from treadle.hardware.memory import (
    HugePages,
    MemoryBudget,
    Swap,
    memlock_limit_bytes,
    memory_budget,
    read_huge_pages,
    read_swap,
)
from treadle.hardware.surroundings import Processor, find_container, find_hypervisor, read_kernel, read_processor
from treadle.hardware.topology import Topology, read_topology

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True)
class Machine:
    """A machine as one process sees it."""

    topology: Topology
    caches: tuple[Cache, ...]
    processor: Processor
    quota: CpuQuota | None  # the tightest of the own control group and all above it
    memory: MemoryBudget
    huge_pages: HugePages
    swap: Swap
    memlock_bytes: int | None  # None: no limit
    kernel: str
    container: str | None
    hypervisor: str | None


def read_machine(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Machine:
    """Describe the machine; the arguments are those of ``read_topology``."""
    topology = read_topology(root, affinity)
    return Machine(
        topology=topology,
        caches=read_caches(root, topology.usable),
        processor=read_processor(root, topology.usable),
        quota=cpu_quota(root),
        memory=memory_budget(root),
        huge_pages=read_huge_pages(root),
        swap=read_swap(root),
        memlock_bytes=memlock_limit_bytes(),
        kernel=read_kernel(root),
        container=find_container(root),
        hypervisor=find_hypervisor(root),
    )
