"""``/v1/responses``: the OpenAI responses API, with a bounded memory of earlier ones.

Leaves to others: reading items (``server.response_items``), writing them (``response_output``), keeping responses
(``response_store``).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from treadle.server import sse
from treadle.server.body import body_schema, read_body
from treadle.server.disconnect import EventStream, unless_gone
from treadle.server.errors import ApiError, Json, api_error
from treadle.server.listing import Limit, Order, listed, page_of
from treadle.server.response_items import Item, input_items, listed_items, read_conversation
from treadle.server.response_output import ResponseOutput
from treadle.server.response_store import ResponseStore, StoredResponse
from treadle.server.run import AnswerRun, Piece, naming_form
from treadle.server.schema.responses import InputTokensRequest, ResponsesRequest
from treadle.server.state import ServerState, state_of
from treadle.server.truncation import fit_items

if TYPE_CHECKING:
    from treadle.engine.sampling import SamplingParams

__all__ = ["router"]

router = APIRouter(tags=["responses"])


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest), summary="Answer an input")
async def create_response(request: Request) -> Response:
    """Answer an input, or go on with an earlier response, at once or as server-sent events."""
    state = state_of(request)
    body = await read_body(request, ResponsesRequest, state.settings)
    items = [*_earlier_items(state.responses, body.previous_response_id), *_new_items(state.responses, body)]
    run = AnswerRun(state.hub)
    try:
        params = await unless_gone(request, _start(run, body, items, state))
        response = _Response(run, body, params, items, state.responses)
        if body.stream:
            return EventStream(_events(response, run), on_close=run.aclose)
        return Json(await unless_gone(request, _collect(response, run)))
    except BaseException:
        await run.aclose()
        raise


@router.post(
    "/v1/responses/input_tokens", openapi_extra=body_schema(InputTokensRequest), summary="Count the tokens of an input"
)
async def count_input_tokens(request: Request) -> Response:
    """Return how many tokens the model would read, the earlier ones of a conversation included."""
    state = state_of(request)
    body = await read_body(request, InputTokensRequest, state.settings)
    items = [*_earlier_items(state.responses, body.previous_response_id), *_new_items(state.responses, body)]
    async with state.hub.use(body.model) as held:
        kept = await fit_items(held.engine, body, items)
        tokens = await held.engine.tokenize(read_conversation(body, kept))
    return Json({"object": "response.input_tokens", "input_tokens": len(tokens)})


@router.get("/v1/responses/{response_id}", summary="Return a stored response")
async def get_response(request: Request, response_id: str, stream: bool = False) -> Response:
    """Return a response that was stored and has not been displaced since."""
    if stream:
        raise ApiError(400, "stream: a stored response is returned whole", param="stream", code="unsupported_parameter")
    return Json(_stored(request, response_id).response)


@router.get("/v1/responses/{response_id}/input_items", summary="List what a stored response answered")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """Return the items of the conversation up to the answer, the last ones first unless asked otherwise."""
    stored = _stored(request, response_id)
    items = listed_items(stored.items[: len(stored.items) - len(stored.response["output"])], response_id)
    by_id = {item["id"]: item for item in items}
    ids, has_more = page_of(list(by_id), after=after, limit=limit, order=order)
    return Json(listed([by_id[each] for each in ids], has_more=has_more))


@router.delete("/v1/responses/{response_id}", summary="Delete a stored response")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response."""
    _stored(request, response_id)
    state_of(request).responses.remove(response_id)
    return Json({"id": response_id, "object": "response", "deleted": True})


def _stored(request: Request, response_id: str) -> StoredResponse:
    stored = state_of(request).responses.get(response_id, "response")
    if stored is None:
        raise _not_found(response_id)
    return stored


def _not_found(response_id: str) -> ApiError:
    text = f"there is no stored response {response_id!r:.80}; the store is bounded and forgets the oldest first"
    return ApiError(404, text, code="response_not_found")


def _earlier_items(store: ResponseStore, response_id: str | None) -> list[Item]:
    if response_id is None:
        return []
    stored = store.get(response_id, "response")
    if stored is None:
        text = _not_found(response_id).message
        raise ApiError(400, text, param="previous_response_id", code="previous_response_not_found")
    return list(stored.items)


def _new_items(store: ResponseStore, body: InputTokensRequest) -> list[Item]:
    """Return what a request adds, with the items that it refers to in the place of the references."""
    items = input_items(body)
    for index, item in enumerate(items):
        if item.get("type") == "item_reference":
            found = store.item(item["id"]) if isinstance(item.get("id"), str) else None
            if found is None:
                text = f"input[{index}]: there is no stored item {item.get('id')!r:.80}, or none any more"
                raise ApiError(400, text, param=f"input[{index}]", code="item_not_found")
            items[index] = found
    return items


async def _start(run: AnswerRun, body: ResponsesRequest, items: list[Item], state: ServerState) -> SamplingParams:
    engine = await run.open(body.model)
    with naming_form("tools" if body.form is None else "text.format"):
        params = body.sampling(max_tokens=state.settings.output_limit(body.max_output_tokens))
        kept = await fit_items(engine, body, items, params.max_tokens)
        await run.start(read_conversation(body, kept), params, timeout=state.settings.request_timeout)
    return params


async def _collect(response: _Response, run: AnswerRun) -> dict[str, Any]:
    try:
        async for piece in run:
            response.add(piece)
    finally:
        await run.aclose()
    response.keep()
    return response.whole()


async def _events(response: _Response, run: AnswerRun) -> AsyncIterator[bytes]:
    number = 0

    def encode(event: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return sse.named_event(event["type"], {**event, "sequence_number": number - 1})

    try:
        for kind in ("created", "in_progress"):
            yield encode({"type": f"response.{kind}", "response": response.whole()})
        async for piece in run:
            yield b"".join(map(encode, response.add(piece)))
    except Exception as error:  # the status is sent already
        response.fail(api_error(error))
    response.keep()
    yield encode({"type": f"response.{response.status}", "response": response.whole()})


class _Response:
    """One response as far as it has come."""

    def __init__(
        self,
        run: AnswerRun,
        body: ResponsesRequest,
        params: SamplingParams,
        items: list[Item],
        store: ResponseStore,
    ) -> None:
        self._run = run
        self._body = body
        self._params = params
        self._items = items
        self._store = store
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._output = ResponseOutput()
        self._error: dict[str, Any] | None = None
        self.status = "in_progress"

    def add(self, piece: Piece) -> list[dict[str, Any]]:
        """Add what one piece brings and return its events."""
        events = self._output.add(piece.parts, piece.logprobs)
        if piece.finish_reason is not None:
            is_complete = piece.finish_reason != "length"
            events += self._output.finish(is_complete=is_complete)
            self.status = "completed" if is_complete else "incomplete"
        return events

    def fail(self, error: ApiError) -> None:
        """End the response with an error."""
        self.status = "failed"
        self._error = {"code": "server_error", "message": error.message}

    def keep(self) -> None:
        """Store the response, unless it failed or the client does not want that."""
        if self._body.store is not False and self.status != "failed":
            self._store.put(StoredResponse(self.whole(), [*map(dict, self._items), *self._output.items]))

    def whole(self) -> dict[str, Any]:
        """Return the response object."""
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if self.status == "completed" else None,
            "status": self.status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if self.status == "incomplete" else None,
            "background": False,
            "model": self._run.held.name,
            "output": self._output.items,
            "usage": self._usage() if self.status != "in_progress" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
            "prompt_cache_key": body.prompt_cache_key,
            "safety_identifier": body.safety_identifier,
            "service_tier": None if body.service_tier is None else "default",
            "store": body.store is not False,
            "temperature": self._params.temperature,
            "text": {"format": self._format()},
            "tool_choice": _as_json(body.tool_choice) or "auto",
            "tools": [_as_json(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs,
            "top_p": self._params.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def _format(self) -> dict[str, Any]:
        wanted = self._body.text.format if self._body.text is not None else None
        return {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)

    def _usage(self) -> dict[str, Any]:
        usage = self._run.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _as_json(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value
