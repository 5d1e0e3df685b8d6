"""``/v1/models``, ``/health`` and ``/ready``: what there is and whether it works.

Leaves to others: loading and unloading (``server.hub``).
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from treadle.server.hub import AdapterSource, ServedModel
from treadle.server.state import state_of

__all__ = ["router"]

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List the models")
async def list_models(request: Request) -> dict[str, Any]:
    """Return every model of this server, loaded or not, its adapters after it, and at last other names of models."""
    hub = state_of(request).hub
    facts = []
    for model in hub.models.values():
        facts += [_facts(model), *(_adapter_facts(model, adapter) for adapter in model.adapters.values())]
    facts += [_alias_facts(name, model) for name, model in hub.aliases.items()]
    ends = {"first_id": facts[0]["id"], "last_id": facts[-1]["id"]}
    return {"object": "list", "data": facts, "has_more": False, **ends}


@router.get("/v1/models/{name:path}", summary="Describe a model")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Return one model, or one adapter."""
    hub = state_of(request).hub
    model = hub.find(name)
    if name in hub.aliases:
        return _alias_facts(name, model)
    return _adapter_facts(model, model.adapters[name]) if name in model.adapters else _facts(model)


@router.get("/health", summary="Tell whether the process lives")
async def health() -> dict[str, str]:
    """Return at once, whatever the load."""
    return {"status": "ok"}


@router.get("/ready", summary="Tell whether requests are welcome")
async def ready(request: Request) -> JSONResponse:
    """Return 503 while the server is shutting down or the default model could not be loaded, else 200.

    A model that was unloaded because nobody used it comes back with the next request.
    """
    state = state_of(request)
    is_ready = not (state.hub.default.is_broken or state.limits.is_draining)
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)


def _facts(model: ServedModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "treadle"}
    facts |= _anthropic_facts(model.name, model.created)
    if model.engine is not None:
        facts["context_length"] = model.engine.context
    return facts


def _alias_facts(name: str, model: ServedModel) -> dict[str, Any]:
    return {**_facts(model), "id": name, "display_name": name, "root": model.name}


def _adapter_facts(model: ServedModel, adapter: AdapterSource) -> dict[str, Any]:
    own = {"id": adapter.name, "created": adapter.created, **_anthropic_facts(adapter.name, adapter.created)}
    return {**_facts(model), **own, "root": adapter.path, "parent": model.name}


def _anthropic_facts(name: str, created: int) -> dict[str, Any]:
    """Return what the list of Anthropic's API, which has the same path, says of a model."""
    made = datetime.fromtimestamp(created, tz=timezone.utc).isoformat()
    return {"type": "model", "display_name": name, "created_at": made}
