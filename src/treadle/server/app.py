"""Puts the HTTP application together: routes, errors, life of the models.

Leaves to others: each route (``server.routes``) and running a web server (``server.serve``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from fastapi import FastAPI

from treadle.server.auth import Gate
from treadle.server.errors import add_error_handlers
from treadle.server.head import AnswerHead
from treadle.server.hub import ModelHub
from treadle.server.keys import Keyring
from treadle.server.limits import LimitRequests, Limits
from treadle.server.logs import log_request
from treadle.server.machine_watch import MachineWatch
from treadle.server.metrics import Metrics
from treadle.server.openapi import openapi_document
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
    rerank,
    responses,
    stored_chats,
    tokenize,
)
from treadle.server.settings import ServerSettings
from treadle.server.spans import Spans
from treadle.server.state import ServerState
from treadle.server.tls import server_context
from treadle.server.watch import AnswerWatch, Watch

__all__ = ["create_app"]

_ROUTES = (
    *(adapters, chat, completions, dashboard, embeddings, messages, metrics, models, rerank, responses, stored_chats),
    tokenize,
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
    # A redirect away from a last slash would give clients behind a proxy an address that is not there.
    app = FastAPI(title="Treadle", lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False)
    limits = Limits(settings)
    machine = MachineWatch(hub, limits)
    counted = Metrics(hub, limits, machine, prefix=settings.metric_prefix)
    keys = Keyring(settings.api_keys)
    certificate, key = settings.tls_certificate, settings.tls_key
    tls = None if certificate is None or key is None else server_context(certificate, key)
    state = ServerState(hub, settings, keys, ResponseStore(settings.max_stored_bytes), limits, counted, machine, tls)
    app.state.server = state
    hub.observers.append(partial(AnswerWatch, metrics=counted))
    add_error_handlers(app, [route.path for module in _ROUTES for route in module.router.routes])
    # The last one added is the first that a request meets.
    app.add_middleware(AnswerHead)
    app.add_middleware(LimitRequests, limits=limits)
    app.add_middleware(Gate, settings=settings, keys=keys)
    app.add_middleware(Watch, report=partial(_report, state, spans))
    for module in _ROUTES:
        app.include_router(module.router)
    app.openapi = partial(openapi_document, app)  # type: ignore[method-assign]
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
