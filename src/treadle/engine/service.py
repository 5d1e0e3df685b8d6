"""How a request is to be served, beyond what its answer is to be.

Leaves to others: serving it (``ModelHost`` and the scheduler).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from treadle.engine.request import Priority
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.structured.guide import Constraint

__all__ = ["Service"]


@dataclass(frozen=True)
class Service:
    """How a request is to be served, beyond what its answer is to be.

    Args:
        priority: "interactive" goes before "batch", and slows down prompts beside it for the sake of its own pace.
        timeout: Seconds after which the request ends with a ``DeadlineError``, finished or not.
        constraint: Makes what an answer may be, one for each of the answers.
        adapter: The name of the adapter that computes it beside the model.
    """

    priority: Priority = "interactive"
    timeout: float | None = None
    constraint: Callable[[], Constraint] | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        if self.priority not in get_args(Priority):
            raise UsageError(f"priority: expected {' or '.join(get_args(Priority))}, found {self.priority!r:.80}")
        is_number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if self.timeout is not None and not (is_number and self.timeout > 0):
            raise UsageError(f"timeout: expected seconds above 0, found {self.timeout!r:.80}")
