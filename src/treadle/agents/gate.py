"""What the work of a tool passes before it starts, and what it learns there: which CPUs are its own meanwhile.

Leaves to others: a gate that makes work wait and moves the engine aside (``agents.co_schedule``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal, Protocol

from treadle.hardware.cpu_share import CpuShare

__all__ = ["OpenGate", "ToolGate", "Work", "in_task", "take_turn"]

# What a piece of work needs most: a core of its own, or an answer from elsewhere.
Work = Literal["cpu", "io"]


_turns = itertools.count()
_turn_of_task: ContextVar[int | None] = ContextVar("turn_of_task", default=None)


@contextmanager
def in_task() -> Iterator[None]:
    """Let work of this block, and of tasks of the event loop that it starts, go before that of blocks begun later."""
    token = _turn_of_task.set(next(_turns))
    try:
        yield
    finally:
        _turn_of_task.reset(token)


def take_turn() -> int:
    """Return a number by which work that waits is served, the lowest first: by tasks, and else in order of arrival."""
    turn = _turn_of_task.get()
    return next(_turns) if turn is None else turn


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
