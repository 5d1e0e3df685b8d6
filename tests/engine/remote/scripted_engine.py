"""A server whose answers are scripted, and what an OpenAI-compatible one sends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from local_server import Answer, LocalServer, text_answer
from patience import PATIENCE_SECONDS
from treadle.engine.completion import CompletionChunk
from treadle.engine.remote.engine import RemoteEngine
from treadle.engine.remote.http import RemoteLimits

CHAT = "/v1/chat/completions"
FAST = RemoteLimits(connect_timeout=PATIENCE_SECONDS, read_timeout=PATIENCE_SECONDS, max_retries=2)


def models(owner: str = "vllm", *names: str, **facts: Any) -> Answer:
    data = [{"id": name, "object": "model", "owned_by": owner, **facts} for name in names or ("m",)]
    return text_answer(json.dumps({"object": "list", "data": data}))


def delta(index: int = 0, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish_reason}]}


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached}}}


@dataclass
class Events:
    """Answers with events, as they are or as JSON; then hangs up, or ends the body as it should.

    ``gate`` is waited for before event number ``gated``; ``gone`` is set when the client has hung up.
    """

    events: list[Any]
    ends: bool = True
    gate: threading.Event | None = None
    gated: int = 0
    gone: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for number, event in enumerate(self.events):
                self.started.set()
                if self.gate is not None and number == self.gated:
                    assert self.gate.wait(PATIENCE_SECONDS)
                data = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            if self.ends:
                handler.wfile.write(b"0\r\n\r\n")
            else:
                handler.close_connection = True
        except OSError:
            handler.close_connection = True
            self.gone.set()


DONE = b"data: [DONE]\n\n"


def with_engine(
    server: LocalServer,
    test: Callable[[RemoteEngine], Awaitable[Any]],
    *,
    limits: RemoteLimits = FAST,
    model: str | None = None,
) -> Any:
    async def run() -> Any:
        async with await RemoteEngine.connect(f"{server.url}/v1", model, limits=limits) as engine:
            return await test(engine)

    return asyncio.run(run())


def ask(server: LocalServer, prompt: Any, *arguments: Any, **options: Any) -> list[CompletionChunk]:
    """All chunks of an answer."""
    limits = options.pop("limits", FAST)

    async def test(engine: RemoteEngine) -> list[CompletionChunk]:
        return [chunk async for chunk in await engine.answer(prompt, *arguments, **options)]

    chunks: list[CompletionChunk] = with_engine(server, test, limits=limits)
    return chunks
