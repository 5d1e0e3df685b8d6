"""``/v1/models``, ``/health`` and ``/ready``: what there is and whether it works.

Leaves to others: loading and unloading (``server.hub``).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from treadle.server.hub import AdapterSource, ServedModel
from treadle.server.state import state_of

__all__ = ["router"]

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List the models")
async def list_models(request: Request) -> dict[str, Any]:
    """Return every model of this server, loaded or not, and its adapters after it."""
    facts = []
    for model in state_of(request).hub.models.values():
        facts += [_facts(model), *(_adapter_facts(model, adapter) for adapter in model.adapters.values())]
    return {"object": "list", "data": facts}


@router.get("/v1/models/{name:path}", summary="Describe a model")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Return one model, or one adapter."""
    model = state_of(request).hub.find(name)
    return _adapter_facts(model, model.adapters[name]) if name in model.adapters else _facts(model)


@router.get("/health", summary="Tell whether the process lives")
async def health() -> dict[str, str]:
    """Return at once, whatever the load."""
    return {"status": "ok"}


@router.get("/ready", summary="Tell whether requests are welcome")
async def ready(request: Request) -> JSONResponse:
    """Return 200 when the default model is loaded and the server is not shutting down, else 503."""
    state = state_of(request)
    is_ready = state.hub.default.engine is not None and not state.limits.is_draining
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)


def _facts(model: ServedModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "treadle"}
    if model.engine is not None:
        facts["context_length"] = model.engine.context
    return facts


def _adapter_facts(model: ServedModel, adapter: AdapterSource) -> dict[str, Any]:
    return {**_facts(model), "id": adapter.name, "created": adapter.created, "root": adapter.path, "parent": model.name}
