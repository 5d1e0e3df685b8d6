"""Bounds how many requests wait, how much each API key uses, and lets the running ones finish when the server ends.

Leaves to others: how long a request may take (the engine's deadline) and how large it may be (``server.body``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.server.errors import ApiError, send_error, shutting_down
from treadle.server.record import CURRENT
from treadle.server.settings import ServerSettings

__all__ = ["LimitRequests", "Limits", "Ticket"]

_LONGEST_RETRY_SECONDS = 60
_WEIGHT = 0.2  # of the newest waiting time in their average


@dataclass
class _KeyUse:
    """What one key uses: requests now, and the tokens it may still use, below 0 when it took more than it had."""

    tokens: float
    refilled: float
    num_requests: int = 0


class Limits:
    """Counts the requests that make work. Lives in the event loop.

    Args:
        settings: How much is allowed.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, settings: ServerSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._uses: dict[str, _KeyUse] = {}
        self._wait_seconds = 1.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._idle_since = clock()
        self.num_requests = 0
        self.num_queued = 0
        self.is_draining = False

    @property
    def idle_seconds(self) -> float:
        """Return for how long nothing has run, 0 while something does."""
        return 0.0 if self.num_requests else self._clock() - self._idle_since

    def admit(self, key_id: str = "") -> Ticket:
        """Take a request in, as one that waits; leave its ticket with ``with`` when it ends.

        Raises:
            ApiError: 503 while the server shuts down, 429 when too much waits or the key uses too much.
        """
        if self.is_draining:
            raise shutting_down()
        if self.num_queued >= self._settings.max_queued:
            raise _too_much(
                f"{self.num_queued} requests wait for their turn already", "queue_full", math.ceil(self._wait_seconds)
            )
        use = self._use(key_id)
        self._check_key(use)
        self.num_requests += 1
        self.num_queued += 1
        use.num_requests += 1
        self._idle.clear()
        return Ticket(self, use, self._clock)

    async def drain(self, timeout: float) -> bool:
        """Admit nothing any more and wait until nothing runs; false if the time was not enough."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    def _use(self, key_id: str) -> _KeyUse:
        limit = self._settings.max_tokens_per_minute_per_key
        now = self._clock()
        use = self._uses.setdefault(key_id, _KeyUse(tokens=limit or 0, refilled=now))
        if limit is not None:
            use.tokens = min(limit, use.tokens + (now - use.refilled) * limit / 60)
            use.refilled = now
        return use

    def _check_key(self, use: _KeyUse) -> None:
        most = self._settings.max_concurrent_per_key
        if most is not None and use.num_requests >= most:
            raise _too_much(f"this key has {use.num_requests} requests running, the most allowed", "key_requests", 1)
        limit = self._settings.max_tokens_per_minute_per_key
        if limit is not None and use.tokens <= 0:
            seconds = math.ceil(-use.tokens * 60 / limit) + 1
            raise _too_much(f"this key has used its {limit} tokens per minute", "key_tokens", seconds)

    def started(self, waited_seconds: float) -> None:
        """Take note that a request waits no more."""
        self.num_queued -= 1
        self._wait_seconds += _WEIGHT * (waited_seconds - self._wait_seconds)

    def ended(self, *, was_waiting: bool) -> None:
        """Take note that a request has ended."""
        self.num_queued -= was_waiting
        self.num_requests -= 1
        if self.num_requests == 0:
            self._idle_since = self._clock()
            self._idle.set()


class Ticket:
    """The place of one request in the server, given back at the end of a ``with`` block."""

    def __init__(self, limits: Limits, use: _KeyUse, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._use = use
        self._clock = clock
        self._began = clock()
        self._is_waiting = True

    def start(self) -> None:
        """Leave the queue, as the first token is there; may be called again."""
        if self._is_waiting:
            self._is_waiting = False
            self._limits.started(self._clock() - self._began)

    def spend(self, num_tokens: int) -> None:
        """Count tokens, of prompts and answers alike."""
        self._use.tokens -= num_tokens

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._use.num_requests -= 1
        self._limits.ended(was_waiting=self._is_waiting)


class LimitRequests:
    """Admits every POST, which is what makes work, before its body is read; an ASGI application."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        record = CURRENT.get()
        try:
            ticket = self._limits.admit("" if record is None else record.key_id)
        except ApiError as error:
            await send_error(error, scope, receive, send)
            return
        with ticket:
            if record is not None:
                record.ticket = ticket
            await self._app(scope, receive, send)


def _too_much(message: str, code: str, seconds: int) -> ApiError:
    retry = {"Retry-After": str(max(1, min(_LONGEST_RETRY_SECONDS, seconds)))}
    return ApiError(429, f"{message}; try again later", "rate_limit_error", code=code, headers=retry)
