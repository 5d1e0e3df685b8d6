"""A `treadle serve` of its own to be stormed, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from http_client import HttpClient, Reply
from targets import resident_bytes

START_SECONDS = 120
IDLE_SECONDS = 60


@dataclass(frozen=True)
class Verdict:
    """Whether one demand was kept, and the figures that say so."""

    demand: str
    is_kept: bool
    figures: dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """What an idle server holds."""

    files: int
    threads: int
    resident_bytes: int


class StormedServer:
    """The server, with its prompts kept in ``home``; ``options`` are for the command line.

    Use it with ``async with``. What it logs goes to ``log``.
    """

    def __init__(self, model: Path, home: Path, port: int, *options: str) -> None:
        command = [sys.executable, "-m", "treadle", "serve", f"default={model}", "--port", str(port)]
        self._command = [*command, *options]
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home / "server.log"
        self.client = HttpClient(f"http://127.0.0.1:{port}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TREADLE_HOME": str(self._home)}

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self.environment)
        await wait_until(self._is_ready, START_SECONDS, "the server is ready")

    async def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {self.process.returncode}; see {self.log}")
        try:
            return (await self.client.get("/ready")).status == HTTPStatus.OK
        except OSError:
            return False

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def chat(self, text: str, max_tokens: int, **fields: Any) -> Reply:
        """Ask for exactly so many tokens."""
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}
        return await self.client.post("/v1/chat/completions", body)

    async def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/stats")).json()["models"][0]
        return found

    async def wait_until_idle(self) -> bool:
        """Wait until no request runs and no KV block is held; false if that does not come."""

        async def is_idle() -> bool:
            facts = await self.statistics()
            return facts["running"] == facts["waiting"] == facts["kv_blocks"]["used"] == 0

        try:
            await wait_until(is_idle, IDLE_SECONDS, "the server is idle")
        except TimeoutError:
            return False
        return await self.gauge("treadle:http_requests_in_progress") == 0

    async def gauge(self, name: str) -> float:
        text = (await self.client.get("/metrics")).body.decode()
        [value] = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return float(value)

    async def settled(self) -> Usage:
        """Return what it holds once nothing runs and connections had a moment to close."""
        await self.wait_until_idle()
        await asyncio.sleep(1)
        return self.usage()

    def usage(self) -> Usage:
        folder = Path(f"/proc/{self.process.pid}")
        return Usage(
            files=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
            resident_bytes=resident_bytes(self.process.pid),
        )

    async def __aenter__(self) -> StormedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self.is_alive:
            self.kill()


async def wait_until(is_so: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not await is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s it was still not so that {what}")
        await asyncio.sleep(0.05)
