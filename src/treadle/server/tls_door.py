"""Lets connections in once their TLS handshake is done, and counts and times them until then.

asyncio would tell of a connection only after its handshake, and wait a minute for each: any number of clients that
never finish one could hold as many connections. Leaves to others: what is said then (``server.protocol``).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from treadle.server.protocol import GuardedProtocol
from treadle.server.settings import ServerSettings

__all__ = ["TlsDoor", "tls_protocol"]

_log = logging.getLogger("treadle.server")


class TlsDoor(asyncio.Protocol):
    """A connection whose handshake must be done within ``client_timeout``; it is one of ``max_connections`` already.

    One too many is closed, as it could be told why only after a handshake.

    Args:
        context: The certificate.
        settings: The limits.
        on_refused: Called with the status of what is refused.
        arguments: Those of uvicorn.
    """

    def __init__(
        self, context: ssl.SSLContext, settings: ServerSettings, on_refused: Callable[[int], None], **arguments: Any
    ) -> None:
        self._context = context
        self._settings = settings
        self._on_refused = on_refused
        self._protocol = GuardedProtocol(settings, on_refused, **arguments)
        # Uvicorn's set of open connections, which it waits for at the end.
        self._connections: set[Any] = arguments["server_state"].connections
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake."""
        self._transport = transport
        if len(self._connections) >= self._settings.max_connections:
            _log.info("refused a connection before its handshake: there are %d already", len(self._connections))
            self._on_refused(503)
            transport.abort()
            return
        self._connections.add(self)
        self._task = asyncio.ensure_future(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keep what comes right behind the handshake."""
        self._early.append(data)

    def connection_lost(self, _: Exception | None) -> None:
        """Remember that there is nobody to let in."""
        self._is_lost = True
        self._connections.discard(self)

    def shutdown(self) -> None:
        """End the connection with the server."""
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._settings.client_timeout
        try:
            secure = await loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # no TLS, or none that fits, or too slow
            _log.debug("a TLS handshake failed: %s", error)
            self._transport.abort()
            return
        finally:
            self._connections.discard(self)
        if secure is None or self._is_lost:
            return
        secure.set_protocol(self._protocol)
        self._protocol.connection_made(secure)
        for data in self._early:
            self._protocol.data_received(data)


def tls_protocol(context: ssl.SSLContext, settings: ServerSettings, on_refused: Callable[[int], None]) -> Any:
    """Return what uvicorn takes as its ``http`` protocol."""
    return partial(TlsDoor, context, settings, on_refused)
