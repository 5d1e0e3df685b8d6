"""A client whose own cost hardly counts beside a server on the same cores: plain sockets, HTTP parsed in C."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

OnEvent = Callable[[bytes], None]


@dataclass
class Reply:
    """A response; ``body`` leaves out the events that were given away as they came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    def json(self) -> Any:
        return json.loads(self.body)


class HttpClient:
    """Asks one server, with a connection for each request: some close idle ones just when the next request comes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")

    async def get(self, path: str) -> Reply:
        return await self._exchange(self._head("GET", path) + b"\r\n", None)

    async def post(self, path: str, content: Any, on_event: OnEvent | None = None) -> Reply:
        """Send JSON, or bytes as they are; ``on_event`` gets what follows `data: ` in each event of a stream.

        Cancelling closes the connection. Raises OSError when there is no whole response.
        """
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        head = (
            self._head("POST", path) + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        return await self._exchange(head + body, on_event)

    async def post_chunked(self, path: str, body: bytes) -> Reply:
        """Send bytes without telling how many will come."""
        fields = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return await self._exchange(self._head("POST", path) + fields + chunk, None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection for whatever is no request."""
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    def _head(self, method: str, path: str) -> bytes:
        host = f"{self._host}:{self._port}"
        return f"{method} {self._path}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n".encode()

    async def _exchange(self, request: bytes, on_event: OnEvent | None) -> Reply:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(
            lambda: _Exchange(request, on_event), self._host, self._port, ssl=self._tls
        )
        try:
            return await protocol.reply
        finally:
            transport.close()


class _Exchange(asyncio.Protocol):
    """One request and its response; ``reply`` is it, or an OSError."""

    def __init__(self, request: bytes, on_event: OnEvent | None) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # Who has left does not ask how it ended.
        self.reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())
        self._request = request
        self._on_event = on_event
        self._reply = Reply()
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.reply.done():
            self.reply.set_exception(error or ConnectionResetError("the server closed the connection in a response"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        if not self._reply.headers.get("content-type", "").startswith("text/event-stream"):
            self._on_event = None

    def on_body(self, body: bytes) -> None:
        self._reply.body += body
        if self._on_event is None:
            return
        *events, rest = self._reply.body.split(b"\n\n")
        self._reply.body = rest
        for event in events:
            _, _, content = event.partition(b"data: ")
            self._on_event(bytes(content))

    def on_message_complete(self) -> None:
        if not self.reply.done():
            self.reply.set_result(self._reply)
