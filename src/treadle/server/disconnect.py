"""Ends the work for a client that has left: while it waits in the queue, during prefill and between tokens.

Leaves to others: freeing what a request holds (closing the engine's iterator does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["ClientGoneError", "EventStream", "unless_gone"]

_Result = TypeVar("_Result")


class ClientGoneError(Exception):
    """The client closed its connection before the answer; there is nobody to tell."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` returns, or cancel it and raise ClientGoneError when the client leaves first."""
    task = asyncio.ensure_future(work)
    if not await _race(task, request.receive):
        raise ClientGoneError
    return task.result()


class EventStream(Response):
    """Server-sent events from an iterator, ended as soon as the client is gone.

    Each of its bytes are events to be sent at once, encoded; empty ones are left out.

    ``on_close`` is awaited at the end, whatever the end is.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], *, on_close: Callable[[], Awaitable[None]]) -> None:
        # No proxy may hold events back or keep them.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send every event; an ASGI application."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            task = asyncio.ensure_future(self._send_all(send))
            if await _race(task, receive):
                task.result()
        finally:
            await self._on_close()

    async def _send_all(self, send: Send) -> None:
        async for events in self._events:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _race(work: asyncio.Future[Any], receive: Receive) -> bool:
    """Wait for ``work`` or for the client to leave; true if the work ended first. What is left is cancelled."""
    gone = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        for task in (gone, work):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
