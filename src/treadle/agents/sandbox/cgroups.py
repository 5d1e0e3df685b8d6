"""A control group for one call in a sandbox: bounds and counts all its processes together, and kills them at once.

Where groups can be made is found by ``cgroup_places``; per-process limits are set by ``rlimits``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from treadle.agents.sandbox.cgroup_places import UNIFIED, Place, find_place, group_prefix
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.hardware.cpu_share import CpuShare
from treadle.hardware.kernel_files import parse_integer, read_fields, read_integer, read_text

__all__ = ["CallGroup", "why_not"]

# What stands around the call in its group: bubblewrap, its init, and what starts the program.
NUM_KEEPERS = 3
# How long the kernel may take to let go of killed processes before a folder is left for later.
REMOVE_SECONDS = 2.0
POLL_SECONDS = 0.002
KILL_ROUNDS = 1000
WHOLE_MACHINE = CpuShare()

_leftovers: list[Path] = []
_swept: set[Path] = set()
_sweeping = threading.Lock()


def why_not(root: Path = Path("/")) -> str | None:
    """Why no group can be made, in a sentence that ends in what to do; None if they can."""
    place = find_place(root)
    return place if isinstance(place, str) else None


class CallGroup:
    """The control group of one call: at most so much memory, so many processes, a share of the CPUs.

    A group weighs as much as one thread of the engine in the kernel's scheduler (lighter by ``share.nice``), however
    many processes it holds. Memory counts what the processes touch together, their files in tmpfs and the kernel's own
    for them included, and is not swapped out. Not safe for use by several threads at once.
    """

    def __init__(self, version: int, folders: Mapping[str, Path]) -> None:
        self._is_v2 = version == 2
        self._folders = dict(folders)

    @classmethod
    def create(
        cls, name: str, limits: SandboxLimits, share: CpuShare = WHOLE_MACHINE, *, root: Path = Path("/")
    ) -> CallGroup | None:
        """Make a group; None where none can be made, see ``why_not``.

        ``name`` must be no other group's of this process. Groups that dead processes left are removed on the way.
        Raises OSError with the file that the kernel refused.
        """
        place = find_place(root)
        if isinstance(place, str):
            return None
        _sweep(place, root)
        full_name = f"{group_prefix(root, pid=os.getpid())}{name}"
        group = cls(place.version, {key: folder / full_name for key, folder in place.folders.items()})
        if place.version == 1 and not share.cpus:
            group._folders.pop("cpuset", None)
        try:
            for folder in group._distinct():
                folder.mkdir()
            group._limit(limits)
            group.share_cpus(share)
        except OSError:
            group.remove()
            raise
        return group

    @property
    def controllers(self) -> frozenset[str]:
        """What is bounded or counted: "pids" always, "memory", "cpu", "cpuset" where the system has them."""
        return frozenset(self._folders) - {UNIFIED}

    def add(self, pid: int) -> None:
        """Take a process in; what it has started already stays outside. Raises ProcessLookupError when it has ended."""
        for folder in self._distinct():
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak_bytes(self) -> int | None:
        """The most memory held at once; None where the system does not say."""
        name = "memory.peak" if self._is_v2 else "memory.max_usage_in_bytes"
        return read_integer(self._folders["memory"] / name) if "memory" in self._folders else None

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of all its processes, ended ones included; None where the system does not say."""
        if UNIFIED in self._folders:
            used = parse_integer(read_fields(self._folders[UNIFIED] / "cpu.stat").get("usage_usec", ""))
            return None if used is None else used / 1e6
        used = read_integer(self._folders["cpuacct"] / "cpuacct.usage") if "cpuacct" in self._folders else None
        return None if used is None else used / 1e9

    @property
    def was_oom(self) -> bool:
        """Whether the kernel has killed a process of it for want of memory."""
        name = "memory.events" if self._is_v2 else "memory.oom_control"
        return "memory" in self._folders and _count(self._folders["memory"] / name, "oom_kill") > 0

    def pids(self) -> frozenset[int]:
        """Its processes that have not ended; those which another PID namespace hides are not among them."""
        words = (read_text(self._folders["pids"] / "cgroup.procs") or "").split()
        return frozenset(int(word) for word in words if word.isdigit()) - {0}

    def kill(self) -> None:
        """Kill every process in it, those it is just forking included; they may take a moment to be gone."""
        if UNIFIED in self._folders:
            with suppress(OSError):
                (self._folders[UNIFIED] / "cgroup.kill").write_text("1")
                return
        # Before Linux 5.14: no more forks, then one by one, and again those that were forked meanwhile.
        with suppress(OSError):
            (self._folders["pids"] / "pids.max").write_text("0")
        for _ in range(KILL_ROUNDS):
            alive = self.pids() - {os.getpid()}
            if not alive:
                return
            for pid in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    def remove(self) -> None:
        """Kill what is left in it and remove it; what the kernel still holds is removed when the next group is made.

        Waits for killed processes to leave, so it is not for the event loop.
        """
        folders = [folder for folder in self._distinct() if folder.is_dir()]
        if folders:
            self.kill()
        _leftovers.extend(folder for folder in folders if not _removed(folder, REMOVE_SECONDS))

    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))

    def _limit(self, limits: SandboxLimits) -> None:
        self._set("pids", "pids.max", limits.num_processes + NUM_KEEPERS)
        if self._is_v2:
            self._set("memory", "memory.max", limits.memory_bytes)
            # Kernels without swap, or before 4.19 for the second, lack these.
            with suppress(OSError):
                self._set("memory", "memory.swap.max", 0)
            with suppress(OSError):
                self._set("memory", "memory.oom.group", 1)
        else:
            self._set("memory", "memory.limit_in_bytes", limits.memory_bytes)
            with suppress(OSError):
                self._set("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes)

    def share_cpus(self, share: CpuShare) -> None:
        """Bound the CPUs as far as the system lets this process; what it refuses is only less even sharing."""
        lightness = 1.25**-share.nice  # the kernel's own step from one niceness to the next
        with suppress(OSError):
            if self._is_v2:
                self._set("cpu", "cpu.weight", min(max(round(100 * lightness), 1), 10_000))
            else:
                self._set("cpu", "cpu.shares", max(round(1024 * lightness), 2))
        if not share.cpus or "cpuset" not in self._folders:
            return
        folder = self._folders["cpuset"]
        try:
            if not self._is_v2:  # begins without memory nodes, and lets nobody in
                self._set("cpuset", "cpuset.mems", read_text(folder.parent / "cpuset.mems") or "0")
            self._set("cpuset", "cpuset.cpus", ",".join(map(str, sorted(share.cpus))))
        except OSError:
            if not self._is_v2:
                self._folders.pop("cpuset")
                folder.rmdir()

    def _set(self, controller: str, name: str, value: int | str) -> None:
        if controller in self._folders:
            (self._folders[controller] / name).write_text(str(value))


def _count(path: Path, name: str) -> int:
    return parse_integer(read_fields(path).get(name, "")) or 0


def _removed(folder: Path, seconds: float) -> bool:
    """Remove an empty group; the kernel keeps one busy until the last of its zombies has been waited for."""
    until = time.monotonic() + seconds
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)
        else:
            return True


def _sweep(place: Place, root: Path) -> None:
    """Remove what earlier groups left: those of this process that were busy, and once those of dead processes."""
    with _sweeping:
        _leftovers[:] = [folder for folder in _leftovers if not _removed(folder, 0)]
        if root in _swept:
            return
        _swept.add(root)
        for folder in set(place.folders.values()):
            for left in _left_by_the_dead(folder, root):
                if not left.name.endswith("-self"):
                    _kill_listed(left)
                if not _removed(left, POLL_SECONDS):
                    _leftovers.append(left)


def _left_by_the_dead(folder: Path, root: Path) -> Iterator[Path]:
    prefix = group_prefix(root)
    for left in folder.glob(f"{prefix}*"):
        pid = parse_integer(left.name.removeprefix(prefix).partition("-")[0])
        if pid and not (root / f"proc/{pid}").exists():
            yield left


def _kill_listed(folder: Path) -> None:
    for word in (read_text(folder / "cgroup.procs") or "").split():
        if word.isdigit() and int(word) not in (0, os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(word), signal.SIGKILL)
