"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters come and go while the server runs.

They read files of this machine, so they are there only if the operator allows it. Leaves to others: loading
(``server.hub``).
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from treadle.server.body import body_schema, read_body
from treadle.server.errors import ApiError
from treadle.server.hub import AdapterSource
from treadle.server.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from treadle.server.state import ServerState, state_of

__all__ = ["router"]

router = APIRouter(tags=["adapters"])


@router.post("/v1/load_lora_adapter", openapi_extra=body_schema(LoadAdapterRequest), summary="Load an adapter")
async def load_adapter(request: Request) -> dict[str, str]:
    """Read an adapter, which clients name as a model from then on."""
    state = _allowed(request)
    body = await read_body(request, LoadAdapterRequest, state.settings)
    model = state.hub.find(body.model)
    scale = 1.0 if body.scale is None else body.scale
    await state.hub.load_adapter(model, AdapterSource(body.lora_name, body.lora_path, scale))
    return {"status": "loaded", "id": body.lora_name, "parent": model.name}


@router.post("/v1/unload_lora_adapter", openapi_extra=body_schema(UnloadAdapterRequest), summary="Unload an adapter")
async def unload_adapter(request: Request) -> dict[str, str]:
    """Refuse new requests for an adapter; those that run end as if it were still there."""
    state = _allowed(request)
    body = await read_body(request, UnloadAdapterRequest, state.settings)
    await state.hub.unload_adapter(body.lora_name)
    return {"status": "unloaded", "id": body.lora_name}


def _allowed(request: Request) -> ServerState:
    state = state_of(request)
    if not state.settings.allow_adapter_loading:
        text = "adapters are not loaded over HTTP here; the operator can allow it with --allow-adapter-loading"
        raise ApiError(403, text, "permission_error", code="adapter_loading_not_allowed")
    return state
