"""A process in a sandbox that forks others into sandboxes of their own, with Python already loaded.

A sandbox that bubblewrap starts costs the start of an interpreter and its imports; one from here costs two forks and
four namespaces. What a call leaves in its processes, its memory, ``/tmp``, ``/dev/shm``, its network or its IPC dies
with its namespaces all the same. Leaves to others: what is said to those processes (``worker``).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

from treadle.agents.sandbox.bubblewrap import Bubblewrap
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.process import Processes
from treadle.agents.sandbox.wires import FarEnds, Wires

__all__ = ["Nursery"]


class Nursery:
    """Makes processes that wait for a request; made by ``start``, and all it made die with it."""

    def __init__(self, bubblewrap: Bubblewrap, wires: Wires, processes: Processes) -> None:
        self._bubblewrap = bubblewrap
        self._wires = wires
        self._processes = processes

    @classmethod
    async def start(cls, bubblewrap: Bubblewrap) -> Nursery:
        """Start one and wait until it is ready. Raises SandboxUnavailableError with the reason."""
        wires, far = Wires.make(socket.SOCK_SEQPACKET)
        starter = bubblewrap.prepare_nursery(far.control.fileno()).start(far)
        return cls(bubblewrap, wires, await wires.connect(starter))

    async def another(self) -> Nursery:
        """Start one like this. Raises SandboxUnavailableError."""
        return await self.start(self._bubblewrap)

    @property
    def is_alive(self) -> bool:
        """Return whether it can make more."""
        return self._processes.is_alive

    def bear(self, far: FarEnds, limits: SandboxLimits) -> None:
        """Make a process that waits for a request on these ends, which are closed here.

        It says that it is ready, or why not on its stderr. Raises OSError if the nursery has ended.
        """
        wanted = {"tmp_bytes": limits.tmp_bytes, "num_files": limits.num_files}
        ends: Sequence[int] = (far.control.fileno(), far.stdin, far.stdout, far.stderr)
        try:
            socket.send_fds(self._wires.control, [json.dumps(wanted).encode()], ends)
        finally:
            far.close()

    def kill(self) -> None:
        """End it and all that it made, and collect it here and now; may be called twice."""
        self._processes.kill()
        self._processes.collect()
        self._wires.close()

    async def close(self) -> None:
        """End it and all that it made; may be called twice."""
        self._processes.kill()
        try:
            await self._processes.gone()
        finally:
            self.kill()
