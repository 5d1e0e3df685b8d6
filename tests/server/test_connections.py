"""Connections that are too many, speak another protocol, or none; and how many a process can have."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from patience import PATIENCE_SECONDS
from running_server import RunningServer
from treadle.server import descriptors
from treadle.server.descriptors import AcceptFailures, connection_limit
from treadle.server.settings import ServerSettings

BODY = b'{"prompt": "Once", "max_tokens": 2}'
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


@pytest.fixture(scope="module")
def narrow(smollm2_path: Path) -> Iterator[RunningServer]:
    running = RunningServer(smollm2_path, ServerSettings(max_connections=3))
    yield running
    running.close()


class Connection:
    def __init__(self, server: RunningServer) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)

    def ask(self, *pieces: bytes) -> bytes:
        """The response that follows these bytes."""
        for piece in pieces:
            self.socket.sendall(piece)
        heard = b""
        while not (found := re.search(rb"content-length: (\d+)\r\n.*?\r\n\r\n", heard, re.DOTALL)) or (
            len(heard) < found.end() + int(found[1])
        ):
            received = self.socket.recv(65536)
            assert received, heard
            heard += received
        return heard

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def post(*headers: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(headers)
        + b"Content-Length: %d\r\n\r\n" % len(BODY)
    )


def refusals(server: RunningServer, status: int) -> float:
    sample = f'treadle:http_requests_total{{method="other",route="other",status="{status}"}} '
    lines = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    return sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


@pytest.mark.model
def test_a_connection_too_many_is_told_so_and_counted(narrow: RunningServer) -> None:
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(Connection(narrow)) for _ in range(4)]
        for connection in connections[:3]:
            connection.socket.sendall(get[:-2])
        refused = connections[3].ask()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in refused
    assert b"there are 3 connections already" in refused
    answer = b""
    while not answer.startswith(b"HTTP/1.1 200 "):  # until the server knows that they are gone
        with suppress(ConnectionError), Connection(narrow) as connection:
            answer = connection.ask(get)
    assert refusals(narrow, 503) >= 1


@pytest.mark.model
@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_client_that_would_rather_speak_another_protocol_is_answered_in_this_one(
    narrow: RunningServer, cut: int
) -> None:
    with Connection(narrow) as connection:
        first = connection.ask(post(UPGRADE) + BODY[:cut], BODY[cut:])
        assert first.startswith(b"HTTP/1.1 200 ")
        assert b'"completion_tokens":2' in first
        assert connection.ask(post() + BODY).startswith(b"HTTP/1.1 200 ")
    with Connection(narrow) as connection:
        assert b"connection: close\r\n" in connection.ask(post(UPGRADE, b"Connection: close\r\n") + BODY)


@pytest.mark.model
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_to_the_first_version_of_http_ends_with_the_connection(narrow: RunningServer, stream: bool) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 2, "ignore_eos": True, "stream": stream}).encode()
    with Connection(narrow) as connection:
        connection.socket.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        heard = b""
        while received := connection.socket.recv(65536):
            heard += received
    head, _, content = heard.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert b"transfer-encoding" not in head.lower()
    if stream:
        assert content.startswith(b"data: {")
        assert content.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(content)["usage"]["completion_tokens"] == 2


@pytest.mark.model
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"FOO / HTTP/1.1\r\n",
    ],
    ids=["TLS", "proxy", "method"],
)
def test_what_is_no_request_is_refused_and_counted(narrow: RunningServer, sent: bytes) -> None:
    before = refusals(narrow, 400)
    with Connection(narrow) as connection:
        answer = connection.ask(sent)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type": "invalid_request_error"' in answer
    assert refusals(narrow, 400) == before + 1


@pytest.mark.model
@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models"])
def test_every_page_can_be_asked_for_its_head(narrow: RunningServer, path: str) -> None:
    with httpx.Client(base_url=narrow.url, timeout=PATIENCE_SECONDS) as client:
        head, whole = client.head(path), client.get(path)
        assert (
            f'treadle:http_requests_total{{method="HEAD",route="{path}",status="200"}}' in client.get("/metrics").text
        )
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.model
def test_a_compressed_body_is_refused_by_name(narrow: RunningServer) -> None:
    response = httpx.post(
        f"{narrow.url}/v1/completions",
        content=b"\x1f\x8b",
        headers={"content-encoding": "gzip"},
        timeout=PATIENCE_SECONDS,
    )
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


class Files:
    """How many files a process may open: now, and at most."""

    def __init__(self, now: int, most: int, *, is_fixed: bool = False) -> None:
        self.now, self.most, self.is_fixed = now, most, is_fixed

    def get(self, _: int) -> tuple[int, int]:
        return self.now, self.most

    def set(self, _: int, limits: tuple[int, int]) -> None:
        if self.is_fixed:
            raise ValueError
        self.now, self.most = limits


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("files", "expected", "raised"),
    [
        (Files(1024, 1_000_000), 1024, 2304),
        (Files(1024, UNLIMITED), 1024, 2304),
        (Files(65_536, 65_536), 1024, 65_536),
        (Files(UNLIMITED, UNLIMITED), 1024, UNLIMITED),
        (Files(1024, 1024), 768, 1024),
        (Files(64, 64), 32, 64),
        (Files(1024, 4096, is_fixed=True), 768, 1024),
        (Files(1, 1), 1, 1),
    ],
)
def test_connections_leave_files_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, files: Files, expected: int, raised: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", files.get)
    monkeypatch.setattr(resource, "setrlimit", files.set)
    with caplog.at_level(logging.WARNING, logger="treadle.server"):
        assert connection_limit(1024) == expected
    assert files.now == raised
    assert len(caplog.records) == (expected < 1024)


def test_a_loop_that_cannot_accept_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        now = [0.0]
        loop: Any = asyncio.get_running_loop()
        failures = AcceptFailures(clock=lambda: now[0])
        for now[0] in (0.0, 1.0, 59.0, 60.0):
            failures(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "no file")})
        failures(loop, {"message": "something else"})

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.name for record in caplog.records] == [descriptors._log.name] * 2 + ["asyncio"]
