"""NUMA nodes: their CPUs, memory and distances, which of them are near each other, and where new memory comes from.

Leaves to others: which nodes to use (``placement``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import parse_cpu_list, parse_integer, read_cpu_list, read_fields, read_text

__all__ = ["NumaNode", "memory_from", "neighbourhood", "read_nodes"]

# A node's distance to itself is 10 by definition; parts of one socket are at 11 to 13, sockets at 20 and more.
_LARGEST_NEAR_DISTANCE = 15

_SYSTEM_CALLS = {"x86_64": 238, "aarch64": 237}  # set_mempolicy
_MODES = {"default": 0, "preferred": 1, "interleave": 3}
_MAX_NODES = 1024


@dataclass(frozen=True)
class NumaNode:
    """One node: memory and the CPUs next to it; sizes are None where the system does not tell.

    ``is_allowed`` says whether this process may use its memory. ``distances`` holds those to every node, its own 10.
    """

    node_id: int
    cpus: frozenset[int]
    memory_bytes: int | None
    free_bytes: int | None
    is_allowed: bool
    distances: Mapping[int, int]


def read_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """All nodes of the machine by number, none where it does not know them."""
    folder = root / "sys/devices/system/node"
    ids = sorted(read_cpu_list(folder / "online") or _listed_ids(folder))
    allowed = parse_cpu_list(read_fields(root / "proc/self/status").get("Mems_allowed_list", ""))
    return tuple(_read_node(folder / f"node{node_id}", node_id, ids, allowed) for node_id in ids)


def _listed_ids(folder: Path) -> set[int]:
    try:
        names = [path.name.removeprefix("node") for path in folder.glob("node*")]
    except OSError:
        return set()
    return {node_id for node_id in map(parse_integer, names) if node_id is not None}


def _read_node(folder: Path, node_id: int, ids: list[int], allowed: frozenset[int] | None) -> NumaNode:
    distances = [parse_integer(word) for word in (read_text(folder / "distance") or "").split()]
    known = dict(zip(ids, distances, strict=True)) if len(distances) == len(ids) else {}
    memory = {}
    for line in (read_text(folder / "meminfo") or "").splitlines():
        words = line.split()  # Node 0 MemTotal: 1024 kB
        if len(words) >= 4:
            memory[words[2].rstrip(":")] = parse_integer(words[3])
    total_kib, free_kib = memory.get("MemTotal"), memory.get("MemFree")
    return NumaNode(
        node_id,
        cpus=read_cpu_list(folder / "cpulist") or frozenset(),
        memory_bytes=None if total_kib is None else total_kib * 1024,
        free_bytes=None if free_kib is None else free_kib * 1024,
        is_allowed=allowed is None or node_id in allowed,
        distances={other: distance for other, distance in known.items() if distance is not None},
    )


def neighbourhood(node: NumaNode, nodes: Collection[NumaNode]) -> tuple[NumaNode, ...]:
    """A node and those about as near as its own memory: the parts into which firmware may split one socket."""
    return tuple(
        other
        for other in nodes
        if other == node or node.distances.get(other.node_id, sys.maxsize) <= _LARGEST_NEAR_DISTANCE
    )


@contextmanager
def memory_from(nodes: Collection[int], *, mode: str) -> Iterator[str | None]:
    """Let memory that this thread and the threads it starts touch for the first time come from these nodes.

    Args:
        nodes: Numbers of nodes; the first is used while it has room with ``preferred``, all in turn with
            ``interleave``.
        mode: ``preferred`` or ``interleave``.

    Yields:
        None, or why the system refused: then memory comes from wherever it is touched first, as it always does.
    """
    problem = _set_policy(_MODES[mode], nodes)
    try:
        yield problem
    finally:
        if problem is None:
            _set_policy(_MODES["default"], ())


def _set_policy(mode: int, nodes: Collection[int]) -> str | None:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None or not sys.platform.startswith("linux"):
        return "this platform has no memory policies"
    mask = (ctypes.c_uint64 * (_MAX_NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (mask, ctypes.c_ulong(_MAX_NODES + 1)) if nodes else (None, ctypes.c_ulong(0))
    if library.syscall(ctypes.c_long(number), ctypes.c_int(mode), *arguments) == 0:
        return None
    return f"set_mempolicy failed: {os.strerror(ctypes.get_errno())}"
