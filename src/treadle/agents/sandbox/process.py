"""The processes of a sandbox, held by a descriptor of the first one: what is killed is that one and no later namesake.

Leaves to others: starting them (``launch``, ``nursery``).
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from contextlib import suppress

from treadle.agents.sandbox.inside.waiting import kill_descendants
from treadle.errors import InternalError

__all__ = ["Processes"]

# A killed process that takes longer is stuck in the kernel, on a disk or network that does not answer.
DEATH_SECONDS = 60.0


class Processes:
    """The first process of a sandbox, with which all others end, and the one that started it, if that is a child."""

    def __init__(self, pid: int, starter: subprocess.Popen[bytes] | None, *, has_namespace: bool = True) -> None:
        """Take hold of a process that has not been waited for. Raises ProcessLookupError if there is none.

        Without a namespace that ends with the first process, the others are looked for among its descendants.
        """
        self.pid = pid
        self.has_namespace = has_namespace
        self._descriptor: int | None = os.pidfd_open(pid)
        self._starter = starter

    @property
    def is_alive(self) -> bool:
        """Return whether the first process runs."""
        return self._descriptor is not None and not _wait(self._descriptor, 0)

    def kill(self) -> None:
        """Kill them, without waiting for their end. What started the first one collects it, and ends with it."""
        if self._descriptor is None:
            return
        if not self.has_namespace:
            kill_descendants(self.pid)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until they have ended; to be called after ``kill``."""
        if self._descriptor is None:
            return
        descriptor = os.dup(self._descriptor)  # somebody else may collect them meanwhile
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_ended(descriptor), DEATH_SECONDS)
        finally:
            os.close(descriptor)

    def let_go(self) -> None:
        """Hold it no longer, and leave it to what started it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def collect(self) -> None:
        """Wait for their end here and now, and let go; may be called twice. Raises InternalError if it does not come.

        To be called after ``kill``; after ``gone`` it does not wait.
        """
        if self._descriptor is None:
            return
        has_ended = _wait(self._descriptor, DEATH_SECONDS)
        os.close(self._descriptor)
        self._descriptor = None
        if not has_ended:
            raise InternalError(f"process {self.pid} of a sandbox was killed and did not end in {DEATH_SECONDS:.0f} s")
        if self._starter is not None:
            self._starter.wait()


def _wait(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


async def _ended(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
