"""The part of the machine's CPU time that a process beside the model may have.

Leaves to others: deciding how much that is (``agents.gate``) and starting the process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["CpuShare"]


@dataclass(frozen=True)
class CpuShare:
    """CPUs that a process may run on, None for all those of this one, and how far its niceness is above ours."""

    cpus: frozenset[int] | None = None
    nice: int = 0

    def confine(self, pid: int = 0) -> None:
        """Hold a process to the share as far as the system allows; 0 is the calling one.

        To be called in the child before it starts others, or by its parent right after its start: what a process has
        started already is not followed. A process that has ended is passed over.
        """
        with suppress(OSError):
            if self.cpus and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(pid, self.cpus)
        with suppress(OSError):
            if self.nice and hasattr(os, "setpriority"):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, pid, own + self.nice)
