"""The page at ``/``, its files under ``/dashboard/`` and ``/stats``, the figures it shows.

Leaves to others: what the page does (``server.dashboard``) and what the figures are (``server.statistics``).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

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
    "Cache-Control": "no-cache",
}


def _read_files() -> dict[str, bytes]:
    folder = files("treadle.server") / "dashboard"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}


_FILES = _read_files()


@router.get("/", summary="Chat with the models and watch the engine", include_in_schema=False)
async def page() -> Response:
    """Return the page."""
    return _file(_PAGE)


@router.get("/dashboard/{name}", include_in_schema=False)
async def asset(name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise HTTPException(404, f"the page has no file {name!r:.80}")
    return _file(name)


@router.get("/stats", summary="Tell how the engine is doing")
async def stats(request: Request) -> dict[str, Any]:
    """Return load, speed, cache hits, memory and recent requests of each model; no text of any request."""
    state = state_of(request)
    return server_statistics(state.hub, state.machine)


def _file(name: str) -> Response:
    return Response(_FILES[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
