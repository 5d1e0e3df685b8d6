"""Requests that no client sends by accident, at full size: each is refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from storm.server import StormedServer, Usage, Verdict

CHAT = "/v1/chat/completions"
LARGE_BYTES = 100_000_000
MOST_HEALTH_SECONDS = 2.0
MOST_GROWTH_BYTES = 256 << 20  # of a body of some 8 MB, its parsed form, and what the allocator keeps


@dataclass(frozen=True)
class _Hostile:
    """A request body by name; ``is_legal`` says that it may be answered as well as refused."""

    name: str
    make: Callable[[int], bytes]
    path: str = CHAT
    is_chunked: bool = False
    is_legal: bool = False


def _chat(content: bytes, more: bytes = b"") -> bytes:
    return b'{"max_tokens":1,"messages":[{"role":"user","content":%s}]%s}' % (content, more)


def _text(text: str) -> bytes:
    return _chat(json.dumps(text).encode())


def _nested(num_bytes: int, opening: bytes, closing: bytes) -> bytes:
    depth = num_bytes // (len(opening) + len(closing))
    return opening * depth + b"0" + closing * depth


def _tool(schema: bytes) -> bytes:
    return _with(
        b'"tools":[{"type":"function","function":{"name":"f","parameters":%s}}],"tool_choice":"required"' % schema
    )


def _with(more: bytes) -> bytes:
    return _chat(b'"hi"', b"," + more)


def _repeat(piece: bytes, num_bytes: int) -> bytes:
    return b",".join([piece] * (num_bytes // (len(piece) + 1)))


def _members(num_bytes: int) -> bytes:
    return b",".join(b'"%d":1' % number for number in range(num_bytes // 12))


FRAME_BYTES = 300  # more than what stands around the part that grows

# ``make`` gets the most bytes that a body may have. Those above it are refused unread.
BODIES = (
    _Hostile("100 MB", lambda _: _chat(b'"%s"' % (b"a" * LARGE_BYTES))),
    _Hostile("100 MB in chunks", lambda _: _chat(b'"%s"' % (b"a" * LARGE_BYTES)), is_chunked=True),
    _Hostile("100 MB of zeros", lambda _: bytes(LARGE_BYTES)),
    _Hostile("a long word", lambda n: _chat(b'"%s"' % (b"a" * (n - FRAME_BYTES)))),
    _Hostile("many words", lambda n: _chat(b'"%s"' % (b"word " * ((n - FRAME_BYTES) // 5)))),
    _Hostile("many digits", lambda n: _chat(b'"%s"' % (b"0123456789" * ((n - FRAME_BYTES) // 10)))),
    _Hostile("many words to go on from", lambda n: b'{"prompt":"%s"}' % (b"word " * (n // 5 - 8)), "/v1/completions"),
    _Hostile("spaces", lambda n: b" " * n),
    _Hostile("nested lists", lambda n: _nested(n - 1, b"[", b"]")),
    _Hostile("nested objects", lambda n: _nested(n - 1, b'{"a":', b"}")),
    _Hostile("nested content", lambda n: _chat(_nested(n - FRAME_BYTES, b"[", b"]"))),
    _Hostile("nested lists without an end", lambda n: b"[" * n),
    _Hostile("a nested schema", lambda n: _tool(_nested(n - FRAME_BYTES, b'{"items":', b"}"))),
    _Hostile("a schema nested 2,000 deep", lambda _: _tool(_nested(20_000, b'{"items":', b"}"))),
    _Hostile("a schema of many names", lambda n: _tool(b'{"enum":[%s]}' % _repeat(b'"name"', n - FRAME_BYTES))),
    _Hostile("a nested variable", lambda n: _with(b'"chat_template_kwargs":{"a":%s}' % _nested(n // 2, b"[", b"]"))),
    _Hostile("many messages", lambda n: b'{"messages":[%s]}' % _repeat(b'{"role":"user","content":"a"}', n - 16)),
    _Hostile("many parts", lambda n: _chat(b"[%s]" % _repeat(b'{"type":"text","text":"a"}', n - FRAME_BYTES))),
    _Hostile("many tools", lambda n: _with(b'"tools":[%s]' % _repeat(b"{}", n - FRAME_BYTES))),
    _Hostile("many stop strings", lambda n: _with(b'"stop":[%s]' % _repeat(b'"a"', n - FRAME_BYTES))),
    _Hostile("many biases", lambda n: _with(b'"logit_bias":{%s}' % _members(n - FRAME_BYTES))),
    _Hostile("many fields", lambda n: b"{%s}" % _members(n - 2)),
    _Hostile("a number of a million digits", lambda _: _with(b'"seed":' + b"9" * 1_000_000)),
    _Hostile("infinity", lambda _: _with(b'"temperature":1e999')),
    _Hostile("not a number", lambda _: _with(b'"temperature":NaN')),
    _Hostile("NUL bytes", bytes),
    _Hostile("a NUL in a string", lambda _: _chat(b'"a\x00b"')),
    _Hostile("an escaped NUL", lambda _: _text("a\x00b"), is_legal=True),
    _Hostile("an escaped surrogate", lambda _: _chat(rb'"\ud800"')),
    _Hostile("a surrogate to stop at", lambda _: _with(rb'"stop":"\udc00"')),
    _Hostile("a raw surrogate", lambda _: _chat(b'"\xed\xa0\x80"')),
    _Hostile("bytes that are no UTF-8", lambda _: _chat(b'"\xff\xfe"')),
    _Hostile("a byte order mark", lambda _: b"\xef\xbb\xbf" + _text("hi"), is_legal=True),
    _Hostile("UTF-16", lambda _: json.dumps({"messages": []}).encode("utf-16")),
    _Hostile("nothing", lambda _: b""),
)


async def bodies(server: StormedServer, max_bytes: int) -> list[Verdict]:
    """Each gets its 4xx, the server stays alive, answers health checks meanwhile and gives the memory back."""
    await server.chat("Hello.", 1)
    before = await server.settled()
    outcomes: dict[str, str] = {}
    wrong: list[str] = []
    slowest_health = 0.0
    for hostile in BODIES:
        outcome, is_right, seconds, health = await _try(server, hostile, max_bytes)
        grown = (server.usage().resident_bytes - before.resident_bytes) / 1e6
        outcomes[hostile.name] = f"{outcome} after {seconds:.2f} s, health in {health:.2f} s, memory {grown:+.0f} MB"
        slowest_health = max(slowest_health, health)
        if not is_right:
            wrong.append(hostile.name)
        if not server.is_alive:
            break
    return _verdicts(server, before, outcomes, wrong, slowest_health)


def _verdicts(
    server: StormedServer, before: Usage, outcomes: dict[str, str], wrong: list[str], slowest_health: float
) -> list[Verdict]:
    after = server.usage() if server.is_alive else before
    growth = after.resident_bytes - before.resident_bytes
    return [
        Verdict(f"{len(BODIES)} hostile bodies: each is refused with 4xx", not wrong, {"wrong": wrong, **outcomes}),
        Verdict(
            "the server is alive, and answered others meanwhile",
            server.is_alive and slowest_health <= MOST_HEALTH_SECONDS,
            {"is_alive": server.is_alive, "slowest_health_seconds": slowest_health},
        ),
        Verdict("the memory came back", growth <= MOST_GROWTH_BYTES, {"grown_bytes": growth}),
    ]


async def _try(server: StormedServer, hostile: _Hostile, max_bytes: int) -> tuple[str, bool, float, float]:
    """Send it; return what came, whether that is right, its seconds, and those of the slowest health check beside."""
    body = hostile.make(max_bytes)
    began = time.monotonic()
    task = asyncio.create_task(
        server.client.post_chunked(hostile.path, body) if hostile.is_chunked else server.client.post(hostile.path, body)
    )
    health = 0.0
    while not task.done():
        asked = time.monotonic()
        with suppress(OSError):
            await server.client.get("/health")
        health = max(health, time.monotonic() - asked)
        await asyncio.wait({task}, timeout=0.05)
    seconds = time.monotonic() - began
    try:
        status = (await task).status
    except OSError as error:
        return f"{type(error).__name__}", False, seconds, health
    is_refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return str(status), is_refused or (hostile.is_legal and status == HTTPStatus.OK), seconds, health
