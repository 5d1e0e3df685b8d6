"""On which NUMA nodes a model's memory and threads belong, with the reason.

Leaves to others: reading the nodes (``numa``) and choosing cores on them (``plan``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from treadle.errors import UsageError
from treadle.hardware.numa import NumaNode, memory_from, neighbourhood
from treadle.hardware.topology import Topology

__all__ = ["NUMA_POLICIES", "Placement", "plan_placement"]

NUMA_POLICIES = ("auto", "node", "interleave", "default")


@dataclass(frozen=True)
class Placement:
    """Where memory comes from: one node, several in turn, or wherever it is first touched.

    ``cpus`` are those that compute, None if all may.
    """

    policy: Literal["node", "interleave", "default"]
    nodes: tuple[int, ...]
    cpus: frozenset[int] | None
    reason: str

    @contextmanager
    def applied(self) -> Iterator[str | None]:
        """Let memory first touched in this block, by this thread or ones it starts, come from these nodes.

        Yields None, or why the system refused.
        """
        if self.policy == "default":
            yield None
            return
        with memory_from(self.nodes, mode="interleave" if self.policy == "interleave" else "preferred") as problem:
            yield problem


def plan_placement(
    topology: Topology, needed_bytes: int, *, wanted: str = "auto", num_threads: int | None = None
) -> Placement:
    """Place a model that takes ``needed_bytes``.

    By default on the node, or the parts of one socket, with the most usable cores and enough free memory: a core that
    reads weights from another socket gets about half of the bandwidth. Over all nodes in turn if it fits on none, or
    if more threads are wanted than one has cores for.

    Args:
        topology: The machine.
        needed_bytes: Of weights, KV blocks and scratch together.
        wanted: One of ``NUMA_POLICIES``.
        num_threads: The number of threads asked for, None if that is open.

    Raises:
        UsageError: ``wanted`` is none of them.
    """
    if wanted not in NUMA_POLICIES:
        raise UsageError(f"numa: expected one of {', '.join(NUMA_POLICIES)}, found {wanted!r:.40}")
    homes = [node for node in topology.nodes if node.is_allowed and node.cpus & topology.usable]
    if wanted == "default":
        return Placement("default", (), None, "as asked for")
    if len(homes) < 2:
        return Placement("default", (), None, _why_no_choice(topology, homes))
    if wanted == "interleave":
        return _spread(homes, "as asked for")
    group = max((neighbourhood(node, homes) for node in homes), key=lambda nodes: _worth(topology, nodes))
    num_cores = _num_cores(topology, group)
    if (num_threads or 0) > num_cores:
        return _spread(homes, f"{num_threads} threads asked for, one socket has {num_cores} usable cores")
    if wanted == "auto" and not _fits(needed_bytes, group):
        return _spread(homes, "it fits into the free memory of no single socket")
    return _together(topology, group, homes, "as asked for" if wanted == "node" else "")


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
