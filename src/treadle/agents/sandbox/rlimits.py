"""Says which of the kernel's resource limits hold a process, and what it starts, to the limits of a call.

They count per process, or per user, never per tree; what a tree holds together is counted by ``cgroups``. Leaves to
others: which of them are wanted beside what else bounds the call (``resource_limits``), and setting them (``inside``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from treadle.agents.sandbox.limits import SandboxLimits

__all__ = ["values"]

# A program that catches SIGXCPU has this long to end.
CPU_GRACE_SECONDS = 1
# Locked pages are memory that nothing can take back; libraries of cryptography want a few of them.
LOCKED_BYTES = 1 << 20
QUEUED_SIGNALS = 4096


def values(limits: SandboxLimits, *, has_memory_group: bool) -> Mapping[str, tuple[int, int]]:
    """The soft and the hard limit by name, as in ``resource.RLIMIT_...``; what is not named stays as it is.

    Memory is bounded as RLIMIT_DATA: the private pages a process may write, so an allocation beyond it fails inside
    (``MemoryError``) before anything has to be killed, and address space that is only reserved, as Go, Java and V8 do
    by the gigabyte, costs nothing. It misses shared mappings. A memory control group counts those; without one the
    address space is bounded too, which keeps such programs from starting.

    ``nproc`` holds nobody whose user outside of all user namespaces is root, and elsewhere is a count per user and
    user namespace since Linux 5.14, per user before. So it is to be set inside of the sandbox's own namespace; what
    bounds processes for sure is a control group.
    """
    cpu = math.ceil(limits.cpu_seconds)
    bounds = {
        "cpu": (cpu, cpu + CPU_GRACE_SECONDS),
        "data": _both(limits.memory_bytes),
        "nproc": _both(limits.num_processes),
        "fsize": _both(limits.file_bytes),
        "nofile": _both(limits.num_open_files),
        "memlock": _both(min(LOCKED_BYTES, limits.memory_bytes)),
        "sigpending": _both(QUEUED_SIGNALS),
        "core": _both(0),
        "nice": _both(0),
        "rtprio": _both(0),
    }
    if not has_memory_group:
        bounds["as"] = _both(limits.memory_bytes)
    return bounds


def _both(value: int) -> tuple[int, int]:
    return value, value
