"""Folders that a sandbox makes for itself: locked while they are in use, so that those of killed processes can go.

Leaves to others: what is put into them.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from treadle.agents.sandbox.workspace import remove_tree

__all__ = ["OwnFolder", "sweep"]

_PREFIX = "treadle-sandbox-"
_MIN_AGE_SECONDS = 60.0  # one that another process makes just now has no lock yet


class OwnFolder:
    """A new folder in the temporary folder of the system; making one removes what killed processes left."""

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Remove the folder with all that is in it; may be called twice."""
        if self._lock is not None:
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = None


def sweep() -> None:
    """Remove the folders of this user that no process holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it has just gone, is another user's, or is in use
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                facts = os.fstat(lock)
                if facts.st_uid == os.geteuid() and time.time() - facts.st_ctime > _MIN_AGE_SECONDS:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(folder)
            finally:
                os.close(lock)
