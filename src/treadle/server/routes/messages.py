"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: the Anthropic API.

Leaves to others: running the request (``server.run``) and reading messages (``server.anthropic``).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from treadle.models.tool_dialects import Content, Part, Reasoning, ToolCall
from treadle.server import sse
from treadle.server.anthropic import read_conversation
from treadle.server.body import body_schema, read_body
from treadle.server.disconnect import EventStream, unless_gone
from treadle.server.errors import Json, api_error, error_body
from treadle.server.run import AnswerRun, Piece
from treadle.server.schema.messages import CountTokensRequest, MessagesRequest
from treadle.server.state import ServerState, state_of

__all__ = ["router"]

router = APIRouter(tags=["messages"])

_Event = dict[str, Any]


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest), summary="Answer a conversation (Anthropic)")
async def messages(request: Request) -> Response:
    """Answer the messages of a conversation, at once or as server-sent events."""
    state = state_of(request)
    body = await read_body(request, MessagesRequest, state.settings)
    run = AnswerRun(state.hub)
    try:
        await unless_gone(request, _start(run, body, state))
        message = _Message(run, hides_thoughts=body.hides_thoughts)
        if body.stream:
            return EventStream(_events(message, run, request.url.path), on_close=run.aclose)
        return Json(await unless_gone(request, _collect(message, run)))
    except BaseException:
        await run.aclose()
        raise


@router.post(
    "/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest), summary="Count tokens (Anthropic)"
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Return how many tokens the prompt of a conversation has, tools included."""
    state = state_of(request)
    body = await read_body(request, CountTokensRequest, state.settings)
    async with state.hub.use(body.model) as held:
        return {"input_tokens": len(await held.engine.tokenize(read_conversation(body)))}


async def _start(run: AnswerRun, body: MessagesRequest, state: ServerState) -> None:
    await run.open(body.model)
    params = body.sampling(max_tokens=state.settings.output_limit(body.max_tokens))
    await run.start(read_conversation(body), params, timeout=state.settings.request_timeout)


async def _collect(message: _Message, run: AnswerRun) -> _Event:
    try:
        async for piece in run:
            message.add(piece)
    finally:
        await run.aclose()
    return message.whole()


async def _events(message: _Message, run: AnswerRun, path: str) -> AsyncIterator[bytes]:
    try:
        yield _encode({"type": "message_start", "message": message.whole()}) + _encode({"type": "ping"})
        async for piece in run:
            yield b"".join(map(_encode, message.add(piece)))
    except Exception as error:  # the status is sent already
        yield _encode(error_body(api_error(error), path))
        return
    whole = message.whole()
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    last = _encode({"type": "message_delta", "delta": delta, "usage": whole["usage"]})
    yield last + _encode({"type": "message_stop"})


def _encode(event: _Event) -> bytes:
    return sse.named_event(event["type"], event)


class _Message:
    """The answer as far as it has come; what is added to it is also told in events."""

    def __init__(self, run: AnswerRun, *, hides_thoughts: bool) -> None:
        self._run = run
        self._hides_thoughts = hides_thoughts
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def whole(self) -> _Event:
        """Return the message object."""
        usage = self._run.usage
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._run.held.name,
            "content": self._blocks,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": {
                "input_tokens": usage.prompt_tokens - usage.cached_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached_tokens,
                "output_tokens": usage.completion_tokens,
            },
        }

    def add(self, piece: Piece) -> list[_Event]:
        """Add what one piece brings and return its events."""
        events: list[_Event] = []
        for part in piece.parts:
            events += self._add_part(part)
        if piece.finish_reason is not None:
            events += self._close()
            self._end(piece)
        return events

    def _add_part(self, part: Part) -> list[_Event]:
        if isinstance(part, ToolCall):
            block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": part.name, "input": {}}
            events = self._open(block)
            events.append(self._delta({"type": "input_json_delta", "partial_json": part.arguments}))
            events += self._close()
            block["input"] = json.loads(part.arguments)
            return events
        if isinstance(part, Content):
            return self._add_text("text", part.text, {"type": "text", "text": ""})
        assert isinstance(part, Reasoning)
        # Nobody has to be kept from editing thoughts here, so there is nothing to sign.
        text = "" if self._hides_thoughts else part.text
        return self._add_text("thinking", text, {"type": "thinking", "thinking": "", "signature": ""})

    def _add_text(self, kind: str, text: str, empty: dict[str, Any]) -> list[_Event]:
        events = []
        if not self._is_open or self._blocks[-1]["type"] != kind:
            events = self._open(empty)
        if text:
            self._blocks[-1][kind] += text
            events.append(self._delta({"type": f"{kind}_delta", kind: text}))
        return events

    def _open(self, block: dict[str, Any]) -> list[_Event]:
        events = self._close()
        self._is_open = True
        self._blocks.append(block)
        index = len(self._blocks) - 1
        return [*events, {"type": "content_block_start", "index": index, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> _Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[_Event]:
        if not self._is_open:
            return []
        self._is_open = False
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _end(self, piece: Piece) -> None:
        usage = self._run.usage
        if piece.finish_reason == "tool_calls":
            self._stop_reason = "tool_use"
        elif piece.finish_reason == "length":
            context = self._run.held.engine.context
            is_full = context is not None and usage.prompt_tokens + usage.completion_tokens >= context
            self._stop_reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif piece.stop_reason is not None:
            self._stop_reason, self._stop_sequence = "stop_sequence", piece.stop_reason
        else:
            self._stop_reason = "end_turn"
