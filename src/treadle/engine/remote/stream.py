"""Gives out the answers of an engine elsewhere as they come, and asks again where nothing has come yet.

Leaves to others: requests and events (``remote.http``, ``remote.answer``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from treadle.engine.remote.answer import AnswerReader
from treadle.engine.remote.http import TryAgainError
from treadle.engine.remote.retry import Retries
from treadle.errors import DeadlineError, RemoteError, TreadleError

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.contract import AnswerObserver, OpenTimings

__all__ = ["Attempt", "RemoteStream"]

# Sends the request once and gives its events.
Attempt = Callable[[], AsyncGenerator[Any, None]]


class RemoteStream:
    """The answers to one request, which is sent when the first chunk is asked for.

    Args:
        ask: Sends the request.
        make_reader: Makes what reads the events of one attempt.
        max_retries: How often the request is repeated if it fails before its first token.
        deadline: The time of the running loop at which it ends with a ``DeadlineError``.
        observe: Makes what is told about the answers.
    """

    def __init__(
        self,
        ask: Attempt,
        make_reader: Callable[[], AnswerReader],
        *,
        max_retries: int,
        deadline: float | None,
        observe: Callable[[int | None, OpenTimings], AnswerObserver] | None,
    ) -> None:
        self._answers = _Answers(make_reader)
        self._deadline = deadline
        # When the stream is dropped, the loop closes this generator, which ends the request.
        self._chunks = _chunks(ask, self._answers, Retries(max_retries, deadline))
        self._reading: asyncio.Future[CompletionChunk] | None = None
        self._is_stopping = False
        self._is_over = False
        self._observer = None if observe is None else observe(None, self._answers.timings)

    @property
    def prompt_tokens(self) -> int | None:
        """Return how many tokens the prompt has, once the server has told."""
        return self._answers.reader.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Return how many of them the server knew already, as far as it has told."""
        return self._answers.reader.cached_tokens

    def __aiter__(self) -> AsyncIterator[CompletionChunk]:
        return self

    async def __anext__(self) -> CompletionChunk:
        if self._is_over:
            raise StopAsyncIteration
        try:
            chunk = await self._next()
        except StopAsyncIteration:
            self._is_over = True
            raise
        except BaseException as error:
            self._end(error if isinstance(error, TreadleError) else None)
            raise
        if self._observer is not None:
            self._observer.took(chunk)
        return chunk

    async def aclose(self, *, is_complete: bool = False) -> None:
        """Close the connection of the request; may be called twice, also while another task waits for a chunk."""
        self._end(is_complete=is_complete)
        self._stop_reading()
        if self._reading is not None and not self._reading.done():
            await asyncio.wait({self._reading})
        await self._chunks.aclose()

    async def _next(self) -> CompletionChunk:
        """Wait for the next chunk in a task of its own, which can be ended whoever waits for it."""
        loop = asyncio.get_running_loop()
        self._reading = asyncio.ensure_future(anext(self._chunks))
        try:
            remaining = None if self._deadline is None else self._deadline - loop.time()
            done, _ = await asyncio.wait({self._reading}, timeout=remaining)
        except BaseException:
            self._stop_reading()
            raise
        if done:
            return self._reading.result()
        self._stop_reading()
        await asyncio.wait({self._reading})
        raise DeadlineError("the time of the request was up before the engine elsewhere had answered")

    def _stop_reading(self) -> None:
        """Cancel what waits for a chunk, once: a second time would break off the closing of its connection."""
        if self._reading is not None and not self._is_stopping:
            self._is_stopping = True
            self._reading.cancel()

    def _end(self, error: TreadleError | None = None, *, is_complete: bool = False) -> None:
        if self._is_over:
            return
        self._is_over = True
        unfinished = self._answers.timings()
        if self._observer is not None and unfinished:
            self._observer.ended(unfinished, error, is_complete=is_complete)

    def __del__(self) -> None:
        self._observer = None  # the garbage collector may call while the observer holds a lock of its own


class _Answers:
    """What is known of the answers in the present attempt; observers outlive the stream and may hold this."""

    def __init__(self, make_reader: Callable[[], AnswerReader]) -> None:
        self._make_reader = make_reader
        self.reader = make_reader()

    def timings(self) -> dict[int, Timings]:
        """Return the times up to now of each answer that has not ended."""
        return self.reader.timings()

    def start_again(self) -> None:
        """Forget what a failed attempt said."""
        self.reader = self._make_reader()


async def _chunks(ask: Attempt, answers: _Answers, retries: Retries) -> AsyncGenerator[CompletionChunk, None]:
    has_begun = False
    while True:
        try:
            async with aclosing(ask()) as events:
                async for event in events:
                    for chunk in answers.reader.read(event):
                        has_begun = True
                        yield chunk
            for chunk in answers.reader.finish():
                has_begun = True
                yield chunk
            return
        except TryAgainError as failure:
            if has_begun:
                raise RemoteError(f"{failure} after its answer had begun") from failure
            await retries.wait(failure)
            answers.start_again()
