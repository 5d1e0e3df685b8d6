"""A real server in this process, for tests to talk to."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
import uvicorn

from patience import PATIENCE_SECONDS
from treadle.engine.contract import AsyncEngine
from treadle.engine.open_engine import open_engine
from treadle.server.app import create_app
from treadle.server.hub import AdapterSource, ModelHub
from treadle.server.serve import uvicorn_options
from treadle.server.settings import ServerSettings
from treadle.server.spans import Spans

MODEL = "smollm2"
CONTEXT = 1024


def access_log(
    caplog: pytest.LogCaptureFixture, request_id: str, seconds: float = PATIENCE_SECONDS
) -> logging.LogRecord:
    """The line of the access log on a request, which is waited for: it is written after the answer has gone out."""
    deadline = time.monotonic() + seconds
    while True:
        for record in caplog.records:
            if getattr(record, "fields", {}).get("id") == request_id:
                return record
        assert time.monotonic() < deadline, caplog.records
        threading.Event().wait(0.005)


class RunningServer:
    """A server in a thread of its own; ``hub`` is for looking into it, not for touching it."""

    def __init__(
        self,
        source: Path | str,
        settings: ServerSettings,
        *,
        context: int = CONTEXT,
        others: Mapping[str, str] = MappingProxyType({}),
        spans: Spans | None = None,
        engine: str | None = None,
        adapters: Sequence[AdapterSource] = (),
    ) -> None:
        # One thread of llama.cpp, whose threads wait for each other in a hurry: that takes long beside other tests.
        threads = 1 if engine == "llamacpp" else None

        async def load(source: str) -> AsyncEngine:
            return await open_engine(source, context=context, engine=engine, threads=threads)

        self.hub = ModelHub({MODEL: str(source), **others}, load, idle_unload=settings.idle_unload, adapters=adapters)
        app = create_app(self.hub, settings, spans=spans)
        config = uvicorn.Config(app, port=0, lifespan="on", **uvicorn_options(app.state.server))
        self._server = uvicorn.Server(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._started.wait(PATIENCE_SECONDS)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"{'https' if settings.tls_certificate else 'http'}://127.0.0.1:{port}"

    async def _run(self) -> None:
        original = self._server.startup

        async def startup(sockets: object = None) -> None:
            await original(sockets)
            self._started.set()

        self._server.startup = startup
        await self.hub.load_default()
        await self._server.serve()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
