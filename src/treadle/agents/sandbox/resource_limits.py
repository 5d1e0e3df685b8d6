"""The resource limits of a call as ``setrlimit`` takes them, chosen by what else bounds it.

Leaves to others: their values (``rlimits``) and setting them (``inside``).
"""

from __future__ import annotations

import os
from functools import cache

from treadle.agents.sandbox import rlimits
from treadle.agents.sandbox.cgroups import CallGroup
from treadle.agents.sandbox.launch import Launcher
from treadle.agents.sandbox.limits import SandboxLimits

__all__ = ["resource_limits"]


def resource_limits(limits: SandboxLimits, group: CallGroup | None, launcher: Launcher) -> list[tuple[int, int, int]]:
    """Return number, soft limit and hard limit of each."""
    import resource  # noqa: PLC0415 - Windows has none, and shall get as far as to hear that there is no sandbox

    has_memory_group = group is not None and "memory" in group.controllers
    values = dict(rlimits.values(limits, has_memory_group=has_memory_group))
    # It counts per user: calls that run at once would share it, and so would all else that the user runs, where the
    # count is not one per user namespace.
    if group is not None or not launcher.has_namespace or not _counts_per_namespace():
        del values["nproc"]
    return [
        (getattr(resource, f"RLIMIT_{name.upper()}"), soft, hard)
        for name, (soft, hard) in values.items()
        if hasattr(resource, f"RLIMIT_{name.upper()}")
    ]


@cache
def _counts_per_namespace() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)
