"""Runs the application on a web server until it is told to stop.

Leaves to others: the application (``server.app``) and reading the command line (``cli.serve``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from treadle.engine.open_engine import open_engine
from treadle.server.app import create_app
from treadle.server.descriptors import AcceptFailures, connection_limit
from treadle.server.hub import AdapterSource, ModelHub
from treadle.server.listening import address_of, listening
from treadle.server.protocol import guarded_protocol
from treadle.server.reload import Reload
from treadle.server.settings import ServerSettings
from treadle.server.spans import open_spans
from treadle.server.state import ServerState
from treadle.server.supervisor import tell_supervisor
from treadle.server.tls import certificate_fault, check_certificate
from treadle.server.tls_door import tls_protocol

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.load import LoadOptions

__all__ = ["serve", "uvicorn_options"]

_log = logging.getLogger("treadle.server")
_CLOSE_SECONDS = 5  # for what was cut short to tell its client so


def serve(
    sources: Mapping[str, str],
    settings: ServerSettings,
    load_options: LoadOptions,
    *,
    adapters: Sequence[AdapterSource] = (),
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Load the first model and serve until SIGINT or SIGTERM; what runs then may finish within ``drain_timeout``.

    Args:
        sources: What to load by the name clients use.
        settings: How to serve.
        load_options: How to load each model.
        adapters: Those of the first model.
        on_ready: Called with a line that says what is served, and where, once requests are accepted.

    Raises:
        UsageError: The address or file is taken or not ours, TLS files do not fit, or a package for traces is missing.
        TreadleError: The first model could not be loaded.
    """
    _check_tls(settings)
    with listening(settings) as listener:
        settings = replace(settings, max_connections=connection_limit(settings.max_connections))
        asyncio.run(_serve(listener, sources, settings, load_options, adapters=adapters, on_ready=on_ready))


async def _serve(
    listener: socket.socket,
    sources: Mapping[str, str],
    settings: ServerSettings,
    load_options: LoadOptions,
    *,
    adapters: Sequence[AdapterSource],
    on_ready: Callable[[str], None] | None,
) -> None:
    async def load(source: str) -> AsyncEngine:
        options = load_options
        if len(hub.models) > 1:
            from treadle.server.memory_share import share_memory  # noqa: PLC0415  needs the native core

            options = await share_memory(source, options, [model.engine for model in hub.loaded if model.engine])
        return await open_engine(source, **options)

    asyncio.get_running_loop().set_exception_handler(AcceptFailures())
    spans = open_spans(settings.otel_endpoint)
    hub = ModelHub(sources, load, adapters=adapters, idle_unload=settings.idle_unload)
    if not await _unless_terminated(hub.load_default()):  # one that cannot be loaded ends the command, not a request
        return
    app = create_app(hub, settings, spans=spans)
    state: ServerState = app.state.server
    config = uvicorn.Config(app, **uvicorn_options(state))
    config.load()
    server = _Server(config, state)
    if on_ready is not None:
        url = address_of(listener, is_secure=settings.tls_certificate is not None)
        names = [*sources, *(adapter.name for adapter in adapters)]
        server.on_started = lambda: on_ready(f"serving {', '.join(names)} at {url}")
    await server.serve(sockets=[listener])


async def _unless_terminated(work: Coroutine[Any, Any, None]) -> bool:
    """Do work that SIGTERM ends, false if it did; the first process of a container would not hear it otherwise."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    with _handling(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(task.cancel)):
        await asyncio.wait({task})
    if task.cancelled():
        return False
    task.result()
    return True


@contextmanager
def _handling(number: signal.Signals, handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle a signal in this way meanwhile; leave it alone in any thread but the first, where it cannot be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


class _Server(uvicorn.Server):
    """Ends in two steps: at first it only refuses new requests, so that those who ask hear why."""

    on_started: Callable[[], None] | None = None

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server, and not the process once more after it, so that it ends with success."""
        with ExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM):
                stack.enter_context(_handling(number, self.handle_exit))
            reload = Reload(self._state.settings, self._state.keys, self._state.tls)
            if reload.has_files and hasattr(signal, "SIGHUP"):
                loop = asyncio.get_running_loop()
                stack.enter_context(_handling(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload)))
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.limits.is_draining = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        tell_supervisor("READY=1")
        if self.on_started is not None:
            self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        tell_supervisor("STOPPING=1")
        await self._drain()
        self.force_exit = False  # what is left takes seconds at most, and closes models and traces in order
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        limits = self._state.limits
        _log.info("shutting down; running requests: %d", limits.num_requests)
        draining = asyncio.ensure_future(limits.drain(self._state.settings.drain_timeout))
        while not (draining.done() or self.force_exit):
            await asyncio.wait({draining}, timeout=0.1)
        if draining.done() and draining.result():
            return
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        _log.warning("ending %d requests that still run", limits.num_requests)
        await self._state.hub.close()


def uvicorn_options(state: ServerState) -> dict[str, Any]:
    """Return how uvicorn is to serve the application of ``state``."""
    settings, on_refused = state.settings, state.metrics.count_refusal
    tls = state.tls
    return {
        "http": guarded_protocol(settings, on_refused) if tls is None else tls_protocol(tls, settings, on_refused),
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": _CLOSE_SECONDS,
        "timeout_keep_alive": settings.keep_alive,
        "ws": "none",
        # Whoever may open a socket file is on this machine, as those are who may ask by 127.0.0.1.
        "forwarded_allow_ips": os.environ.get("FORWARDED_ALLOW_IPS", "*") if settings.socket is not None else None,
    }


def _check_tls(settings: ServerSettings) -> None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    check_certificate(settings.tls_certificate, settings.tls_key)
    fault = certificate_fault(settings.tls_certificate, settings.tls_key)
    if fault is not None:
        _log.warning("clients that check the certificate %s will refuse it: %s", settings.tls_certificate, fault)
