"""Runs the application on a web server until it is told to stop.

Leaves to others: the application (``server.app``) and reading the command line (``cli.serve``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import uvicorn

from treadle.engine.async_llm import AsyncLLM
from treadle.errors import UsageError
from treadle.server.app import create_app
from treadle.server.hub import ModelHub
from treadle.server.settings import ServerSettings

if TYPE_CHECKING:
    from treadle.engine.load import LoadOptions

__all__ = ["serve"]


def serve(
    sources: Mapping[str, str],
    settings: ServerSettings,
    load_options: LoadOptions,
    *,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Load the first model and serve until SIGINT or SIGTERM; what runs then may finish within ``drain_timeout``.

    Args:
        sources: What to load by the name clients use.
        settings: How to serve.
        load_options: How to load each model.
        on_ready: Called with the URL once requests are accepted.

    Raises:
        UsageError: The address is taken or not ours.
        TreadleError: The first model could not be loaded.
    """
    listener = _listen(settings)
    with listener:
        asyncio.run(_serve(listener, sources, settings, load_options, on_ready))


async def _serve(
    listener: socket.socket,
    sources: Mapping[str, str],
    settings: ServerSettings,
    load_options: LoadOptions,
    on_ready: Callable[[str], None] | None,
) -> None:
    async def load(source: str) -> AsyncLLM:
        return await AsyncLLM.load(source, **load_options)

    hub = ModelHub(sources, load, idle_unload=settings.idle_unload)
    async with hub.use(None):
        pass  # a model that cannot be loaded ends the command, not the first request
    server = _Server(uvicorn.Config(create_app(hub, settings), **_uvicorn_options(settings)))
    if on_ready is not None:
        host, port = listener.getsockname()[:2]
        scheme = "https" if settings.tls_certificate else "http"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        server.on_started = lambda: on_ready(url)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None and not self.should_exit:
            self.on_started()


def _uvicorn_options(settings: ServerSettings) -> dict[str, Any]:
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": int(settings.drain_timeout),
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
        "ws": "none",
    }


def _listen(settings: ServerSettings) -> socket.socket:
    """Bind before anything is loaded, so that a taken port is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"host {settings.host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}",
            hint="choose another with --port, or 0 for any that is free",
        ) from None
    return listener
