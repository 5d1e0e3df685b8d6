"""``GET /metrics``: for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from treadle.server.state import state_of

__all__ = ["router"]

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response, summary="Report how the server is doing")
async def metrics(request: Request) -> Response:
    """Return all metrics in the text format of Prometheus."""
    return Response(state_of(request).metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
