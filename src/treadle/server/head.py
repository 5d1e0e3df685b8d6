"""Answers HEAD wherever GET is answered: probes ask that way.

Leaves to others: leaving the body out (the web server does).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["AnswerHead"]


class AnswerHead:
    """Shows the routes a HEAD as the GET it stands for; an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        shown = {**scope, "method": "GET"}  # a copy: the web server leaves the body out by what it finds in its own
        await self._app(shown, receive, send)
        if "route" in shown:
            scope["route"] = shown["route"]
