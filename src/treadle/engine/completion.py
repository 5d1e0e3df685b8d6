"""What callers of the Python API get back.

Leaves to others: producing it (``LLM``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from treadle.engine.request import FinishReason
from treadle.errors import TreadleError
from treadle.models.tool_dialects.parts import Part

__all__ = ["ChatMessage", "Completion", "CompletionChunk", "Timings", "TokenLogprob"]


class _Role(TypedDict):
    role: Literal["system", "developer", "user", "assistant", "tool"]


class ChatMessage(_Role, total=False):
    """One turn of a conversation, as the OpenAI chat API spells it; the model's template decides what it uses."""

    content: str | list[dict[str, Any]] | None
    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model found a token: natural logarithms, before penalties, bias, temperature and constraints.

    ``text`` shows the ``token_bytes``, which need not be whole characters. ``top`` lists the most likely tokens at that
    place. An engine elsewhere may not tell the ``token_id``.
    """

    token_id: int | None
    text: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Timings:
    """Where the time of one request went, in seconds.

    ``queued_seconds`` until its first step began, ``prefill_seconds`` from there to the first token, ``decode_seconds``
    from the first token to the last. Requests that ran beside it share that time.
    """

    queued_seconds: float
    prefill_seconds: float
    decode_seconds: float

    @property
    def first_token_seconds(self) -> float:
        """Return the time from the request to its first token."""
        return self.queued_seconds + self.prefill_seconds


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ``token_ids`` are all the tokens the model gave, one that ended the answer included; ``text`` leaves that one out,
    and a stop string. An engine elsewhere tells only how many there are, ``answer_tokens``. ``finish_reason`` is "stop"
    (the model or a stop string ended it), "length" (``max_tokens`` reached, or the context full) or "error" (see
    ``error``; only inside a list of answers, a single one raises it).

    ``stopped_by`` is the stop string that ended it, or the id of the token that did. ``cached_tokens`` of the
    ``prompt_tokens`` were known from earlier prompts and not computed again.

    With ``SamplingParams.n`` above 1 the answers to a prompt are numbered by ``index``; those after the first are the
    ``alternatives`` of the first.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    answer_tokens: int
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    error: TreadleError | None = None
    stopped_by: str | int | None = None
    cached_tokens: int = 0
    index: int = 0
    alternatives: tuple[Completion, ...] = ()

    @property
    def prompt_rate(self) -> float | None:
        """Return how many tokens of the prompt were computed per second, if that could be measured."""
        seconds = self.timings.prefill_seconds
        return (self.prompt_tokens - self.cached_tokens) / seconds if seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Return how many tokens per second followed the first one, if any did."""
        seconds = self.timings.decode_seconds
        return (self.answer_tokens - 1) / seconds if seconds > 0 and self.answer_tokens > 1 else None


@dataclass(frozen=True)
class CompletionChunk:
    """A piece of answer number ``index`` as it comes; the last one carries that whole answer in ``completion``.

    ``num_tokens`` came with it, whose ``token_ids`` an engine elsewhere does not tell. Where a conversation is answered
    with ``AsyncLLM.answer``, ``parts`` are what the text is made of: content, reasoning, whole tool calls.
    """

    text: str
    token_ids: tuple[int, ...]
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    completion: Completion | None = None
    index: int = 0
    parts: Sequence[Part] = ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Return why the answer ended, on its last chunk."""
        return self.completion.finish_reason if self.completion else None
