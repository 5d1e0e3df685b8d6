"""Looks at the machine around a sandbox: processes, mounts, control groups, files and descriptors that must not stay.

What a test does in the sandbox is the test's own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from patience import PATIENCE_SECONDS


class Host:
    """The machine as it was when this was made."""

    def __init__(self, *, mark: str, secret: Path, temporary: Path) -> None:
        self.mark = mark
        self.secret = secret
        self.temporary = temporary
        self._mounts = Path("/proc/self/mountinfo").read_text()
        self._open = self.open_files()
        self._hostname = os.uname().nodename

    def marked(self) -> list[int]:
        """Processes of the sandbox: all of them begin with the mark in their environment."""
        return [pid for pid in _pids() if self.mark.encode() in _read(Path(f"/proc/{pid}/environ"))]

    def assert_unaffected(self) -> None:
        """Nothing of a sandbox is left, and nothing outside of it has changed."""
        settle(lambda: not self.marked())
        settle(lambda: not zombies())
        assert Path("/proc/self/mountinfo").read_text() == self._mounts
        assert own_groups() == []
        assert list(self.temporary.iterdir()) == []
        assert self.secret.read_text() == "secret-of-the-host"
        assert os.uname().nodename == self._hostname
        # Threads of other tests may open and close what they like meanwhile, but what is left open stays.
        settle(lambda: not self.open_files() - self._open)

    def open_files(self) -> set[tuple[str, str]]:
        """The descriptors of this process and what each leads to, but for the one that lists them."""
        found = set()
        for path in Path("/proc/self/fd").iterdir():
            try:
                target = str(path.readlink())
            except OSError:
                continue
            if target != f"/proc/{os.getpid()}/fd":
                found.add((path.name, target))
        return found


def settle(condition: Callable[[], bool]) -> None:
    """Wait until it holds, as it does once the kernel has put its house in order."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def descendants() -> list[int]:
    """Processes below this one."""
    found = [os.getpid()]
    for parent in found:
        found += (int(word) for path in Path(f"/proc/{parent}/task").glob("*/children") for word in _read(path).split())
    return found[1:]


def zombies() -> list[int]:
    """Those among them that nobody has waited for."""
    return [pid for pid in descendants() if b"\nState:\tZ" in _read(Path(f"/proc/{pid}/status"))]


def sleeping(seconds: int) -> list[int]:
    """Processes of the machine that sleep for so long."""
    return [pid for pid in _pids() if _read(Path(f"/proc/{pid}/cmdline")) == f"sleep\0{seconds}\0".encode()]


def own_groups() -> list[Path]:
    """Control groups that this process has made and not removed."""
    name = re.compile(rf"treadle-.*-{os.getpid()}-(?!self$).*")
    # Unlike a glob, a walk goes on when somebody removes a folder under it.
    return [
        Path(folder, each) for folder, names, _ in os.walk("/sys/fs/cgroup") for each in names if name.fullmatch(each)
    ]
