"""What is told of a call in a sandbox when it has ended.

Leaves to others: running it (``worker``) and reading what it writes (``output``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CappedText", "EndStatus", "Outcome"]

# exited: by itself, with an exit code. signaled: by a signal of its own or of the kernel. timeout, cpu, memory, disk:
# killed for the limit of that name ("disk" is the growth of the workspace, or the number of files in /tmp).
EndStatus = Literal["exited", "signaled", "timeout", "cpu", "memory", "processes", "disk"]


@dataclass(frozen=True)
class CappedText:
    """What a call wrote: the head and the tail of it, if it was too much, with the cut said between them.

    ``num_bytes`` is how much it wrote in all. Bytes that are not UTF-8 become U+FFFD.
    """

    text: str
    num_bytes: int
    is_cut: bool


@dataclass(frozen=True)
class Outcome:
    """How a call ended and what it took.

    Args:
        status: Why it ended.
        exit_code: The exit code, if the status is "exited".
        signal: The number of the signal, if it is "signaled".
        stdout: What it wrote to stdout.
        stderr: What it wrote to stderr.
        wall_seconds: From the call to its end, ``start_seconds`` included.
        cpu_seconds: CPU time of all its processes; those of a killed call are counted at the last look at them, if
            there is no control group.
        start_seconds: How much of the wall time was the start of the sandbox.
        peak_bytes: The most memory its processes held at once (with a control group), or the biggest of them.
    """

    status: EndStatus
    exit_code: int | None
    signal: int | None
    stdout: CappedText
    stderr: CappedText
    wall_seconds: float
    cpu_seconds: float
    start_seconds: float
    peak_bytes: int | None
