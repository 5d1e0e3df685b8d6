"""Measures what the machine gives at this moment: bytes read from memory, int8 and float operations, per second.

Leaves to others: when to measure, and what share of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.caches import read_caches
from treadle.hardware.memory import memory_budget
from treadle.hardware.topology import read_topology

__all__ = ["MachineSpeed", "measure_speed"]

# Short, so that work which comes meanwhile hardly notices; the best of several, as others disturb each of them.
_WINDOW_SECONDS = 0.002
_NUM_WINDOWS = 30
# Reads of so many times what the caches hold come from memory.
_CACHE_FACTOR = 4
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 1 << 30
# Of the free memory, no more than one part in so many is borrowed.
_MEMORY_SHARE = 4


@dataclass(frozen=True)
class MachineSpeed:
    """All threads together; operations are multiplications and additions, 0 where not measured.

    They are those of the kernel table ``isa``: of its int8 products and its fused multiply-adds of 32-bit floats.
    """

    read_bytes_per_second: float
    int8_ops_per_second: float
    float_ops_per_second: float = 0.0
    isa: str = ""

    def best_of(self, other: MachineSpeed) -> MachineSpeed:
        """Return the higher speed of each kind: whatever disturbs a measurement makes it lower."""
        return MachineSpeed(
            max(self.read_bytes_per_second, other.read_bytes_per_second),
            max(self.int8_ops_per_second, other.int8_ops_per_second),
            max(self.float_ops_per_second, other.float_ops_per_second),
            self.isa,
        )


def measure_speed(
    cpus: Sequence[int],
    *,
    num_bytes: int | None = None,
    isa: str = "",
    goes_on: Callable[[], bool] = lambda: True,
    root: Path = Path("/"),
) -> MachineSpeed | None:
    """Measure with a thread on each of these CPUs (-1 pins none), for a fraction of a second.

    Borrows memory of four times the size of the caches, 64 MiB to 1 GiB, and gives it back. Holds no lock of the
    interpreter meanwhile.

    Args:
        cpus: One entry per thread.
        num_bytes: What is read again and again, at least 1 MiB: less than the caches hold is read from them.
        isa: The kernel table whose instructions count, by default the best one here.
        goes_on: Asked before each step of a few milliseconds whether to go on.
        root: The folder that holds ``proc`` and ``sys``.

    Returns:
        What was measured until ``goes_on`` said no, or None: no window was complete, or too little memory is free.

    Raises:
        UsageError: This processor does not run the table.
    """
    from treadle import _native  # noqa: PLC0415  describing machines must work without it

    if num_bytes is None:
        num_bytes = _probe_bytes(root)
    if num_bytes * _MEMORY_SHARE > memory_budget(root).available_bytes or not goes_on():
        return None
    probe = _native.LimitProbe(list(cpus), num_bytes, isa)
    while probe.fill():  # where pages are new to a virtual machine, this takes most of the time
        if not goes_on():
            return None
    best: MachineSpeed | None = None
    for _ in range(_NUM_WINDOWS):
        if not goes_on():
            break
        speed = MachineSpeed(*probe.measure(1, _WINDOW_SECONDS), probe.isa)
        best = speed if best is None else best.best_of(speed)
    return best


def _probe_bytes(root: Path) -> int:
    caches = read_caches(root, read_topology(root).usable)
    cache_bytes = sum(cache.num_bytes for cache in caches if cache.kind != "instruction")
    return min(max(_CACHE_FACTOR * cache_bytes, _LEAST_BYTES), _MOST_BYTES)
