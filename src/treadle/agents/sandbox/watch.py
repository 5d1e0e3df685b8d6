"""Looks at a call while it runs, for what no wall of the kernel holds on this machine: amounts of the whole tree.

Leaves to others: the walls (``rlimits``, ``cgroups``, mounts of a fixed size) and ending the call (``worker``).
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.sandbox.cgroups import CallGroup
from treadle.agents.sandbox.inside.waiting import descendants
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import EndStatus
from treadle.agents.sandbox.workspace import Contents, WorkspaceMeter

__all__ = ["TreeUsage", "Watch", "held_bytes", "tree_usage"]

LOOK_SECONDS = 0.05
# What stands around the program in its tree.
NUM_KEEPERS = 2
PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True)
class TreeUsage:
    """What a process and all its descendants use."""

    cpu_seconds: float
    num_threads: int
    resident_bytes: int


def tree_usage(pid: int) -> TreeUsage:
    """Return what a process and its descendants use; shared pages are counted for each of them."""
    ticks = num_threads = num_pages = 0
    for process in (pid, *descendants(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            # utime and stime, and those of the children it has waited for; see proc(5), whose count starts at 1.
            ticks += sum(int(field) for field in fields[11:15])
            num_threads += int(fields[17])
            num_pages += int(fields[21])
    return TreeUsage(ticks / os.sysconf("SC_CLK_TCK"), num_threads, num_pages * PAGE_BYTES)


def held_bytes(pid: int) -> int:
    """Return the memory that a process and its descendants hold together, shared pages counted once; takes a while."""
    return sum(map(_proportional_bytes, (pid, *descendants(pid))))


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pss":
                return int(value.split()[0]) << 10
    return 0


class Watch:
    """The looks at one call."""

    def __init__(
        self, limits: SandboxLimits, group: CallGroup | None, meter: WorkspaceMeter | None, loose_folders: Sequence[str]
    ) -> None:
        """``loose_folders`` are those in memory whose number of files nothing bounds."""
        self._limits = limits
        self._group = group
        self._meter = meter
        self._allowed = Contents(0, 0) if meter is None else meter.allowed(limits)
        self._loose_folders = loose_folders
        self._has_memory_group = group is not None and "memory" in group.controllers
        self._spent_before = (0.0 if group is None else group.cpu_seconds) or 0.0
        self.cpu_seconds = 0.0
        self.peak_bytes = 0

    async def exceeded(self, pid: int) -> EndStatus:
        """Look until the call of the process goes over a limit, and return which."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(pid)
            if self.cpu_seconds > self._limits.cpu_seconds:
                return "cpu"
            if self._group is None and self._num_threads > self._limits.num_processes + NUM_KEEPERS:
                return "processes"
            if self._group is not None and self._group.was_oom:
                return "memory"  # of one process, and what the others make of it is nobody's intention
            if not self._has_memory_group and self._resident_bytes > self._limits.memory_bytes < held_bytes(pid):
                return "memory"
            if self._is_littered(pid):
                return "disk"
            if self._meter is not None and await self._meter.is_exceeded(self._allowed, self._limits):
                return "disk"

    def look(self, pid: int) -> None:
        """Note what the call has used so far."""
        counted = None if self._group is None else self._group.cpu_seconds
        if counted is not None:
            self.cpu_seconds = counted - self._spent_before
        if counted is None or not self._has_memory_group:
            usage = tree_usage(pid)
            self._num_threads, self._resident_bytes = usage.num_threads, usage.resident_bytes
            self.peak_bytes = max(self.peak_bytes, usage.resident_bytes)
            if counted is None:
                self.cpu_seconds = max(self.cpu_seconds, usage.cpu_seconds)

    _num_threads = 0
    _resident_bytes = 0

    def _is_littered(self, pid: int) -> bool:
        for folder in self._loose_folders:
            with suppress(OSError):
                found = os.statvfs(f"/proc/{pid}/root{folder}")
                if found.f_files - found.f_ffree > self._limits.num_files:
                    return True
                if (found.f_blocks - found.f_bfree) * found.f_frsize > self._limits.tmp_bytes + PAGE_BYTES:
                    return True
        return False
