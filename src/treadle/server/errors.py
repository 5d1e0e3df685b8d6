"""Errors as HTTP answers: which status a failure has, and the JSON object clients expect.

Leaves to others: raising them. The Anthropic routes wrap the same facts in their own shape (``error_body``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from treadle.errors import (
    CapacityError,
    ClosedError,
    ContextError,
    DeadlineError,
    ModelFileError,
    RemoteError,
    TemplateError,
    TreadleError,
    UsageError,
)
from treadle.server.record import CURRENT

__all__ = [
    "ANTHROPIC_PREFIX",
    "ApiError",
    "Json",
    "add_error_handlers",
    "api_error",
    "error_body",
    "invalid_body",
    "send_error",
    "shutting_down",
]

_log = logging.getLogger("treadle.server")
_EXPECTED = "Input should be "
_MOST_MISTAKES = 1000  # taking them all out of pydantic would take seconds, in which nobody is answered
_NEAR = 0.8  # how alike paths must be for one to be what was meant by the other
# What each API calls the settings of the engine.
_FIELDS = {
    "/v1/chat/completions": {"prompt": "messages"},
    "/v1/completions": {"form": "structured_outputs"},
    "/v1/embeddings": {"prompt": "input"},
    "/v1/responses": {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"},
}
ANTHROPIC_PREFIX = "/v1/messages"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# What lets Anthropic's client send whole conversations instead of keeping them at the server.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@dataclass
class ApiError(Exception):
    """A failure a client is told about.

    ``kind`` and ``code`` are the API's ``type`` and ``code``; ``param`` is the path of the field at fault.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def api_error(error: BaseException) -> ApiError:
    """Say in the API's terms what went wrong; text of unforeseen errors stays in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):  # only what is in the URL is left to the framework
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return ApiError(400, f"{name}: {first['msg']}", param=name, code="invalid_value")
    if isinstance(error, UsageError):
        code = "context_length_exceeded" if isinstance(error, ContextError) else "invalid_value"
        field = "prompt" if isinstance(error, TemplateError) else error.field
        return ApiError(400, str(error), param=field, code=code)
    if isinstance(error, ModelFileError):
        return ApiError(400, str(error))
    return _server_error(error)


def _server_error(error: BaseException) -> ApiError:
    if isinstance(error, DeadlineError):
        return ApiError(504, str(error), "server_error", code="timeout")
    if isinstance(error, ClosedError):  # models in use are closed only by a server that ends
        return ApiError(503, str(error), "server_error", code="shutting_down", headers={"Retry-After": "5"})
    if isinstance(error, RemoteError):
        return ApiError(502, str(error), "server_error", code="engine_failed")
    if isinstance(error, CapacityError):
        return ApiError(503, str(error), "server_error", code="capacity", headers={"Retry-After": "5"})
    if isinstance(error, TreadleError):
        return ApiError(500, str(error), "server_error", code="internal_error")
    record = CURRENT.get()
    _log.error("unforeseen error in request %s", "" if record is None else record.request_id, exc_info=error)
    text = "an unforeseen error; the server's log has its traceback"
    return ApiError(500, text, "server_error", code="internal_error")


def shutting_down() -> ApiError:
    """Return the error for a request that comes too late."""
    headers = {"Retry-After": "5", "Connection": "close"}
    return ApiError(503, "the server is shutting down", "server_error", code="shutting_down", headers=headers)


def invalid_body(error: ValidationError) -> ApiError:
    """Turn what pydantic found into one sentence about the first field at fault."""
    if error.error_count() > _MOST_MISTAKES:
        return ApiError(400, f"the body has {error.error_count()} mistakes, too many to name one", code="invalid_value")
    found: Sequence[Mapping[str, Any]] = error.errors(include_url=False)
    first = found[0]
    path, is_union = _path(first["loc"])
    if is_union:  # the alternative that was meant is the one that got furthest
        found = _tagged_right(found)
        paths = [_path(other["loc"])[0] for other in found if other["loc"][0] == first["loc"][0]]
        path = max(paths, key=len)
        first = {**first, "type": "invalid", "msg": "; or ".join(dict.fromkeys(_messages_at(path, found)))}
    if first["type"] == "mistake":
        field = first["ctx"]["field"]
        path += f".{field}" if path and field[:1].isalpha() else field
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter: {path}", param=path, code="unknown_parameter")
    message = _sentence(first)
    code = "unsupported_parameter" if first["type"] == "unsupported" else "invalid_value"
    if first["type"] == "missing":
        code = "missing_required_parameter"
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}", code="invalid_json")
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None, code=code)


def _tagged_right(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out what is said of alternatives that are of another ``type``, except that they are."""
    others = {error["loc"][:-1] for error in found if error["type"] == "literal_error" and error["loc"][-1] == "type"}
    return [
        error
        for error in found
        if error["loc"][-1] == "type" or not any(error["loc"][: len(each)] == each for each in others)
    ]


def _messages_at(path: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_sentence(error) for error in found if _path(error["loc"])[0] == path]


def _sentence(error: Mapping[str, Any]) -> str:
    """Return what pydantic says of a field, in our words where it tells what a value should be."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if not message.startswith(_EXPECTED):
        return message
    expected = message.removeprefix(_EXPECTED)
    if expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return f"expected {expected}, found {_shown(error['input'])}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str):
        return f"{value!r:.60}"
    return "a list" if isinstance(value, Sequence) else json.dumps(value, default=str)[:60]


def _path(places: tuple[int | str, ...]) -> tuple[str, bool]:
    """Return the path of a field; true if it held alternatives of a type, whose names only pydantic knows."""
    path = ""
    is_union = False
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place in ("str", "int") or not place.isidentifier() or place[:1].isupper():
            is_union = True
        else:
            path += f".{place}" if path else place
    return path[:200], is_union


def error_body(error: ApiError, path: str = "") -> dict[str, Any]:
    """Return the JSON object of ``error`` in the shape of the API that ``path`` belongs to."""
    if path.startswith(ANTHROPIC_PREFIX):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        record = CURRENT.get()
        request_id = None if record is None else record.request_id
        told: dict[str, Any] = {"type": kind, "message": error.message}
        if error.param == "thread" and error.code == "unsupported_parameter":
            told["details"] = _NO_THREADS
        return {"type": "error", "error": told, "request_id": request_id}
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def add_error_handlers(app: FastAPI, paths: Sequence[str]) -> None:
    """Answer every foreseen exception of a route with ``error_body``; ``paths`` are all that there are."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        path = request.url.path
        found = _unroutable(error, request, paths) if isinstance(error, HTTPException) else api_error(error)
        if isinstance(error, UsageError) and found.param is not None:  # it has the engine's name for the field
            found = replace(found, param=_FIELDS.get(path, {}).get(found.param.partition("[")[0], found.param))
        return _response(found, path)

    handler: Callable[[Request, Exception], Awaitable[JSONResponse]] = handle
    for kind in (ApiError, TreadleError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handler)


def _unroutable(error: HTTPException, request: Request, paths: Sequence[str]) -> ApiError:
    """Say which route a request did not find, and which one may have been meant."""
    path = request.url.path[:200]
    asked = f"{request.method} {path!r}"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        text = f"{asked}: expected {headers.get('Allow', 'another method')}"
        return ApiError(405, text, code="method_not_allowed", headers=headers)
    if error.status_code != 404 or error.detail != "Not Found":
        return ApiError(error.status_code, str(error.detail), headers=headers)
    near = get_close_matches(path, paths, 1, _NEAR)
    known = f"did you mean {near[0]}?" if near else "GET /openapi.json lists those there are"
    return ApiError(404, f"{asked}: there is no such route; {known}", code="unknown_url", headers=headers)


async def send_error(error: BaseException, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that met ``error`` outside of any route."""
    await _response(api_error(error), scope["path"])(scope, receive, send)


def _response(error: ApiError, path: str) -> JSONResponse:
    record = CURRENT.get()
    if record is not None:
        record.code = error.code
    return Json(error_body(error, path), status_code=error.status, headers=dict(error.headers))


class Json(JSONResponse):
    """JSON that can carry whatever a client sent: lone surrogates are escaped rather than refused."""

    def render(self, content: Any) -> bytes:
        """Return ``content`` in ASCII."""
        return json.dumps(content).encode("ascii")
