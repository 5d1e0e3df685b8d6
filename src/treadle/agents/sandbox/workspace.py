"""Tells how much the workspace has grown, without a walk through it as long as its file system has hardly changed.

No quota of the kernel holds a folder to a size, so this is looked at while a call runs. Leaves to others: ending the
call (``watch``, ``worker``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.sandbox.limits import SandboxLimits

__all__ = ["Contents", "WorkspaceMeter", "measure", "remove_tree"]

# A walk is due when the file system has lost this part of what a call may use, or when so much time has passed. Walks
# take at most a third of the time in the first case, a twentieth in the second.
SUSPICIOUS_PART = 1 / 8
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Contents:
    """What a folder holds: bytes on the disk, files and folders, and folders that cannot be read or are too deep."""

    num_bytes: int
    num_files: int
    num_hidden: int = 0

    def fits(self, other: Contents) -> bool:
        """Return whether it is no more than another in anything."""
        return (
            self.num_bytes <= other.num_bytes
            and self.num_files <= other.num_files
            and self.num_hidden <= other.num_hidden
        )


class WorkspaceMeter:
    """Compares a folder with what it held at first."""

    def __init__(self, folder: Path) -> None:
        """Measure the folder; to be called where a walk through it may take its time."""
        self._folder = folder
        self._first = self.last = Contents(0, 0)
        self._measure()
        self._first = self.last

    def _measure(self) -> None:
        began = time.monotonic()
        self._free = _free(self._folder)
        self.last = measure(self._folder)
        self._ended = time.monotonic()
        self._took = self._ended - began

    def allowed(self, limits: SandboxLimits) -> Contents:
        """Return what a call that starts now may bring the folder to; it may always remove what is too much already."""
        return Contents(
            max(self._first.num_bytes + limits.workspace_bytes, self.last.num_bytes),
            max(self._first.num_files + limits.num_files, self.last.num_files),
            max(self._first.num_hidden, self.last.num_hidden),
        )

    async def is_exceeded(self, allowed: Contents, limits: SandboxLimits) -> bool:
        """Return whether the folder holds more than was allowed, as far as is known without much work."""
        if self._is_due(limits):
            await asyncio.to_thread(self._measure)
        return not self.last.fits(allowed)

    def _is_due(self, limits: SandboxLimits) -> bool:
        waited = time.monotonic() - self._ended
        free = _free(self._folder)
        is_suspicious = (
            self._free.num_bytes - free.num_bytes > limits.workspace_bytes * SUSPICIOUS_PART
            or self._free.num_files - free.num_files > limits.num_files * SUSPICIOUS_PART
        )
        return waited > (2 * self._took if is_suspicious else max(PATIENCE_SECONDS, 20 * self._took))


def _free(folder: Path) -> Contents:
    found = os.statvfs(folder)
    return Contents(found.f_bavail * found.f_frsize, found.f_favail)


def measure(folder: Path) -> Contents:
    """Return what a folder holds, following no link, not even one that has just taken the place of a folder."""
    num_bytes = num_files = num_hidden = 0
    linked: set[int] = set()
    folders: list[tuple[str, tuple[int, int] | None]] = [(str(folder), None)]
    while folders:
        path, identity = folders.pop()
        try:
            for name, found in _entries(path, identity):
                if stat.S_ISDIR(found.st_mode):
                    folders.append((f"{path}/{name}", (found.st_dev, found.st_ino)))
                elif found.st_nlink > 1:
                    if found.st_ino in linked:
                        continue
                    linked.add(found.st_ino)
                num_files += 1
                num_bytes += found.st_blocks * 512
        except (FileNotFoundError, NotADirectoryError):
            continue  # it has been removed meanwhile
        except OSError:
            num_hidden += 1
    return Contents(num_bytes, num_files, num_hidden)


def _entries(path: str, identity: tuple[int, int] | None) -> Iterator[tuple[str, os.stat_result]]:
    """What a folder holds that is the one of this device and number; nothing of another that has come to be there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = os.fstat(descriptor)
        if identity is not None and identity != (opened.st_dev, opened.st_ino):
            return
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder that a hostile program has filled, as deep and as unreadable as it may be."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            if folder.exists():
                subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)
