"""Puts the HTTP application together: routes, errors, life of the models.

Leaves to others: each route (``server.routes``) and running a web server (``server.serve``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.server.auth import Gate
from treadle.server.errors import add_error_handlers
from treadle.server.hub import ModelHub
from treadle.server.keys import Keyring
from treadle.server.limits import LimitRequests, Limits
from treadle.server.logs import log_request
from treadle.server.machine_watch import MachineWatch
from treadle.server.metrics import Metrics
from treadle.server.record import RequestRecord
from treadle.server.response_store import ResponseStore
from treadle.server.routes import (
    adapters,
    chat,
    completions,
    dashboard,
    embeddings,
    messages,
    metrics,
    models,
    responses,
    tokenize,
)
from treadle.server.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from treadle.server.schema.chat import ChatRequest
from treadle.server.schema.completions import CompletionRequest
from treadle.server.schema.embeddings import EmbeddingsRequest
from treadle.server.schema.messages import CountTokensRequest, MessagesRequest
from treadle.server.schema.responses import ResponsesRequest
from treadle.server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from treadle.server.settings import ServerSettings
from treadle.server.spans import Spans
from treadle.server.state import ServerState
from treadle.server.watch import AnswerWatch, Watch

__all__ = ["create_app"]

_ROUTES = (adapters, chat, completions, dashboard, embeddings, messages, metrics, models, responses, tokenize)
_BODIES = (
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    LoadAdapterRequest,
    MessagesRequest,
    ResponsesRequest,
    TokenizeRequest,
    UnloadAdapterRequest,
)
_IDLE_CHECK_SECONDS = 5.0


def create_app(hub: ModelHub, settings: ServerSettings, *, spans: Spans | None = None) -> FastAPI:
    """Return the application that serves the models of ``hub`` and traces requests; it closes both when it ends."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(_sweep(hub))]
        if settings.measures_machine:
            tasks.append(asyncio.create_task(machine.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await hub.close()
            if spans is not None:
                await asyncio.to_thread(spans.close)

    # Documentation pages of the framework load scripts from the internet; the OpenAPI document itself is served.
    app = FastAPI(title="Treadle", lifespan=life, docs_url=None, redoc_url=None)
    limits = Limits(settings)
    machine = MachineWatch(hub, limits)
    counted = Metrics(hub, limits, machine, prefix=settings.metric_prefix)
    keys = Keyring(settings.api_keys)
    state = ServerState(hub, settings, keys, ResponseStore(settings.max_stored_bytes), limits, counted, machine)
    app.state.server = state
    hub.observers.append(partial(AnswerWatch, metrics=counted))
    add_error_handlers(app)
    # The last one added is the first that a request meets.
    app.add_middleware(LimitRequests, limits=limits)
    app.add_middleware(Gate, settings=settings, keys=keys)
    app.add_middleware(Watch, report=partial(_report, state, spans))
    for module in _ROUTES:
        app.include_router(module.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _report(state: ServerState, spans: Spans | None, record: RequestRecord) -> None:
    state.metrics.count_request(record)
    if spans is not None:
        spans.report(record)
    log_request(record)


async def _sweep(hub: ModelHub) -> None:
    while True:
        await asyncio.sleep(_IDLE_CHECK_SECONDS)
        await hub.unload_idle()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the bodies that the routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for body in _BODIES:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[body.__name__] = schema
        app.openapi_schema = document
    return app.openapi_schema
