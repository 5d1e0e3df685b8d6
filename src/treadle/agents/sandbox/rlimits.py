"""Holds one process, and what it starts, to the resource limits that every POSIX kernel has.

They count per process, or per user, never per tree; what a tree holds together is counted by ``cgroups``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping

from treadle.agents.sandbox.limits import SandboxLimits

__all__ = ["apply", "apply_to", "values"]

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


def apply(limits: SandboxLimits, *, has_memory_group: bool = False) -> None:
    """Set the limits on the calling process, for good: no limit is ever raised, a tighter one stays.

    To be called in a child that has one thread, before it runs what is to be limited. Raises OSError with the name of
    the limit that the kernel refused.
    """
    apply_to(os.getpid(), limits, has_memory_group=has_memory_group)


def apply_to(pid: int, limits: SandboxLimits, *, has_memory_group: bool = False) -> None:
    """The same on another process of this user, which must not have started children yet; they would go without.

    Raises ProcessLookupError when it has ended, OSError as ``apply`` does.
    """
    import resource  # noqa: PLC0415 - Windows has none

    for name, (soft, hard) in values(limits, has_memory_group=has_memory_group).items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if kind is None:
            continue  # a limit of Linux only
        _, before = resource.getrlimit(kind) if pid == os.getpid() else resource.prlimit(pid, kind)
        ceiling = hard if before == resource.RLIM_INFINITY else min(hard, before)
        pair = (min(soft, ceiling), ceiling)
        try:
            if sys.platform == "linux":
                resource.prlimit(pid, kind, pair)
            else:
                resource.setrlimit(kind, pair)
        except ProcessLookupError:
            raise
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            raise OSError(number, f"the limit {name} of process {pid} cannot be set to {pair}: {error}") from error
