"""Asks the model once: streams its answer, reads calls out of it, and ends it when a budget does.

Leaves to others: what is asked and what follows from the answer (``run``).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from treadle.agents.answer_calls import LooseParser, ReadAnswer, read_rest
from treadle.agents.events import AgentEvent, ReasoningPiece, TextPiece
from treadle.agents.trace import add_model_spans, span
from treadle.errors import ContextError, DeadlineError
from treadle.models.tool_dialects import Content, Part, Reasoning, ToolCall, ToolSchemas

if TYPE_CHECKING:
    from treadle.agents.budget import Spending
    from treadle.engine.completion import Completion
    from treadle.engine.contract import AnswerStream, AsyncEngine
    from treadle.engine.conversation import Conversation
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams

__all__ = ["Emit", "ModelAnswer", "ModelTurn"]

Emit = Callable[[AgentEvent], Awaitable[None]]

# A prompt that leaves less room than this for its answer counts as too long.
_MIN_ROOM = 256


@dataclass(frozen=True)
class ModelAnswer:
    """What the model said; ``end`` tells whether it was done ("stop"), or cut off by a length, a budget or its time."""

    read: ReadAnswer
    reasoning: str
    end: Literal["stop", "length", "budget", "deadline"]


@dataclass
class ModelTurn:
    """One answer of the model.

    Args:
        engine: Who answers.
        params: How; budgets may shorten its answer.
        priority: Of the request.
        spending: What the answer is counted against.
        tools: The schemas of the tools on offer.
        emit: Is told of the answer as it comes.
        is_closing: Whether the answer may use what budgets keep back.
    """

    engine: AsyncEngine
    params: SamplingParams
    priority: Priority
    spending: Spending
    tools: ToolSchemas
    emit: Emit
    is_closing: bool = False
    _contents: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)
    _num_tokens: int = 0

    async def ask(self, conversation: Conversation) -> ModelAnswer:
        """Return the answer to a conversation.

        Raises:
            ContextError: The conversation leaves too little room for an answer.
            TreadleError: As the engine's ``answer`` and its stream do.
        """
        timeout = self.spending.seconds_left(is_closing=self.is_closing)
        with span("model", self.engine.name) as model_span:
            stream = await self.engine.answer(conversation, self._limited(), priority=self.priority, timeout=timeout)
            completion = None
            end: Literal["stop", "length", "budget", "deadline"] = "budget"
            try:
                self._check_room(stream)
                completion = await self._read(stream)
                if completion is not None:
                    end = "length" if completion.finish_reason == "length" else "stop"
            except DeadlineError:
                end = "deadline"
            finally:
                await stream.aclose(is_complete=completion is not None)
                self._count(stream, completion)
            if completion is not None:
                add_model_spans(model_span, completion, is_remote=self.engine.report is None)
        with span("parse"):
            read = read_rest("".join(self._contents), self._calls, self.tools)
        if end == "length" and self._tokens_left(stream) <= 0:
            end = "budget"
        return ModelAnswer(read, "".join(self._reasoning), end)

    async def _read(self, stream: AnswerStream) -> Completion | None:
        """Take in the answer; None if a budget ended it before the model did."""
        loose = LooseParser(self.tools)
        async for chunk in stream:
            self._num_tokens += chunk.num_tokens
            for part in chunk.parts:
                if isinstance(part, Content):
                    await self._take(loose.push(part.text))
                else:
                    await self._take([part])
            if chunk.completion is not None:
                await self._take(loose.finish())
                self._num_tokens = chunk.completion.answer_tokens
                return chunk.completion
            if self._tokens_left(stream) <= 0:
                break
        await self._take(loose.finish())
        return None

    async def _take(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, ToolCall):
                self._calls.append(part)
            elif isinstance(part, Reasoning):
                self._reasoning.append(part.text)
                await self.emit(ReasoningPiece(part.text))
            else:
                self._contents.append(part.text)
                await self.emit(TextPiece(part.text))

    def _limited(self) -> SamplingParams:
        left = self.spending.answer_tokens_left(0, 0, is_closing=self.is_closing)
        if math.isinf(left):
            return self.params
        most = max(1, int(left))
        wanted = self.params.max_tokens
        most = most if wanted is None else min(wanted, most)
        return replace(self.params, max_tokens=most, min_tokens=min(self.params.min_tokens, most))

    def _check_room(self, stream: AnswerStream) -> None:
        context, prompt_tokens = self.engine.context, stream.prompt_tokens
        if context is None or prompt_tokens is None:
            return
        wanted = _MIN_ROOM if self.params.max_tokens is None else min(_MIN_ROOM, self.params.max_tokens)
        if context - prompt_tokens < wanted:
            raise ContextError(
                f"the conversation has {prompt_tokens} tokens, which leaves {max(0, context - prompt_tokens)} of "
                f"the context of {context} for an answer, expected {wanted} at least",
                hint="give the model a longer context, or the tools shorter results",
            )

    def _tokens_left(self, stream: AnswerStream) -> float:
        prompt_tokens = stream.prompt_tokens or 0
        new_tokens = prompt_tokens - stream.cached_tokens
        left = self.spending.answer_tokens_left(new_tokens, prompt_tokens, is_closing=self.is_closing)
        return left - self._num_tokens

    def _count(self, stream: AnswerStream, completion: Completion | None) -> None:
        prompt_tokens = completion.prompt_tokens if completion is not None else stream.prompt_tokens or 0
        cached_tokens = completion.cached_tokens if completion is not None else stream.cached_tokens
        self.spending.add_turn(prompt_tokens, cached_tokens, self._num_tokens)
