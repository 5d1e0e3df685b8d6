"""Gathers the events of one request into chunks and a completion for the thread that asked.

Leaves to others: making events (the engine's thread) and making requests (``LLM``).
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from types import TracebackType

from treadle.engine.completion import Completion, CompletionChunk, Timings, TokenLogprob
from treadle.engine.plan import Sample
from treadle.engine.request import Request, TokenEvent

__all__ = ["CompletionStream", "Mailbox"]


class Mailbox:
    """Where the engine's thread leaves events; wakes the reader for each one, or only for the last."""

    def __init__(self, *, wakes_for_each: bool) -> None:
        self.events: list[TokenEvent] = []
        self._wakes_for_each = wakes_for_each
        self._ready: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()

    def deliver(self, event: TokenEvent) -> None:
        """Take an event; called in the engine's thread."""
        self.events.append(event)
        if self._wakes_for_each or event.finish_reason is not None:
            self._ready.put(event)

    def get(self) -> TokenEvent:
        """Wait for the next event to read."""
        return self._ready.get()


class CompletionStream(Iterator[CompletionChunk]):
    """An answer as it comes: iterate over its chunks. Closing it early, or dropping it, frees the request.

    The engine's thread must hold no reference to this object, or dropping it would free nothing.
    """

    def __init__(
        self,
        request: Request,
        mailbox: Mailbox,
        *,
        cancel: Callable[[Request], None],
        token_text: Callable[[int], str],
        has_logprobs: bool,
    ) -> None:
        self.request = request
        self._mailbox = mailbox
        self._cancel = cancel
        self._token_text = token_text
        self._has_logprobs = has_logprobs
        self._is_open = True

    def __next__(self) -> CompletionChunk:
        if not self._is_open:
            raise StopIteration
        event = self._mailbox.get()
        completion = None
        if event.finish_reason is not None:
            self._is_open = False
            if event.error is not None:
                raise event.error
            completion = self._completion(event)
        samples = [event.sample] if event.sample else []
        return CompletionChunk(
            text=event.text,
            token_ids=tuple(sample.token_id for sample in samples),
            logprobs=tuple(map(self._logprob, samples)) if self._has_logprobs else (),
            completion=completion,
        )

    def wait(self) -> Completion:
        """Wait for the whole answer; an error is in its ``error``."""
        while (event := self._mailbox.get()).finish_reason is None:
            pass
        self._is_open = False
        return self._completion(event)

    def close(self) -> None:
        """End the answer here and free what it holds; may be called twice."""
        if self._is_open:
            self._is_open = False
            self._cancel(self.request)

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _completion(self, last: TokenEvent) -> Completion:
        events = self._mailbox.events
        assert last.finish_reason is not None
        return Completion(
            text="".join(event.text for event in events),
            token_ids=self.request.answer_ids,
            finish_reason=last.finish_reason,
            prompt_tokens=len(self.request.prompt_ids),
            timings=_timings(self.request),
            logprobs=[self._logprob(event.sample) for event in events if event.sample] if self._has_logprobs else None,
            error=last.error,
        )

    def _logprob(self, sample: Sample) -> TokenLogprob:
        return TokenLogprob(sample.token_id, self._token_text(sample.token_id), sample.logprob, sample.top_logprobs)


def _timings(request: Request) -> Timings:
    times = request.times
    started = times.created if times.started is None else times.started
    first_token = started if times.first_token is None else times.first_token
    finished = first_token if times.finished is None else times.finished
    return Timings(
        queued_seconds=started - times.created,
        prefill_seconds=first_token - started,
        decode_seconds=finished - first_token,
    )
