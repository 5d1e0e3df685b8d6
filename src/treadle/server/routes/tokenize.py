"""``/tokenize`` and ``/detokenize``: text to token ids and back, as the model reads them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from treadle.server.body import body_schema, read_body
from treadle.server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from treadle.server.state import state_of

__all__ = ["router"]

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest), summary="Cut text into tokens")
async def tokenize(request: Request) -> dict[str, Any]:
    """Return the token ids of a text, or of a conversation as the model's template renders it."""
    state = state_of(request)
    body = await read_body(request, TokenizeRequest, state.settings)
    async with state.hub.use(body.model) as held:
        tokens = await held.engine.tokenize(body.conversation or body.prompt or "")
        return {"tokens": tokens, "count": len(tokens), "max_model_len": held.engine.context}


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest), summary="Put tokens together")
async def detokenize(request: Request) -> dict[str, Any]:
    """Return the text of token ids; control tokens have none."""
    state = state_of(request)
    body = await read_body(request, DetokenizeRequest, state.settings)
    async with state.hub.use(body.model) as held:
        return {"prompt": await held.engine.detokenize(body.tokens)}
