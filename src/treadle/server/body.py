"""Reads a request body within its limit and checks it against a schema.

Leaves to others: what a body may hold (``server.schema``) and how a refusal looks (``server.errors``).
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from treadle.server.disconnect import ClientGoneError
from treadle.server.errors import ApiError, invalid_body
from treadle.server.schema.base import Body
from treadle.server.settings import ServerSettings

__all__ = ["body_schema", "read_body"]

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_Schema = TypeVar("_Schema", bound=Body)


async def read_body(request: Request, schema: type[_Schema], settings: ServerSettings) -> _Schema:
    """Return the body as ``schema``.

    Raises:
        ApiError: 408 for a body that takes too long, 413 for one that is too large, 415 for another content type or a
            compressed one, 400 for all else that is wrong.
        ClientGoneError: The client left before its body was complete.
    """
    _check_media_type(request.headers)
    try:
        data = await asyncio.wait_for(_read(request, settings.max_body_bytes), settings.client_timeout)
    except asyncio.TimeoutError:
        text = f"the body did not come within {settings.client_timeout:g} s, the limit here"
        raise ApiError(408, text, code="body_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    try:
        return schema.model_validate_json(_checked_json(data))
    except ValidationError as error:
        raise invalid_body(error) from None


def body_schema(schema: type[Body]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that reads ``schema``."""
    name = schema.__name__
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
        }
    }


def _check_media_type(headers: Headers) -> None:
    kind, _, parameters = headers.get("content-type", "application/json").lower().partition(";")
    kind = kind.strip()
    if kind != "application/json" and not kind.endswith("+json"):
        raise _unsupported(f"expected a body of type application/json, found {kind[:80]}")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in _CHARSETS:
            raise _unsupported(f"expected JSON in UTF-8, found {value.strip()[:80]}")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise _unsupported(f"expected a body as it is, found one encoded as {encoding[:80]}")


def _unsupported(message: str) -> ApiError:
    return ApiError(415, message, code="unsupported_media_type")


def _checked_json(data: bytes) -> bytes:
    """Return JSON without the mark some editors put before it; raises ApiError for numbers that JSON does not have."""
    data = data.removeprefix(BOM_UTF8)
    if b"NaN" in data or b"Infinity" in data:  # pydantic takes them where any value may be
        try:
            from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    return data


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes, the limit here", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > max_bytes:
            raise too_large
    return bytes(chunks)
