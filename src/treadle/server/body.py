"""Reads a request body within its limit and checks it against a schema.

Leaves to others: what a body may hold (``server.schema``) and how a refusal looks (``server.errors``).
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from treadle.server.disconnect import ClientGoneError
from treadle.server.errors import ApiError, invalid_body
from treadle.server.schema.base import Body
from treadle.server.settings import ServerSettings

__all__ = ["body_schema", "read_body"]

_Schema = TypeVar("_Schema", bound=Body)


async def read_body(request: Request, schema: type[_Schema], settings: ServerSettings) -> _Schema:
    """Return the body as ``schema``.

    Raises:
        ApiError: 408 for a body that takes too long, 413 for one that is too large, 415 for another content type or a
            compressed one, 400 for all else that is wrong.
        ClientGoneError: The client left before its body was complete.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415, f"expected a body of type application/json, found {kind[:80]}", code="unsupported_media_type"
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, f"expected a body without coding, found {coding[:80]}", code="unsupported_media_type")
    try:
        data = await asyncio.wait_for(_read(request, settings.max_body_bytes), settings.client_timeout)
    except asyncio.TimeoutError:
        text = f"the body did not come within {settings.client_timeout:g} s, the limit here"
        raise ApiError(408, text, code="body_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    try:
        return schema.model_validate_json(data)
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
