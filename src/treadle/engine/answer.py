"""Gathers the events of the requests behind a prompt into chunks and completions for the thread that asked.

Leaves to others: making events (the engine's thread) and making requests (``ModelHost``).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.engine.completion import Completion, CompletionChunk, Timings, TokenLogprob
from treadle.engine.plan import Sample
from treadle.engine.request import AnswerRequest, Request, TokenEvent

if TYPE_CHECKING:
    from treadle.models.tool_dialects import AnswerParser

__all__ = ["Answer", "CompletionStream", "Mailbox", "timings_of"]


class Answer:
    """One of the answers to a prompt, put together from the events of its request.

    Args:
        request: The request behind it.
        index: Its place among the answers to the prompt.
        spell: Returns the reports of log-probabilities for samples; None when nobody asked for any.
        parser: Reads the text into parts, if anything does.
    """

    def __init__(
        self,
        request: AnswerRequest,
        *,
        index: int,
        spell: Callable[[Sequence[Sample]], list[TokenLogprob]] | None = None,
        parser: AnswerParser | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self._spell = spell
        self._parser = parser
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self.completion: Completion | None = None

    def take(self, events: Sequence[TokenEvent]) -> CompletionChunk:
        """Add the next events and return what they bring."""
        samples = [sample for event in events for sample in event.samples]
        text = "".join([event.text for event in events])
        logprobs = self._spell(samples) if self._spell is not None else ()
        parts = self._parser.push(text) if self._parser is not None else ()
        self._texts.append(text)
        self._logprobs += logprobs
        if events[-1].finish_reason is not None:
            self.completion = self._complete(events[-1])
            if self._parser is not None:
                parts = [*parts, *self._parser.finish()]
        return CompletionChunk(
            text=text,
            token_ids=tuple(sample.token_id for sample in samples),
            num_tokens=len(samples),
            logprobs=tuple(logprobs),
            completion=self.completion,
            index=self.index,
            parts=parts,
        )

    def timings(self) -> Timings:
        """Return where the time went, up to now if the answer has not ended."""
        return timings_of(self.request)

    def _complete(self, last: TokenEvent) -> Completion:
        assert last.finish_reason is not None
        return Completion(
            text="".join(self._texts),
            token_ids=self.request.answer_ids,
            finish_reason=last.finish_reason,
            prompt_tokens=len(self.request.prompt_ids),
            answer_tokens=len(self.request.answer_ids),
            timings=timings_of(self.request),
            logprobs=None if self._spell is None else self._logprobs,
            error=last.error,
            stopped_by=_stopped_by(self.request),
            cached_tokens=self.request.num_cached_tokens,
            index=self.index,
        )


class Mailbox:
    """Where the engine's thread leaves events; wakes the reader for each one, or only for the last of a request."""

    def __init__(self, *, wakes_for_each: bool) -> None:
        self.events: list[TokenEvent] = []
        self._wakes_for_each = wakes_for_each
        self._ready: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()

    def deliver(self, event: TokenEvent) -> None:
        """Take an event; called in the engine's thread."""
        if self._wakes_for_each:
            self._ready.put(event)
        else:
            self.events.append(event)
            if event.finish_reason is not None:
                self._ready.put(event)

    def get(self) -> TokenEvent:
        """Wait for the next event to read."""
        return self._ready.get()


class CompletionStream(Iterator[CompletionChunk]):
    """Answers as they come: iterate over their chunks. Closing it early, or dropping it, frees the requests.

    The engine's thread must hold no reference to this object, or dropping it would free nothing.
    """

    def __init__(self, answers: Sequence[Answer], mailbox: Mailbox, *, cancel: Callable[[Request], None]) -> None:
        self._open: dict[Request, Answer] = {answer.request: answer for answer in answers}
        self._answers = tuple(answers)
        self._mailbox = mailbox
        self._cancel = cancel

    @property
    def requests(self) -> tuple[AnswerRequest, ...]:
        """Return the requests behind the answers."""
        return tuple(answer.request for answer in self._answers)

    def __next__(self) -> CompletionChunk:
        if not self._open:
            raise StopIteration
        event = self._mailbox.get()
        chunk = self._open[event.request].take([event])
        if event.finish_reason is not None:
            del self._open[event.request]
        if event.error is not None:
            self.close()
            raise event.error
        return chunk

    def wait(self) -> Completion:
        """Wait for the whole of every answer; an error is in a completion's ``error``."""
        for _ in self._answers:
            self._mailbox.get()
        self._open.clear()
        completions = [self._whole(answer) for answer in self._answers]
        return replace(completions[0], alternatives=tuple(completions[1:]))

    def close(self) -> None:
        """End the answers here and free what they hold; may be called twice."""
        while self._open:
            request, _ = self._open.popitem()
            self._cancel(request)

    def _whole(self, answer: Answer) -> Completion:
        answer.take([event for event in self._mailbox.events if event.request is answer.request])
        assert answer.completion is not None
        return answer.completion

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _stopped_by(request: AnswerRequest) -> str | int | None:
    if request.finish_reason != "stop":
        return None
    return request.token_ids[-1] if request.output.stop is None else request.output.stop


def timings_of(request: Request) -> Timings:
    """Return where the time of a request went, up to now if it has not ended."""
    times = request.times
    finished = times.finished
    if finished is None and request.finish_reason is None:
        finished = time.perf_counter()
    elif finished is None:
        finished = next(each for each in (times.first_token, times.started, times.created) if each is not None)
    first_token = finished if times.first_token is None else times.first_token
    started = first_token if times.started is None else times.started
    return Timings(
        queued_seconds=started - times.created,
        prefill_seconds=first_token - started,
        decode_seconds=finished - first_token,
    )
