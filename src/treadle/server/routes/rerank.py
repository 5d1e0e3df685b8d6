"""``POST /v1/rerank``: documents in the order of how well they answer a query.

Leaves to others: the scores (the engine).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from treadle.errors import UsageError
from treadle.server.body import body_schema, read_body
from treadle.server.disconnect import unless_gone
from treadle.server.embedding_watch import EmbeddingWatch
from treadle.server.errors import ApiError
from treadle.server.schema.rerank import RerankRequest
from treadle.server.state import ServerState, state_of

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.ranking import RankedDocument

__all__ = ["router"]

router = APIRouter(tags=["rerank"])


# Clients of Jina and vLLM ask the first, those of Cohere the second, and some the last.
@router.post("/v1/rerank", openapi_extra=body_schema(RerankRequest), summary="Put documents in order")
@router.post("/v2/rerank", openapi_extra=body_schema(RerankRequest), include_in_schema=False)
@router.post("/rerank", openapi_extra=body_schema(RerankRequest), include_in_schema=False)
async def rerank(request: Request) -> JSONResponse:
    """Return how well each document answers the query, the best first."""
    state = state_of(request)
    body = await read_body(request, RerankRequest, state.settings)
    most, found = state.settings.max_embedding_inputs, len(body.documents)
    if found > most:
        problem = f"documents: {found} documents, expected at most {most}"
        raise ApiError(400, problem, param="documents", code="invalid_value")
    return await unless_gone(request, _respond(state, body))


async def _respond(state: ServerState, body: RerankRequest) -> JSONResponse:
    async with state.hub.use(body.model) as held:
        if held.adapter is not None:
            raise UsageError(
                f"{held.adapter} is an adapter, and documents are ranked without", hint=f"name {held.model.name}"
            )
        watch = EmbeddingWatch(held.model, len(body.documents), state.metrics, kind="ranking")
        try:
            ranked = await _rank(held.engine, body, watch, state.settings.request_timeout)
        except BaseException as error:
            watch.ended(error)
            raise
        return JSONResponse(_response(held.name, body, ranked))


async def _rank(
    engine: AsyncEngine, body: RerankRequest, watch: EmbeddingWatch, timeout: float | None
) -> list[RankedDocument]:
    return await engine.rerank(
        body.query,
        body.documents,
        normalize=body.normalize is not False,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        priority=body.priority or "interactive",
        timeout=timeout,
        on_embedding=watch.took,
    )


def _response(model: str, body: RerankRequest, ranked: Sequence[RankedDocument]) -> dict[str, Any]:
    num_tokens = sum(each.num_tokens for each in ranked)
    results: list[dict[str, Any]] = []
    for each in ranked[: body.top_n]:
        results.append({"index": each.index, "relevance_score": each.score})
        if body.return_documents is not False:
            results[-1]["document"] = {"text": body.documents[each.index]}
    return {
        "id": f"rerank-{secrets.token_hex(16)}",
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
