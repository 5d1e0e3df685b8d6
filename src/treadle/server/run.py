"""One request on its way through the engine: holds the model, reads the answers, lets everything go at the end.

Leaves to others: what a request asks and what its answers look like (``server.routes``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.server.choice import ChoiceReader
from treadle.server.conversation import prepare
from treadle.server.usage import Usage

if TYPE_CHECKING:
    from treadle.engine.async_llm import AsyncCompletionStream, AsyncLLM
    from treadle.engine.completion import TokenLogprob
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams
    from treadle.models.tool_dialects import Part
    from treadle.server.conversation import Conversation
    from treadle.server.hub import ModelHub, ServedModel

__all__ = ["AnswerRun", "Piece"]


@dataclass(frozen=True)
class Piece:
    """What one chunk adds to the answer ``index``.

    ``finish_reason`` is there on the last piece of each, with what the model or the caller stopped it by.
    """

    index: int
    parts: Sequence[Part]
    logprobs: Sequence[TokenLogprob]
    finish_reason: str | None
    stopped_by: str | int | None = None


class AnswerRun:
    """The answers to one conversation. Call ``start``, then iterate ``pieces``; ``aclose`` frees all it holds."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub
        self._stack = AsyncExitStack()
        self._readers: list[ChoiceReader] = []
        self._stream: AsyncCompletionStream | None = None
        self._first: Piece | None = None
        self.usage = Usage()
        self.model: ServedModel
        self.engine: AsyncLLM

    async def open(self, name: str | None) -> AsyncLLM:
        """Hold the model of that name, loading it if need be."""
        self.model, self.engine = await self._stack.enter_async_context(self._hub.use(name))
        return self.engine

    async def start(
        self,
        conversation: Conversation,
        params: SamplingParams,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
    ) -> None:
        """Queue the request and wait for the first piece, so that failures until then have a status of their own."""
        prepared = await prepare(self.engine, conversation)
        max_calls = None if conversation.is_parallel else 1
        self._readers = [ChoiceReader(prepared.parser(), max_calls=max_calls) for _ in range(params.n)]
        self._stream = self.engine.generate(
            prepared.prompt,
            params,
            priority=priority,
            timeout=timeout,
            constraint=prepared.grammar.constraint if prepared.grammar is not None else None,
        )
        self._first = await self._next()
        self.usage.prompt_tokens = len(prepared.prompt.token_ids)
        self.usage.cached_tokens = self._stream.cached_tokens

    async def pieces(self) -> AsyncIterator[Piece]:
        """Iterate over the answers as they come."""
        piece = self._first
        while piece is not None:
            yield piece
            piece = await self._next()

    async def aclose(self) -> None:
        """End the answers and let the model go; may be called twice."""
        if self._stream is not None:
            await self._stream.aclose(is_complete=self._is_complete)
        await self._stack.aclose()

    @property
    def _is_complete(self) -> bool:
        return all(reader.finish_reason is not None for reader in self._readers)

    async def _next(self) -> Piece | None:
        assert self._stream is not None
        if self._is_complete:
            return None
        async for chunk in self._stream:
            reader = self._readers[chunk.index]
            was_open = reader.finish_reason is None
            parts = reader.read(chunk)
            if was_open:
                self.usage.completion_tokens += len(chunk.token_ids)
                stopped_by = chunk.completion.stopped_by if chunk.completion is not None else None
                end_ids = self.engine.tokenizer.eog_ids  # have no text, so they are no part of the answer
                logprobs = [entry for entry in chunk.logprobs if entry.token_id not in end_ids]
                return Piece(chunk.index, parts, logprobs, reader.finish_reason, stopped_by)
        return None
