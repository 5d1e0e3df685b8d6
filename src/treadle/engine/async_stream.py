"""Answers as they come, for a task that waits for them.

Leaves to others: the requests behind them (``ModelHost``) and carrying events into the loop (``Courier``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.engine.answer import Answer
from treadle.engine.completion import CompletionChunk
from treadle.engine.courier import Inbox
from treadle.engine.request import Request

if TYPE_CHECKING:
    from treadle.engine.completion import Timings
    from treadle.engine.contract import AnswerObserver, OpenTimings
    from treadle.errors import TreadleError

__all__ = ["AsyncCompletionStream"]


class AsyncCompletionStream(AsyncIterator[CompletionChunk]):
    """Answers as they come. Closing it, dropping it or cancelling the task that waits for it frees the requests.

    A reader that is slower than the model gets the tokens that came meanwhile in one chunk.
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        inbox: Inbox,
        *,
        cancel: Callable[[Request], None],
        observe: Callable[[OpenTimings], AnswerObserver] | None = None,
    ) -> None:
        self._open: dict[Request, Answer] = {answer.request: answer for answer in answers}
        self._first = answers[0].request
        self._inbox = inbox
        self._cancel = cancel
        # Observers outlive the stream, so they may hold its open answers, which are none in the end, but not itself.
        self._observer = None if observe is None else observe(partial(_timings, self._open))

    @property
    def prompt_tokens(self) -> int:
        """Return how many tokens the prompt has."""
        return len(self._first.prompt_ids)

    @property
    def cached_tokens(self) -> int:
        """Return how many tokens of the prompt were known already; certain from the first chunk on."""
        return self._first.num_cached_tokens

    async def __anext__(self) -> CompletionChunk:
        if not self._open:
            raise StopAsyncIteration
        try:
            events = await self._inbox.get()
        except BaseException:
            self._end()
            raise
        last = events[-1]
        if last.error is not None:
            self._end(last.error)
            raise last.error
        answer = self._open[last.request]
        if last.finish_reason is not None:
            del self._open[last.request]
        chunk = answer.take(events)
        if self._observer is not None:
            self._observer.took(chunk)
        return chunk

    async def aclose(self, *, is_complete: bool = False) -> None:
        """End the answers here and free what they hold before the next step; may be called twice.

        ``is_complete`` tells observers that the reader has all it wanted.
        """
        self._end(is_complete=is_complete)

    async def __aenter__(self) -> AsyncCompletionStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        self._observer = None  # the garbage collector may call while the observer holds a lock of its own
        self._end()

    def _end(self, error: TreadleError | None = None, *, is_complete: bool = False) -> None:
        if self._open and self._observer is not None:
            self._observer.ended(_timings(self._open), error, is_complete=is_complete)
        while self._open:
            request, _ = self._open.popitem()
            self._cancel(request)


def _timings(answers: Mapping[Request, Answer]) -> dict[int, Timings]:
    return {answer.index: answer.timings() for answer in answers.values()}
