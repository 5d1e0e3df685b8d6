"""A process in a sandbox that waits for its only call: handed its work, watched, and killed with all its processes.

Leaves to others: making it (``workers``), how its end is told (``verdict``), and what it does (``inside``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.agents.sandbox.cgroups import CallGroup
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import EndStatus, Outcome
from treadle.agents.sandbox.output import Capture
from treadle.agents.sandbox.process import Processes
from treadle.agents.sandbox.verdict import Ending, Report, tell
from treadle.agents.sandbox.watch import Watch
from treadle.agents.sandbox.wires import Wires
from treadle.hardware.cpu_share import CpuShare

__all__ = ["Request", "Worker"]

# A process that has left the tree it was started in, where no namespace holds it, may hold the pipes, too.
DRAIN_SECONDS = 2.0
MAX_REPORT_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """What to run, a program with its arguments or Python code, and what its stdin says."""

    argv: Sequence[str] | None = None
    code: str | None = None
    stdin: bytes = b""


class Worker:
    """Good for one ``run``, and gone after it or after ``close``."""

    def __init__(self, wires: Wires, processes: Processes, group: CallGroup | None) -> None:
        self._wires = wires
        self._processes = processes
        self._captures: list[Capture] = []
        self.group = group

    @property
    def is_alive(self) -> bool:
        """Return whether it waits for its call, as far as is known."""
        return self._processes.is_alive

    async def run(
        self,
        request: Request,
        limits: SandboxLimits,
        resource_limits: Sequence[tuple[int, int, int]],
        share: CpuShare,
        watch: Watch,
    ) -> Outcome:
        """Run the request to its end or to a limit, and end all of it; so does cancelling this.

        ``resource_limits`` are those of setrlimit: number, soft and hard limit.
        """
        began = time.perf_counter()
        message = {
            "argv": request.argv,
            "code": request.code,
            "rlimits": resource_limits,
            "cpus": sorted(share.cpus) if share.cpus else None,
            "nice": share.nice,
        }
        if self.group is not None:
            self.group.share_cpus(share)
        self._captures = [Capture(end, limits.output_bytes) for end in (self._wires.stdout, self._wires.stderr)]
        asking = _task(self._ask(json.dumps(message)))
        watching = _task(watch.exceeded(self._processes.pid))
        feeding = _task(self._wires.feed(request.stdin))
        try:
            done, _ = await asyncio.wait(
                (asking, watching), timeout=limits.wall_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            report = asking.result() if asking in done else None
            broken: EndStatus | None = None
            if asking not in done:
                broken = watching.result() if watching in done else "timeout"
            watch.look(self._processes.pid)
            ending = Ending(broken, report, is_oom=self.group is not None and self.group.was_oom)
            peak_bytes = None if self.group is None else self.group.peak_bytes
        finally:
            for task in (asking, watching, feeding):
                task.cancel()
            await self.close()
        status, exit_code, number = tell(ending, limits)
        told_cpu, told_peak = (0.0, 0) if report is None else (report.cpu_seconds, report.peak_bytes)
        return Outcome(
            status=status,
            exit_code=exit_code,
            signal=number,
            stdout=self._captures[0].text(),
            stderr=self._captures[1].text(),
            wall_seconds=time.perf_counter() - began,
            cpu_seconds=max(watch.cpu_seconds, told_cpu),
            start_seconds=0.0,
            peak_bytes=peak_bytes or max(watch.peak_bytes, told_peak) or None,
        )

    async def _ask(self, message: str) -> Report | None:
        """Hand the request over and wait for how it ended; None if the sandbox died without a word."""
        loop = asyncio.get_running_loop()
        received = bytearray()
        with suppress(ConnectionError):
            await loop.sock_sendall(self._wires.control, message.encode() + b"\n")
            while not received.endswith(b"\n") and len(received) < MAX_REPORT_BYTES:
                part = await loop.sock_recv(self._wires.control, MAX_REPORT_BYTES)
                if not part:
                    break
                received += part
        return Report.parse(bytes(received))

    async def close(self) -> None:
        """Kill all of it and wait until nothing is left; if that is cancelled, wait here and now."""
        self._processes.kill()
        if self.group is not None and not self._processes.has_namespace:
            self.group.kill()
        try:
            await self._processes.gone()
            if self._captures:
                with suppress(asyncio.TimeoutError):
                    ended = asyncio.gather(*(capture.ended.wait() for capture in self._captures))
                    await asyncio.wait_for(ended, DRAIN_SECONDS)
            group, self.group = self.group, None
            if group is not None:
                await asyncio.to_thread(group.remove)
        finally:
            self.release()

    def release(self) -> None:
        """Kill all of it and let go of it, here and now; may be called twice."""
        for capture in self._captures:
            capture.stop()
        self._wires.close()
        self._processes.kill()
        self._processes.collect()
        if self.group is not None:
            self.group.remove()
            self.group = None


def _task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)
