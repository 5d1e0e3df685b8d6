"""``POST /v1/embeddings``: texts as vectors.

Leaves to others: computing them (the engine).
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from treadle.errors import UsageError
from treadle.server.body import body_schema, read_body
from treadle.server.disconnect import unless_gone
from treadle.server.embedding_watch import EmbeddingWatch
from treadle.server.errors import ApiError
from treadle.server.schema.embeddings import EmbeddingsRequest
from treadle.server.state import ServerState, state_of

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.embedding import Embedding

__all__ = ["router"]

router = APIRouter(tags=["embeddings"])


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsRequest), summary="Turn texts into vectors")
async def embeddings(request: Request) -> Response:
    """Return one vector for each input."""
    state = state_of(request)
    body = await read_body(request, EmbeddingsRequest, state.settings)
    most, found = state.settings.max_embedding_inputs, len(body.input)
    if found > most:
        raise ApiError(400, f"input: {found} inputs, expected at most {most}", param="input", code="invalid_value")
    return await unless_gone(request, _respond(state, body))


async def _respond(state: ServerState, body: EmbeddingsRequest) -> Response:
    async with state.hub.use(body.model) as held:
        if held.adapter is not None:
            raise UsageError(
                f"{held.adapter} is an adapter, and texts are embedded without", hint=f"name {held.model.name}"
            )
        watch = EmbeddingWatch(held.model, len(body.input), state.metrics)
        try:
            found = await _embed(held.engine, body, watch, state.settings.request_timeout)
        except BaseException as error:
            watch.ended(error)
            raise
        name = held.name
    # Thousands of vectors are megabytes of JSON: not in the loop that all streams share.
    content = await asyncio.to_thread(_render, name, found, body.encoding_format or "float")
    return Response(content, media_type="application/json")


async def _embed(
    engine: AsyncEngine, body: EmbeddingsRequest, watch: EmbeddingWatch, timeout: float | None
) -> list[Embedding]:
    return await engine.embed(
        body.input,
        pooling=body.pooling,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        truncate_prompt_tokens=-1
        if body.truncate_prompt_tokens is None and body.truncate
        else body.truncate_prompt_tokens,
        priority=body.priority or "interactive",
        timeout=timeout,
        on_embedding=watch.took,
    )


def _render(model: str, found: Sequence[Embedding], encoding: Literal["float", "base64"]) -> bytes:
    """Return the response; vector after vector, since nothing else in Python runs while JSON is written."""
    items = [json.dumps(_item(index, embedding, encoding)) for index, embedding in enumerate(found)]
    num_tokens = sum(embedding.num_tokens for embedding in found)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = json.dumps({"object": "list", "model": model, "usage": usage})
    return f'{{"data": [{", ".join(items)}], {rest[1:]}'.encode("ascii")


def _item(index: int, embedding: Embedding, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    vector: Any = embedding.vector.tolist()
    if encoding == "base64":
        vector = b64encode(embedding.vector.astype("<f4").tobytes()).decode("ascii")
    return {"object": "embedding", "index": index, "embedding": vector}
