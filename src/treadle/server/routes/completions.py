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
from treadle.server.disconnect import EventStream, unless_gone
from treadle.server.errors import api_error, error_body
from treadle.server.logprobs import completion_logprobs
from treadle.server.schema.completions import CompletionRequest
from treadle.server.state import ServerState, state_of
from treadle.server.usage import Usage

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk
    from treadle.engine.contract import AnswerStream, AsyncEngine
    from treadle.server.hub import ServedModel

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
        self._prompts: list[str | list[int]] = []
        self._echoes: list[str] = []
        self._offsets: dict[int, int] = {}
        self._usage = Usage()
        self._model: ServedModel
        self._engine: AsyncEngine
        self._head: dict[str, Any] = {}

    async def start(self, state: ServerState) -> None:
        """Queue every prompt."""
        body = self._body
        self._model, self._engine = await self._stack.enter_async_context(state.hub.use(body.model))
        self._prompts = _prompts(body.prompt)
        if body.echo:
            self._echoes = [await self._text(prompt) for prompt in self._prompts]
        params = body.sampling(
            vocab_size=self._engine.vocab_size,
            max_tokens=state.settings.output_limit(body.max_tokens),
            logprobs=body.logprobs,
        )
        priority, timeout = body.priority or "interactive", state.settings.request_timeout
        for prompt in self._prompts:
            stream = await self._engine.answer(prompt, params, priority=priority, timeout=timeout)
            self._streams.append(stream)
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model.name,
        }

    async def collect(self) -> dict[str, Any]:
        """Return the whole response."""
        choices = [await self._whole_choices(number) for number in range(len(self._streams))]
        await self.aclose()
        return {**self._head, "choices": [each for group in choices for each in group], "usage": self._usage.as_json()}

    async def events(self) -> AsyncIterator[bytes]:
        """Iterate over the response in events."""
        try:
            if self._body.echo:
                for index in range(len(self._prompts) * self._num_each):
                    yield self._event(index, self._echoes[index // self._num_each])
            async for number, chunk in _merge(self._streams):
                index = number * self._num_each + chunk.index
                self._count(chunk)
                if chunk.text or chunk.logprobs or chunk.finish_reason:
                    yield self._event(index, chunk.text, chunk)
        except Exception as error:  # the status is sent already
            yield sse.event(error_body(api_error(error)))
            return
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield sse.event({**self._head, "choices": [], "usage": self._usage.as_json()})
        yield sse.DONE

    async def aclose(self) -> None:
        """End what still runs and let the model go; may be called twice."""
        for stream in self._streams:
            await stream.aclose()
        await self._stack.aclose()

    async def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else await self._engine.detokenize(prompt)

    async def _whole_choices(self, number: int) -> list[dict[str, Any]]:
        texts = [[self._echoes[number] if self._body.echo else ""] for _ in range(self._num_each)]
        entries: list[list[Any]] = [[] for _ in range(self._num_each)]
        reasons: list[str | None] = [None] * self._num_each
        async for chunk in self._streams[number]:
            self._count(chunk)
            texts[chunk.index].append(chunk.text)
            entries[chunk.index] += chunk.logprobs
            reasons[chunk.index] = chunk.finish_reason
        return [
            {
                "index": number * self._num_each + index,
                "text": "".join(texts[index]),
                "logprobs": None
                if self._body.logprobs is None
                else completion_logprobs(entries[index], len(texts[index][0])),
                "finish_reason": reasons[index],
            }
            for index in range(self._num_each)
        ]

    def _event(self, index: int, text: str, chunk: CompletionChunk | None = None) -> bytes:
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(text)
        logprobs = None
        if chunk is not None and chunk.logprobs:
            logprobs = completion_logprobs(chunk.logprobs, offset)
        reason = None if chunk is None else chunk.finish_reason
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return sse.event({**self._head, "choices": [choice]})

    def _count(self, chunk: CompletionChunk) -> None:
        if chunk.completion is not None:
            self._usage.add(chunk.completion, is_first=chunk.index == 0)


def _prompts(given: Any) -> list[str | list[int]]:
    """Return the prompts of a body that may hold one or several, as text or as token ids."""
    is_one = isinstance(given, str) or isinstance(given[0], int)
    return [given] if is_one else list(given)


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
