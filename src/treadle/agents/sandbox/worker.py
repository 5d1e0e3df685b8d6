"""One sandbox for one call: started ahead, handed its work, watched, and killed with all its processes.

Leaves to others: what isolates it (``launch``), when one is started (``workers``), what runs in it first (``inside``).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.agents.sandbox.launch import Launcher
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import EndStatus, Outcome
from treadle.agents.sandbox.output import Capture
from treadle.errors import SandboxUnavailableError
from treadle.hardware.cpu_share import CpuShare

__all__ = ["Request", "Worker"]

START_SECONDS = 60.0  # a machine that needs longer to start one is out of order
DEATH_SECONDS = 30.0  # a killed process that takes longer is stuck in the kernel
MAX_REPORT_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """What to run: a program with its arguments, or Python code."""

    argv: Sequence[str] | None = None
    code: str | None = None
    stdin: bytes = b""


class Worker:
    """A sandbox that waits for its call; made by ``start``, good for one ``run``, gone after ``close``."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, pipes: Sequence[int]) -> None:
        self._process = process
        self._control = control
        self._stdin, self._stdout, self._stderr = pipes
        self._root: int | None = None  # a descriptor of the process that takes all others along when it dies
        self._captures: list[Capture] = []
        self.start_seconds = 0.0

    @classmethod
    async def start(cls, launcher: Launcher, limits: SandboxLimits) -> Worker:
        """Start a sandbox and wait until it is ready. Raises SandboxUnavailableError with the reason."""
        began = time.perf_counter()
        ours, theirs = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        far = [pipes[0][0], pipes[1][1], pipes[2][1]]
        near = [pipes[0][1], pipes[1][0], pipes[2][0]]
        launch = launcher.prepare(theirs.fileno(), limits.tmp_bytes)
        try:
            # From this thread, not from a passing one: the sandbox dies with the thread that started it. Without
            # preexec_fn it is a vfork, which costs the same however big this process is.
            process = subprocess.Popen(
                launch.argv,
                stdin=far[0],
                stdout=far[1],
                stderr=far[2],
                pass_fds=launch.inherited,
                env=launch.environment,
                cwd=launch.folder,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            for descriptor in (*near, launch.root_report):
                if descriptor is not None:
                    os.close(descriptor)
            raise SandboxUnavailableError(f"{launch.argv[0]} could not be started: {error}") from error
        finally:
            theirs.close()
            for descriptor in (*far, *launch.owned):
                os.close(descriptor)
        worker = cls(process, ours, near)
        try:
            await asyncio.wait_for(worker._become_ready(launch.root_report), START_SECONDS)
        except BaseException:
            await worker.close()
            raise
        worker.start_seconds = time.perf_counter() - began
        return worker

    async def _become_ready(self, root_report: int | None) -> None:
        self._control.setblocking(False)
        try:
            ready = await asyncio.get_running_loop().sock_recv(self._control, 1)
            if ready != b"R":
                raise SandboxUnavailableError(f"the sandbox did not start: {self._last_words()}")
            root = self._process.pid
            if root_report is not None:
                root = json.loads(os.read(root_report, MAX_REPORT_BYTES))["child-pid"]
            self._root = os.pidfd_open(root)
        finally:
            if root_report is not None:
                os.close(root_report)

    def _last_words(self) -> str:
        os.set_blocking(self._stderr, False)
        with suppress(BlockingIOError):
            return os.read(self._stderr, MAX_REPORT_BYTES).decode("utf-8", "replace").strip()
        return "it said nothing"

    async def run(self, request: Request, limits: SandboxLimits, share: CpuShare) -> Outcome:
        """Run the request to its end or to a limit, and end the sandbox."""
        began = time.perf_counter()
        self._captures = [Capture(self._stdout, limits.output_bytes), Capture(self._stderr, limits.output_bytes)]
        feeding = asyncio.ensure_future(self._feed(request.stdin))
        status: EndStatus | None = None
        report: dict[str, Any] | None = None
        try:
            report = await asyncio.wait_for(self._ask(request, limits, share), limits.wall_seconds)
        except asyncio.TimeoutError:
            status = "timeout"
        finally:
            feeding.cancel()
            await self.close()
        stdout, stderr = (capture.text() for capture in self._captures)
        ended, exit_code, number = _verdict(report)
        return Outcome(
            status=status or ended,
            exit_code=None if status else exit_code,
            signal=None if status else number,
            stdout=stdout,
            stderr=stderr,
            wall_seconds=time.perf_counter() - began,
            cpu_seconds=report["cpu_seconds"] if report else 0.0,
            start_seconds=0.0,
            peak_bytes=report["peak_bytes"] if report else None,
        )

    async def _ask(self, request: Request, limits: SandboxLimits, share: CpuShare) -> dict[str, Any] | None:
        """Hand the request over and wait for how it ended; None if the sandbox died without a word."""
        loop = asyncio.get_running_loop()
        message = {
            "argv": request.argv,
            "code": request.code,
            "rlimits": [
                (resource.RLIMIT_CPU, int(limits.cpu_seconds) + 1, int(limits.cpu_seconds) + 2),
                (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
                (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
                (resource.RLIMIT_NOFILE, limits.num_open_files, limits.num_open_files),
                (resource.RLIMIT_CORE, 0, 0),
            ],
            "cpus": sorted(share.cpus) if share.cpus else None,
            "nice": share.nice,
        }
        received = bytearray()
        with suppress(ConnectionError):
            await loop.sock_sendall(self._control, json.dumps(message).encode() + b"\n")
            while not received.endswith(b"\n") and len(received) < MAX_REPORT_BYTES:
                part = await loop.sock_recv(self._control, MAX_REPORT_BYTES)
                if not part:
                    break
                received += part
        return _parsed(bytes(received))

    async def _feed(self, stdin: bytes) -> None:
        os.set_blocking(self._stdin, False)
        loop = asyncio.get_running_loop()
        left = memoryview(stdin)
        try:
            while left:
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    writable = asyncio.Event()
                    loop.add_writer(self._stdin, writable.set)
                    try:
                        await writable.wait()
                    finally:
                        loop.remove_writer(self._stdin)
        except BrokenPipeError:
            pass
        finally:
            os.close(self._stdin)
            self._stdin = -1

    def kill(self) -> None:
        """Kill all processes of the sandbox; returns before they are gone."""
        with suppress(ProcessLookupError):
            if self._root is not None:
                # What started it stays, to collect it: else it would be left to the machine's init as a zombie.
                signal.pidfd_send_signal(self._root, signal.SIGKILL)
            else:
                self._process.kill()

    async def close(self) -> None:
        """Kill the sandbox and wait until nothing is left of it."""
        self.kill()
        await asyncio.wait_for(self._gone(), DEATH_SECONDS)

    async def _gone(self) -> None:
        for descriptor in (self._root, os.pidfd_open(self._process.pid)):
            if descriptor is not None:
                await _ended(descriptor)
                os.close(descriptor)
        self._root = None
        self._process.wait()
        for capture in self._captures:
            await capture.ended.wait()
        self._control.close()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self._stdin = self._stdout = self._stderr = -1


async def _ended(descriptor: int) -> None:
    """Wait until the process of a pidfd has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The report, if it is one: the program can write to where it comes from."""
    try:
        report = json.loads(line)
        return {
            "status": int(report["status"]) & 0xFFFF,
            "cpu_seconds": float(report["cpu_seconds"]),
            "peak_bytes": int(report["peak_bytes"]),
            "reason": str(report["reason"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _verdict(report: dict[str, Any] | None) -> tuple[EndStatus, int | None, int | None]:
    if report is None:
        return "signaled", None, int(signal.SIGKILL)
    if os.WIFSIGNALED(report["status"]):
        number = os.WTERMSIG(report["status"])
        return ("cpu", None, None) if number == signal.SIGXCPU else ("signaled", None, number)
    if report["reason"] == "memory":
        return "memory", None, None
    return "exited", os.WEXITSTATUS(report["status"]), None
