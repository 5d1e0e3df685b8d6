"""An engine that says what it is told to, for tests of what is built on engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.engine.completion import Completion, CompletionChunk, Timings
from treadle.engine.conversation import Conversation
from treadle.engine.request import FinishReason
from treadle.engine.sampling import SamplingParams
from treadle.errors import DeadlineError, TreadleError
from treadle.models.tool_dialects import Content, Part, ToolCall


@dataclass
class Say:
    """One answer: its parts, in pieces of the stream, and what it costs."""

    parts: Sequence[Part]
    prompt_tokens: int = 10
    cached_tokens: int = 0
    answer_tokens: int = 5
    finish_reason: FinishReason = "stop"
    hangs: bool = False  # after its parts, until it is cancelled; its time is up at once
    error: TreadleError | None = None


def text(content: str, **more: Any) -> Say:
    return Say([Content(content)], **more)


def call(name: str, arguments: str = "{}", **more: Any) -> Say:
    return Say([ToolCall(name, arguments)], **more)


@dataclass
class ScriptedEngine:
    """Gives one answer of the script after the other, the last one for ever; keeps what it was asked."""

    script: Sequence[Say | Callable[[Conversation], Say]]
    context: int | None = None
    name: str = "scripted"
    observe: Any = None
    asked: list[Conversation] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)
    report: Any = None

    async def answer(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **_: Any,
    ) -> ScriptedStream:
        # What is asked must not change when the conversation goes on.
        self.asked.append(
            Conversation([dict(each) for each in prompt.messages], prompt.tools, prompt.choice, prompt.functions)
        )
        self.params.append(params or SamplingParams())
        self.timeouts.append(timeout)
        say = self.script[min(len(self.asked), len(self.script)) - 1]
        say = say if isinstance(say, Say) else say(prompt)
        if say.error is not None:
            raise say.error
        self.streams.append(ScriptedStream(say, timeout))
        return self.streams[-1]


class ScriptedStream:
    def __init__(self, say: Say, timeout: float | None) -> None:
        self.say = say
        self.timeout = timeout
        self.prompt_tokens = say.prompt_tokens
        self.cached_tokens = say.cached_tokens
        self.is_closed = False
        self._chunks = self._make()

    def __aiter__(self) -> AsyncIterator[CompletionChunk]:
        return self

    async def __anext__(self) -> CompletionChunk:
        return await anext(self._chunks)

    async def aclose(self, *, is_complete: bool = False) -> None:  # noqa: ARG002
        self.is_closed = True

    async def _make(self) -> AsyncIterator[CompletionChunk]:
        say = self.say
        for part in say.parts:
            yield CompletionChunk(getattr(part, "text", ""), (), 1, parts=[part])
        if say.hangs:
            if self.timeout is not None:
                raise DeadlineError("the time was up")
            await asyncio.Event().wait()
        content = "".join(part.text for part in say.parts if isinstance(part, Content))
        completion = Completion(
            content,
            [],
            say.finish_reason,
            say.prompt_tokens,
            say.answer_tokens,
            Timings(0, 0, 0),
            cached_tokens=say.cached_tokens,
        )
        yield CompletionChunk("", (), 0, completion=completion)


def contents(conversation: Conversation, role: str) -> list[str]:
    return [str(message["content"]) for message in conversation.messages if message["role"] == role]


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", ())]
