"""Clients that are slow, or send without end: each is cut off by itself and the server lives on."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from patience import PATIENCE_SECONDS
from running_server import RunningServer, access_log
from treadle.server.protocol import GuardedProtocol
from treadle.server.settings import ServerSettings

SECONDS = 0.4
HEADER_BYTES = 8192
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: slow\r\n"


@pytest.fixture(scope="module")
def strict(smollm2_path: Path) -> Iterator[RunningServer]:
    settings = ServerSettings(
        client_timeout=SECONDS, keep_alive=SECONDS, max_header_bytes=HEADER_BYTES, max_body_bytes=100_000
    )
    running = RunningServer(smollm2_path, settings)
    yield running
    running.close()


@pytest.fixture(scope="module")
def bounded(smollm2_path: Path) -> Iterator[RunningServer]:
    """A server that refuses what is too much, but nothing for how long it takes."""
    settings = ServerSettings(
        client_timeout=PATIENCE_SECONDS,
        keep_alive=SECONDS,
        max_header_bytes=HEADER_BYTES,
        max_body_bytes=100_000,
    )
    running = RunningServer(smollm2_path, settings)
    yield running
    running.close()


class Client:
    """A connection that sends bytes as they are."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)

    def send(self, data: bytes) -> bool:
        """Tell whether anybody still took it."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def is_over(self, seconds: float) -> bool:
        """Tell whether the server has closed the connection within so many seconds; what it says is kept."""
        self._socket.settimeout(seconds)
        try:
            received = self._socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        self.heard += received
        return not received

    heard = b""

    def read_all(self) -> bytes:
        """Return all that comes until the server closes the connection."""
        while not self.is_over(PATIENCE_SECONDS):
            pass
        return self.heard

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def status_of(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def body_of(response: bytes) -> Any:
    return json.loads(response.partition(b"\r\n\r\n")[2])


@pytest.mark.model
@pytest.mark.parametrize("sent", [b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Some: va"])
def test_a_head_that_stops_is_refused(strict: RunningServer, sent: bytes) -> None:
    with Client(strict) as client:
        client.send(sent)
        response = client.read_all()
    assert status_of(response) == 408
    assert "did not come within 0.4 s" in body_of(response)["error"]["message"]


@pytest.mark.model
def test_a_head_that_trickles_is_refused(strict: RunningServer) -> None:
    with Client(strict) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for index in range(1000):
            if client.is_over(0.02) or not client.send(f"X-{index}: y\r\n".encode()):
                break
        assert index < 900
        assert status_of(client.read_all()) == 408


@pytest.mark.model
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n" * 4])
def test_a_connection_that_asks_nothing_is_closed(strict: RunningServer, sent: bytes) -> None:
    with Client(strict) as client:
        client.send(sent)
        assert client.read_all() == b""


@pytest.mark.model
@pytest.mark.parametrize("trickles", [True, False])
def test_a_slow_body_is_told_in_the_shape_of_the_api(
    strict: RunningServer, caplog: pytest.LogCaptureFixture, trickles: bool
) -> None:
    with caplog.at_level(logging.INFO, logger="treadle.server.access"), Client(strict) as client:
        client.send(HEAD + b'Content-Length: 5000\r\n\r\n{"prompt": "')
        while not client.is_over(0.02 if trickles else PATIENCE_SECONDS):
            if trickles:
                client.send(b"a")
        assert status_of(client.heard) == 408
        assert body_of(client.heard)["error"]["code"] == "body_timeout"
        assert access_log(caplog, "slow").fields["status"] == 408  # type: ignore[attr-defined]


@pytest.mark.model
@pytest.mark.parametrize("target", [b"POST /nowhere", b"GET /health"])
def test_a_body_nobody_reads_does_not_keep_the_connection(strict: RunningServer, target: bytes) -> None:
    with Client(strict) as client:
        client.send(target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n\r\nsome")
        while not client.is_over(0.02):
            client.send(b"a")
        assert status_of(client.heard) in (200, 404)


@pytest.mark.model
def test_a_client_that_leaves_before_its_body_is_complete_is_no_error(
    bounded: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="treadle.server"):
        with Client(bounded) as client:
            client.send(HEAD + b'Content-Length: 5000\r\n\r\n{"prompt": "')
        record = access_log(caplog, "slow")
    assert record.fields["status"] == 499  # type: ignore[attr-defined]
    assert record.levelno == logging.INFO


@pytest.mark.model
@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-Long: " + b"a" * 300_000,
        HEAD + b"X-Long: " + b"a" * HEADER_BYTES + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: y\r\n" % index for index in range(30_000)),
        b"GET /" + b"a" * 300_000,
        b"GET /" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["endless header", "long header", "endless headers", "endless path", "long path"],
)
def test_a_head_too_large_is_refused_and_counted(bounded: RunningServer, head: bytes) -> None:
    sample = 'treadle:http_requests_total{method="other",route="other",status="431"}'
    with Client(bounded) as client:
        client.send(head)
        response = client.read_all()
    if response:  # not so if the client was still sending
        assert status_of(response) == 431
        assert f"larger than {HEADER_BYTES} bytes" in body_of(response)["error"]["message"]
    assert sample in httpx.get(f"{bounded.url}/metrics", timeout=PATIENCE_SECONDS).text


@pytest.mark.model
def test_headers_after_the_body_are_bounded_too(bounded: RunningServer) -> None:
    with Client(bounded) as client:
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        for _ in range(10_000):
            if not client.send(b"X-Trailer: " + b"a" * 1000 + b"\r\n") or client.is_over(0.001):
                break
        else:
            pytest.fail("the server took ten megabytes of trailers")


@pytest.mark.model
def test_a_chunk_extension_without_end_is_bounded(bounded: RunningServer) -> None:
    with Client(bounded) as client:
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;")
        for _ in range(10_000):
            if not client.send(b"a" * 1000) or client.is_over(0.001):
                break
        else:
            pytest.fail("the server took ten megabytes of a chunk's extension")


@pytest.mark.model
def test_a_body_too_large_is_refused(bounded: RunningServer) -> None:
    for headers in (b"Content-Length: 200000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n30d40\r\n"):
        with Client(bounded) as client:
            client.send(HEAD + headers + b"a" * 200_000)
            assert client.is_over(PATIENCE_SECONDS) or status_of(client.heard) == 413


@pytest.mark.model
def test_requests_sent_at_once_are_answered_in_turn(bounded: RunningServer) -> None:
    with Client(bounded) as client:
        client.send(
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3 + b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        )
        client.send(b"Connection: close\r\n\r\n")
        assert client.read_all().count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.model
def test_a_connection_that_rests_is_closed(bounded: RunningServer) -> None:
    with Client(bounded) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(client.read_all()) == 200


@pytest.mark.model
def test_the_server_lives_on(strict: RunningServer) -> None:
    body = {"prompt": "Once", "max_tokens": 2}
    status = 408
    while status == 408:  # this client is slow, too, where the machine is busy
        status = httpx.post(f"{strict.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS).status_code
    assert status == 200


class FakeTransport(asyncio.Transport):
    """Holds what a client does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 100_000
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:  # it asks nothing, either
        pass


def connect(transport: FakeTransport) -> GuardedProtocol:
    config = uvicorn.Config(PlainTextResponse("x"), log_config=None)
    settings = ServerSettings(client_timeout=0.01)
    protocol = GuardedProtocol(settings, print, config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    return protocol


@pytest.mark.parametrize("num_taken", [0, 3])
def test_a_client_that_takes_nothing_is_cut_off(num_taken: int) -> None:
    async def run() -> None:
        transport = FakeTransport()
        protocol = connect(transport)
        protocol.pause_writing()
        for _ in range(num_taken):
            transport.unsent -= 1
            looks = protocol._send_timer
            while protocol._send_timer is looks:
                assert not transport.is_aborted
                await asyncio.sleep(0)
        while not transport.is_aborted:
            await asyncio.sleep(0)
        protocol.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_a_client_that_takes_everything_again_is_kept() -> None:
    async def run() -> None:
        protocol = connect(FakeTransport())
        protocol.pause_writing()
        timer = protocol._send_timer
        protocol.resume_writing()
        assert timer is not None and timer.cancelled()
        protocol.pause_writing()
        assert protocol._send_timer is not timer
        protocol.connection_lost(ConnectionResetError())

    asyncio.run(run())
