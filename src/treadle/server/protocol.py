"""Ends connections whose clients are too many, too slow or send heads without end, before anything else hears of them.

Leaves to others: HTTP itself (uvicorn), the size of bodies (``server.body``) and who may ask (``server.auth``).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from treadle.server.settings import ServerSettings

__all__ = ["GuardedProtocol", "guarded_protocol"]

_log = logging.getLogger("treadle.server")
# The routes answer a slow body themselves, in the shape of their API; what they do not read ends here a little later.
_GRACE_SECONDS = 1.0
# What a client says about another protocol that it would rather speak.
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings", b"connection"})
_CLOSE = (b"connection", b"close")

# What is awaited: a request's head, its body, or nothing, as the server has its turn or the connection rests.
_Stage = Literal["head", "body", "none"]


class GuardedProtocol(HttpToolsProtocol):
    """One connection.

    A request's head must come within ``client_timeout`` and ``max_header_bytes``, its body within ``client_timeout``,
    and a client that takes nothing of its answer for so long is cut off. There are ``max_connections`` at a time. A
    client that offers to go on in another protocol, as Java's does, is answered in this one.

    Args:
        settings: The limits.
        on_refused: Called with the status of a request that is refused here.
        arguments: Those of uvicorn.
    """

    def __init__(self, settings: ServerSettings, on_refused: Callable[[int], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._most_connections = settings.max_connections
        self._limit_bytes = settings.max_header_bytes
        self._seconds = settings.client_timeout
        self._on_refused = on_refused
        self._stage: _Stage = "head"
        self._num_requests = 0
        self._watched: tuple[int, _Stage] = (-1, "none")
        self._head_bytes = 0
        self._silent_bytes = 0  # since the parser last had something to tell
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Await a first request."""
        super().connection_made(transport)
        if len(self.connections) > self._most_connections:
            self._refuse(503, f"there are {self._most_connections} connections already, the limit here")
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing more."""
        for timer in (self._receive_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came and see whether it was too much."""
        if self._is_refused:
            return
        self._silent_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is no HTTP request: {error}")
        if max(self._head_bytes, self._silent_bytes) > self._limit_bytes:
            self._refuse(431, f"the request line and headers are larger than {self._limit_bytes} bytes, the limit here")
        self._watch()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._num_requests += 1
        self._stage = "head"
        self._head_bytes = self._silent_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, be it after the body."""
        self._head_bytes += len(name) + len(value)
        self._silent_bytes = 0
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, if its head is not too large and the parser goes on after it."""
        if self.parser.should_upgrade():
            return
        self._stage = "body"
        if self._head_bytes <= self._limit_bytes:
            super().on_headers_complete()
            if self.scope["http_version"] == "1.0":
                _end_by_closing(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._silent_bytes = 0
        if self._head_bytes <= self._limit_bytes:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Await nothing until the request is answered."""
        if self.parser.should_upgrade():
            return
        self._stage = "none"
        self._silent_bytes = 0
        if self._head_bytes <= self._limit_bytes:
            super().on_message_complete()

    def pause_writing(self) -> None:
        """Let the server wait for a client that takes its time, but not for ever."""
        super().pause_writing()
        if self._send_timer is None:
            self._time_sending()

    def resume_writing(self) -> None:
        """Go on, as the client has taken something."""
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Await a next request."""
        super().on_response_complete()
        self._watch()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse a request anew as one that offers no other protocol: the parser would leave its body to that."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self._refuse(400, "this server is no proxy")
            return
        kept = [(name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            kept.append(_CLOSE)
        head = b"".join(b"%b: %b\r\n" % header for header in kept)
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self.url, version.encode(), head, rest))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the words of the API."""
        self.transport.write(_response(400, msg))
        self.transport.close()

    def _watch(self) -> None:
        """Begin to time what is awaited now, unless that runs already."""
        stage = self._stage
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (is_busy and stage == "head"):
            stage = "none"  # a request sent before the answer to another has time until that is complete
        elif stage == "none" and not is_busy and self.timeout_keep_alive_task is None:
            stage = "head"  # what came woke the connection without beginning a request
        watched = (self._num_requests, stage)
        if watched == self._watched:
            return
        self._watched = watched
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        if stage == "head":
            self._receive_timer = self.loop.call_later(self._seconds, self._head_is_late)
        elif stage == "body":
            self._receive_timer = self.loop.call_later(self._seconds + _GRACE_SECONDS, self._abort)

    def _head_is_late(self) -> None:
        if self._stage == "head" and self._num_requests:
            self._refuse(408, f"the request line and headers did not come within {self._seconds:g} s, the limit here")
        else:  # nothing was asked
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        self._is_refused = True
        if self.transport.is_closing():
            return
        peer = self.client[0] if self.client else "a client"
        _log.info("refused a request of %s with %d: %s", peer, status, message)
        self._on_refused(status)
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_response(status, message))
        self.transport.close()

    def _time_sending(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._seconds, self._look_after_sending, unsent)

    def _look_after_sending(self, unsent_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_before:
            self._time_sending()
        else:
            self._abort()

    def _abort(self) -> None:
        self.transport.abort()


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """Let a response of unknown length end with the connection, as HTTP/1.0 knows no chunks."""
    cycle.chunked_encoding = False
    send = cycle.send

    def send_out(message: Any) -> Any:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        return send(message)

    cycle.send = send_out  # type: ignore[method-assign]


def guarded_protocol(settings: ServerSettings, on_refused: Callable[[int], None]) -> Any:
    """Return what uvicorn takes as its ``http`` protocol."""
    return partial(GuardedProtocol, settings, on_refused)


def _response(status: int, message: str) -> bytes:
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()
    retry = "retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body
