"""Remembers the requests that came last and where their time went, without a word of what they said.

Leaves to others: what a request is (the engine) and showing them (``routes.dashboard``).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.contract import OpenTimings
    from treadle.engine.embedding import Embedding
    from treadle.errors import TreadleError

__all__ = ["MOST_KEPT", "InputsKind", "RecentEmbeddings", "RecentRequest", "RecentRequests"]

MOST_KEPT = 50
# What a request turns several texts into.
InputsKind = Literal["embeddings", "ranking"]


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
        self._requests: deque[_Remembered] = deque(maxlen=MOST_KEPT)

    def begin(self, num_prompt_tokens: int | None, timings: OpenTimings) -> RecentRequest:
        """Remember a request that was just queued; the result is to be told what becomes of it."""
        request = RecentRequest(self._life(), num_prompt_tokens, timings)
        self._requests.append(request)
        return request

    def begin_embeddings(self, num_inputs: int, kind: InputsKind = "embeddings") -> RecentEmbeddings:
        """Remember a request for vectors, or scores; the result is to be told what becomes of it."""
        request = RecentEmbeddings(self._life(), num_inputs, kind)
        self._requests.append(request)
        return request

    def as_json(self, most: int = MOST_KEPT) -> list[dict[str, Any]]:
        """Return one object for each request, the newest first and ``most`` of them at most."""
        return [request.as_json() for request in itertools.islice(reversed(self._requests), most)]

    def _life(self) -> _Life:
        return _Life(next(self._ids), self._clock, self._wall_clock())


class _Life:
    """When a request began, first gave something and ended, in seconds since it began; it may end more than once."""

    def __init__(self, number: int, clock: Callable[[], float], began_at: float) -> None:
        self.number = number
        self.began_at = began_at
        self._clock = clock
        self._began = clock()
        self.first: float | None = None
        self._ended: float | None = None
        self._end = ""

    def gave(self) -> None:
        """Take note that something came, and more may."""
        if self.first is None:
            self.first = self._age()
        self._ended = None

    def end(self, reason: str) -> None:
        """Take note that nothing follows."""
        self._ended, self._end = self._age(), reason

    @property
    def seconds(self) -> float:
        """Return how long it took, or has up to now."""
        return self._age() if self._ended is None else self._ended

    @property
    def state(self) -> str:
        """Return why it ended, or else whether something came already."""
        if self._ended is not None:
            return self._end
        return "waiting" if self.first is None else "answering"

    def _age(self) -> float:
        return self._clock() - self._began


class _Remembered(Protocol):
    """What the list asks of its requests."""

    def as_json(self) -> dict[str, Any]:
        """Return the facts, times in seconds; what is not known is null."""


class RecentRequest:
    """One prompt and its answers; its phases are those of the answer that takes longest."""

    def __init__(self, life: _Life, num_prompt_tokens: int | None, open_timings: OpenTimings) -> None:
        self._life = life
        self._num_prompt_tokens = num_prompt_tokens
        self._open_timings = open_timings
        self._open: set[int] = set()
        self._num_answer_tokens = 0
        self._cached_tokens: int | None = None
        self._timings: list[Timings] = []

    def took(self, chunk: CompletionChunk) -> None:
        """Count a chunk of one of the answers."""
        self._life.gave()
        self._num_answer_tokens += chunk.num_tokens
        self._open.add(chunk.index)
        completion = chunk.completion
        if completion is None:
            return
        self._open.discard(chunk.index)
        self._num_prompt_tokens, self._cached_tokens = completion.prompt_tokens, completion.cached_tokens
        self._timings.append(completion.timings)
        if not self._open:
            self._life.end(completion.finish_reason)

    def ended(self, unfinished: Mapping[int, Timings], error: TreadleError | None, *, is_complete: bool) -> None:
        """Take note that nothing follows."""
        self._timings += unfinished.values()
        reason = "stopped" if error is None else "error"
        self._life.end("stop" if is_complete else reason)

    def as_json(self) -> dict[str, Any]:
        """Return the facts, times in seconds; what is not known is null."""
        known = [*self._timings, *self._open_timings().values()]
        timings = max(known, key=lambda each: each.first_token_seconds + each.decode_seconds, default=None)
        return _facts(
            self._life,
            kind="answer",
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=self._cached_tokens,
            answer_tokens=self._num_answer_tokens,
            queued_seconds=None if timings is None else timings.queued_seconds,
            prefill_seconds=None if timings is None else timings.prefill_seconds,
            decode_seconds=None if timings is None else timings.decode_seconds,
        )


class RecentEmbeddings:
    """Texts and their vectors; queued until the first of them was begun, and read from there to the last vector."""

    def __init__(self, life: _Life, num_inputs: int, kind: InputsKind) -> None:
        self._life = life
        self._num_inputs = num_inputs
        self._kind = kind
        self._num_vectors = 0
        self._num_tokens = 0
        self._cached_tokens = 0
        self._queued: float | None = None

    def took(self, embedding: Embedding) -> None:
        """Count a vector."""
        self._life.gave()
        self._num_vectors += 1
        self._num_tokens += embedding.num_tokens
        self._cached_tokens += embedding.cached_tokens
        queued = embedding.timings.queued_seconds
        self._queued = queued if self._queued is None else min(queued, self._queued)
        if self._num_vectors == self._num_inputs:
            self._life.end("stop")

    def ended(self, *, is_error: bool) -> None:
        """Take note that nothing follows, though not all are there."""
        self._life.end("error" if is_error else "stopped")

    def as_json(self) -> dict[str, Any]:
        """Return the facts, times in seconds; what is not known is null."""
        queued = None if self._queued is None else min(self._queued, self._life.seconds)
        return _facts(
            self._life,
            kind=self._kind,
            num_inputs=self._num_inputs,
            prompt_tokens=self._num_tokens,
            cached_tokens=self._cached_tokens,
            answer_tokens=0,
            queued_seconds=queued,
            prefill_seconds=None if queued is None else self._life.seconds - queued,
            decode_seconds=None if queued is None else 0.0,
        )


def _facts(life: _Life, **others: Any) -> dict[str, Any]:
    return {
        "id": life.number,
        "began_at": life.began_at,
        "state": life.state,
        "total_seconds": life.seconds,
        "first_token_seconds": life.first,
        **others,
    }
