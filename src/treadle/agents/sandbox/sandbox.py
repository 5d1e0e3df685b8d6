"""Runs programs and Python code that nobody has read, each call in a sandbox of its own.

Leaves to others: which way of isolation this machine has (``choose``), what a call may use (``limits``), sandboxes
that wait (``workers``) and a call's course (``worker``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.sandbox.choose import Isolation, Wish, choose
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.own_folder import OwnFolder
from treadle.agents.sandbox.resource_limits import resource_limits
from treadle.agents.sandbox.watch import Watch
from treadle.agents.sandbox.worker import Request
from treadle.agents.sandbox.workers import Workers
from treadle.agents.sandbox.workspace import WorkspaceMeter
from treadle.agents.trace import span
from treadle.errors import UsageError

__all__ = ["Sandbox"]

MAX_CODE_BYTES = 1 << 20
DEFAULT_LIMITS = SandboxLimits()
NOTHING: Mapping[str, str] = MappingProxyType({})


class Sandbox:
    """A workspace, and programs that see little more of the machine than it; made by ``open``, ended by ``close``.

    Calls may run at once. To be used in the event loop that it was opened in.
    """

    def __init__(
        self,
        isolation: Isolation,
        workers: Workers,
        meter: WorkspaceMeter | None,
        limits: SandboxLimits,
        gate: ToolGate,
    ) -> None:
        self._isolation = isolation
        self._workers = workers
        self._meter = meter
        self._limits = limits
        self._gate = gate
        self._finalizer = weakref.finalize(self, _abandon, workers, isolation.folders)

    @classmethod
    async def open(
        cls,
        *,
        workspace: Path | None = None,
        is_writable: bool = True,
        limits: SandboxLimits = DEFAULT_LIMITS,
        has_network: bool = False,
        environment: Mapping[str, str] = NOTHING,
        gate: ToolGate = OpenGate(),  # noqa: B008 - it has no state
        packages: Sequence[Path] = (),
        num_warm: int = 2,
        is_unsafe: bool = False,
    ) -> Sandbox:
        """Open a sandbox.

        Args:
            workspace: The folder that programs see as /workspace; one that is removed at the end, if none is given.
            is_writable: Whether they may change it.
            limits: What a call may use if it says nothing else.
            has_network: Whether they have the network of this machine, all of it.
            environment: Variables beside those that name folders and the language; none of this process is passed on.
            gate: What calls pass before they start.
            packages: Folders of Python packages (such as the ``site-packages`` of a virtual environment of the same
                Python) that the code may import from, beside the standard library.
            num_warm: How many sandboxes wait for a call; the next is made when a call ends.
            is_unsafe: Run programs without isolation. They can do what this user can.

        Raises:
            SandboxUnavailableError: This machine has nothing to isolate programs with; says why, and what to type.
            UsageError: The workspace is no folder.
        """
        if workspace is not None and not workspace.is_dir():
            raise UsageError(f"the workspace {workspace} is not a folder")
        owned = [OwnFolder()] if workspace is None else []
        folder = owned[0].path if workspace is None else workspace.resolve()
        wish = Wish(folder, is_writable, has_network, environment, packages)
        try:
            isolation = await choose(wish, owned, is_unsafe=is_unsafe)
            meter = await asyncio.to_thread(WorkspaceMeter, folder) if is_writable else None
        except BaseException:
            for each in owned:
                each.remove()
            raise
        workers = Workers(isolation.launcher, isolation.nursery, limits, num_warm)
        workers.refill()
        return cls(isolation, workers, meter, limits, gate)

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, in words; what could not be had, and why."""
        return self._isolation.layers

    @property
    def workspace(self) -> Path:
        """Return the folder that programs see as /workspace."""
        return self._isolation.workspace

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
        """Run a program in the workspace and return how it ended. Cancelling this kills it.

        A program that is not there ends as in a shell, with exit code 127. Raises UsageError for a command line that no
        program can be given, SandboxUnavailableError if the sandbox could not be renewed.
        """
        words = list(argv)
        if not words or any("\0" in word for word in words):
            raise UsageError(f"no program can be started with {words}: words are missing, or hold a NUL character")
        return await self._run(Request(argv=words, stdin=stdin), "run", limits or self._limits)

    async def run_python(self, code: str, *, limits: SandboxLimits | None = None) -> Outcome:
        """Run Python code in the workspace and return how it ended. Cancelling this kills it.

        The value of an expression in the last line is printed, as in a notebook. An exception ends in exit code 1 and a
        traceback of the code's own lines. Raises UsageError for code of more than 1 MiB, SandboxUnavailableError if
        the sandbox could not be renewed.
        """
        num_bytes = len(code.encode("utf-8", "surrogatepass"))
        if num_bytes > MAX_CODE_BYTES:
            raise UsageError(f"the code has {num_bytes} bytes, the most is {MAX_CODE_BYTES}")
        return await self._run(Request(code=code), "run_python", limits or self._limits)

    async def _run(self, request: Request, name: str, limits: SandboxLimits) -> Outcome:
        async with self._gate.enter("cpu", name) as share:
            with span("sandbox", name) as measured:
                began = time.perf_counter_ns()
                worker = await self._workers.take(limits)
                ready = time.perf_counter_ns()
                measured.add("sandbox", "start", began, ready)
                try:
                    watch = Watch(limits, worker.group, self._meter, self._isolation.loose_folders)
                    bounds = resource_limits(limits, worker.group, self._isolation.launcher)
                    outcome = await worker.run(request, limits, bounds, share, watch)
                finally:
                    self._workers.refill()
                measured.add("sandbox", "program", ready, time.perf_counter_ns(), cpu_seconds=outcome.cpu_seconds)
                measured.attributes["status"] = outcome.status
        start_seconds = (ready - began) / 1e9
        return dataclasses.replace(
            outcome, wall_seconds=outcome.wall_seconds + start_seconds, start_seconds=start_seconds
        )

    async def close(self) -> None:
        """End what waits and what runs, and remove the workspace if it is the sandbox's own; may be called twice."""
        try:
            await self._workers.close()
        finally:
            self._finalizer()


def _abandon(workers: Workers, folders: Sequence[OwnFolder]) -> None:
    workers.release()
    for folder in folders:
        folder.remove()
