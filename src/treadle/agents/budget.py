"""What a run may use up, what it has used, and how much of that is left for a last answer.

Leaves to others: acting on it (the loop).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

from treadle.errors import UsageError

__all__ = ["Budget", "BudgetEnd", "Prices", "Spending", "Usage"]

BudgetEnd = Literal["turns", "tokens", "seconds", "tool_seconds", "cost"]

# This part of tokens, seconds and cost is kept for the closing answer.
_RESERVE = 0.15
# Timers end what has a limit a little early; nothing can be done in what is left then.
_TICK_SECONDS = 0.01
_MILLION = 1_000_000


@dataclass(frozen=True)
class Budget:
    """The most that a run may use; None is no limit.

    Args:
        max_turns: Answers of the model; the last is the closing one, without tools.
        max_tokens: Tokens that the model reads and writes; those of a prompt that it knew already do not count.
        max_seconds: From the beginning of the run to its end.
        max_tool_seconds: In which tools run; those that run together count once.
        max_cost: Money, by the prices that the agent is given.
    """

    max_turns: int | None = 20
    max_tokens: int | None = 50_000
    max_seconds: float | None = 600.0
    max_tool_seconds: float | None = 300.0
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            if value is not None and not is_number:
                raise UsageError(f"budget: {each.name}: expected a number above 0, or None, found {value!r:.80}")


@dataclass(frozen=True)
class Prices:
    """Money for a million tokens of prompts and of answers; tokens of a prompt cost the same if they were known."""

    prompt: float = 0.0
    answer: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What a run has used.

    ``prompt_tokens`` is the sum over all prompts, of which ``cached_tokens`` were not computed again.
    """

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Return how many tokens were read and written, without those that were known."""
        return self.prompt_tokens - self.cached_tokens + self.answer_tokens


class Spending:
    """Counts what a run uses against its budget; ``clock`` tells seconds.

    Before the end of tokens, seconds and cost a part is kept back, so that a closing answer has room.
    """

    def __init__(
        self,
        budget: Budget,
        prices: Prices,
        *,
        spent: Usage = Usage(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self._prices = prices
        self._spent = spent
        self._clock = clock
        self._began = clock() - spent.seconds

    @property
    def usage(self) -> Usage:
        """Return what is used by now."""
        return replace(self._spent, seconds=self._clock() - self._began)

    def add_turn(self, prompt_tokens: int, cached_tokens: int, answer_tokens: int) -> None:
        """Count an answer of the model."""
        spent = self._spent
        self._spent = replace(
            spent,
            turns=spent.turns + 1,
            prompt_tokens=spent.prompt_tokens + prompt_tokens,
            cached_tokens=spent.cached_tokens + cached_tokens,
            answer_tokens=spent.answer_tokens + answer_tokens,
            cost=spent.cost + self._cost(prompt_tokens, answer_tokens),
        )

    def add_tools(self, calls: int, seconds: float) -> None:
        """Count calls of tools, and the time in which they ran."""
        spent = self._spent
        self._spent = replace(spent, calls=spent.calls + calls, tool_seconds=spent.tool_seconds + seconds)

    def near_end(self) -> BudgetEnd | None:
        """Return which budget leaves room for no more than a closing answer, if any does."""
        budget, usage = self.budget, self.usage
        limits: tuple[tuple[BudgetEnd, float, float | None], ...] = (
            ("turns", usage.turns, None if budget.max_turns is None else budget.max_turns - 1),
            ("tokens", usage.tokens, _kept_back(budget.max_tokens)),
            ("seconds", usage.seconds + _TICK_SECONDS, _kept_back(budget.max_seconds)),
            ("tool_seconds", usage.tool_seconds + _TICK_SECONDS, budget.max_tool_seconds),
            ("cost", usage.cost, _kept_back(budget.max_cost)),
        )
        return next((name for name, used, limit in limits if limit is not None and used >= limit), None)

    def answer_tokens_left(self, new_tokens: int, prompt_tokens: int, *, is_closing: bool) -> float:
        """Return how long an answer may be, infinity if no budget says.

        Args:
            new_tokens: Those of its prompt that were not known; 0 as long as that is not told.
            prompt_tokens: All of them, likewise.
            is_closing: Whether it may use what was kept back.
        """
        budget, usage = self.budget, self._spent
        left = math.inf
        max_tokens = budget.max_tokens if is_closing else _kept_back(budget.max_tokens)
        if max_tokens is not None:
            left = max_tokens - usage.tokens - new_tokens
        max_cost = budget.max_cost if is_closing else _kept_back(budget.max_cost)
        if max_cost is not None and self._prices.answer > 0:
            money = max_cost - usage.cost - self._cost(prompt_tokens, 0)
            left = min(left, money / self._prices.answer * _MILLION)
        return left

    def seconds_left(self, *, is_closing: bool) -> float | None:
        """Return how long an answer may take, None if there is no limit; never below 0."""
        budget = self.budget.max_seconds
        limit = budget if is_closing else _kept_back(budget)
        return None if limit is None else max(0.0, limit - self.usage.seconds)

    def tool_seconds_left(self) -> float | None:
        """Return how long tools may run now, None if there is no limit; never below 0."""
        seconds = self.seconds_left(is_closing=False)
        budget = self.budget.max_tool_seconds
        if budget is None:
            return seconds
        left = max(0.0, budget - self._spent.tool_seconds)
        return left if seconds is None else min(left, seconds)

    def _cost(self, prompt_tokens: int, answer_tokens: int) -> float:
        return (prompt_tokens * self._prices.prompt + answer_tokens * self._prices.answer) / _MILLION


def _kept_back(limit: float | None) -> float | None:
    return None if limit is None else limit * (1 - _RESERVE)
