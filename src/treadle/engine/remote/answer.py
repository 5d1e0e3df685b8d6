"""Reads the events of an OpenAI-compatible server into the chunks of answers.

Leaves to others: where the events come from (``remote.http``) and giving the chunks out (``remote.stream``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.engine.completion import Completion, CompletionChunk, Timings, TokenLogprob
from treadle.engine.remote.http import error_in
from treadle.errors import RemoteError, UsageError
from treadle.models.tool_dialects import Content, Reasoning, ToolCall

if TYPE_CHECKING:
    from treadle.engine.request import FinishReason
    from treadle.models.tool_dialects import Part

__all__ = ["AnswerReader"]

_ESCAPE = r"\\x([0-9a-f]{2})"
_BYTES = re.compile(f"bytes:({_ESCAPE})+")
MAX_ANSWER_CHARS = 16 << 20
_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "eos": "stop",
    "length": "length",
}


class AnswerReader:
    """The answers to one request as far as they have come.

    Args:
        host: The server, for messages.
        num_answers: How many were asked for.
        has_logprobs: Whether log-probabilities were.
        needs_call: Whether each must call a function, which not every server sees to.
    """

    def __init__(self, host: str, *, num_answers: int, has_logprobs: bool, needs_call: bool = False) -> None:
        self._host = host
        self._needs_call = needs_call
        self._choices = [_Choice(index, has_logprobs) for index in range(num_answers)]
        self._total_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0

    def timings(self) -> dict[int, Timings]:
        """Return the times up to now of each answer that has not ended."""
        return {choice.index: choice.timings() for choice in self._choices if not choice.is_given}

    def read(self, event: Any) -> list[CompletionChunk]:
        """Return what an event adds to the answers; none of the chunks is the last of its answer.

        Raises:
            RemoteError: The event tells of a failure, or it is none of the API.
            UsageError: The server withholds the answer for what it says.
        """
        reason = error_in(event)
        if reason is not None:
            raise RemoteError(f"the engine at {self._host} failed while it answered: {reason}")
        try:
            self._read_usage(event.get("usage"))
            chunks = [chunk for given in event["choices"] if (chunk := self._read_choice(given)) is not None]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RemoteError(
                f"the engine at {self._host} sent an event that is none of the API "
                f"({type(error).__name__}: {error}): {json.dumps(event)[:200]}"
            ) from None
        return chunks

    def finish(self) -> list[CompletionChunk]:
        """Return the last chunk of each answer, once all events are read.

        Raises:
            RemoteError: The events ended before the answers did, or an answer lacks the call it needs.
        """
        open_choices = [choice for choice in self._choices if choice.finish_reason is None]
        if open_choices:
            raise RemoteError(
                f"the engine at {self._host} ended {len(open_choices)} of {len(self._choices)} answers before their end"
            )
        if self._needs_call and any(choice.lacks_call for choice in self._choices):
            raise RemoteError(f"the engine at {self._host} was to call a function and gave no call")
        missing = (self._total_tokens or 0) - sum(choice.num_tokens for choice in self._choices)
        if self._total_tokens is not None and (missing > 0 or len(self._choices) == 1):
            self._choices[-1].answer_tokens += missing
        return [choice.last_chunk(self.prompt_tokens or 0, self.cached_tokens) for choice in self._choices]

    def _read_usage(self, usage: Mapping[str, Any] | None) -> None:
        if not usage:
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self._total_tokens = _count(usage.get("completion_tokens"))
        self.cached_tokens = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0

    def _read_choice(self, given: Mapping[str, Any]) -> CompletionChunk | None:
        index = given.get("index", 0)
        if not isinstance(index, int) or index < 0:
            raise ValueError(f"{index!r:.40} is the number of no answer")
        choice = self._choices[index]
        chunk = choice.read(given, self._total_tokens if len(self._choices) == 1 else None)
        if choice.num_chars > MAX_ANSWER_CHARS:
            raise RemoteError(f"the engine at {self._host} sent an answer of more than {MAX_ANSWER_CHARS} characters")
        reason = given.get("finish_reason")
        if reason == "content_filter":
            raise UsageError(f"the engine at {self._host} withholds the answer: its content filter ended it")
        if reason is not None:
            choice.finish_reason = _REASONS.get(reason, "stop")
            stopped_by = given.get("stop_reason")
            choice.stopped_by = stopped_by if isinstance(stopped_by, str | int) else None
        return chunk


class _Choice:
    """One answer."""

    def __init__(self, index: int, has_logprobs: bool) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        self.num_tokens = 0
        self.num_chars = 0
        self.answer_tokens = 0
        self.is_given = False
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = [] if has_logprobs else None
        self._calls = _Calls()
        self._began = self._first = self._last = time.perf_counter()

    def read(self, given: Mapping[str, Any], total_tokens: int | None) -> CompletionChunk | None:
        """Return what the server adds to the answer, None if that is nothing.

        ``total_tokens`` is how many the answer has up to now, if the server counts as it goes.
        """
        delta = given.get("delta") or given.get("message") or {}
        text = _text(given.get("text") or delta.get("content"))
        thought = _text(delta.get("reasoning_content") or delta.get("reasoning"))
        calls = delta.get("tool_calls") or ()
        logprobs = _logprobs(given.get("logprobs"))
        if not (text or thought or calls or logprobs):
            return None
        parts: list[Part] = [Reasoning(thought)] if thought else []
        parts += [Content(text)] if text else []
        parts += self._calls.read(calls)
        self._texts.append(text)
        self.num_chars += len(text) + len(thought) + sum(len(str(each)) for each in calls)
        if self._logprobs is not None:
            self._logprobs += logprobs
        # Most servers say at the end how many tokens there were; until then an event is taken for one.
        num_tokens = len(logprobs) or 1
        if total_tokens is not None:
            num_tokens = max(0, total_tokens - self.num_tokens)
        self._note(num_tokens)
        return CompletionChunk(text, (), num_tokens, tuple(logprobs), index=self.index, parts=parts)

    @property
    def lacks_call(self) -> bool:
        """Tell whether the answer is whole and called nothing."""
        return self.finish_reason == "stop" and not self._calls.has_any

    def last_chunk(self, prompt_tokens: int, cached_tokens: int) -> CompletionChunk:
        """Return the chunk that carries the whole answer."""
        assert self.finish_reason is not None
        self.is_given = True
        completion = Completion(
            text="".join(self._texts),
            token_ids=[],
            finish_reason=self.finish_reason,
            prompt_tokens=prompt_tokens,
            answer_tokens=self.answer_tokens,
            timings=self.timings(),
            logprobs=self._logprobs,
            stopped_by=self.stopped_by,
            cached_tokens=cached_tokens,
            index=self.index,
        )
        missing = max(0, self.answer_tokens - self.num_tokens)
        return CompletionChunk("", (), missing, completion=completion, index=self.index, parts=self._calls.finish())

    def timings(self) -> Timings:
        """Return the times up to the last token; how long the server kept the request waiting is not known."""
        return Timings(0.0, self._first - self._began, self._last - self._first)

    def _note(self, num_tokens: int) -> None:
        self._last = time.perf_counter()
        if self._first is self._began:
            self._first = self._last
        self.num_tokens += num_tokens
        self.answer_tokens += num_tokens


class _Calls:
    """Puts tool calls together, which come in pieces and one after the other."""

    def __init__(self) -> None:
        self._index: int | None = None
        self._name = ""
        self._arguments: list[str] = []
        self._num_whole = 0

    @property
    def has_any(self) -> bool:
        """Tell whether a call came that is one, its arguments an object."""
        is_whole = self._index is not None and bool(self._name) and _is_object("".join(self._arguments).strip() or "{}")
        return self._num_whole > 0 or is_whole

    def read(self, pieces: Sequence[Mapping[str, Any]]) -> list[Part]:
        """Take in pieces and return the calls that are complete now, as another has begun."""
        found: list[Part] = []
        for piece in pieces:
            function = piece.get("function") or {}
            index = piece.get("index")
            if index is None:  # not every server numbers them; the first piece of each has its name
                index = 0 if self._index is None else self._index + bool(function.get("name"))
            if index != self._index:
                found += self.finish()
                self._index = index
            self._name = self._name or _text(function.get("name"))
            arguments = function.get("arguments") or ""
            self._arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        return found

    def finish(self) -> list[Part]:
        """Return the last call, if there is one; what was cut off or is no call comes out as text."""
        if self._index is None:
            return []
        name, arguments = self._name, "".join(self._arguments).strip() or "{}"
        self._index, self._name, self._arguments = None, "", []
        if not (name and _is_object(arguments)):
            return [Content(f"{name}({arguments})")]
        self._num_whole += 1
        return [ToolCall(name, arguments)]


def _logprobs(given: Any) -> list[TokenLogprob]:
    """Read log-probabilities in the form of the chat API or of the one for texts."""
    if not given:
        return []
    if "tokens" in given:
        tops = given.get("top_logprobs") or [{}] * len(given["tokens"])
        return [
            _logprob(
                token,
                logprob,
                _escaped(token),
                [_logprob(name, value, _escaped(name)) for name, value in (top or {}).items()],
            )
            for token, logprob, top in zip(given["tokens"], given["token_logprobs"], tops, strict=True)
        ]
    return [
        _logprob(each["token"], each["logprob"], each.get("bytes"), [_top(top) for top in each["top_logprobs"]])
        for each in given.get("content") or ()
    ]


def _top(given: Mapping[str, Any]) -> TokenLogprob:
    return _logprob(given["token"], given["logprob"], given.get("bytes"))


def _escaped(token: str) -> list[int] | None:
    """Return the bytes of a token that is no text by itself, as OpenAI's API for texts spells it."""
    return [int(byte, 16) for byte in re.findall(_ESCAPE, token)] if _BYTES.fullmatch(token) else None


def _logprob(
    token: str, logprob: float, token_bytes: Sequence[int] | None = None, top: Sequence[TokenLogprob] = ()
) -> TokenLogprob:
    data = token.encode(errors="replace") if token_bytes is None else bytes(token_bytes)
    return TokenLogprob(None, token, data, float(logprob), tuple(top))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise TypeError(f"{str(value)[:40]} is no text")


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value >= 0 else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
