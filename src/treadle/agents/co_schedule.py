"""Lets a model and tools live on the same cores: tools that compute wait for a core, and the engine makes way for them.

Leaves to others: leaving cores between two steps (``engine.shared_cores``), learning how many of a kind are worth
running together (``ClassCap``) and holding a process to its share (``CpuShare``).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from treadle.agents.class_cap import ClassCap
from treadle.agents.gate import OpenGate, Work, in_task, take_turn
from treadle.agents.trace import span
from treadle.hardware.cpu_share import CpuShare
from treadle.hardware.topology import read_topology

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.shared_cores import SharedCores

__all__ = ["CoSchedule", "Policy"]

# "fixed" is what others do: as many threads as planned, tools on all cores as they come.
Policy = Literal["adaptive", "fixed"]

# Where a tool meets a thread of the model on one core, the many that wait for the model's next token go first.
_NICE = 5

# A model that computes for few streams gets little done for its time. While fewer are ready than wait for tools, it
# therefore leaves all cores to the tools, but no longer than this, and then goes on for at least as long.
_MOST_HELD_SECONDS = 2.0


@dataclass(eq=False)
class _Piece:
    """Work that waits for a core, or has one."""

    name: str
    may_start: asyncio.Future[None]
    turn: int
    core: int = -1  # index into the cores that are lent
    began: float = 0.0
    most_running: int = field(default=0)  # of its kind at a time, while it ran


class CoSchedule:
    """A gate for the tools of agents on the machine that also computes their model.

    Work that computes gets one core each, that of the oldest task first (see ``in_task``). While the model computes,
    all such work together has half of the cores, rounded down, or those that the model never uses if they are more, and
    at least one; while it does not, all. From its next step on the engine computes on the others. It pauses for a
    moment while there is such work for all cores, and more of it than there are streams to compute.

    Work that waits for something else starts at once.

    To be used in one event loop. ``caps`` is what was learned of each kind of work.

    Args:
        engine: What the agents ask. One that computes elsewhere is not told: then there is one core for each piece.
        policy: "fixed" lets everything start at once on all cores; the engine is to be loaded with ``adapt=False``.
        max_tasks: Most tasks that ``task`` lets run at a time; None sets no limit.
    """

    def __init__(
        self, engine: AsyncEngine | None = None, *, policy: Policy = "adaptive", max_tasks: int | None = None
    ) -> None:
        self._cores = None if engine is None else engine.cores
        self._open = OpenGate() if policy == "fixed" else None
        self._own_cores = [frozenset(core.cpus) for core in reversed(read_topology().cores)]
        self._waiting: list[_Piece] = []
        self._running: list[_Piece] = []
        self.caps: dict[str, ClassCap] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held_since: float | None = None
        self._may_hold_at = 0.0
        self._tasks = nullcontext() if max_tasks is None else asyncio.Semaphore(max_tasks)

    def enter(self, work: Work, name: str) -> AbstractAsyncContextManager[CpuShare]:
        """Return a context to work in, see ``ToolGate``."""
        if self._open is not None or work == "io":
            return OpenGate().enter(work, name)
        return self._hold_a_core(name)

    @asynccontextmanager
    async def task(self) -> AsyncIterator[None]:
        """Work on a task, before those that are begun later, once there is room for one more."""
        async with self._tasks:
            with in_task():
                yield

    @asynccontextmanager
    async def _hold_a_core(self, name: str) -> AsyncIterator[CpuShare]:
        loop = asyncio.get_running_loop()
        piece = _Piece(name, loop.create_future(), take_turn())
        self._line_up(piece, loop)
        try:
            if not piece.may_start.done():
                with span("wait", "a core"):
                    await piece.may_start
            yield self._share(piece)
            self.caps[name].ended(piece.most_running, time.perf_counter() - piece.began)
        finally:
            self._leave(piece)

    def _line_up(self, piece: _Piece, loop: asyncio.AbstractEventLoop) -> None:
        if not (self._waiting or self._running):
            self._loop = loop
            if self._cores is not None:
                self._cores.add_listener(self._hear)
        self._waiting.append(piece)
        self._waiting.sort(key=lambda each: each.turn)
        self._admit()

    def _leave(self, piece: _Piece) -> None:
        if piece in self._running:
            self._running.remove(piece)
        else:
            self._waiting.remove(piece)
        self._admit()
        if self._cores is not None and not (self._waiting or self._running):
            self._cores.remove_listener(self._hear)

    def _hear(self) -> None:
        """In the engine's thread: it has more or fewer requests."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._admit)
        except RuntimeError:  # the loop has ended, and so has everybody who waited
            return

    def _admit(self) -> None:
        """Start what may start, and tell the engine how many cores that takes."""
        cores = self._lent_cores()
        most = self._most_running(len(cores))
        for piece in tuple(self._waiting):
            if len(self._running) >= most:
                break
            running = Counter(each.name for each in self._running)[piece.name]
            if running < self.caps.setdefault(piece.name, ClassCap(len(cores))).cap:
                self._waiting.remove(piece)
                self._start(piece)
        if self._cores is not None:
            self._cores.lend(len(self._running))

    def _start(self, piece: _Piece) -> None:
        taken = {each.core for each in self._running}
        piece.core = next(index for index in range(len(self._running) + 1) if index not in taken)
        piece.began = time.perf_counter()
        self._running.append(piece)
        num_running = Counter(each.name for each in self._running)[piece.name]
        for each in self._running:
            if each.name == piece.name:
                each.most_running = max(each.most_running, num_running)
        if not piece.may_start.done():
            piece.may_start.set_result(None)

    def _most_running(self, num_cores: int) -> int:
        if self._cores is None or self._holds(self._cores, num_cores) or self._cores.num_requests == 0:
            return num_cores
        return max(1, num_cores // 2, self._cores.num_spare)

    def _holds(self, cores: SharedCores, num_cores: int) -> bool:
        """Decide whether the engine pauses, and let it know."""
        assert self._loop is not None
        now = self._loop.time()
        num_pieces = len(self._waiting) + len(self._running)
        is_wanted = num_pieces >= num_cores and 0 < cores.num_requests < num_pieces
        if self._held_since is None:
            if is_wanted and now >= self._may_hold_at:
                self._held_since = now
                cores.hold(_MOST_HELD_SECONDS)
                self._loop.call_later(_MOST_HELD_SECONDS, self._admit)
        elif not is_wanted or now - self._held_since >= _MOST_HELD_SECONDS:
            self._may_hold_at = now + (now - self._held_since if is_wanted else 0.0)
            self._held_since = None
            cores.hold(0)
        return self._held_since is not None

    def _lent_cores(self) -> list[frozenset[int]]:
        return self._own_cores if self._cores is None else list(self._cores.cores)

    def _share(self, piece: _Piece) -> CpuShare:
        cores = self._lent_cores()
        if self._cores is None or not self._cores.has_places or piece.core >= len(cores):
            return CpuShare(nice=_NICE)
        # On the cores of those before it, too: should the engine come back to its last one, the system moves the work.
        return CpuShare(frozenset().union(*cores[: piece.core + 1]), nice=_NICE)
