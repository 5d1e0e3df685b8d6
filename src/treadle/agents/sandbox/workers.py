"""Keeps sandboxes that wait for a call, so that a call does not wait for a sandbox.

Each is good for one call: nothing of a call can be left for the next in processes, memory or ``/tmp`` that end with
it. The next one is made when a call has ended, not before, so that making it does not slow the call down. Leaves to
others: making one (``nursery``, ``launch``) and running a call in it (``worker``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque

from treadle.agents.sandbox.cgroups import CallGroup
from treadle.agents.sandbox.launch import Launcher
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.nursery import Nursery
from treadle.agents.sandbox.wires import Wires
from treadle.agents.sandbox.worker import Worker
from treadle.errors import SandboxUnavailableError

__all__ = ["Workers"]

_group_numbers = itertools.count()


class Workers:
    """Sandboxes of one kind, ``num_warm`` of which wait; not safe for use by several threads."""

    def __init__(self, launcher: Launcher, nursery: Nursery | None, limits: SandboxLimits, num_warm: int) -> None:
        self._launcher = launcher
        self._nursery = nursery
        self._limits = limits
        self._num_warm = num_warm
        self._waiting: deque[asyncio.Task[Worker]] = deque()
        self._opening = asyncio.Lock()
        self._is_closed = False

    def refill(self) -> None:
        """Begin to make those that are missing."""
        while len(self._waiting) < self._num_warm and not self._is_closed:
            self._waiting.append(asyncio.get_running_loop().create_task(self._start(self._limits)))

    async def take(self, limits: SandboxLimits) -> Worker:
        """Return a sandbox that waits for a call of these limits. Raises SandboxUnavailableError."""
        if _made_for(limits) == _made_for(self._limits):
            while self._waiting:
                task = self._waiting.popleft()
                try:
                    worker = await asyncio.shield(task)
                except asyncio.CancelledError:
                    self._waiting.appendleft(task)
                    raise
                except SandboxUnavailableError:
                    continue  # what has become of it may be over
                if worker.is_alive:
                    return worker
                await worker.close()
        return await self._start(limits)

    async def _start(self, limits: SandboxLimits) -> Worker:
        nursery = await self._living_nursery()
        wires, far = Wires.make()
        try:
            starter = None
            if nursery is not None:
                nursery.bear(far, limits)
            else:
                starter = self._launcher.prepare(far.control.fileno(), limits.tmp_bytes).start(far)
        except BaseException as error:
            far.close()
            wires.close()
            if isinstance(error, OSError):
                raise SandboxUnavailableError(f"a sandbox could not be made: {error}") from error
            raise
        processes = await wires.connect(starter, has_namespace=self._launcher.has_namespace)
        worker = Worker(wires, processes, None)
        try:
            worker.group = CallGroup.create(f"call{next(_group_numbers)}", limits)
            if worker.group is not None:  # in a thread: the kernel may take some milliseconds to move a process
                await asyncio.to_thread(worker.group.add, processes.pid)
            await wires.begin()
        except BaseException as error:
            worker.release()
            if isinstance(error, OSError):
                raise SandboxUnavailableError(f"the control group of a sandbox could not be made: {error}") from error
            raise
        return worker

    async def _living_nursery(self) -> Nursery | None:
        """Return the nursery, or a new one if something has killed it; None if there is none to be."""
        async with self._opening:
            if self._nursery is not None and not self._nursery.is_alive:
                self._nursery.kill()
                self._nursery = await self._nursery.another()
            return self._nursery

    async def close(self) -> None:
        """End those that wait, and what makes them; may be called twice."""
        self._is_closed = True
        tasks = list(self._waiting)
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(made, Worker):
                await made.close()
        if self._nursery is not None:
            await self._nursery.close()

    def release(self) -> None:
        """The same here and now, for when no event loop runs any more."""
        self._is_closed = True
        while self._waiting:
            task = self._waiting.popleft()
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().release()
        if self._nursery is not None:
            self._nursery.kill()


def _made_for(limits: SandboxLimits) -> tuple[int, ...]:
    """The limits that a sandbox has before it knows its call."""
    return limits.tmp_bytes, limits.num_files, limits.memory_bytes, limits.num_processes
