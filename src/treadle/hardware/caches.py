"""The caches between the cores this process may use and memory.

Leaves to others: what fits into them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import read_cpu_list, read_integer, read_size, read_text

__all__ = ["Cache", "read_caches"]


@dataclass(frozen=True)
class Cache:
    """One cache; ``cpus`` are all that share it, usable or not."""

    level: int
    kind: str  # data, instruction or unified
    num_bytes: int
    line_bytes: int | None
    cpus: frozenset[int]


def read_caches(root: Path, cpus: Collection[int]) -> tuple[Cache, ...]:
    """The caches of these CPUs, each once, by level and lowest CPU; empty where the system does not tell."""
    found: dict[tuple[int, str, int], Cache] = {}
    for cpu in sorted(cpus):
        for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
            cache = _read_cache(folder, cpu)
            if cache is not None:
                found.setdefault((cache.level, cache.kind, min(cache.cpus)), cache)
    return tuple(found[key] for key in sorted(found))


def _read_cache(folder: Path, cpu: int) -> Cache | None:
    level, num_bytes = read_integer(folder / "level"), read_size(folder / "size")
    if level is None or num_bytes is None:
        return None
    return Cache(
        level,
        (read_text(folder / "type") or "unified").lower(),
        num_bytes,
        line_bytes=read_integer(folder / "coherency_line_size"),
        cpus=read_cpu_list(folder / "shared_cpu_list") or frozenset({cpu}),
    )
