"""Clients that leave: with half a request sent, in the queue, while their prompt is read, amid an answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from http import HTTPStatus
from typing import Any

from agent_load import text_of
from storm.server import StormedServer, Verdict

AT_ONCE = 48
# Longest stays in seconds: most leave in the queue or in a prompt, some in an answer, a few after its end.
STAYS = (0.0, 0.02, 0.2, 2.0, 8.0)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


async def leave(server: StormedServer, clients: int, seed: str = "leave") -> list[Verdict]:
    """Whatever they leave behind is gone soon after, and the server answers as before."""
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    room = asyncio.Semaphore(AT_ONCE)
    await server.chat("Hello.", 1)
    before = await server.settled()

    async def one(number: int) -> None:
        async with room:
            ends[await _visit(server, random.Random(f"{seed} {number}"), chance.choice(STAYS) * chance.random())] += 1

    await asyncio.gather(*(one(number) for number in range(clients)))
    is_idle = await server.wait_until_idle()
    facts = await server.statistics()
    after = await server.settled()
    reply = await server.chat("Are you still there?", 4)
    return [
        Verdict(
            f"{clients} clients that leave at random moments: nothing is left of them",
            server.is_alive and is_idle and after.files <= before.files and reply.status == HTTPStatus.OK,
            {
                "ends": dict(ends),
                "used_blocks": facts["kv_blocks"]["used"],
                "running": facts["running"],
                "waiting": facts["waiting"],
                "before": before,
                "after": after,
                "answer_afterwards": reply.status,
            },
        )
    ]


async def _visit(server: StormedServer, chance: random.Random, stay: float) -> str:
    path = chance.choice(PATHS)
    body = json.dumps(_body(path, chance)).encode()
    if chance.random() < 0.1:
        return await _send_half(server, path, body[: chance.randrange(len(body))], len(body))
    try:
        reply = await asyncio.wait_for(server.client.post(path, body), stay)
    except asyncio.TimeoutError:
        return "left"
    except OSError:
        return "cut off"
    return str(reply.status)


async def _send_half(server: StormedServer, path: str, body: bytes, length: int) -> str:
    _, writer = await server.client.connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body)
    await asyncio.sleep(0.01)
    writer.transport.abort()
    return "left with half a request sent"


def _body(path: str, chance: random.Random) -> dict[str, Any]:
    text = text_of(chance.choice((5, 50, 800)), chance)
    body: dict[str, Any] = {"stream": chance.random() < 0.5}
    messages = [{"role": "user", "content": text}]
    if path == "/v1/completions":
        return {**body, "prompt": text, "max_tokens": 400, "ignore_eos": True, "n": chance.choice((1, 3))}
    if path == "/v1/responses":
        return {**body, "input": text, "max_output_tokens": 400}
    if path == "/v1/messages":
        return {**body, "model": "default", "messages": messages, "max_tokens": 400}
    return {**body, "messages": messages, "max_tokens": 400, "ignore_eos": True, "n": chance.choice((1, 3))}
