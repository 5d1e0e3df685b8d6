"""What the work of a tool passes before it starts, and what it learns there: which CPUs are its own meanwhile.

Leaves to others: a gate that makes work wait and moves the engine aside (``agents.co_schedule``).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Literal, Protocol

from treadle.hardware.cpu_share import CpuShare

__all__ = ["OpenGate", "ToolGate", "Work"]

# What a piece of work needs most: a core of its own, or an answer from elsewhere.
Work = Literal["cpu", "io"]


class ToolGate(Protocol):
    """Decides when the work of a tool starts."""

    def enter(self, work: Work, name: str) -> AbstractAsyncContextManager[CpuShare]:
        """Return a context to work in; entering it waits until the work may start and tells its share.

        Args:
            work: What it needs; "io" never waits for cores.
            name: The kind of work, such as the name of its tool; kinds are told apart in what is learned of them.
        """


class OpenGate:
    """Lets everything through at once, on all CPUs."""

    def enter(self, work: Work, name: str) -> AbstractAsyncContextManager[CpuShare]:  # noqa: ARG002
        """Return a context that nothing waits for."""
        return nullcontext(CpuShare())
