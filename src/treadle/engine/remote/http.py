"""Talks HTTP with an engine elsewhere: a bounded pool of connections, time limits, errors in our terms.

Leaves to others: what is asked and answered (``remote.request``, ``remote.answer``), and asking again (``retry``).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx

from treadle.engine.remote.sse import read_events
from treadle.errors import CapacityError, ContextError, RemoteError, TreadleError, UsageError

if TYPE_CHECKING:
    from treadle.engine.remote.address import RemoteAddress

__all__ = ["RemoteHttp", "RemoteLimits", "TryAgainError", "error_in"]

MAX_BODY_BYTES = 64 << 20  # of an answer that is not streamed
_MAX_ERROR_BYTES = 64 << 10
_MAX_REASON_CHARS = 500
_MAX_FIELD_CHARS = 200
_REST_SECONDS = 0.5
_BUSY = frozenset({429, 503, 529})
_RETRIED = _BUSY | {408, 425, 502, 504}
_JSON = {"Content-Type": "application/json"}
# How OpenAI and llama.cpp call a prompt that is too long for the context, and how vLLM's message puts it.
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS = "maximum context length"
_DENIED = frozenset({401, 403})


@dataclass(frozen=True)
class RemoteLimits:
    """What an engine elsewhere is given; times in seconds.

    Args:
        connect_timeout: For a connection to be made.
        read_timeout: Without a sign of life; it must be enough for the longest prompt, before which nothing comes.
        max_retries: How often a request is repeated that failed before its first token.
        max_connections: Most requests at a time; more wait for their turn.

    Raises:
        UsageError: A value is out of range.
    """

    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    max_retries: int = 4
    max_connections: int = 128

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "read_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}: expected seconds above 0, found {getattr(self, name)}")
        if self.max_retries < 0 or self.max_connections < 1:
            raise UsageError("max_retries: expected at least 0, and max_connections at least 1")


class TryAgainError(Exception):
    """A request failed in a way that another attempt may mend; ``error`` is what to raise if none does.

    ``delay_seconds`` is how long the server wants to be left alone, if it said so.
    """

    def __init__(self, error: TreadleError, delay_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.delay_seconds = delay_seconds


class RemoteHttp:
    """The connections to one engine; for the event loop it is made in.

    Args:
        address: Where the engine is.
        api_key: Sent as a bearer token, if there is one.
        limits: Times and numbers.
    """

    def __init__(self, address: RemoteAddress, api_key: str | None, limits: RemoteLimits) -> None:
        self._host = address.host
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            limits=httpx.Limits(
                max_connections=limits.max_connections, max_keepalive_connections=limits.max_connections
            ),
            timeout=httpx.Timeout(limits.read_timeout, connect=limits.connect_timeout, pool=None),
        )

    async def get(self, url: str) -> Any:
        """Return the JSON at ``url``; raises as ``events`` does."""
        async with self._send("GET", url, None) as response:
            return _parse(self._host, await _read(self._host, response))

    async def post(self, url: str, body: dict[str, Any]) -> Any:
        """Return the JSON that answers ``body``; raises as ``events`` does."""
        async with self._send("POST", url, body) as response:
            return _parse(self._host, await _read(self._host, response))

    async def events(self, url: str, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Iterate over the events that answer ``body``; an answer in one piece is a single event.

        Raises:
            TryAgainError: The connection failed, or the server is busy or not there.
            UsageError: The server refused the request.
            RemoteError: The server failed, wants another key, or does not speak the protocol.
        """
        async with self._send("POST", url, body) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/event-stream":
                pieces = response.aiter_bytes()
                async for data in read_events(self._host, pieces):
                    yield _parse(self._host, data)
                await _read_rest(pieces)
            else:
                yield _parse(self._host, await _read(self._host, response))

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    @asynccontextmanager
    async def _send(self, method: str, url: str, body: dict[str, Any] | None) -> AsyncIterator[httpx.Response]:
        try:
            async with self._client.stream(method, url, content=_encode(body), headers=_JSON) as response:
                await self._check(response)
                yield response
        except httpx.TimeoutException as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no sign of life"
            raise TryAgainError(RemoteError(f"the engine at {self._host} gave {what} in time")) from error
        except httpx.TransportError as error:
            raise self._broken(error) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(f"the engine at {self._host}: {_reason(error)}") from error

    def _broken(self, error: httpx.TransportError) -> Exception:
        if isinstance(error, httpx.UnsupportedProtocol):
            return UsageError(f"the engine at {self._host}: {_reason(error)}")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return RemoteError(
                f"the engine at {self._host} cannot be trusted: {_reason(error)}",
                hint="name the authority that signed its certificate in SSL_CERT_FILE",
            )
        if isinstance(error, httpx.ConnectError):
            return TryAgainError(
                RemoteError(
                    f"the engine at {self._host} cannot be reached: {_reason(error)}",
                    hint="start a server there, or give the URL of one that runs, such as http://HOST:8080/v1",
                )
            )
        return TryAgainError(RemoteError(f"the connection to the engine at {self._host} broke: {_reason(error)}"))

    async def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == httpx.codes.OK:
            return
        if response.is_redirect:
            target = response.headers.get("location", "")
            raise RemoteError(f"the engine at {self._host} has moved to {target:.200}", hint="give that URL instead")
        message, code, field = _error_of(await _read(self._host, response, most=_MAX_ERROR_BYTES, cuts=True))
        said = f"{message or response.reason_phrase} (status {status})"
        if status in _BUSY:
            raise TryAgainError(CapacityError(f"the engine at {self._host} is busy: {said}"), _retry_after(response))
        if status in _RETRIED:
            raise TryAgainError(RemoteError(f"the engine at {self._host} failed: {said}"), _retry_after(response))
        if status in _DENIED:
            raise RemoteError(
                f"the engine at {self._host} denies access: {said}", hint="set TREADLE_ENGINE_API_KEY to a key it knows"
            )
        if 400 <= status < 500:
            is_too_long = code in _TOO_LONG or _TOO_LONG_WORDS in message
            refused = f"the engine at {self._host} refused: {said}"
            raise ContextError(refused, field=field or "prompt") if is_too_long else UsageError(refused, field=field)
        raise RemoteError(f"the engine at {self._host} failed: {said}")


async def _read_rest(pieces: AsyncIterator[bytes]) -> None:
    """Read what may follow the end mark, so that the connection can serve another request; wait for nothing."""

    async def read() -> None:
        async for _ in pieces:
            pass

    with suppress(asyncio.TimeoutError, httpx.HTTPError):
        await asyncio.wait_for(read(), _REST_SECONDS)


def error_in(event: Any) -> str | None:
    """Return what an event in the middle of an answer says of a failure, if that is what it is."""
    if not isinstance(event, dict) or not (event.get("error") or event.get("object") == "error"):
        return None
    return _error_of(json.dumps(event).encode())[0] or "it gave no reason"


async def _read(host: str, response: httpx.Response, *, most: int = MAX_BODY_BYTES, cuts: bool = False) -> bytes:
    """Return the body, or what fits of it if it may be cut."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > most:
            if cuts:
                break
            raise RemoteError(f"the engine at {host} sent an answer of more than {most} bytes")
    return bytes(body[:most])


def _encode(body: dict[str, Any] | None) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}") from None


def _parse(host: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = data[:80].decode(errors="replace")
        raise RemoteError(f"the engine at {host} sent what is no JSON ({error}): {shown!r}") from None


def _error_of(body: bytes) -> tuple[str, str | None, str | None]:
    """Return what a body says about a failure, its code or type, and the field at fault; servers differ in the way."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace").strip()[:_MAX_REASON_CHARS], None, None
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail") or ""
        names = [name for name in (inner.get("code"), inner.get("type")) if isinstance(name, str)]
        field = inner.get("param")
        field = field[:_MAX_FIELD_CHARS] if isinstance(field, str) else None
        return str(message)[:_MAX_REASON_CHARS], next(iter(names), None), field
    return str(inner)[:_MAX_REASON_CHARS], None, None


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the header names, as a number or as a date."""
    value = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _reason(error: Exception) -> str:
    return str(error)[:_MAX_REASON_CHARS] or type(error).__name__
