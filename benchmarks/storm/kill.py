"""A server that is killed while it works, and what the next one still knows."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from agent_load import text_of
from storm.server import StormedServer, Verdict, wait_until

PROMPT_WORDS = 400
LEAST_CACHED = 0.9
WORKERS = 16
SAVE_SECONDS = 30


async def kill(server: StormedServer, times: int, prompts: int) -> list[Verdict]:
    """Known prompts are found on disk, and no file is damaged."""
    known = [text_of(PROMPT_WORDS, random.Random(f"known {number}")) for number in range(prompts)]
    for text in known:
        await server.chat(text, 1)
    await _wait_until_saved(server)
    shares, problems, num_blocks = [], [], []
    for number in range(times):
        await _kill_under_load(server, f"kill {number}")
        report = _verify(server)
        problems += report["problems"]
        num_blocks.append(report["blocks"])
        await server.start()
        shares += [await _cached_share(server, text) for text in known]
    return [
        Verdict(
            f"killed {times} times under load: {prompts} known prompts are warm from disk each time",
            min(shares) >= LEAST_CACHED,
            {"least_share_cached": min(shares), "prompts_asked_again": len(shares)},
        ),
        Verdict("`treadle cache verify` finds no damage", not problems, {"blocks": num_blocks, "problems": problems}),
    ]


async def _kill_under_load(server: StormedServer, seed: str) -> None:
    """Kill it in the middle of writing prompts that it reads for many clients."""
    chance = random.Random(seed)
    tasks = [asyncio.create_task(_work(server, random.Random(f"{seed} {number}"))) for number in range(WORKERS)]
    await asyncio.sleep(2 + chance.random())
    server.kill()
    await asyncio.gather(*tasks)


async def _work(server: StormedServer, chance: random.Random) -> None:
    with suppress(OSError):
        while True:
            await server.chat(text_of(PROMPT_WORDS, chance), chance.randrange(1, 40), stream=chance.random() < 0.5)


async def _wait_until_saved(server: StormedServer) -> None:
    """Wait until all blocks of prompts have gone to the disk: their number has stopped growing."""
    last = -1.0

    async def has_settled() -> bool:
        nonlocal last
        before, last = last, await server.gauge('treadle:cached_tokens{model_name="default",tier="disk"}')
        await asyncio.sleep(1)
        return last == before > 0

    await wait_until(has_settled, SAVE_SECONDS, "the prompts are on disk")


async def _cached_share(server: StormedServer, text: str) -> float:
    reply = await server.chat(text, 1)
    if reply.status != HTTPStatus.OK:
        return 0.0
    usage = reply.json()["usage"]
    share: float = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return share


def _verify(server: StormedServer) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "treadle", "cache", "verify", "--json"],
        env=server.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return found
