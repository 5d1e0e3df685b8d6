"""What systems without procfs and sysfs tell about cores and memory: macOS through sysctl, the others through psutil.

Leaves to others: what Linux tells, which is far more, and what to make of it.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CoreCounts", "available_bytes", "core_counts", "is_here", "runnable_cpus", "total_bytes"]


@dataclass(frozen=True)
class CoreCounts:
    """Physical cores, and how many of them are of the fast kind."""

    physical: int
    performance: int


def is_here(root: Path) -> bool:
    """Tell whether ``root`` is this machine and this machine runs no Linux."""
    return root == Path("/") and not sys.platform.startswith("linux")


def core_counts() -> CoreCounts | None:
    """Return what the system says about cores, None if nothing."""
    import psutil  # noqa: PLC0415  not installed on Linux

    physical = psutil.cpu_count(logical=False)
    if physical is None:
        return None
    fast = _sysctl("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else None
    return CoreCounts(physical, min(fast or physical, physical))


def runnable_cpus() -> frozenset[int] | None:
    """Return the affinity mask of this process where the system has one and Python does not know it."""
    import psutil  # noqa: PLC0415

    process = psutil.Process()
    return frozenset(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else None


def available_bytes() -> int:
    """Return the memory that can be had without swapping."""
    import psutil  # noqa: PLC0415

    return int(psutil.virtual_memory().available)


def total_bytes() -> int:
    """Return the physical memory of the machine."""
    import psutil  # noqa: PLC0415

    return int(psutil.virtual_memory().total)


def _sysctl(name: str) -> int | None:
    """Return a number that sysctl knows under a name."""
    value, num_bytes = ctypes.c_int64(0), ctypes.c_size_t(8)
    status = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(num_bytes), None, 0)
    return value.value if status == 0 and value.value > 0 else None
