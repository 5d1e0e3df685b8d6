"""Measures how long one thread waits for a line of each cache and of memory when it must know it before the next one.

Leaves to others: how much can be read while nobody waits (``machine_speed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from treadle.hardware.caches import read_caches
from treadle.hardware.kernel_files import parse_integer, read_fields
from treadle.hardware.memory import memory_budget

__all__ = ["Latency", "MemoryLatency", "measure_latency"]

_NUM_ROUNDS = 3
_WINDOW_SECONDS = 0.02
# So much of a cache is read that all of it stays there beside what others put in, and so many times the last cache
# that nearly nothing of it is found there.
_CACHE_SHARE, _CACHE_FACTOR = 4, 8
_LEAST_BYTES, _MOST_BYTES = 128 << 20, 1 << 30
_LEAST_CACHE_BYTES = 4096  # the least that can be measured
# Of the free memory, no more than one part in so many is borrowed.
_MEMORY_SHARE = 4


@dataclass(frozen=True)
class Latency:
    """How long a load takes from a place, ``L1`` to ``L4`` or ``memory``; ``num_bytes`` were read in no order."""

    place: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class MemoryLatency:
    """The nearest place first; ``huge_page_share`` of the memory came in huge pages, None if the kernel does not tell.

    With small pages, a load from memory mostly waits for the address of its page as well.
    """

    places: tuple[Latency, ...]
    huge_page_share: float | None


def measure_latency(
    cpu: int, *, progress: Callable[[str], None] = lambda _: None, root: Path = Path("/")
) -> MemoryLatency | None:
    """Measure with a thread on this CPU (-1: on any) for about half a second; None where too little memory is free.

    Borrows memory of eight times the size of the last cache, 128 MiB to 1 GiB, and gives it back. The lowest of
    several measurements counts, as whatever disturbs one makes it longer.

    Args:
        cpu: Where the thread runs.
        progress: Hears what is being measured.
        root: The folder that holds ``proc`` and ``sys``.
    """
    from treadle import _native  # noqa: PLC0415  describing machines must work without it

    places = _places(cpu, root)
    num_bytes = places[-1].num_bytes
    if num_bytes * _MEMORY_SHARE > memory_budget(root).available_bytes:
        return None
    progress("the latency of caches and memory")
    huge_before = _huge_bytes(root)
    probe = _native.LatencyProbe(cpu, num_bytes)
    found = [
        replace(place, seconds=min(probe.measure(place.num_bytes, _WINDOW_SECONDS) for _ in range(_NUM_ROUNDS)))
        for place in reversed(places)  # with all of the memory first, so that all pages are there to be counted
    ]
    huge_after = _huge_bytes(root)
    is_known = huge_before is not None and huge_after is not None
    share = min(1.0, max(0, (huge_after or 0) - (huge_before or 0)) / num_bytes) if is_known else None
    return MemoryLatency(tuple(reversed(found)), share)


def _places(cpu: int, root: Path) -> list[Latency]:
    """What will be measured, without a time yet."""
    caches = [cache for cache in read_caches(root, {max(cpu, 0)}) if cache.kind != "instruction"]
    last = max((cache.num_bytes for cache in caches), default=0)
    memory = min(_power_of_two(_CACHE_FACTOR * last, _LEAST_BYTES), _MOST_BYTES)
    return [*_cache_places({cache.level: cache.num_bytes for cache in caches}), Latency("memory", memory, 0.0)]


def _cache_places(sizes: dict[int, int]) -> Iterator[Latency]:
    for level, num_bytes in sorted(sizes.items()):
        size = _power_of_two(num_bytes // _CACHE_SHARE, 0)
        if size >= _LEAST_CACHE_BYTES:
            yield Latency(f"L{level}", size, 0.0)


def _power_of_two(num_bytes: int, least: int) -> int:
    """The highest power of two up to ``num_bytes``, but at least ``least``."""
    return max(1 << num_bytes.bit_length() >> 1, least)


def _huge_bytes(root: Path) -> int | None:
    """How much of this process's memory is in huge pages."""
    text = read_fields(root / "proc/self/smaps_rollup").get("AnonHugePages", "")
    kib = parse_integer(text.removesuffix("kB").strip())
    return None if kib is None else 1024 * kib
