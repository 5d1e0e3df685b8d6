"""Processes that run one Python function, kept warm between calls and killed when a call must end.

Leaves to others: what the processes do (``worker``) and when work may start (the gate).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from treadle.agents.own_thread import in_own_thread
from treadle.agents.tool import ToolResult
from treadle.agents.trace import charge_cpu
from treadle.agents.worker import work
from treadle.errors import ToolError
from treadle.hardware.cpu_share import CpuShare

__all__ = ["WorkerPool"]

_MAX_IDLE = 2


class WorkerPool:
    """Runs the function ``name`` of ``module`` in as many processes as there are calls at a time.

    Processes start afresh, not as copies of this one, which has threads and a model in memory. Use from one event loop.
    """

    def __init__(self, module: str, name: str) -> None:
        self._target = (module, name)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._is_closed = False

    async def call(self, arguments: Mapping[str, Any], share: CpuShare) -> ToolResult:
        """Return what the function says to ``arguments``, computed on ``share`` of the CPUs.

        Cancelling the task kills the process and all it has started.

        Raises:
            ToolError: The process died, or could not start.
        """
        if self._is_closed:
            raise ToolError("the tool was closed")
        worker = self._idle.pop() if self._idle else await in_own_thread(_Worker, *self._target)
        self._busy.add(worker)
        try:
            result = await worker.call(dict(arguments), share)
        except BaseException:
            worker.kill()
            raise
        finally:
            self._busy.discard(worker)
        if self._is_closed or len(self._idle) >= _MAX_IDLE:
            worker.kill()
        else:
            self._idle.append(worker)
        return result

    def close(self) -> None:
        """Kill all processes; calls that run end with an error."""
        self._is_closed = True
        for worker in (*self._idle, *self._busy):
            worker.kill()
        self._idle.clear()


class _Worker:
    def __init__(self, module: str, name: str) -> None:
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        # No daemon: those may not start processes of their own. It ends by itself when its connection does.
        self._process: BaseProcess = context.Process(target=work, args=(theirs, module, name), daemon=False)
        self._process.start()
        theirs.close()

    async def call(self, arguments: dict[str, Any], share: CpuShare) -> ToolResult:
        pid = self._process.pid
        assert pid is not None
        share.confine(pid)
        try:
            result, cpu_seconds = await in_own_thread(self._exchange, arguments)
        except (EOFError, OSError):
            await in_own_thread(self._process.join, 5.0)
            raise ToolError(f"the process of the tool died{_reason(self._process.exitcode)}") from None
        charge_cpu(cpu_seconds)
        return result

    def kill(self) -> None:
        """End the process and all of its session, without waiting."""
        pid = self._process.pid
        with suppress(AttributeError, OSError):
            if pid is not None and os.getpgid(pid) == pid:  # it leads a group already
                os.killpg(pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(5.0)
        self._connection.close()

    def _exchange(self, arguments: dict[str, Any]) -> tuple[ToolResult, float]:
        self._connection.send(arguments)
        answer: tuple[ToolResult, float] = self._connection.recv()
        return answer


def _reason(code: int | None) -> str:
    if code is None:
        return ""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"
