"""What the control groups of this process allow: CPU time, CPUs, and where their files are; memory is in memory.py.

Both versions of the interface are read, also when one system mounts both: their files have different names, so every
group is simply asked for either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from treadle.hardware.kernel_files import parse_integer, read_cpu_list, read_integer, read_text

__all__ = ["CpuQuota", "allowed_cpus", "control_group_directories", "cpu_quota"]

DEFAULT_PERIOD_US = 100_000
UNIFIED = ""  # stands for every controller of the version 2 hierarchy


@dataclass(frozen=True)
class CpuQuota:
    """The tightest limit on CPU time."""

    num_cpus: float
    source: str


@dataclass(frozen=True)
class _Mount:
    """A cgroup file system and where it is to be seen."""

    folder: PurePosixPath
    group: PurePosixPath  # the one that appears as ``folder``
    controllers: frozenset[str]

    def holds(self, path: PurePosixPath) -> bool:
        return path.is_relative_to(self.group) and ".." not in path.relative_to(self.group).parts


# Where systems put them, for one that does not say.
USUAL_MOUNTS = [
    _Mount(PurePosixPath("/sys/fs/cgroup"), PurePosixPath("/"), frozenset({UNIFIED})),
    *(
        _Mount(PurePosixPath("/sys/fs/cgroup", folder), PurePosixPath("/"), frozenset(folder.split(",")))
        for folder in ("cpu", "cpu,cpuacct", "cpuset", "memory")
    ),
]


def cpu_quota(root: Path) -> CpuQuota | None:
    """The smallest CPU quota of this process's group and all its ancestors, None when there is none."""
    quotas = []
    for directory in control_group_directories(root, "cpu"):
        for quota_file, quota, period in (_quota_v2(directory), _quota_v1(directory)):
            if quota is not None and quota > 0 and period > 0:
                quotas.append(CpuQuota(quota / period, f"/{quota_file.relative_to(root).as_posix()}"))
    return min(quotas, key=lambda quota: quota.num_cpus, default=None)


def _quota_v2(directory: Path) -> tuple[Path, int | None, int]:
    path = directory / "cpu.max"
    words = (read_text(path) or "").split() or [""]
    period = parse_integer(words[1]) if len(words) > 1 else DEFAULT_PERIOD_US
    return path, parse_integer(words[0]), period or 0


def _quota_v1(directory: Path) -> tuple[Path, int | None, int]:
    path = directory / "cpu.cfs_quota_us"
    period = read_integer(directory / "cpu.cfs_period_us")
    return path, read_integer(path), DEFAULT_PERIOD_US if period is None else period


def allowed_cpus(root: Path) -> frozenset[int] | None:
    """The CPUs every cpuset group of this process allows, None when none says."""
    allowed: frozenset[int] | None = None
    for directory in control_group_directories(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpus = read_cpu_list(directory / name)
            if cpus is not None:
                allowed = cpus if allowed is None else allowed & cpus
                break
    return allowed


def control_group_directories(root: Path, controller: str) -> list[Path]:
    """The folders of the groups that bind this process for ``controller``: its own, then every ancestor in sight."""
    directories: list[Path] = []
    paths, mounts = _group_paths(root), _mounts(root)
    for name in (UNIFIED, controller):
        path = paths.get(name, PurePosixPath("/"))
        own = [mount for mount in mounts if name in mount.controllers]
        # A mount that does not hold our group belongs to somebody else's container, unless it is all there is: then
        # our group lies outside of what this namespace shows, and the top of the mount is the nearest one in sight.
        for mount in [mount for mount in own if mount.holds(path)] or own:
            inside = path.relative_to(mount.group) if mount.holds(path) else PurePosixPath()
            top = root / mount.folder.relative_to("/")
            directories += [top / folder for folder in (inside, *inside.parents)]
    return list(dict.fromkeys(directories))


def _group_paths(root: Path) -> dict[str, PurePosixPath]:
    """Controller to group path from /proc/self/cgroup."""
    paths = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            names = [UNIFIED] if number == "0" else controllers.split(",")
            paths.update({name: PurePosixPath(path) for name in names})
    return paths


def _mounts(root: Path) -> list[_Mount]:
    mounts: list[_Mount] = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, source = line.partition(" - ")
        mount_words, source_words = mount.split(" "), source.split(" ")
        if len(mount_words) < 5 or source_words[0] not in ("cgroup", "cgroup2"):
            continue
        group, folder = (PurePosixPath(_unescape(word)) for word in mount_words[3:5])
        controllers = source_words[-1].split(",") if source_words[0] == "cgroup" else [UNIFIED]
        if folder.is_absolute() and ".." not in folder.parts:
            mounts.append(_Mount(folder, group, frozenset(controllers)))
    return mounts or USUAL_MOUNTS


def _unescape(word: str) -> str:
    """Undoes the octal escapes mountinfo writes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
