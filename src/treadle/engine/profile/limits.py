"""Measures what the machine gives while a profile is taken, with the threads that compute.

Leaves to others: the measurement itself (``hardware.machine_speed``) and the shares of it (``record``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.engine.profile.record import Limits, SpeedSample
from treadle.hardware.machine_speed import MachineSpeed, measure_speed
from treadle.hardware.roofline import typical_speed

if TYPE_CHECKING:
    from treadle.hardware.caches import Cache

__all__ = ["LimitWatch", "cache_sizes", "fits_in_cache"]

_LEAST_BYTES = 1 << 20
# Of the last caches; the rest is for states, KV blocks and whatever else runs.
_CACHE_SHARE = 0.75


def cache_sizes(caches: Sequence[Cache]) -> dict[str, int]:
    """Return the bytes of the caches for data by level, such as L2: all of a level together."""
    sizes: dict[str, int] = {}
    for cache in sorted(caches, key=lambda cache: cache.level):
        if cache.kind != "instruction":
            sizes[f"L{cache.level}"] = sizes.get(f"L{cache.level}", 0) + cache.num_bytes
    return sizes


def fits_in_cache(num_bytes: int, caches: Sequence[Cache]) -> bool:
    """Tell whether what is read again and again stays in the caches."""
    return num_bytes <= _CACHE_SHARE * max(cache_sizes(caches).values(), default=0)


class LimitWatch:
    """Measures now and then, with the instructions of the kernels ``isa``.

    ``cached_bytes`` is what is read again and again and fits in the caches, or None.
    """

    def __init__(self, started: float, isa: str, cached_bytes: int | None) -> None:
        self.samples: list[SpeedSample] = []
        self._started = started
        self._isa = isa
        self._cached_bytes = cached_bytes
        self._speeds: dict[int, list[MachineSpeed]] = {}
        self._cache_rates: dict[int, float] = {}

    def measure(self, cpus: Sequence[int]) -> None:
        """Measure with a thread on each of these CPUs, for a fraction of a second; nothing if memory is short."""
        began = time.perf_counter() - self._started
        speed = measure_speed(cpus, isa=self._isa)
        if speed is not None:
            self._speeds.setdefault(len(cpus), []).append(speed)
            self.samples.append(SpeedSample(began, len(cpus), speed.read_bytes_per_second, speed.int8_ops_per_second))
        if self._cached_bytes is not None:
            cached = measure_speed(cpus, isa=self._isa, num_bytes=max(_LEAST_BYTES, self._cached_bytes))
            if cached is not None:
                best = max(cached.read_bytes_per_second, self._cache_rates.get(len(cpus), 0.0))
                self._cache_rates[len(cpus)] = best

    def limits(self, num_threads: int) -> Limits:
        """Return what so many threads could do; 0 for what was not measured."""
        speeds = self._speeds.get(num_threads)
        speed = typical_speed(speeds) if speeds else MachineSpeed(0.0, 0.0, 0.0, self._isa)
        return Limits(
            num_threads=num_threads,
            memory_bytes=speed.read_bytes_per_second,
            cache_bytes=self._cache_rates.get(num_threads),
            int8_ops=speed.int8_ops_per_second,
            float_ops=speed.float_ops_per_second,
            isa=speed.isa,
        )
