"""When a request to an engine elsewhere is repeated, how long it may take, how it is ended, who is told what."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import CHAT, DONE, FAST, Events, ask, delta, models, usage, with_engine

from local_server import Answer, LocalServer, in_turn, status_answer, text_answer
from patience import PATIENCE_SECONDS
from treadle.config import Settings
from treadle.engine.conversation import Conversation
from treadle.engine.remote import http, sse
from treadle.engine.remote.address import find_api_key, parse_address
from treadle.engine.remote.engine import RemoteEngine
from treadle.engine.remote.http import RemoteLimits
from treadle.engine.sampling import SamplingParams
from treadle.errors import CapacityError, ContextError, DeadlineError, RemoteError, TreadleError, UsageError

HELLO = Conversation([{"role": "user", "content": "hello"}])
GOOD = Events([delta(content="a"), delta(finish_reason="stop"), usage(3, 1), DONE])


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def refusal(status: int, body: str, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


@pytest.mark.parametrize(
    "failure",
    [
        hang_up,
        status_answer(503),
        status_answer(503, Retry_After="0"),
        status_answer(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
        status_answer(502),
        status_answer(504),
        Events([], ends=False),
        Events([delta(role="assistant", content="")], ends=False),
    ],
)
def test_what_failed_before_its_first_token_is_asked_again(server: LocalServer, failure: Answer) -> None:
    server.routes[CHAT] = in_turn(failure, failure, GOOD)
    chunks = ask(server, HELLO)
    assert chunks[-1].completion is not None and chunks[-1].completion.text == "a"
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("failure", "kind", "problem"),
    [
        (hang_up, RemoteError, "broke"),
        (status_answer(503), CapacityError, "is busy: Service Unavailable .status 503."),
        (refusal(429, '{"error": {"message": "slow down"}}'), CapacityError, "is busy: slow down"),
        (status_answer(502), RemoteError, "failed: Bad Gateway"),
    ],
)
def test_there_is_an_end_to_asking(
    server: LocalServer, failure: Answer, kind: type[TreadleError], problem: str
) -> None:
    server.routes[CHAT] = failure
    with pytest.raises(kind, match=problem):
        ask(server, HELLO)
    assert len(server.bodies) == 1 + FAST.max_retries


@pytest.mark.parametrize(
    ("failure", "kind", "problem"),
    [
        (refusal(400, '{"error": {"message": "no such thing", "code": "x"}}'), UsageError, "refused: no such thing"),
        (refusal(400, '{"error": {"message": "long", "code": "context_length_exceeded"}}'), ContextError, "long"),
        (
            refusal(400, '{"error": {"message": "it is long", "type": "exceed_context_size_error"}}'),
            ContextError,
            "it is",
        ),
        (refusal(400, '{"message": "maximum context length is 9", "code": 400}'), ContextError, "is 9"),
        (refusal(422, '{"detail": [{"loc": ["body"]}]}'), UsageError, "loc"),
        (refusal(404, '{"object": "error", "message": "no model m"}'), UsageError, "no model m"),
        (refusal(401, '{"error": "bad key"}'), RemoteError, "denies access: bad key"),
        (refusal(500, "<html>oops</html>"), RemoteError, "failed: <html>oops"),
        (refusal(307, "", Location="https://elsewhere.example/v1"), RemoteError, "moved to https://elsewhere"),
        (status_answer(429, Retry_After="3600"), CapacityError, "busy"),
        (text_answer("<html>"), RemoteError, "no JSON"),
        (refusal(400, "x" * 1_000_000), UsageError, "x{400}"),
    ],
)
def test_what_does_not_pass_is_not_asked_again(
    server: LocalServer, failure: Answer, kind: type[TreadleError], problem: str
) -> None:
    server.routes[CHAT] = failure
    with pytest.raises(kind, match=problem) as found:
        ask(server, HELLO)
    assert len(server.bodies) == 1
    assert len(str(found.value)) < 1000


def test_nothing_is_asked_again_after_the_first_token(server: LocalServer) -> None:
    server.routes[CHAT] = Events([delta(content="a")], ends=False)

    async def test(engine: RemoteEngine) -> None:
        stream = await engine.answer(HELLO)
        assert (await anext(stream)).text == "a"
        with pytest.raises(RemoteError, match="after its answer had begun"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    with_engine(server, test)
    assert len(server.bodies) == 1


def test_an_engine_that_is_not_there(server: LocalServer) -> None:
    async def connect(url: str) -> None:
        await RemoteEngine.connect(url, limits=RemoteLimits(max_retries=0))

    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:9 cannot be reached: .*\nhint: start a server there"):
        asyncio.run(connect("http://127.0.0.1:9/v1"))
    server.routes["/v1/models"] = text_answer("[]")
    with pytest.raises(RemoteError, match="expected a list of models"):
        asyncio.run(connect(server.url))
    server.routes["/v1/models"] = models("vllm", "a", "b")
    with pytest.raises(UsageError, match="2 models: a, b"):
        asyncio.run(connect(server.url))
    with pytest.raises(UsageError, match="no model 'c'; it has a, b"):
        asyncio.run(connect(f"{server.url}/v1#c"))


def test_a_server_that_keeps_no_list_of_its_models(server: LocalServer) -> None:
    server.routes[CHAT] = GOOD
    for listed in (status_answer(404), models("acme", "other")):
        server.routes["/v1/models"] = listed
        with_engine(server, _first_text, model="mine")


async def _first_text(engine: RemoteEngine) -> str:
    return (await anext(await engine.answer(HELLO))).text


def test_silence_and_deadlines_end_a_request(server: LocalServer) -> None:
    gate = threading.Event()
    silent = Events([delta(content="a"), delta(content="b")], gate=gate, gated=1)
    server.routes[CHAT] = silent
    try:
        with pytest.raises(RemoteError, match="no sign of life"):
            ask(server, HELLO, limits=RemoteLimits(read_timeout=0.3, max_retries=0))
        with pytest.raises(DeadlineError):
            ask(server, HELLO, timeout=0.3)
        server.bodies.clear()
        server.routes[CHAT] = status_answer(503, Retry_After="60")
        with pytest.raises(CapacityError):
            ask(server, HELLO, timeout=50)
        assert len(server.bodies) == 1  # there is no time for another attempt
    finally:
        gate.set()


async def _close(stream: Any) -> None:
    await stream.aclose()
    await stream.aclose()


async def _cancel(stream: Any) -> None:
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _cancel_and_close(stream: Any) -> None:
    """As the server does for a client that leaves: closing must not break off what cancelling began."""
    await _cancel(stream)
    await stream.aclose()


async def _close_while_another_reads(stream: Any) -> None:
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises((asyncio.CancelledError, StopAsyncIteration)):
        await task


@pytest.mark.parametrize(
    "leave",
    [_close, _cancel, _cancel_and_close, _close_while_another_reads, None],
    ids=["close", "cancel", "cancel-and-close", "close-beside", "drop"],
)
def test_leaving_ends_the_request_over_there(
    server: LocalServer, leave: Callable[[Any], Awaitable[None]] | None
) -> None:
    gate = threading.Event()
    long = Events([delta(content="a"), *[delta(content="b" * 100_000)] * 200], gate=gate, gated=1)
    server.routes[CHAT] = long

    async def test(engine: RemoteEngine) -> None:
        stream = await engine.answer(HELLO)
        assert (await anext(stream)).text == "a"
        if leave is None:
            del stream
            gc.collect()
        else:
            await leave(stream)
        gate.set()
        assert await asyncio.to_thread(long.gone.wait, PATIENCE_SECONDS)

    with_engine(server, test)


def test_observers_hear_how_answers_end(server: LocalServer) -> None:
    class Observer:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def took(self, chunk: Any) -> None:
            self.heard.append(chunk.text)

        def ended(self, unfinished: Any, error: Any, *, is_complete: bool) -> None:
            self.heard.append((sorted(unfinished), type(error), is_complete))

    async def test(engine: RemoteEngine) -> None:
        observer = Observer()
        engine.observe = lambda num_tokens, _: observer  # noqa: ARG005
        stream = await engine.answer(HELLO, SamplingParams(n=2))
        with pytest.raises(RemoteError):
            [chunk async for chunk in stream]
        await stream.aclose()
        assert observer.heard == ["a", ([0, 1], RemoteError, False)]
        server.routes[CHAT] = GOOD
        observer.heard.clear()
        [chunk async for chunk in await engine.answer(HELLO)]
        assert observer.heard == ["a", ""]
        observer.heard.clear()
        stream = await engine.answer(HELLO)
        await anext(stream)
        await stream.aclose(is_complete=True)
        assert observer.heard == ["a", ([0], type(None), True)]

    server.routes[CHAT] = Events([delta(content="a"), {"error": "x"}])
    with_engine(server, test)


def test_a_closed_engine_answers_nothing(server: LocalServer) -> None:
    gate = threading.Event()
    server.routes[CHAT] = Events([delta(content="a"), delta(content="b")], gate=gate, gated=1)

    async def test(engine: RemoteEngine) -> None:
        stream = await engine.answer(HELLO)
        await anext(stream)
        await engine.close()
        await engine.close()
        gate.set()
        with pytest.raises(TreadleError):
            [chunk async for chunk in stream]
        with pytest.raises(UsageError, match="was closed"):
            await engine.answer(HELLO)

    with_engine(server, test)


def test_an_event_without_end_is_cut_off(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    for endless in (b"data: " + b"x" * 5000, b"data: x\n" * 1000):
        server.routes[CHAT] = Events([endless])
        with pytest.raises(RemoteError, match="more than 1000 bytes"):
            ask(server, HELLO)


def test_connections_are_few_and_used_again(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A connection whose end a busy machine shows later would not be used again.
    monkeypatch.setattr(http, "_REST_SECONDS", PATIENCE_SECONDS)
    addresses = []

    def remember(handler: BaseHTTPRequestHandler) -> None:
        addresses.append(handler.client_address)
        GOOD(handler)

    server.routes[CHAT] = remember

    async def test(engine: RemoteEngine) -> None:
        async def answer() -> None:
            assert [chunk.text async for chunk in await engine.answer(HELLO)] == ["a", ""]

        await asyncio.gather(*(answer() for _ in range(12)))

    with_engine(server, test, limits=RemoteLimits(max_connections=3))
    assert len(addresses) == 12
    assert len(set(addresses)) <= 3


def test_keys(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.routes[CHAT] = GOOD
    host = server.url.removeprefix("http://")
    monkeypatch.setenv("TREADLE_ENGINE_API_KEY", "for-all")
    ask(server, HELLO)
    keys = tmp_path / "keys"
    keys.write_text(f"# keys\nother.example other\n\n{host.upper()} mine\n")
    monkeypatch.setenv("TREADLE_ENGINE_KEY_FILE", str(keys))
    ask(server, HELLO)
    sent = [headers["authorization"] for headers in server.headers_of(CHAT)]
    assert sent == ["Bearer for-all", "Bearer mine"]
    assert "for-all" not in repr(Settings.from_environment(files=[]))
    keys.write_text("host key more\n")
    with pytest.raises(UsageError, match="line 1: expected a host and a key"):
        find_api_key(host, Settings.from_environment(files=[]))
    keys.unlink()
    with pytest.raises(UsageError, match="key file"):
        find_api_key(host, Settings.from_environment(files=[]))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("http://", "expected a URL"),
        ("ftp://host/v1", "expected a URL"),
        ("http://user:secret@host/v1", "holds a user or a password"),
        ("http://host:port/v1", "engine"),
        ("http://host/v1?key=1", "without `.`"),
        ("http://[::1/v1", "engine"),
    ],
)
def test_what_is_no_address(source: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as found:
        parse_address(source)
    assert "secret" not in str(found.value)


def test_addresses() -> None:
    plain = parse_address("HTTP://host:8000")
    assert (plain.url, plain.host, plain.model, plain.root) == (
        "http://host:8000/v1",
        "host:8000",
        None,
        "http://host:8000",
    )
    deep = parse_address("https://cloud.example/api/openai/#org/model%231")
    assert (deep.url, deep.model) == ("https://cloud.example/api/openai", "org/model#1")
    with pytest.raises(UsageError, match="but 'b' is asked for"):
        parse_address("http://host/v1#a", "b")
