"""Lets in only requests that name this server, come from an allowed page and carry a key.

Leaves to others: how much a key may use (``server.limits``) and what it means to be public (``server.settings``).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.server.errors import ApiError, send_error
from treadle.server.record import CURRENT
from treadle.server.settings import ServerSettings

__all__ = ["OPEN_FOLDER", "OPEN_PATHS", "Gate"]

# What a load balancer and a person who has not typed the key yet may see: no model, no prompt, no figure.
OPEN_PATHS = frozenset({"/", "/health", "/ready"})
OPEN_FOLDER = "/dashboard/"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PREFLIGHT_SECONDS = "600"


class Gate:
    """Checks the Host header, the Origin header and the API key of every request, in this order; an ASGI application.

    A name that somebody else's DNS points at this machine, and a page of another site, thereby get nothing from a
    server that has no key because it listens on loopback only.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._hosts = frozenset(settings.allowed_hosts)
        if not self._hosts and settings.is_loopback:
            self._hosts = _LOOPBACK_NAMES | {settings.host}
        elif self._hosts:
            self._hosts |= {settings.host}
        self._origins = frozenset(settings.cors_origins)
        self._keys = [_digest(key.encode()) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check_host(headers)
            self._check_origin(headers, origin)
        except ApiError as error:
            await send_error(error, scope, receive, send)
            return
        if origin in self._origins:
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await PlainTextResponse("", headers=_preflight(origin, headers))(scope, receive, send)
                return
            send = _with_origin(send, origin)
        try:
            self._check_key(scope["path"], headers)
        except ApiError as error:
            await send_error(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host")
        if not self._hosts or host is None or _name(host) in self._hosts:
            return
        raise ApiError(
            403,
            f"this server does not answer to the name {host!r:.80}; its operator can allow it with --allowed-host",
            "permission_error",
            code="host_not_allowed",
        )

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        # Not all that browsers send across sites is announced by a preflight, so the absence of an answer to it is no
        # protection from pages that only want the work done.
        if origin is None or origin in self._origins or urlsplit(origin).netloc == headers.get("host"):
            return
        raise ApiError(
            403,
            f"pages of {origin!r:.80} may not call this server; its operator can allow it with --cors-origin",
            "permission_error",
            code="origin_not_allowed",
        )

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        index = self._find_key(headers)
        if index is None:
            raise ApiError(
                401,
                "expected a valid API key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                "authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        record = CURRENT.get()
        if record is not None:
            record.key_index = index

    def _find_key(self, headers: Headers) -> int | None:
        """Return which of the keys a request carries; takes the same time whichever it is and however near."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given.encode("latin-1"))
        found = None
        for index, key in enumerate(self._keys):
            if hmac.compare_digest(key, digest):
                found = index
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _name(host: str) -> str:
    """Return the name or address in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _preflight(origin: str, headers: Headers) -> Mapping[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "content-type"),
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        "Vary": "Origin",
    }


def _with_origin(send: Send, origin: str) -> Send:
    def send_out(message: Message) -> object:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "x-request-id, retry-after"
            headers.add_vary_header("Origin")
        return send(message)

    return send_out  # type: ignore[return-value]
