"""Many clients at once, each asking again as soon as it is answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from statistics import median

from agent_load import text_of
from storm.server import StormedServer, Verdict

MOST_UNFAIR = 3
MOST_GROWTH_BYTES = 32 << 20
WARM_SHARE = 0.25  # of the time, before it counts: KV blocks and pools of threads come with their first use
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
ANSWER_TOKENS = 16


@dataclass
class _Tally:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


async def crowd(server: StormedServer, clients: int, seconds: float) -> list[Verdict]:
    """No error but 429 and 503, no leak, nobody waits three times as long as others."""
    await _storm(server, clients, WARM_SHARE * seconds, "warm")
    before = await server.settled()
    tally = await _storm(server, clients, seconds, "count")
    after = await server.settled()
    is_idle = await server.wait_until_idle()
    bad = {status: n for status, n in tally.statuses.items() if status != HTTPStatus.OK and status not in BUSY}
    growth = after.resident_bytes - before.resident_bytes
    middle, slowest = median(tally.seconds), max(tally.seconds)
    return [
        Verdict(
            f"{clients} clients for {seconds:.0f} s: no error but 429 and 503",
            server.is_alive and not bad and not tally.errors,
            {"statuses": dict(tally.statuses), "errors": tally.errors[:5]},
        ),
        Verdict(
            f"fair: the slowest answer takes at most {MOST_UNFAIR} times the median",
            slowest <= MOST_UNFAIR * middle,
            {"answers": len(tally.seconds), "median_seconds": middle, "slowest_seconds": slowest},
        ),
        Verdict(
            "no leak of files, threads, memory, KV blocks or requests",
            is_idle and after.files <= before.files and after.threads <= before.threads and growth <= MOST_GROWTH_BYTES,
            {"is_idle": is_idle, "before": before, "after": after, "grown_bytes": growth},
        ),
    ]


async def _storm(server: StormedServer, clients: int, seconds: float, seed: str) -> _Tally:
    tally = _Tally()
    until = time.monotonic() + seconds
    await asyncio.gather(*(_client(server, f"{seed} {number}", until, tally) for number in range(clients)))
    return tally


async def _client(server: StormedServer, seed: str, until: float, tally: _Tally) -> None:
    """Ask until the time is up; what is refused for now is asked again, and its wait belongs to the answer."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        text, is_stream = text_of(24, chance), chance.random() < 0.5
        began = time.monotonic()
        status: int = HTTPStatus.TOO_MANY_REQUESTS
        while status in BUSY:
            try:
                reply = await server.chat(text, ANSWER_TOKENS, stream=is_stream)
            except OSError as error:
                tally.errors.append(f"{type(error).__name__}: {error}")
                return
            status = reply.status
            tally.statuses[status] += 1
            if status in BUSY:
                await asyncio.sleep(float(reply.headers["retry-after"]))
        if status == HTTPStatus.OK:
            tally.seconds.append(time.monotonic() - began)
        if is_stream and not reply.body.endswith(b"data: [DONE]\n\n"):
            tally.errors.append(f"a stream ended with {bytes(reply.body[-200:])!r}")
