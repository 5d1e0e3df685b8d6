"""Tells the CPU seconds of spans: of the thread that ran one, or of the process while it waited for a model.

Leaves to others: what a span is (``spans``) and the CPU seconds of child processes (whoever started them).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["MODEL_CPU", "CpuMark", "SharedCpu", "count_cpu", "mark_cpu"]

_NS = 1_000_000_000


class CpuMark(NamedTuple):
    """Where a thread was when a span began: its CPU time, and how much of that spans that had ended account for."""

    thread_id: int
    num_pauses: int
    cpu_ns: int
    counted_ns: int


class _Thread(threading.local):
    """What is known of this thread: the CPU time of spans that have ended, and whether its event loop came round.

    That is counted in ``num_pauses``, only while somebody wants to know. A callback queued now runs before anything
    that is queued once the current task has given way. So as long as it has not run, no other task has.
    """

    counted_ns = 0
    num_pauses = 0
    awaited_loop: asyncio.AbstractEventLoop | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.awaited_loop is not loop:
            self.awaited_loop = loop
            loop.call_soon(self._pass)

    def _pass(self) -> None:
        self.num_pauses += 1
        self.awaited_loop = None


_THREAD = _Thread()


def mark_cpu() -> CpuMark:
    """Return a mark of this thread for ``count_cpu``."""
    loop = asyncio._get_running_loop()
    if loop is not None:
        _THREAD.watch(loop)
    return CpuMark(threading.get_ident(), _THREAD.num_pauses, time.thread_time_ns(), _THREAD.counted_ns)


def count_cpu(mark: CpuMark) -> float | None:
    """Return the CPU seconds of this thread since the mark, without those counted since for somebody else.

    They count as somebody's from now on. None if other tasks or threads had a part in what happened since the mark.
    """
    if mark.num_pauses != _THREAD.num_pauses or mark.thread_id != threading.get_ident():
        return None
    cpu_ns = time.thread_time_ns() - mark.cpu_ns - (_THREAD.counted_ns - mark.counted_ns)
    _THREAD.counted_ns += cpu_ns
    MODEL_CPU.exclude(cpu_ns)
    return cpu_ns / _NS


class SharedCpu:
    """Divides the CPU time of the process among those who use it at a time, in equal parts.

    Args:
        clock: Tells the CPU nanoseconds of the process.
    """

    def __init__(self, clock: Callable[[], int] = time.process_time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_users = 0
        self._last_ns = 0
        self._each_ns = 0.0  # what somebody would have who had used it from the beginning

    def enter(self) -> float:
        """Begin to use it; returns what to give to ``leave``."""
        with self._lock:
            self._advance()
            self._num_users += 1
            return self._each_ns

    def leave(self, entered: float) -> int:
        """End the use; returns its nanoseconds."""
        with self._lock:
            self._advance()
            self._num_users -= 1
            return round(self._each_ns - entered)

    def exclude(self, cpu_ns: int) -> None:
        """Take out what is known to be somebody else's."""
        if self._num_users:
            with self._lock:
                self._last_ns += cpu_ns

    def _advance(self) -> None:
        now = self._clock()
        if self._num_users and now > self._last_ns:
            self._each_ns += (now - self._last_ns) / self._num_users
        # What was excluded beyond the time that passed is still to be taken out.
        self._last_ns = max(now, self._last_ns) if self._num_users else now


MODEL_CPU = SharedCpu()
