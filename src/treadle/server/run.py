"""One request on its way through the engine: holds the model, reads the answers, lets everything go at the end.

Leaves to others: what a request asks and what its answers look like (``server.routes``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.errors import UsageError
from treadle.models.tool_dialects import Reasoning
from treadle.server.choice import ChoiceReader, stop_reason
from treadle.server.usage import Usage

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, TokenLogprob
    from treadle.engine.contract import AnswerStream, AsyncEngine
    from treadle.engine.conversation import Conversation
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams
    from treadle.models.tool_dialects import Part
    from treadle.server.hub import InUse, ModelHub

__all__ = ["AnswerRun", "Piece", "naming_form"]


@contextmanager
def naming_form(field: str) -> Iterator[None]:
    """Say of errors about the form of an answer which field of the request asked for it."""
    try:
        yield
    except UsageError as error:
        if error.field == "form":
            error.field = field
        raise


@dataclass(slots=True)
class Piece:
    """What one chunk adds to the answer ``index``.

    ``finish_reason`` is there on the last piece of each, with the text of the caller's that it met.
    """

    index: int
    parts: Sequence[Part]
    logprobs: Sequence[TokenLogprob]
    finish_reason: str | None
    stop_reason: str | None = None


class AnswerRun(AsyncIterator[Piece]):
    """The answers to one conversation. Call ``start``, then iterate over its pieces; ``aclose`` frees all it holds."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub
        self._stack = AsyncExitStack()
        self._readers: list[ChoiceReader] = []
        self._num_open = 0
        self._stream: AnswerStream | None = None
        self._first: Piece | None = None
        self.usage = Usage()
        self.held: InUse

    async def open(self, name: str | None) -> AsyncEngine:
        """Hold the model of that name, loading it if need be."""
        self.held = await self._stack.enter_async_context(self._hub.use(name))
        return self.held.engine

    async def start(
        self,
        conversation: Conversation,
        params: SamplingParams,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
    ) -> None:
        """Queue the request and wait for the first piece, so that failures until then have a status of their own."""
        max_calls = None if conversation.is_parallel else 1
        self._readers = [ChoiceReader(max_calls=max_calls) for _ in range(params.n)]
        self._stream = await self.held.engine.answer(
            conversation, params, priority=priority, timeout=timeout, adapter=self.held.adapter
        )
        self._num_open = params.n
        self._first = await anext(self, None)
        self.usage.read_prompt(self._stream)

    async def __anext__(self) -> Piece:
        first, self._first = self._first, None
        if first is not None:
            return first
        assert self._stream is not None
        while self._num_open:
            chunk = await anext(self._stream)
            reader = self._readers[chunk.index]
            if reader.finish_reason is None:
                return self._read(reader, chunk)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the answers and let the model go; may be called twice."""
        if self._stream is not None:
            await self._stream.aclose(is_complete=not self._num_open)
        await self._stack.aclose()

    def _read(self, reader: ChoiceReader, chunk: CompletionChunk) -> Piece:
        assert self._stream is not None
        num_before = reader.num_tokens
        parts = reader.read(chunk)
        self._num_open -= reader.finish_reason is not None
        num_tokens = reader.num_tokens - num_before
        self.usage.completion_tokens += num_tokens
        if any(isinstance(part, Reasoning) for part in parts):
            self.usage.reasoning_tokens += num_tokens
        if chunk.completion is not None:
            self.usage.read_prompt(self._stream)
        return Piece(chunk.index, parts, chunk.logprobs, reader.finish_reason, stop_reason(chunk.completion))
