"""``POST /v1/completions``: continue plain text, as the OpenAI API did before chats.

Leaves to others: the text of an answer (the engine).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from treadle.server import sse
from treadle.server.body import body_schema, read_body
from treadle.server.choice import stop_reason
from treadle.server.disconnect import EventStream, unless_gone
from treadle.server.empty_answer import EmptyAnswer
from treadle.server.errors import api_error, error_body
from treadle.server.logprobs import CompletionLogprobs
from treadle.server.schema.completions import CompletionRequest, StreamOptions
from treadle.server.state import ServerState, state_of
from treadle.server.usage import Usage

if TYPE_CHECKING:
    from treadle.engine.completion import Completion, CompletionChunk, TokenLogprob
    from treadle.engine.contract import AnswerStream
    from treadle.server.hub import InUse

__all__ = ["router"]

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest), summary="Continue a text")
async def completions(request: Request) -> Response:
    """Continue each of the prompts, at once or as server-sent events."""
    state = state_of(request)
    body = await read_body(request, CompletionRequest, state.settings)
    run = _Run(body)
    try:
        await unless_gone(request, run.start(state))
        if body.stream:
            return EventStream(run.events(), on_close=run.aclose)
        return JSONResponse(await unless_gone(request, run.collect()))
    except BaseException:
        await run.aclose()
        raise


class _Run:
    """One request: its prompts side by side, ``n`` choices each, numbered prompt after prompt."""

    def __init__(self, body: CompletionRequest) -> None:
        self._body = body
        self._num_each = body.n or 1
        self._stack = AsyncExitStack()
        self._streams: list[AnswerStream] = []
        self._echoes: list[str] = []
        self._chunks: AsyncIterator[tuple[int, CompletionChunk]] | None = None
        self._first: tuple[int, CompletionChunk] | None = None
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._num_tokens: dict[int, int] = {}
        self._options = body.stream_options or StreamOptions()
        self._held: InUse
        self._head: dict[str, Any] = {}

    async def start(self, state: ServerState) -> None:
        """Queue every prompt; wait for the first chunk of a stream, so that failures have a status of their own."""
        body = self._body
        self._held = await self._stack.enter_async_context(state.hub.use(body.model))
        if body.echo:
            self._echoes = [await self._text(prompt) for prompt in body.prompt]
        params = body.sampling(
            vocab_size=self._held.engine.vocab_size,
            max_tokens=state.settings.output_limit(body.max_tokens or None),
            logprobs=body.logprobs,
        )
        priority, timeout = body.priority or "interactive", state.settings.request_timeout
        for prompt in body.prompt:
            if body.max_tokens == 0:
                self._streams.append(EmptyAnswer(await self._length(prompt), self._num_each))
                continue
            stream = await self._held.engine.answer(
                prompt, params, priority=priority, timeout=timeout, adapter=self._held.adapter
            )
            self._streams.append(stream)
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._held.name,
        }
        if body.stream:
            self._chunks = _merge(self._streams)
            self._first = await anext(self._chunks)

    async def collect(self) -> dict[str, Any]:
        """Return the whole response."""
        choices = [_Choice(index, echo) for index, echo in self._echo_of_each()]
        async for index, chunk in self._all_chunks():
            choices[index].add(chunk)
        await self.aclose()
        has_logprobs = self._body.logprobs is not None
        written = [choice.as_json(has_logprobs=has_logprobs) for choice in choices]
        return {**self._head, "choices": written, "usage": self._usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """Iterate over the response in events."""
        try:
            if self._body.echo:
                for index, echo in self._echo_of_each():
                    yield self._event(index, echo)
            async for index, chunk in self._all_chunks():
                if chunk.text or chunk.logprobs or chunk.finish_reason:
                    yield self._event(index, chunk.text, chunk)
        except Exception as error:  # the status is sent already
            yield sse.event(error_body(api_error(error)))
            return
        if self._options.include_usage:
            yield sse.event({**self._head, "choices": [], "usage": self._usage()})
        yield sse.DONE

    async def aclose(self) -> None:
        """End what still runs and let the model go; may be called twice."""
        self._chunks = None
        for stream in self._streams:
            await stream.aclose()
        await self._stack.aclose()

    async def _all_chunks(self) -> AsyncIterator[tuple[int, CompletionChunk]]:
        """Iterate over the chunks of all choices with the number of each."""
        if self._chunks is None:
            self._chunks = _merge(self._streams)
        elif self._first is not None:
            yield self._count(*self._first)
        async for number, chunk in self._chunks:
            yield self._count(number, chunk)

    def _echo_of_each(self) -> list[tuple[int, str]]:
        """Return the number of each choice with the prompt before it, if that is wanted."""
        echoes = self._echoes or [""] * len(self._body.prompt)
        return list(enumerate(echo for echo in echoes for _ in range(self._num_each)))

    async def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else await self._held.engine.detokenize(prompt)

    async def _length(self, prompt: str | list[int]) -> int:
        return len(await self._held.engine.tokenize(prompt) if isinstance(prompt, str) else prompt)

    def _event(self, index: int, text: str, chunk: CompletionChunk | None = None) -> bytes:
        logprobs = None
        if chunk is not None and chunk.logprobs:
            logprobs = self._logprobs.setdefault(index, CompletionLogprobs()).write(chunk.logprobs)
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None if chunk is None else chunk.finish_reason,
            "stop_reason": None if chunk is None else stop_reason(chunk.completion),
        }
        event = {**self._head, "choices": [choice]}
        return sse.event({**event, "usage": self._usage()} if self._options.continuous_usage_stats else event)

    def _count(self, number: int, chunk: CompletionChunk) -> tuple[int, CompletionChunk]:
        """Return the number of the choice in place of that of the prompt."""
        index = number * self._num_each + chunk.index
        num_tokens = self._num_tokens.get(index, 0) + chunk.num_tokens
        self._num_tokens[index] = num_tokens if chunk.completion is None else chunk.completion.answer_tokens
        return index, chunk

    def _usage(self) -> dict[str, Any]:
        return Usage(
            sum(stream.prompt_tokens or 0 for stream in self._streams),
            sum(stream.cached_tokens for stream in self._streams),
            sum(self._num_tokens.values()),
        ).as_json()


class _Choice:
    """One choice of a response that is not streamed; its text begins with ``echo``."""

    def __init__(self, index: int, echo: str) -> None:
        self._index = index
        self._texts = [echo]
        self._logprobs: list[TokenLogprob] = []
        self._completion: Completion | None = None

    def add(self, chunk: CompletionChunk) -> None:
        """Take in what comes next."""
        self._texts.append(chunk.text)
        self._logprobs += chunk.logprobs
        self._completion = chunk.completion

    def as_json(self, *, has_logprobs: bool) -> dict[str, Any]:
        """Return the choice as the API has it."""
        return {
            "index": self._index,
            "text": "".join(self._texts),
            "logprobs": CompletionLogprobs().write(self._logprobs) if has_logprobs else None,
            "finish_reason": None if self._completion is None else self._completion.finish_reason,
            "stop_reason": stop_reason(self._completion),
        }


async def _merge(streams: list[AnswerStream]) -> AsyncIterator[tuple[int, CompletionChunk]]:
    """Iterate over several streams as their chunks come."""
    waiting = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = waiting.pop(task)
                try:
                    chunk = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(streams[number]))] = number
                yield number, chunk
    finally:
        for task in waiting:
            task.cancel()
