"""``POST /v1/chat/completions``: the OpenAI chat API.

Leaves to others: running the request (``server.run``) and what a conversation becomes (the engine).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from treadle.engine.conversation import Conversation
from treadle.models.tool_dialects import Content, Part, Reasoning, ToolCall
from treadle.server import sse
from treadle.server.body import body_schema, read_body
from treadle.server.disconnect import EventStream, unless_gone
from treadle.server.errors import api_error, error_body
from treadle.server.logprobs import chat_logprobs
from treadle.server.record import current_key_id
from treadle.server.response_store import ResponseStore, StoredResponse
from treadle.server.run import AnswerRun, Piece, naming_form
from treadle.server.schema.chat import ChatRequest
from treadle.server.state import ServerState, state_of

if TYPE_CHECKING:
    from treadle.engine.completion import TokenLogprob

__all__ = ["router"]

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest), summary="Answer a conversation")
async def chat_completions(request: Request) -> Response:
    """Answer the messages of a conversation, at once or as server-sent events."""
    state = state_of(request)
    body = await read_body(request, ChatRequest, state.settings)
    run = AnswerRun(state.hub)
    try:
        await unless_gone(request, _start(run, body, state))
        writer = _Writer(run, body)
        if body.stream:
            return EventStream(_events(run, writer, body, state.responses), on_close=run.aclose)
        completion = await unless_gone(request, _collect(run, writer))
        if body.store:
            state.responses.put(StoredResponse(completion, body.messages), current_key_id())
        return JSONResponse(completion)
    except BaseException:
        await run.aclose()
        raise


async def _start(run: AnswerRun, body: ChatRequest, state: ServerState) -> None:
    engine = await run.open(body.model)
    with naming_form(body.form_field):
        params = body.sampling(
            vocab_size=engine.vocab_size,
            max_tokens=state.settings.output_limit(body.token_limit),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
        await run.start(
            _conversation(body),
            params,
            priority=body.priority or "interactive",
            timeout=state.settings.request_timeout,
        )


def _conversation(body: ChatRequest) -> Conversation:
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(
        messages=body.messages,
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        choice=body.choice,
        functions=body.chosen_functions,
        is_parallel=body.parallel_tool_calls is not False,
        continues=bool(body.continue_final_message),
        variables=variables,
    )


async def _collect(run: AnswerRun, writer: _Writer) -> dict[str, Any]:
    choices = [_Choice() for _ in range(writer.num_choices)]
    try:
        async for piece in run:
            choices[piece.index].add(piece)
    finally:
        await run.aclose()
    return writer.completion(choices)


async def _events(run: AnswerRun, writer: _Writer, body: ChatRequest, store: ResponseStore) -> AsyncIterator[bytes]:
    choices = [_Choice() for _ in range(writer.num_choices)]
    key_id = current_key_id()
    try:
        yield writer.opening()
        async for piece in run:
            if body.store:
                choices[piece.index].add(piece)
            yield writer.events(piece)
    except Exception as error:  # the status is sent already
        yield sse.event(error_body(api_error(error)))
        return
    if body.store:
        store.put(StoredResponse(writer.completion(choices), body.messages), key_id)
    usage = b""
    if body.stream_options is not None and body.stream_options.include_usage:
        usage = sse.event({**writer.head, "choices": [], "usage": run.usage.as_json()})
    yield usage + sse.DONE


@dataclass
class _Choice:
    """One answer of a response that is not streamed."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None

    def add(self, piece: Piece) -> None:
        self.logprobs += piece.logprobs
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason
        for part in piece.parts:
            if isinstance(part, Content):
                self.content.append(part.text)
            elif isinstance(part, Reasoning):
                self.reasoning.append(part.text)
            else:
                self.calls.append(_call(part))

    def message(self) -> dict[str, Any]:
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not self.calls else None}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return {**message, "refusal": None}


class _Writer:
    """Writes the objects of one response; all carry the same id and time."""

    def __init__(self, run: AnswerRun, body: ChatRequest) -> None:
        self._run = run
        self._has_logprobs = bool(body.logprobs)
        self._counts = body.stream_options is not None and bool(body.stream_options.continuous_usage_stats)
        self.num_choices = body.n or 1
        self._num_calls = [0] * self.num_choices
        self.head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": run.held.name,
        }
        if body.service_tier is not None:
            self.head["service_tier"] = "default"
        # What is stored can be found by its labels.
        self._labels = {"metadata": body.metadata or {}} if body.store else {}
        self._texts = [sse.TextEvents(partial(self._text_content, index)) for index in range(self.num_choices)]

    def completion(self, choices: Sequence[_Choice]) -> dict[str, Any]:
        """Return a whole response."""
        written = [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": self._logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(choices)
        ]
        head = {**self.head, "object": "chat.completion", **self._labels}
        return {**head, "choices": written, "usage": self._run.usage.as_json()}

    def opening(self) -> bytes:
        """Return the events that a stream begins with."""
        return b"".join(self.event(index, {"role": "assistant", "content": ""}) for index in range(self.num_choices))

    def events(self, piece: Piece) -> bytes:
        """Return the events of one piece of a stream."""
        index, logprobs = piece.index, piece.logprobs
        events = []
        for part in piece.parts:
            if isinstance(part, Content) and not logprobs and not self._counts:
                events.append(self._texts[index].event(part.text))
            else:
                events.append(self.event(index, self._delta(index, part), logprobs))
                logprobs = ()
        if logprobs:
            events.append(self.event(index, {}, logprobs))
        if piece.finish_reason is not None:
            events.append(self.event(index, {}, end=piece))
        return b"".join(events)

    def event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        end: Piece | None = None,
    ) -> bytes:
        """Return one event with one choice, which ``end`` ends."""
        content = self._content(index, delta, self._logprobs(logprobs) if logprobs else None, end)
        if self._counts:
            content["usage"] = self._run.usage.as_json()
        return sse.event(content)

    def _text_content(self, index: int, text: str) -> dict[str, Any]:
        return self._content(index, {"content": text}, None, None)

    def _content(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, end: Piece | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        if end is not None:
            choice |= {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        return {**self.head, "choices": [choice]}

    def _delta(self, index: int, part: Part) -> dict[str, Any]:
        if isinstance(part, Content):
            return {"content": part.text}
        if isinstance(part, Reasoning):
            return {"reasoning_content": part.text}
        number = self._num_calls[index]
        self._num_calls[index] += 1
        return {"tool_calls": [{"index": number, **_call(part)}]}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries) if self._has_logprobs else None


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
