"""Remembers the requests that came last and where their time went, without a word of what they said.

Leaves to others: what a request is (the engine) and showing them (``routes.dashboard``).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.contract import OpenTimings
    from treadle.errors import TreadleError

__all__ = ["RecentRequest", "RecentRequests"]

_NUM_KEPT = 50


class RecentRequests:
    """The last fifty requests to one model, still running or not; for one event loop.

    Args:
        clock: A monotonic clock in seconds.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._ids = itertools.count(1)
        self._requests: deque[RecentRequest] = deque(maxlen=_NUM_KEPT)

    def begin(self, num_prompt_tokens: int | None, timings: OpenTimings) -> RecentRequest:
        """Remember a request that was just queued; the result is to be told what becomes of it."""
        request = RecentRequest(next(self._ids), num_prompt_tokens, timings, self._clock, self._wall_clock())
        self._requests.append(request)
        return request

    def as_json(self) -> list[dict[str, Any]]:
        """Return one object for each request, the newest first."""
        return [request.as_json() for request in reversed(self._requests)]


class RecentRequest:
    """One prompt and its answers; its phases are those of the answer that takes longest."""

    def __init__(
        self,
        number: int,
        num_prompt_tokens: int | None,
        open_timings: OpenTimings,
        clock: Callable[[], float],
        began_at: float,
    ) -> None:
        self._number = number
        self._num_prompt_tokens = num_prompt_tokens
        self._open_timings = open_timings
        self._clock = clock
        self._began_at = began_at
        self._began = clock()
        self._answered: float | None = None
        self._ended: float | None = None
        self._end = ""
        self._open: set[int] = set()
        self._num_answer_tokens = 0
        self._cached_tokens: int | None = None
        self._timings: list[Timings] = []

    def took(self, chunk: CompletionChunk) -> None:
        """Count a chunk of one of the answers."""
        now = self._clock()
        if self._answered is None:
            self._answered = now
        self._num_answer_tokens += chunk.num_tokens
        self._open.add(chunk.index)
        self._ended = None
        completion = chunk.completion
        if completion is None:
            return
        self._open.discard(chunk.index)
        self._num_prompt_tokens, self._cached_tokens = completion.prompt_tokens, completion.cached_tokens
        self._timings.append(completion.timings)
        if not self._open:
            self._ended, self._end = now, completion.finish_reason

    def ended(self, unfinished: Mapping[int, Timings], error: TreadleError | None, *, is_complete: bool) -> None:
        """Take note that nothing follows."""
        self._timings += unfinished.values()
        reason = "stopped" if error is None else "error"
        self._ended, self._end = self._clock(), "stop" if is_complete else reason

    def as_json(self) -> dict[str, Any]:
        """Return the facts, times in seconds; what is not known is null."""
        until = self._clock() if self._ended is None else self._ended
        known = [*self._timings, *self._open_timings().values()]
        timings = max(known, key=lambda each: each.first_token_seconds + each.decode_seconds, default=None)
        answered = self._answered
        return {
            "id": self._number,
            "began_at": self._began_at,
            "state": self._state,
            "prompt_tokens": self._num_prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "answer_tokens": self._num_answer_tokens,
            "total_seconds": until - self._began,
            "first_token_seconds": None if answered is None else answered - self._began,
            "queued_seconds": None if timings is None else timings.queued_seconds,
            "prefill_seconds": None if timings is None else timings.prefill_seconds,
            "decode_seconds": None if timings is None else timings.decode_seconds,
        }

    @property
    def _state(self) -> str:
        if self._ended is not None:
            return self._end
        return "waiting" if self._answered is None else "answering"
