"""Finds the control groups beneath which this process may make groups of its own, and says what is in the way.

What is made there and set on it belongs to ``cgroups``; reading the limits that bind this process to
``hardware.limits``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from treadle.hardware.kernel_files import parse_integer, read_fields, read_text
from treadle.hardware.limits import control_group_directories

__all__ = ["UNIFIED", "Place", "find_place", "group_prefix"]

UNIFIED = ""  # the hierarchy of version 2, whose groups can be killed at once even where version 1 has the controllers
NEEDED = "pids"  # a group that does not count processes stops no fork bomb
WANTED_V2 = ("memory", "pids", "cpu", "cpuset")
WANTED_V1 = ("memory", "pids", "cpu", "cpuacct", "cpuset")
OWN_SCOPE = "start it in a group of its own: `systemd-run --user --scope -p Delegate=yes treadle ...`"


@dataclass(frozen=True)
class Place:
    """The group to make groups in, for each controller that can be had; version 2 has one folder for all of them."""

    version: int
    folders: Mapping[str, Path]


_found: dict[Path, Place | str] = {}
_searching = threading.Lock()


def find_place(root: Path = Path("/")) -> Place | str:
    """Where groups can be made beneath the system at ``root``, or in a sentence why not and what to type.

    Looks once in a process: with version 2 it may move this process into a group at the side, because a group that
    holds processes cannot have groups with limits.
    """
    with _searching:
        if root not in _found:
            _found[root] = _find_v2(root) or _find_v1(root) or _reason(root)
        return _found[root]


def group_prefix(root: Path = Path("/"), *, pid: int | None = None) -> str:
    """What the names of a process's groups begin with; a number means another process in another PID namespace."""
    namespace = 0
    with suppress(OSError):
        namespace = (root / "proc/self/ns/pid").stat().st_ino
    return f"treadle-{namespace}-" if pid is None else f"treadle-{namespace}-{pid}-"


def _find_v2(root: Path) -> Place | None:
    for position, group in enumerate(control_group_directories(root, UNIFIED)):
        available = _words(group / "cgroup.controllers")
        if NEEDED not in available or not _is_writable(group):
            continue
        wanted = [name for name in WANTED_V2 if name in available]
        # What ancestors pass on is for whoever made them to say.
        if position == 0 and NEEDED not in _words(group / "cgroup.subtree_control") and _step_aside(root, group):
            for name in wanted:
                _try_write(group / "cgroup.subtree_control", f"+{name}")
            # Beside calls that weigh as much as a thread each, this process weighs as much as one for every CPU.
            _try_write(_aside(root, group) / "cpu.weight", str(min(100 * (os.cpu_count() or 1), 10_000)))
        enabled = _words(group / "cgroup.subtree_control")
        if NEEDED in enabled:
            return Place(
                2, MappingProxyType({name: group for name in (UNIFIED, *wanted) if name in {UNIFIED, *enabled}})
            )
    return None


def _step_aside(root: Path, group: Path) -> bool:
    """Move this process and its children out of their group, if it is theirs alone, so that it may have limited ones.

    The root of the hierarchy, which has no type, may hold processes all the same.
    """
    if not (group / "cgroup.type").exists():
        return True
    members = [int(word) for word in _words(group / "cgroup.procs") if word.isdigit()]
    if not all(_descends_from_us(root, pid) for pid in members):
        return False
    aside = _aside(root, group)
    try:
        aside.mkdir(exist_ok=True)
        for pid in members:
            with suppress(ProcessLookupError):
                (aside / "cgroup.procs").write_text(str(pid))
    except OSError:
        return False
    return True


def _aside(root: Path, group: Path) -> Path:
    return group / f"{group_prefix(root, pid=os.getpid())}self"


def _descends_from_us(root: Path, pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parse_integer(read_fields(root / f"proc/{pid}/status").get("PPid", "")) or 0
    return pid == os.getpid()


def _find_v1(root: Path) -> Place | None:
    folders = {}
    for controller in WANTED_V1:
        group = next((group for group in _v1_groups(root, controller) if _is_writable(group)), None)
        if group is not None:
            folders[controller] = group
    if NEEDED not in folders:
        return None
    for group in control_group_directories(root, UNIFIED):
        if (group / "cgroup.subtree_control").exists() and _is_writable(group):
            folders[UNIFIED] = group
            break
    return Place(1, MappingProxyType(folders))


def _v1_groups(root: Path, controller: str) -> Iterator[Path]:
    unified = set(control_group_directories(root, UNIFIED))
    return (group for group in control_group_directories(root, controller) if group not in unified and group.is_dir())


def _reason(root: Path) -> str:
    groups = [group for group in control_group_directories(root, UNIFIED) if (group / "cgroup.procs").exists()]
    groups += _v1_groups(root, NEEDED)
    if not groups:
        return "this system shows no control groups; mount cgroup2 on /sys/fs/cgroup"
    name = f"/{groups[0].relative_to(root).as_posix()}"
    if os.statvfs(groups[0]).f_flag & os.ST_RDONLY:
        return f"the control group {name} is mounted read-only; give the container a writable one"
    if not any(_is_writable(group) for group in groups):
        return f"the control group {name} may not be written by this user; {OWN_SCOPE}"
    if not any(NEEDED in _words(group / "cgroup.controllers") for group in groups):
        return f"the control group {name} has no pids controller; the system above it must pass it on"
    return f"the control group {name} holds other processes too, so it can have no limited ones; {OWN_SCOPE}"


def _is_writable(group: Path) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)


def _words(path: Path) -> list[str]:
    return (read_text(path) or "").split()


def _try_write(path: Path, text: str) -> None:
    with suppress(OSError):
        path.write_text(text)
