"""Decides whether and when a request to an engine elsewhere is repeated.

Leaves to others: what may be repeated; that is a request which has not given a token yet.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from treadle.engine.remote.http import TryAgainError

__all__ = ["Retries", "with_retries"]

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 16.0
MAX_WANTED_SECONDS = 60.0  # a server that wants to be left alone for longer is given up
_Result = TypeVar("_Result")


class Retries:
    """The attempts at one request.

    Args:
        most: How many attempts may follow the first.
        deadline: The time of the running loop at which the request has no use any more.
    """

    def __init__(self, most: int, deadline: float | None = None) -> None:
        self._num_left = most
        self._deadline = deadline
        self._delay = FIRST_DELAY_SECONDS

    async def wait(self, failure: TryAgainError) -> None:
        """Wait until it is time for another attempt; raises what failed when there is to be none.

        Waits are doubled each time and vary, so that clients which failed together do not come back together.
        """
        if self._num_left == 0:
            raise failure.error
        wanted = failure.delay_seconds
        if wanted is None:
            delay = self._delay * random.uniform(0.5, 1)
        else:
            delay = wanted + self._delay * random.uniform(0, 0.5)
        if (wanted or 0) > MAX_WANTED_SECONDS or self._is_too_late(delay):
            raise failure.error
        self._num_left -= 1
        self._delay = min(2 * self._delay, MAX_DELAY_SECONDS)
        await asyncio.sleep(delay)

    def _is_too_late(self, delay: float) -> bool:
        return self._deadline is not None and asyncio.get_running_loop().time() + delay >= self._deadline


async def with_retries(most: int, ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """Return what ``ask`` gives, asked again where that may help."""
    retries = Retries(most)
    while True:
        try:
            return await ask()
        except TryAgainError as failure:
            await retries.wait(failure)
