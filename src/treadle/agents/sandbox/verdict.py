"""Tells from what is known of a call's end why it ended.

Leaves to others: finding out (``worker``, ``watch``).
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass

from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import EndStatus

__all__ = ["Ending", "Report", "tell"]


@dataclass(frozen=True)
class Report:
    """What the sandbox says of the end of its program; the program could have said it itself.

    Args:
        status: As of ``os.wait``.
        cpu_seconds: CPU time of the program and the children that it waited for.
        peak_bytes: The most memory that one of them held.
        reason: "memory" if Python code ended for want of it, else nothing.
    """

    status: int
    cpu_seconds: float
    peak_bytes: int
    reason: str

    @classmethod
    def parse(cls, line: bytes) -> Report | None:
        """Return the report, None if it is none."""
        try:
            fields = json.loads(line)
            cpu_seconds = float(fields["cpu_seconds"])
            return cls(
                int(fields["status"]) & 0xFFFF,
                cpu_seconds if 0 <= cpu_seconds < 1e9 else 0.0,
                min(max(int(fields["peak_bytes"]), 0), 1 << 62),
                str(fields["reason"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


@dataclass(frozen=True)
class Ending:
    """What is known: the limit it was killed for, the report if one came, whether the kernel ran out of its memory."""

    broken: EndStatus | None
    report: Report | None
    is_oom: bool


def tell(ending: Ending, limits: SandboxLimits) -> tuple[EndStatus, int | None, int | None]:
    """Return the status, the exit code and the signal."""
    report = ending.report
    if ending.broken is not None:
        return ending.broken, None, None
    if report is None:  # whatever waited for the program died first
        return ("memory", None, None) if ending.is_oom else ("signaled", None, int(signal.SIGKILL))
    exit_code = None if os.WIFSIGNALED(report.status) else os.WEXITSTATUS(report.status)
    if exit_code != 0 and (ending.is_oom or report.reason == "memory"):
        return "memory", None, None
    if exit_code is not None:
        return "exited", exit_code, None
    number = os.WTERMSIG(report.status)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and report.cpu_seconds >= limits.cpu_seconds):
        return "cpu", None, None
    return "signaled", None, number
