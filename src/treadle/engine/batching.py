"""How requests share steps: how many at a time, and how much a prompt may slow down the answers beside it.

Leaves to others: keeping to it (the scheduler).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

from treadle.engine.memory_plan import MAX_BATCH_TOKENS, MAX_NUM_REQUESTS
from treadle.errors import UsageError

__all__ = ["DEFAULT_SLOWDOWN", "Batching", "check_slowdown"]

DEFAULT_SLOWDOWN = 2.5
_NUM_TEXTS = 128  # of four tokens and more fill a step


@dataclass(frozen=True)
class Batching:
    """How requests share the steps of a model; the arguments are those of ``LLM``.

    Raises:
        UsageError: A value is out of range.
    """

    max_num_requests: int = MAX_NUM_REQUESTS
    slowdown: float | None = DEFAULT_SLOWDOWN

    def __post_init__(self) -> None:
        try:
            number = operator.index(self.max_num_requests)
        except TypeError:
            number = 0
        if not 1 <= number <= MAX_BATCH_TOKENS:
            raise UsageError(
                f"max_num_requests: expected a whole number, 1 to {MAX_BATCH_TOKENS} (the tokens of a step, of which "
                f"each may need one), found {self.max_num_requests!r:.40}"
            )
        check_slowdown(self.slowdown)

    def for_texts(self) -> Batching:
        """Return how the texts of an encoder share steps: nothing of them is kept, so they may fill one."""
        return replace(self, max_num_requests=max(self.max_num_requests, _NUM_TEXTS))


def check_slowdown(slowdown: float | None) -> None:
    """Raise UsageError unless ``slowdown`` is a factor above 1 or None."""
    is_number = isinstance(slowdown, int | float)
    if slowdown is not None and not (is_number and slowdown > 1):
        raise UsageError(f"slowdown: expected above 1, as a prompt takes time beside answers, found {slowdown!r:.40}")
