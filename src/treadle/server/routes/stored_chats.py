"""``/v1/chat/completions`` of chats that were stored: listed, returned, labelled anew and forgotten.

Leaves to others: storing them (``routes.chat``) and the bound on their memory (``response_store``).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from treadle.server.body import body_schema, read_body
from treadle.server.errors import ApiError, Json
from treadle.server.listing import Limit, Order, listed, page_of
from treadle.server.record import current_key_id
from treadle.server.response_store import StoredResponse
from treadle.server.schema.chat import StoredChatUpdate
from treadle.server.state import state_of

__all__ = ["router"]

router = APIRouter(tags=["chat"])

_KIND = "chat.completion"


@router.get("/v1/chat/completions", summary="List stored chats")
async def list_chats(
    request: Request, model: str | None = None, limit: Limit = 20, order: Order = "asc", after: str | None = None
) -> Response:
    """Return the chats stored with the same API key that are still here; ``metadata[NAME]=VALUE`` chooses by labels."""
    store = state_of(request).responses
    labels = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    ids, has_more = page_of(store.find(current_key_id(), _KIND, model, labels), after=after, limit=limit, order=order)
    return Json(listed([_stored(request, chat_id).response for chat_id in ids], has_more=has_more))


@router.get("/v1/chat/completions/{chat_id}", summary="Return a stored chat")
async def get_chat(request: Request, chat_id: str) -> Response:
    """Return the answer of a chat that was stored and has not been displaced since."""
    return Json(_stored(request, chat_id).response)


@router.post(
    "/v1/chat/completions/{chat_id}", openapi_extra=body_schema(StoredChatUpdate), summary="Label a stored chat anew"
)
async def update_chat(request: Request, chat_id: str) -> Response:
    """Replace the labels of a stored chat."""
    state = state_of(request)
    body = await read_body(request, StoredChatUpdate, state.settings)
    stored = _stored(request, chat_id)
    response = {**stored.response, "metadata": body.metadata}
    state.responses.put(StoredResponse(response, stored.items), current_key_id())
    return Json(response)


@router.delete("/v1/chat/completions/{chat_id}", summary="Delete a stored chat")
async def delete_chat(request: Request, chat_id: str) -> Response:
    """Forget a stored chat."""
    _stored(request, chat_id)
    state_of(request).responses.remove(chat_id)
    return Json({"object": "chat.completion.deleted", "id": chat_id, "deleted": True})


@router.get("/v1/chat/completions/{chat_id}/messages", summary="List what a stored chat answered")
async def list_chat_messages(
    request: Request, chat_id: str, limit: Limit = 20, order: Order = "asc", after: str | None = None
) -> Response:
    """Return the messages that were asked, without the answer."""
    messages: dict[str, dict[str, Any]] = {
        f"{chat_id}-{index}": {"id": f"{chat_id}-{index}", **message}
        for index, message in enumerate(_stored(request, chat_id).items)
    }
    ids, has_more = page_of(list(messages), after=after, limit=limit, order=order)
    return Json(listed([messages[each] for each in ids], has_more=has_more))


def _stored(request: Request, chat_id: str) -> StoredResponse:
    stored = state_of(request).responses.get(chat_id, _KIND)
    if stored is None:
        text = f"there is no stored chat {chat_id!r:.80}; the store is bounded and forgets the oldest first"
        raise ApiError(404, text, code="chat_completion_not_found")
    return stored
