"""Carries the events of requests from the engine's thread to the event loops that wait for them.

Leaves to others: what the events mean (``Answer``) and when a step ends (``EngineThread``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable

from treadle.engine.request import Request, TokenEvent

__all__ = ["Courier", "Inbox"]

_Parcels = list[tuple["Inbox", TokenEvent]]


class Inbox:
    """The events of one prompt that its reader has not taken yet; lives in an event loop.

    A slow reader gets what has gathered meanwhile at once, so what waits here is bounded by the length of the answers.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: dict[Request, list[TokenEvent]] = {}
        self._waiter: asyncio.Future[None] | None = None

    async def get(self) -> list[TokenEvent]:
        """Wait for events and take all there are of the request that has waited longest."""
        while not self._events:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.pop(next(iter(self._events)))

    def put(self, event: TokenEvent) -> None:
        """Take an event and wake the reader; called in the loop's thread."""
        self._events.setdefault(event.request, []).append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Courier:
    """Gathers what steps have to say and wakes each event loop for it, sooner than any reader would miss it.

    Waking a loop, and all that follows for each token up to the socket of a client, would rival the steps of a small
    model. So an event waits for the next step's when its loop was woken just before, unless it begins or ends an
    answer. Everything here but ``route`` happens in the engine's thread.

    Args:
        pace_seconds: How often to wake a loop at most for what can wait.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, pace_seconds: float = 0.02, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pace_seconds = pace_seconds
        self._clock = clock
        self._bags: defaultdict[asyncio.AbstractEventLoop, _Parcels] = defaultdict(list)
        self._has_news = False
        self._can_wait = True
        self._woken = -math.inf

    def route(self, inbox: Inbox) -> Callable[[TokenEvent], None]:
        """Return where a request has to deliver its events so that they reach an inbox of the running loop."""
        loop = asyncio.get_running_loop()

        def deliver(event: TokenEvent) -> None:
            self._bags[loop].append((inbox, event))
            self._has_news = True
            if event.finish_reason is not None or event.is_first:
                self._can_wait = False

        return deliver

    def end_step(self) -> None:
        """Hand over what has gathered, or leave it for the end of the next step if that may have more."""
        now = self._clock()
        if self._has_news and self._can_wait and now - self._woken < self._pace_seconds:
            self._has_news = False
            return
        self._has_news, self._can_wait, self._woken = False, True, now
        bags, self._bags = self._bags, defaultdict(list)
        for loop, parcels in bags.items():
            try:
                loop.call_soon_threadsafe(_hand_out, parcels)
            except RuntimeError:  # the loop is closed, so nobody waits in it
                continue


def _hand_out(parcels: _Parcels) -> None:
    for inbox, event in parcels:
        inbox.put(event)
