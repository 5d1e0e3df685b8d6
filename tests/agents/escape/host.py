"""Looks at the machine around a sandbox: processes, mounts, control groups, files and descriptors that must not stay.

What a test does in the sandbox is the test's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SETTLE_SECONDS = 120  # killed processes may take a while to leave a loaded machine


class Host:
    """The machine as it was when this was made."""

    def __init__(self, *, mark: str, secret: Path, temporary: Path) -> None:
        self.mark = mark
        self.secret = secret
        self.temporary = temporary
        self._mounts = Path("/proc/self/mountinfo").read_text()
        self._descriptors = self.num_open()
        self._hostname = os.uname().nodename

    def marked(self) -> list[int]:
        """Processes of the sandbox: all of them begin with the mark in their environment."""
        return [pid for pid in _pids() if self.mark.encode() in _read(Path(f"/proc/{pid}/environ"))]

    def assert_unaffected(self) -> None:
        """Nothing of a sandbox is left, and nothing outside of it has changed."""
        settle(lambda: not self.marked())
        assert zombies() == []
        assert Path("/proc/self/mountinfo").read_text() == self._mounts
        assert own_groups() == []
        assert list(self.temporary.iterdir()) == []
        assert self.secret.read_text() == "secret-of-the-host"
        assert os.uname().nodename == self._hostname
        assert self.num_open() == self._descriptors

    def num_open(self) -> int:
        return len(list(Path("/proc/self/fd").iterdir()))


def settle(condition: Callable[[], bool]) -> None:
    """Wait until it holds, as it does once the kernel has put its house in order."""
    until = time.monotonic() + SETTLE_SECONDS
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


def own_groups() -> list[Path]:
    """Control groups that this process has made and not removed."""
    return [
        path for path in Path("/sys/fs/cgroup").glob(f"**/treadle-*-{os.getpid()}-*") if not path.name.endswith("-self")
    ]
