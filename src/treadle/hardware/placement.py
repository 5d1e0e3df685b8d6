"""On which NUMA nodes a model's memory and threads belong, with the reason.

Leaves to others: reading the nodes (``numa``) and choosing cores on them (``plan``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from treadle.errors import CapacityError, UsageError
from treadle.hardware.finding import format_size
from treadle.hardware.numa import NumaNode, memory_from, neighbourhood
from treadle.hardware.topology import Topology

__all__ = ["NUMA_POLICIES", "Placement", "num_copies", "plan_placement"]

NUMA_POLICIES = ("auto", "node", "interleave", "replicated", "default")


@dataclass(frozen=True)
class Placement:
    """Where memory comes from: one node, several in turn, or wherever it is first touched.

    ``cpus`` are those that compute, None if all may. ``replicated`` gives each node a copy of the weights, for the CPUs
    beside it, as ``copies`` says; all else comes from these nodes in turn.
    """

    policy: Literal["node", "interleave", "replicated", "default"]
    nodes: tuple[int, ...]
    cpus: frozenset[int] | None
    reason: str
    copies: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[str | None]:
        """Let memory first touched in this block, by this thread or ones it starts, come from these nodes.

        Yields None, or why the system refused.
        """
        if self.policy == "default":
            yield None
            return
        with memory_from(self.nodes, mode="preferred" if self.policy == "node" else "interleave") as problem:
            yield problem


def plan_placement(
    topology: Topology,
    needed_bytes: int,
    *,
    weight_bytes: int = 0,
    wanted: str = "auto",
    num_threads: int | None = None,
) -> Placement:
    """Place a model that takes ``needed_bytes``.

    By default on the node, or the parts of one socket, with the most usable cores and enough free memory: a core that
    reads weights from another socket gets about half of the bandwidth. Over all nodes in turn if it fits on none, or
    if more threads are wanted than one has cores for.

    Args:
        topology: The machine.
        needed_bytes: Of weights, KV blocks and scratch together, with every copy.
        weight_bytes: Of these, one copy of the weights.
        wanted: One of ``NUMA_POLICIES``.
        num_threads: The number of threads asked for, None if that is open.

    Raises:
        UsageError: ``wanted`` is none of them.
        CapacityError: A copy on each node was asked for, and one has too little free memory for it.
    """
    if wanted not in NUMA_POLICIES:
        raise UsageError(f"numa: expected one of {', '.join(NUMA_POLICIES)}, found {wanted!r:.40}")
    homes = _homes(topology)
    if wanted == "default" or len(homes) < 2:
        reason = "as asked for" if wanted == "default" else _why_no_choice(topology, homes)
        return Placement("default", (), None, reason)
    if wanted == "interleave":
        return _spread(homes, "as asked for")
    if wanted == "replicated":
        return _replicated(topology, homes, needed_bytes, weight_bytes)
    group = max((neighbourhood(node, homes) for node in homes), key=lambda nodes: _worth(topology, nodes))
    num_cores = _num_cores(topology, group)
    if (num_threads or 0) > num_cores:
        return _spread(homes, f"{num_threads} threads asked for, one socket has {num_cores} usable cores")
    if wanted == "auto" and not _fits(needed_bytes, group):
        return _spread(homes, "it fits into the free memory of no single socket")
    return _together(topology, group, homes, "as asked for" if wanted == "node" else "")


def num_copies(topology: Topology, wanted: str) -> int:
    """Return how many copies of the weights there will be."""
    return max(1, len(_homes(topology))) if wanted == "replicated" else 1


def _homes(topology: Topology) -> list[NumaNode]:
    """Return the nodes whose memory this process may use from CPUs beside it."""
    return [node for node in topology.nodes if node.is_allowed and node.cpus & topology.usable]


def _replicated(topology: Topology, homes: Collection[NumaNode], needed_bytes: int, weight_bytes: int) -> Placement:
    least_bytes = weight_bytes + (needed_bytes - len(homes) * weight_bytes) // len(homes)
    for node in homes:
        if node.free_bytes is not None and node.free_bytes < least_bytes:
            raise CapacityError(
                f"numa: a copy of the weights and a share of the rest take {format_size(least_bytes)} on each node, "
                f"node {node.node_id} has {format_size(node.free_bytes)} free",
                hint="--numa interleave needs one copy in all",
            )
    copies = tuple((node.node_id, tuple(sorted(node.cpus & topology.usable))) for node in homes)
    return Placement("replicated", tuple(node.node_id for node in homes), None, "as asked for", copies)


def _why_no_choice(topology: Topology, homes: Collection[NumaNode]) -> str:
    if not topology.nodes:
        return "the system does not know memory nodes"
    return "one memory node" if len(topology.nodes) == 1 else f"usable CPUs are on {len(homes)} memory node"


def _worth(topology: Topology, nodes: Collection[NumaNode]) -> tuple[int, int]:
    return _num_cores(topology, nodes), sum(node.free_bytes or 0 for node in nodes)


def _num_cores(topology: Topology, nodes: Collection[NumaNode]) -> int:
    ids = {node.node_id for node in nodes}
    return sum(core.node in ids for core in topology.performance_cores)


def _fits(needed_bytes: int, nodes: Collection[NumaNode]) -> bool:
    sizes = [node.free_bytes for node in nodes if node.free_bytes is not None]
    return not sizes or needed_bytes <= sum(sizes)


def _spread(nodes: Collection[NumaNode], reason: str) -> Placement:
    return Placement("interleave", tuple(node.node_id for node in nodes), None, reason)


def _together(topology: Topology, group: tuple[NumaNode, ...], homes: Collection[NumaNode], asked: str) -> Placement:
    ids = tuple(node.node_id for node in group)
    cpus = topology.usable & frozenset[int]().union(*(node.cpus for node in group))
    if len(group) == len(homes):
        return Placement("interleave", ids, None, asked or "the nodes are parts of one socket")
    farthest = max(node.distances.get(other.node_id, 0) for node in group for other in homes)
    reason = asked or f"the others are at distance {farthest}, where reading weights takes far longer"
    return Placement("node" if len(ids) == 1 else "interleave", ids, cpus, reason)
