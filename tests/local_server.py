"""An HTTP server on this machine whose answers, and failures, a test scripts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class LocalServer:
    url: str
    routes: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def headers_of(self, path: str) -> list[dict[str, str]]:
        """The headers of every request for the path, in lower case."""
        return [headers for requested, headers in self.requests if requested.split("?")[0] == path]


@contextmanager
def local_server() -> Iterator[LocalServer]:
    server = LocalServer("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.body = self.rfile.read(int(self.headers["Content-Length"]))
            server.bodies.append(self.body)
            self.do_GET()

        def do_GET(self) -> None:
            server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            answer = server.routes.get(self.path.split("?")[0])
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is what many of these tests are about."""

    http = Server(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        # A proxy that this machine needs for the world must not be asked for this server.
        with patch.dict(os.environ, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}):
            yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def in_turn(*answers: Answer) -> Answer:
    """Each request takes the next answer; the last one is for all that follow."""
    waiting = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (waiting.pop(0) if len(waiting) > 1 else waiting[0])(handler)

    return answer


@dataclass(frozen=True)
class FileAnswer:
    """Serves one file, whole or from where the request says, or hangs up after ``cut`` bytes of the body."""

    content: bytes
    etag: str | None = '"one"'
    ranges: bool = True
    cut: int | None = None
    declared_bytes: int | None = None
    chunked: bool = False
    halfway: Callable[[], object] | None = None

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        start = self._start(handler)
        body = self.content[start or 0 :]
        handler.send_response(200 if start is None else 206)
        if start is not None:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(self.declared_bytes or len(body)))
        handler.end_headers()
        self._send(handler, body)
        handler.close_connection = True

    def _start(self, handler: BaseHTTPRequestHandler) -> int | None:
        asked = handler.headers.get("Range")
        if not self.ranges or asked is None or handler.headers.get("If-Range", self.etag) != self.etag:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.chunked:
            end = b"" if self.cut else b"0\r\n\r\n"
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(body), body) + end)
        elif self.halfway is not None:
            handler.wfile.write(body[: len(body) // 2])
            self.halfway()
            handler.wfile.write(body[len(body) // 2 :])
        else:
            handler.wfile.write(body[: self.cut])


def status_answer(status: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def text_answer(text: str, content_type: str = "application/json") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = text.encode()
        handler.send_response(200)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer
