"""The page at ``/``, its files under ``/dashboard/`` and ``/stats``, the figures it shows.

Leaves to others: what the page does (``server.dashboard``) and what the figures are (``server.statistics``).
"""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from treadle.errors import UsageError
from treadle.server.recent import MOST_KEPT
from treadle.server.state import state_of
from treadle.server.statistics import server_statistics

__all__ = ["router"]

router = APIRouter(tags=["dashboard"])

_PAGE = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page shows what a model wrote. Should any of it ever be taken for markup, nothing in it may run or call out.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Kept by browsers, which ask each time whether it is still what they have: the page of one version never meets the
    # scripts of another.
    "Cache-Control": "no-cache",
}


# Read by the route itself, so that a wrong one is refused in the words and the shape of all other refusals.
_REQUESTS = {
    "name": "requests",
    "in": "query",
    "description": "How many recent requests of each model.",
    "schema": {"type": "integer", "minimum": 0, "maximum": MOST_KEPT, "default": MOST_KEPT},
}


class _File(NamedTuple):
    content: bytes
    type: str
    tag: str


def _read_files() -> dict[str, _File]:
    found = {}
    for file in (files("treadle.server") / "dashboard").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


_FILES = _read_files()


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page(request: Request) -> Response:
    """Return the page."""
    return _file(request, _PAGE)


@router.api_route("/dashboard/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def asset(request: Request, name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise HTTPException(404, f"the page has no file {name!r:.80}")
    return _file(request, name)


@router.get("/stats", openapi_extra={"parameters": [_REQUESTS]}, summary="Tell how the engine is doing")
async def stats(request: Request) -> Response:
    """Return load, speed, cache hits, memory and recent requests of each model; no text of any request."""
    requests = request.query_params.get("requests", f"{MOST_KEPT}")
    if not (requests.isascii() and requests.isdigit() and int(requests[:4]) <= MOST_KEPT):
        raise UsageError(f"requests: expected 0 to {MOST_KEPT}, found {requests!r:.40}")
    state = state_of(request)
    found = server_statistics(
        state.hub,
        state.machine,
        max_output_tokens=state.settings.output_limit(None),
        most_requests=int(requests),
    )
    return Response(json.dumps(found), media_type="application/json", headers={"Cache-Control": "no-store"})


def _file(request: Request, name: str) -> Response:
    file = _FILES[name]
    headers = {**_HEADERS, "ETag": file.tag}
    known = request.headers.get("if-none-match", "").split(",")
    if any(tag.strip().removeprefix("W/") in (file.tag, "*") for tag in known):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.type, headers=headers)
