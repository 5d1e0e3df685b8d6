"""Lets in only requests that name this server, come from an allowed page and carry a key.

Leaves to others: how much a key may use (``server.limits``) and what it means to be public (``server.settings``).
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.server.errors import ApiError, send_error
from treadle.server.keys import Keyring
from treadle.server.names import ANY_ORIGIN, host_name, is_unambiguous, origin_host
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
    server that has no key.

    Args:
        app: The next layer.
        settings: Which hosts and origins are allowed.
        keys: The keys accepted at present; without any everybody is let in.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, keys: Keyring) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(settings.allowed_hosts)
        # No name leads a browser to a socket file, so that none is suspicious there.
        self._takes_any_name = settings.socket is not None and not self._hosts
        if settings.socket is None and (self._hosts or settings.is_loopback):
            self._hosts = (self._hosts or _LOOPBACK_NAMES) | {host_name(settings.host)}
        self._origins = frozenset(settings.cors_origins)

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
        if origin is not None and self._allows(origin):
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

    def _allows(self, origin: str) -> bool:
        return origin.lower() in self._origins or ANY_ORIGIN in self._origins

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            raise ApiError(400, "expected one Host header", code="invalid_host")
        if not hosts or self._takes_any_name:  # none as in HTTP/1.0, which no browser speaks
            return
        name = host_name(hosts[0])
        if name in self._hosts or (not self._hosts and (self._keys or is_unambiguous(name))):
            return
        raise ApiError(
            403,
            f"this server does not answer to the name {hosts[0]!r:.80}; its operator can allow it with --allowed-host",
            "permission_error",
            code="host_not_allowed",
        )

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        # Not all that browsers send across sites is announced by a preflight, so the absence of an answer to it is no
        # protection from pages that only want the work done.
        if origin is None or self._allows(origin) or origin_host(origin) == headers.get("host", "").lower():
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
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        key_id = self._keys.find(given.encode("latin-1"))
        if key_id is None:
            raise ApiError(
                401,
                "expected a valid API key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                "authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        record = CURRENT.get()
        if record is not None:
            record.key_id = key_id


def _preflight(origin: str, headers: Headers) -> Mapping[str, str]:
    allowed = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "content-type"),
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        "Vary": "Origin",
    }
    if headers.get("access-control-request-private-network") == "true":  # a public page that calls this network
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return allowed


def _with_origin(send: Send, origin: str) -> Send:
    def send_out(message: Message) -> object:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "x-request-id, retry-after"
            headers.add_vary_header("Origin")
        return send(message)

    return send_out  # type: ignore[return-value]
